"""What exists: `api` is the contract, `memory` and `sqlite` keep it."""
