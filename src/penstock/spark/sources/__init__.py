"""Classes that Spark makes us derive from its own: the only modules that load PySpark at once.

Whoever does not run Spark never imports them (`tests/tidy/test_imports.py`).
"""
