"""Partition commit logs. `api` is the contract; `memory` and `embedded` are its log engines."""
