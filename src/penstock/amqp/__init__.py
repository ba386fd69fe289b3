"""AMQP 1.0 without I/O, for either role. The package knows nothing of Penstock.

`encoder` and `decoder` convert single values, `message` converts whole messages, `frames` and
`performatives` the frames of a connection. `connection.ConnectionEngine` is the protocol engine:
the caller passes in received bytes and the time, and gets back events and bytes to send.
"""
