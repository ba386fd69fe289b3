"""Small shared parts that touch files and sockets."""
