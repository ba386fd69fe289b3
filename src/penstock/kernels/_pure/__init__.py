"""The kernels in pure Python: their specification, used where none are compiled."""
