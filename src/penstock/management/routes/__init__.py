"""The routes of the management API, by what they manage."""
