"""Brute force: how long the answer to a token that failed waits (design.md 7).

Every token is verified, whatever came before it: a good one is answered at once. Only answers that
say "no" are slowed, by policy name and address, and more so the more of them there were.
"""

from __future__ import annotations

from penstock.auth.token import parse_token
from penstock.model import limits
from penstock.model.errors import AuthFailed
from penstock.model.names import key

# Each further failure doubles the wait until it is at its longest; more are not counted, so that
# what was forgotten is forgotten soon.
_FAILURES_COUNTED = (
    limits.BACKOFF_FREE_FAILURES
    + 1
    + (limits.BACKOFF_MS_MAX // limits.BACKOFF_FIRST_MS).bit_length()
)


class Backoff:
    """Failures remembered by (policy, address); times are monotonic milliseconds. Shared by all
    doors: trying at another one does not help.

    A good token clears nothing: behind one address there may be a client and somebody who guesses.
    """

    def __init__(
        self,
        *,
        entries_max: int = limits.BACKOFF_ENTRIES_MAX,
        waiting_max: int = limits.BACKOFF_WAITING_MAX,
    ) -> None:
        self._entries_max = entries_max
        self._waiting_max = waiting_max
        self._failures: dict[tuple[str, str], tuple[int, int]] = {}  # count, when; oldest first
        self.waiting = 0  # answers that wait now

    def __len__(self) -> int:
        return len(self._failures)

    def failed(self, policy: str, address: str, *, now_ms: int) -> int:
        """Count a failure; the milliseconds that its answer is to wait. `policy` is a peer's text,
        "" where there was none; `address` says who counts as one."""
        # No policy has a longer name: whatever is longer counts as one.
        entry = (key(policy[: limits.RULE_NAME_MAX + 1]), address)
        count, since_ms = self._failures.pop(entry, (0, now_ms))
        forgotten = (now_ms - since_ms) // limits.BACKOFF_FORGET_MS
        if forgotten >= count:
            count, since_ms = 0, now_ms
        else:
            count, since_ms = count - forgotten, since_ms + forgotten * limits.BACKOFF_FORGET_MS
        count = min(count + 1, _FAILURES_COUNTED)
        if count == _FAILURES_COUNTED:
            since_ms = now_ms  # still at it
        if len(self._failures) >= self._entries_max:
            del self._failures[next(iter(self._failures))]
        self._failures[entry] = (count, since_ms)
        return _delay_ms(count)

    def wait(self) -> bool:
        """One more answer waits; False when too many do: that one is not to be given at all."""
        if self.waiting >= self._waiting_max:
            return False
        self.waiting += 1
        return True

    def waited(self) -> None:
        """It was given, or its peer is gone."""
        self.waiting -= 1
        assert self.waiting >= 0


def policy_of(token: object) -> str:
    """The policy that a token names, true or not; "" when it names none."""
    if not isinstance(token, str):
        return ""
    try:
        return parse_token(token).key_name
    except AuthFailed:
        return ""


def _delay_ms(failures: int) -> int:
    counted = failures - limits.BACKOFF_FREE_FAILURES
    if counted <= 0:
        return 0
    return min(limits.BACKOFF_FIRST_MS << (counted - 1), limits.BACKOFF_MS_MAX)
