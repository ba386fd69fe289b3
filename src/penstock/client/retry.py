"""Retries by the rules of the SDKs (protocol.md 6.3): a few, each after a longer pause."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Literal, TypeVar

import msgspec

from penstock.client.errors import ClientError, ClientThrottled
from penstock.model.backoff import Backoff
from penstock.model.errors import ArgumentError

T = TypeVar("T")
BUSY_S = 4.0
"""A busy service asks to wait 4 seconds; this is added to the pause."""
_JITTER = 0.2


class RetryPolicy(msgspec.Struct, frozen=True):
    """How often a failed operation is retried, and after which pauses.

    `retry_total` does not count the first attempt. The pause is `backoff_s`, doubled each time when
    `mode` is "exponential", never above `backoff_max_s`, and up to a fifth longer or shorter by
    chance.
    """

    retry_total: int = 3
    backoff_s: float = 0.8
    backoff_max_s: float = 120
    mode: Literal["exponential", "fixed"] = "exponential"

    def __post_init__(self) -> None:
        if self.retry_total < 0 or self.backoff_s < 0 or self.backoff_max_s < 0:
            raise ArgumentError("A RetryPolicy's numbers may not be below 0.")
        if self.mode not in ("exponential", "fixed"):
            raise ArgumentError("A RetryPolicy's mode is 'exponential' or 'fixed'.")

    def pause_s(self, tries: int, error: ClientError, chance: float = 0.5) -> float:
        """The pause after that many failed attempts; `chance` is a random number from 0 to 1."""
        backoff = Backoff(self.backoff_s, self.backoff_max_s, _JITTER)
        pause_s = backoff.pause_s(tries if self.mode == "exponential" else 1, chance)
        return pause_s + BUSY_S if isinstance(error, ClientThrottled) else pause_s


class RetryAttempts:
    """Counts the failed attempts of one operation."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._failed = 0

    def reset(self) -> None:
        """The operation succeeded: count from 0 again."""
        self._failed = 0

    async def wait_or_raise(self, error: ClientError) -> None:
        """Pause before the next attempt. Raises `error` where there is none."""
        self._failed += 1
        if error.is_final or self._failed > self._policy.retry_total:
            raise error
        await asyncio.sleep(self._policy.pause_s(self._failed, error, random.random()))  # noqa: S311

    async def run(self, operation: Callable[[], Awaitable[T]]) -> T:
        """The result of `operation`, retried by the policy. Raises its last ClientError."""
        while True:
            try:
                return await operation()
            except ClientError as error:
                await self.wait_or_raise(error)


async def with_retry(policy: RetryPolicy, operation: Callable[[], Awaitable[T]]) -> T:
    """`RetryAttempts.run` of a single operation."""
    return await RetryAttempts(policy).run(operation)
