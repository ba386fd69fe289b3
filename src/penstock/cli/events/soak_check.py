"""What `penstock soak` knows of one partition: what was sent, what came, and whether that fits.

Every event carries its run and its number within the partition:

    soak 5f2c81d09a7b4e36 17 <filling>
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

_MISSING_MAX = 1_000_000  # numbers remembered one by one; beyond it a late one counts as doubled
_FAULTS = ("lost", "doubled", "disordered", "gaps", "damaged")


class SoakFindings(msgspec.Struct):
    """Of one partition."""

    partition: str
    sent: int = 0
    received: int = 0
    lost: int = 0  # stored, and never came
    doubled: int = 0  # came twice
    resent: int = 0  # of those, the ones that were sent twice
    disordered: int = 0  # came behind a later one
    gaps: int = 0  # places in the sequence numbers where one is left out or repeated
    damaged: int = 0  # ours, and not as they were sent
    foreign: int = 0  # of other producers

    @property
    def is_clean(self) -> bool:
        return not any(getattr(self, name) for name in _FAULTS)


class PartitionChecker:
    """Makes the bodies of one partition, and checks them when they come back."""

    def __init__(self, partition: str, run: str, size: int) -> None:
        self.findings = SoakFindings(partition)
        self._head = f"soak {run} ".encode()
        self._size = size
        self._next_sent = 0
        self._expected = 0
        self._missing: set[int] = set()
        self._resent: set[int] = set()
        self._sequence_number: int | None = None

    @property
    def is_complete(self) -> bool:
        """Everything that is known to be stored has come."""
        return self._expected >= self.findings.sent and not self._missing

    def bodies(self, count: int) -> list[bytes]:
        first = self._next_sent
        self._next_sent += count
        return [self.body(number) for number in range(first, first + count)]

    def body(self, number: int) -> bytes:
        text = self._head + b"%d " % number
        return text + (b"%08x" % (number * 2654435761 % 2**32)) * (
            max(0, self._size - len(text)) // 8
        )

    def count_sent(self, count: int) -> None:
        self.findings.sent += count

    def count_resent(self, first: int, count: int) -> None:
        """Without an idempotent producer these may be there twice, and nobody is to blame."""
        self._resent.update(range(first, first + count))

    def check_received(self, sequence_numbers: Sequence[int], bodies: Sequence[bytes]) -> None:
        before = self._sequence_number
        for number, body in zip(sequence_numbers, bodies, strict=True):
            if before is not None and number != before + 1:
                self.findings.gaps += 1
            before = number
            self._check(body)
        self._sequence_number = before

    def finish(self) -> SoakFindings:
        """No more will come."""
        self.findings.lost = len(self._missing) + max(0, self.findings.sent - self._expected)
        return self.findings

    def _check(self, body: bytes) -> None:
        found = self.findings
        if not body.startswith(self._head):
            found.foreign += 1
            return
        digits = body[len(self._head) :].partition(b" ")[0]
        number = int(digits) if digits.isdigit() and len(digits) < 19 else -1
        if number < 0 or body != self.body(number):
            found.damaged += 1
            return
        found.received += 1
        if number == self._expected:
            self._expected += 1
        elif number > self._expected:
            room = _MISSING_MAX - len(self._missing)
            self._missing.update(range(self._expected, min(number, self._expected + room)))
            self._expected = number + 1
        elif number in self._missing:
            self._missing.discard(number)
            found.disordered += 1
        elif number in self._resent:
            found.resent += 1
        else:
            found.doubled += 1
