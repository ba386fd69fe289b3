"""Collections visit a bounded number of objects; cycles are found all the same."""

from __future__ import annotations

import subprocess
import sys
import textwrap

PRELUDE = """
import asyncio, gc, sys, weakref
from penstock.service import garbage_collection
from penstock.service.garbage_collection import OLD_OBJECTS_MAX, GarbageCollection

class Node:
    pass

visited = []

def watch(phase, info):
    if phase == "start":
        visited.append(sum(len(gc.get_objects(g)) for g in range(info["generation"] + 1)))

async def create(count):
    nodes = []
    for number in range(count):
        nodes.append(Node())
        if number % 100 == 0:
            await asyncio.sleep(0)
    return nodes

async def main():
    garbage_collection._FROZEN_OBJECTS_MIN = 100_000
    garbage_collection._INTERVAL_S = EVERY_S
    collection = GarbageCollection(asyncio.get_running_loop())
    kept = await create(100_000)
    collection.start()
    gc.callbacks.append(watch)
    await check(kept)
    collection.close()
    print("well")
"""


def run(check: str, *, interval_s: float = 60) -> None:
    """In a process of its own: freezing is for all of it."""
    prelude = PRELUDE.replace("EVERY_S", str(interval_s))
    program = prelude + textwrap.dedent(check) + "\nasyncio.run(main())\n"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "well\n", done.stderr


def test_objects_that_stay_are_visited_by_few_collections() -> None:
    run(
        """
        async def check(kept):
            assert gc.get_freeze_count() > 100_000
            more = await create(80_000)
            assert gc.get_freeze_count() > 150_000
            assert len(visited) > 10
            assert max(visited) < 3 * OLD_OBJECTS_MAX
        """
    )


def test_cycles_among_new_objects_are_collected_and_nothing_is_frozen_for_them() -> None:
    run(
        """
        async def check(kept):
            frozen = gc.get_freeze_count()
            seen = []
            for number in range(200_000):
                node = Node()
                node.itself = node
                if number < 1000:
                    seen.append(weakref.ref(node))
                if number % 100 == 0:
                    await asyncio.sleep(0)
            assert all(reference() is None for reference in seen)
            assert gc.get_freeze_count() < frozen + 1000
        """
    )


def test_cycles_among_frozen_objects_are_collected_when_their_number_has_doubled() -> None:
    run(
        """
        async def check(kept):
            first = await create(50_000)
            assert gc.get_freeze_count() > 140_000
            seen = weakref.ref(first[0])
            first[0].others = first  # a cycle among frozen objects
            del first
            gc.collect()
            assert seen() is not None
            more = await create(100_000)
            assert seen() is None
            assert max(visited) > 100_000
        """
    )


def test_free_lists_are_emptied_in_intervals() -> None:
    """Python keeps up to 2,000 freed tuples of each length: resident memory grew for hours."""
    run(
        """
        def kept_tuples():
            before = sys.getallocatedblocks()
            gc.collect()
            return before - sys.getallocatedblocks()

        async def check(kept):
            gc.collect()
            for _ in range(1_000):
                tuple(number for number in range(8))
            assert kept_tuples() > 900
            for _ in range(1_000):
                tuple(number for number in range(8))
            collected = asyncio.Event()
            gc.callbacks.append(
                lambda phase, info: collected.set() if info["generation"] == 2 else None
            )
            async with asyncio.timeout(30):
                await collected.wait()
            assert kept_tuples() < 100
        """,
        interval_s=0.05,
    )
