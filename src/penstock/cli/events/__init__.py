"""Commands that send and read events."""
