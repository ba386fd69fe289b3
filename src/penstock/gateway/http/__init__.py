"""HTTPS: publishing, checkpoints, revoked publishers, and WebSockets for AMQP."""
