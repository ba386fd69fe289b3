"""Penstock: Azure Event Hubs that you run yourself."""

__version__ = "0.1.0"
