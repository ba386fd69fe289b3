"""Commands that run, check and maintain a service and its data directory."""
