"""Administrative operations, their API in the form of Azure Resource Manager, and its client."""

from __future__ import annotations
