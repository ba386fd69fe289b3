"""Types that all packages share: names, entities, events, positions, limits, errors, clock.

Imports nothing of Penstock and no I/O. Import the submodules (`from penstock.model import errors`).
"""
