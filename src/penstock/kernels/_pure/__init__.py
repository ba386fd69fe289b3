"""The kernels in plain Python: the specification, and what runs where nothing is compiled."""
