"""Events and quantities as people read and write them: one grammar, one record, one text.

The package is pure: it reads no clock and no file. CLI, portal, management and Spark use it.
"""
