"""The AMQP door: TCP, TLS and WebSocket transports over one driver per connection."""
