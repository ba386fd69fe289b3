"""The connection guard: limits what a peer may cost, before and after it is authenticated.

All protocols share its three parts:

- `AddressLimits`: connections per address, authenticated or not; penalties.
- `WorkQueue` and `WorkBudget`: measured processor time per connection.
- `AuthDelay`: delays answers to failed authentication, never those to a valid token.
"""

from __future__ import annotations

import asyncio

from penstock.gateway.guard.address_limits import AddressLimits, ConnectionSlot, network_of
from penstock.gateway.guard.auth_delay import AuthDelay, policy_of
from penstock.gateway.guard.work_budget import WorkBudget, WorkClock, WorkQueue
from penstock.model.clock import SystemClock

__all__ = [
    "SLOT",
    "AddressLimits",
    "AuthDelay",
    "ConnectionSlot",
    "Guard",
    "WorkBudget",
    "WorkClock",
    "WorkQueue",
    "network_of",
    "policy_of",
]

SLOT = "penstock.slot"  # in the state of an ASGI scope: the slot of the socket below


class Guard:
    """The guard of a set of listeners. All calls happen on the event loop's thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        clock: WorkClock | None = None,
        addresses: AddressLimits | None = None,
        auth_delay: AuthDelay | None = None,
    ) -> None:
        clock = clock or SystemClock()
        self.monotonic_ms = clock.monotonic_ms
        self.work = WorkQueue(loop, clock)
        self.addresses = AddressLimits(clock.monotonic_ms) if addresses is None else addresses
        self.auth_delay = AuthDelay() if auth_delay is None else auth_delay

    def admit(self, host: str) -> ConnectionSlot | None:
        """A slot for an accepted socket; None if its address may have no more connections."""
        slot = self.addresses.admit(host)
        if slot is not None:
            slot.budget = WorkBudget(self.work, slot.address, on_drop=slot.drop)
        return slot

    def detached_slot(self, host: str) -> ConnectionSlot:
        """A slot that counts for no address, for a connection that came through no listener."""
        slot = self.addresses.detached_slot(host)
        slot.budget = WorkBudget(self.work, slot.address, on_drop=slot.drop)
        return slot
