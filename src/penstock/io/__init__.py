"""I/O that several packages need, written once. Pure packages do not import it."""
