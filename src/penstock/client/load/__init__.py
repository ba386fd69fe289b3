"""The load generator behind `penstock bench`: producers, consumers, measurements."""
