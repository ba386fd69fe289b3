"""`@with_events`: a command that sends or reads events, with the options that say where.

Any Event Hubs endpoint will do, Azure's included: all that is needed is a connection string.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import typer

from penstock.cli.command_tree import WHICH_SERVICE
from penstock.cli.service_lookup import ServiceFlags, find_admin, find_connection_string
from penstock.cli.service_options import ContextOption, DataOption
from penstock.cli.units import parse_seconds
from penstock.model.errors import NotFound, PenstockError

if TYPE_CHECKING:
    from penstock.client import EventHubConsumerClient, EventHubProducerClient, RetryPolicy

P = ParamSpec("P")
T = TypeVar("T")

_NAMES_MAX = 10  # of hubs or groups that an error lists

_OPTIONS: tuple[tuple[str, Any, Any], ...] = (
    (
        "connection_string",
        Annotated[
            str | None,
            typer.Option(
                "--connection-string",
                metavar="STRING",
                help="Of any Event Hubs; better in PENSTOCK_CONNECTION_STRING: others see a "
                "command's words",
                rich_help_panel=WHICH_SERVICE,
            ),
        ],
        None,
    ),
    ("data", DataOption, None),
    ("context", ContextOption, None),
    (
        "ca_file",
        Annotated[
            Path | None,
            typer.Option(
                "--ca-file",
                metavar="FILE",
                help="Trust these authorities too",
                rich_help_panel=WHICH_SERVICE,
            ),
        ],
        None,
    ),
    (
        "websocket",
        Annotated[
            bool,
            typer.Option(
                "--websocket",
                help="AMQP over WebSocket: port 443, or the endpoint's",
                rich_help_panel=WHICH_SERVICE,
            ),
        ],
        False,
    ),
    (
        "timeout",
        Annotated[
            str,
            typer.Option(
                "--timeout",
                metavar="TIME",
                help="For each answer of the service",
                rich_help_panel=WHICH_SERVICE,
            ),
        ],
        "60s",
    ),
)


class EventsEndpoint(NamedTuple):
    """How the events of one service are reached."""

    connection_string: str
    ca_file: str | None
    websocket: bool
    timeout_s: float
    data: Path | None = None  # where flags named the service rather than its events
    context: str | None = None
    is_given: bool = True  # by a connection string, so any service may be meant

    def __repr__(self) -> str:  # it holds a key
        return "<Wire>"

    def producer(
        self, hub: str, *, retry: RetryPolicy | None = None, idempotent: bool = False
    ) -> EventHubProducerClient:
        """It tries nothing again by itself unless told so: whoever sends shows that it waits."""
        from penstock.client import EventHubProducerClient, RetryPolicy

        return EventHubProducerClient(
            self.connection_string,
            eventhub_name=hub,
            idempotent=idempotent,
            retry=retry or RetryPolicy(retry_total=0),
            **self._options(),
        )

    def consumer(
        self, hub: str, group: str = "$Default", *, retry: RetryPolicy | None = None
    ) -> EventHubConsumerClient:
        from penstock.client import EventHubConsumerClient, RetryPolicy

        return EventHubConsumerClient(
            self.connection_string,
            group,
            eventhub_name=hub,
            retry=retry or RetryPolicy(),
            **self._options(),
        )

    def _options(self) -> dict[str, Any]:
        from penstock.client import parse_connection_string

        tls = parse_connection_string(self.connection_string).tls
        return {
            "ssl_context": _tls_context(self.ca_file) if tls else None,
            "timeout_s": self.timeout_s,
            "transport": "websocket" if self.websocket else "amqp",
        }


def with_events(function: Callable[Concatenate[EventsEndpoint, P], None]) -> Callable[..., None]:
    """The command gets a Wire as its first argument."""
    act: Callable[..., None] = function

    @functools.wraps(function)
    def command(**given: Any) -> None:
        chosen = {name: given.pop(name) for name, _, _ in _OPTIONS}
        wire = find_wire(**chosen)
        try:
            act(wire, **given)
        except NotFound as error:
            raise _with_names(error, wire, given) from error

    own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
    more = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
        )
        for name, annotation, default in _OPTIONS
    ]
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # typer reads it
        [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own] + more
    )
    return command


def _with_names(error: NotFound, wire: EventsEndpoint, given: dict[str, Any]) -> NotFound:
    """The same error with the names that exist, where this machine's service is the one asked."""
    hub, group = given.get("hub"), given.get("group") or "$Default"
    if not isinstance(hub, str) or wire.is_given:
        return error
    try:
        admin = find_admin(ServiceFlags(data=wire.data, context=wire.context))
        with admin.client(timeout_s=5.0) as client:
            namespace = admin.namespace or ""
            hubs = [each.name for each in client.hubs(namespace)]
            if hub.casefold() not in map(str.casefold, hubs):
                return NotFound(
                    f"There is no event hub '{hub}' in {namespace}. There are: {_listed(hubs)}."
                )
            groups = [each.name for each in client.groups(namespace, hub)]
    except (PenstockError, OSError):
        return error  # the service's own word has to do
    if group.casefold() in map(str.casefold, groups):
        return error
    return NotFound(
        f"There is no consumer group '{group}' of the event hub '{hub}'. "
        f"There are: {_listed(groups)}."
    )


def _listed(names: list[str]) -> str:
    shown = ", ".join(sorted(names)[:_NAMES_MAX]) or "none"
    return f"{shown} and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else shown


def find_wire(
    *,
    connection_string: str | None,
    data: Path | None = None,
    context: str | None = None,
    ca_file: Path | None = None,
    websocket: bool = False,
    timeout: str = "60s",
) -> EventsEndpoint:
    text, found = find_connection_string(connection_string, data, context)
    timeout_s = parse_seconds(timeout, option="--timeout")
    if timeout_s <= 0:
        raise typer.BadParameter("It must be above 0.", param_hint="--timeout")
    trusted = str(ca_file) if ca_file is not None else found
    is_given = bool(connection_string or os.environ.get("PENSTOCK_CONNECTION_STRING"))
    return EventsEndpoint(text, trusted, websocket, timeout_s, data, context, is_given)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Until it is done, on the quickest loop there is."""
    from penstock.io.event_loop import new_event_loop

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(work)


async def run_together(*work: Coroutine[Any, Any, None]) -> None:
    """All of them; the first error ends the others, and is raised when they have ended."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@functools.cache
def _tls_context(ca_file: str | None) -> ssl.SSLContext:
    """Beside the system's authorities: a string for Azure works where a service of ours runs."""
    trusted = ssl.create_default_context()
    if ca_file is not None:
        trusted.load_verify_locations(ca_file)
    return trusted
