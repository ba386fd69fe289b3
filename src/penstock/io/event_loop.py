"""The event loop that every Penstock process and thread uses."""

from __future__ import annotations

import asyncio


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A new loop of uvloop where it is installed (docs/decisions.md), else of asyncio. Both work
    alike. For `asyncio.Runner(loop_factory=new_event_loop)`."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
