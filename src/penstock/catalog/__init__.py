"""What exists: `api` has the catalog, `memory` and `sqlite` store it."""
