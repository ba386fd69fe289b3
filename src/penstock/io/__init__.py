"""Small shared parts that touch files."""
