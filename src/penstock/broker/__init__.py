"""Event Hubs semantics without sockets or disks: publishing, reading, throughput units, usage.

Uses `log.api` and `catalog.api` only. Nothing here starts a thread, and nothing blocks except where
a docstring says so.
"""
