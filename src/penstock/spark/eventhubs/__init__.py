"""The format `eventhubs` of Spark: source and sink."""
