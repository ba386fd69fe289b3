"""The composition root: configuration, data directory, certificates, wiring, life and death."""
