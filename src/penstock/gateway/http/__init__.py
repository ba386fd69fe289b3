"""The HTTP door: listeners for ASGI applications (REST publishing comes to live here)."""
