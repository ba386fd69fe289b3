"""AMQP 1.0 without I/O: codec, frames, and an engine for either role. Knows nothing of Penstock."""
