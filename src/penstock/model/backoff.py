"""The pause before another attempt: doubled after each failure, up to a maximum."""

from __future__ import annotations

import msgspec

_EXPONENT_MAX = 32  # beyond it every pause is the longest one


class Backoff(msgspec.Struct, frozen=True):
    """`jitter` is the share by which a pause is longer or shorter by chance, so that clients that
    failed together do not return together.

    >>> [Backoff(1, 5).pause_s(failures) for failures in (1, 2, 3, 4)]
    [1.0, 2.0, 4.0, 5.0]
    """

    first_s: float
    max_s: float
    jitter: float = 0.0

    def pause_s(self, failures: int, chance: float = 0.5) -> float:
        """The pause after that many failures in a row; `chance` is a random number from 0 to 1."""
        pause_s = self.first_s * 2.0 ** min(failures - 1, _EXPONENT_MAX)
        return min(pause_s, self.max_s) * (1 + self.jitter * (2 * chance - 1))
