"""AMQP over TCP, TLS and WebSocket: one `AmqpConnection` per connection."""
