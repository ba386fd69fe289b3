"""Partition commit logs: `api` is the contract, `memory` and `embedded` keep it."""
