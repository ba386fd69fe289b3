"""Turns of one connection: work runs, then everything that it produced is written at once."""

from __future__ import annotations

from collections.abc import Callable

from penstock.broker.round_queue import RoundQueue
from penstock.gateway.amqp.lifecycle import ConnectionLife


class TurnRunner:
    """Runs work for one connection, on the event loop. Nothing in a turn awaits.

    A turn ends with `finish`: acknowledgements, deliveries, one write. Work that starts a turn
    within a turn leaves finishing to the outer one. An exception costs this connection only
    (`on_crash`) and never reaches the caller.
    """

    def __init__(
        self,
        life: ConnectionLife,
        rounds: RoundQueue,
        *,
        acknowledge: Callable[[], None],
        finish: Callable[[], None],
        on_crash: Callable[[], None],
    ) -> None:
        self._life = life
        self._rounds = rounds
        self._acknowledge = acknowledge
        self._finish = finish
        self._on_crash = on_crash
        self._is_running = False
        self._is_scheduled = False

    def run(self, work: Callable[[], object]) -> None:
        self._run(work, self._finish)

    def run_soon(self) -> None:
        """Run a turn that only sends what the links have, after those of other connections."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._rounds.deliver(self._run_scheduled)

    def acknowledge_soon(self) -> None:
        """Write acknowledgements after the callbacks of the current commit round, and before the
        round's deliveries start. A turn that is running does it when it finishes."""
        if not self._is_running:
            self._rounds.acknowledge(self._run_acknowledge)

    def close(self) -> None:
        """The connection is over. Drop the references to it: a reference cycle would keep its
        memory until the garbage collector runs."""
        self._acknowledge = self._finish = self._on_crash = _do_nothing

    def _run(self, work: Callable[[], object], finish: Callable[[], None]) -> None:
        if self._life.is_over:
            return
        is_outermost, self._is_running = not self._is_running, True
        try:
            work()
            if is_outermost:
                finish()
        except Exception:  # noqa: BLE001 - see the class
            self._on_crash()
        finally:
            if is_outermost:
                self._is_running = False

    def _run_scheduled(self) -> None:
        self._is_scheduled = False
        self._run(_do_nothing, self._finish)

    def _run_acknowledge(self) -> None:
        self._run(self._acknowledge, _do_nothing)


def _do_nothing() -> None:
    """A turn without work of its own."""
