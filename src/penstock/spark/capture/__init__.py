"""Capture on Spark: the job, its source and sink, and reading, verifying and compacting files."""
