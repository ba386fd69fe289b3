"""Trying again, by the SDKs' rules (protocol.md 6.3): a few times, each after a longer pause."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Literal, TypeVar

import msgspec

from penstock.client.errors import ClientError, ClientThrottled
from penstock.model.errors import ArgumentError

T = TypeVar("T")
BUSY_S = 4.0
"""The service says "Please wait 4 seconds" when it is busy; so much is added to the pause."""
_JITTER = 0.2  # a fleet that was cut off must not come back in step
_EXPONENT_MAX = 32


class RetryPolicy(msgspec.Struct, frozen=True):
    """How often, and after which pauses, something that failed for a while is tried again.

    `retry_total` counts tries beside the first. The pause is `backoff_s`, doubled each time when
    `mode` is "exponential", never above `backoff_max_s`, and a little shorter or longer by chance.
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
        """The pause after so many tries that failed; `chance` is 0 to 1."""
        pause = self.backoff_s
        if self.mode == "exponential":
            pause *= 2 ** min(tries - 1, _EXPONENT_MAX)
        pause = min(pause, self.backoff_max_s) * (1 + _JITTER * (2 * chance - 1))
        return pause + BUSY_S if isinstance(error, ClientThrottled) else pause


class RetryAttempts:
    """Counts the failures of one undertaking; `failed` pauses, or raises when it was the last."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._failed = 0

    def reset(self) -> None:
        """What fails from now on is another matter."""
        self._failed = 0

    async def wait_or_raise(self, error: ClientError) -> None:
        self._failed += 1
        if error.is_final or self._failed > self._policy.retry_total:
            raise error
        await asyncio.sleep(self._policy.pause_s(self._failed, error, random.random()))  # noqa: S311


async def with_retry(policy: RetryPolicy, act: Callable[[], Awaitable[T]]) -> T:
    """The result of `act`, tried again as the policy says; its last ClientError otherwise."""
    tries = RetryAttempts(policy)
    while True:
        try:
            return await act()
        except ClientError as error:
            await tries.wait_or_raise(error)
