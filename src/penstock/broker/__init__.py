"""Event Hubs semantics without sockets or disks: publishing, reading, throughput units, usage.

Uses `log.api` and `catalog.api` only. Nothing here starts a thread, and nothing blocks except where
a docstring says so.
"""

from __future__ import annotations

from penstock.broker.accounts import Account, Accounts
from penstock.broker.broker import Broker
from penstock.broker.counters import HubCounters
from penstock.broker.hub import HubRuntime, ReaderView
from penstock.broker.idempotent_producers import ALREADY_STORED, ProducerLink
from penstock.broker.reader import FetchResult, OnEnd, OnReady, Reader, ReadState
from penstock.broker.round_queue import RoundQueue
from penstock.broker.senders import SenderLink
from penstock.broker.throttle import Throttle

__all__ = [
    "ALREADY_STORED",
    "Account",
    "Accounts",
    "Broker",
    "FetchResult",
    "HubCounters",
    "HubRuntime",
    "OnEnd",
    "OnReady",
    "ProducerLink",
    "ReadState",
    "Reader",
    "ReaderView",
    "RoundQueue",
    "SenderLink",
    "Throttle",
]
