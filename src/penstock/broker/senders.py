"""Open sender links of one hub."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.broker.reader import OnEnd
from penstock.model.errors import PenstockError


@dataclass(eq=False, slots=True)
class SenderLink:
    """Registration of a sender that is not idempotent; `on_end` gets the error when the hub ends
    the link."""

    _on_end: OnEnd
    _on_close: Callable[[SenderLink], None]
    publisher: str | None

    def close(self) -> None:
        """Remove the registration, so that the hub no longer refers to the link. Idempotent."""
        self._on_end = _ignore_end
        self._on_close(self)

    def end(self, error: PenstockError) -> None:
        """Close the registration, then notify the owner of the link."""
        on_end = self._on_end
        self.close()
        on_end(error)


def _ignore_end(_: object) -> None:
    """Stands for `on_end` of a closed link."""
