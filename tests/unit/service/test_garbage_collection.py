"""After the start a full collection no longer visits what the start created."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc, weakref
from penstock.service.garbage_collection import freeze_after_start

class Node:
    pass

kept = [Node() for _ in range(100_000)]
freeze_after_start()
assert gc.get_freeze_count() > 100_000
assert len(gc.get_objects()) < 10_000

node = Node()  # a cycle that is made later is still found
node.itself = node
seen = weakref.ref(node)
del node
gc.collect()
assert seen() is None
assert gc.isenabled()
print("well")
"""


def test_objects_of_the_start_are_frozen_and_later_cycles_are_collected() -> None:
    """In a process of its own: freezing is for good."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "well\n", done.stderr
