"""Commands for pipelines, Capture and Spark's own programs."""
