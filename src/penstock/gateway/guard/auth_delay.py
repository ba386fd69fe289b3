"""Delay after failed authentication, per policy name and address (protocol.md 2.3).

Every token is verified, whatever came before it, and a valid one is answered at once. Only answers
to failed tokens are delayed. Failures are counted per policy and address, and per address over all
policies, so guessing with changing policy names is delayed as well.
"""

from __future__ import annotations

from penstock.auth.sas import parse_token
from penstock.model import limits, names
from penstock.model.errors import AuthFailed

# Each further failure doubles the delay up to its maximum. More failures are not counted, so a long
# attack is forgotten as fast as a short one.
_FAILURES_COUNTED = (
    limits.BACKOFF_FREE_FAILURES
    + 1
    + (limits.BACKOFF_MS_MAX // limits.BACKOFF_FIRST_MS).bit_length()
)
_ANY_POLICY = "\0"  # no policy has this name
_POLICIES_FREE = 16  # failures of an address over all policies count a 16th


class AuthDelay:
    """Failures by (policy, address); times are monotonic milliseconds. Shared by all protocols.

    A valid token clears nothing: a client and an attacker may share one address. Tests lower the
    limits.
    """

    entries_max = limits.BACKOFF_ENTRIES_MAX
    waiting_max = limits.BACKOFF_WAITING_MAX

    def __init__(self) -> None:
        self._failures: dict[tuple[str, str], tuple[int, int]] = {}  # count, when; oldest first
        self.waiting = 0  # answers that are delayed now, of all connections

    def fail(self, policy: str, address: str, *, now_ms: int) -> int:
        """Count a failure; return the milliseconds by which its answer is delayed. `policy` is the
        peer's text, "" if there was none."""
        # No policy has a longer name: all longer names count as one.
        name = names.fold_name(policy[: limits.RULE_NAME_MAX + 1])
        count = self._count(name, address, 1, _FAILURES_COUNTED, now_ms)
        most = _FAILURES_COUNTED * _POLICIES_FREE
        total = self._count(_ANY_POLICY, address, _POLICIES_FREE, most, now_ms)
        return max(_delay_ms(count), _delay_ms(total // _POLICIES_FREE))

    def _count(self, policy: str, address: str, rate: int, most: int, now_ms: int) -> int:
        """Count one more failure; `rate` failures are forgotten per period."""
        entry = (policy, address)
        count, since_ms = self._failures.pop(entry, (0, now_ms))
        steps = (now_ms - since_ms) // limits.BACKOFF_FORGET_MS
        if steps * rate >= count:
            count, since_ms = 0, now_ms
        else:
            count, since_ms = count - steps * rate, since_ms + steps * limits.BACKOFF_FORGET_MS
        count = min(count + 1, most)
        if count == most:
            since_ms = now_ms  # the attack goes on
        if len(self._failures) >= self.entries_max:
            del self._failures[next(iter(self._failures))]
        self._failures[entry] = (count, since_ms)
        return count

    def start_waiting(self) -> bool:
        """Delay one more answer; False if too many are delayed, and this one must not be given."""
        if self.waiting >= self.waiting_max:
            return False
        self.waiting += 1
        return True

    def stop_waiting(self) -> None:
        """The answer was sent, or its connection has ended."""
        self.waiting -= 1
        assert self.waiting >= 0


def policy_of(token: object) -> str:
    """The policy that a token claims; "" if it claims none."""
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
