"""Every administrative act as one function, the ARM-shaped API over them, and its typed client.

Light to import: the API itself (`management.api`) is loaded with the first request to it.
"""

from __future__ import annotations
