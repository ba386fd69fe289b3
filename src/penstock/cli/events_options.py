"""`@with_events`: a command that sends or reads events, at any Event Hubs endpoint."""

from __future__ import annotations

import asyncio
import functools
import os
import ssl
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import typer

from penstock.cli.option_parsers import parse_seconds
from penstock.cli.service_lookup import ServiceFlags, find_admin, find_connection_string
from penstock.cli.service_options import CONTEXT, DATA, ServiceOption, add_options
from penstock.model.errors import NotFound, PenstockError

if TYPE_CHECKING:
    from penstock.client import EventHubConsumerClient, EventHubProducerClient, RetryPolicy

P = ParamSpec("P")
T = TypeVar("T")

_NAMES_MAX = 10  # of hubs or groups that an error lists
_OPTIONS = (
    ServiceOption(
        *("connection_string", str | None, "STRING"),
        "Connection string of any Event Hubs namespace; prefer PENSTOCK_CONNECTION_STRING: other "
        "users can see command-line arguments",
    ),
    DATA,
    CONTEXT,
    ServiceOption("ca_file", Path | None, "FILE", "CA file to trust in addition to the system's"),
    ServiceOption(
        *("websocket", bool, None, "AMQP over WebSocket: port 443, or the endpoint's"), False
    ),
    ServiceOption("timeout", str, "TIME", "How long to wait for each answer of the service", "60s"),
)


class EventsEndpoint:
    """How the events of one service are reached. The service is looked up on first use, so that a
    command reports a wrong option of its own first."""

    def __init__(
        self,
        *,
        connection_string: str | None = None,
        data: Path | None = None,
        context: str | None = None,
        ca_file: Path | None = None,
        websocket: bool = False,
        timeout: str = "60s",
    ) -> None:
        self.data = data
        self.context = context
        self.websocket = websocket
        self.timeout_s = parse_seconds(timeout, option="--timeout")
        if self.timeout_s <= 0:
            raise typer.BadParameter("It must be above 0.", param_hint="--timeout")
        self._given = connection_string
        self._ca_file = ca_file

    @functools.cached_property
    def _string_and_ca_file(self) -> tuple[str, str | None]:
        return find_connection_string(self._given, self.data, self.context)

    @property
    def connection_string(self) -> str:
        """Raises NotFound when no service is known."""
        return self._string_and_ca_file[0]

    @property
    def ca_file(self) -> str | None:
        return self._string_and_ca_file[1] if self._ca_file is None else str(self._ca_file)

    @property
    def is_given(self) -> bool:
        """A connection string was given, so it may be the service of another machine."""
        return bool(self._given or os.environ.get("PENSTOCK_CONNECTION_STRING"))

    def producer(
        self, hub: str, *, retry: RetryPolicy | None = None, idempotent: bool = False
    ) -> EventHubProducerClient:
        """A producer. Without `retry` it does not retry: the command itself does, and shows it."""
        from penstock.client import EventHubProducerClient, RetryPolicy

        return EventHubProducerClient(
            self.connection_string,
            eventhub_name=hub,
            idempotent=idempotent,
            retry=retry or RetryPolicy(retry_total=0),
            **self._client_options(),
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
            **self._client_options(),
        )

    def _client_options(self) -> dict[str, Any]:
        from penstock.client import parse_connection_string

        is_tls = parse_connection_string(self.connection_string).tls
        return {
            "ssl_context": _tls_context(self.ca_file) if is_tls else None,
            "timeout_s": self.timeout_s,
            "transport": "websocket" if self.websocket else "amqp",
        }


def with_events(function: Callable[Concatenate[EventsEndpoint, P], None]) -> Callable[..., None]:
    """A command on events. It receives an EventsEndpoint."""
    return add_options(function, _OPTIONS, _open_endpoint)


@contextmanager
def _open_endpoint(chosen: dict[str, Any], values: dict[str, Any]) -> Iterator[EventsEndpoint]:
    endpoint = EventsEndpoint(**chosen)
    try:
        yield endpoint
    except NotFound as error:
        raise _with_names(error, endpoint, values) from error


def _with_names(error: NotFound, endpoint: EventsEndpoint, values: dict[str, Any]) -> NotFound:
    """The error with the names that exist, if the service is the one on this machine."""
    hub, group = values.get("hub"), values.get("group") or "$Default"
    if not isinstance(hub, str) or endpoint.is_given:
        return error
    try:
        admin = find_admin(ServiceFlags(data=endpoint.data, context=endpoint.context))
        with admin.client(timeout_s=5.0) as client:
            namespace = admin.namespace or ""
            hubs = [entity.name for entity in client.hubs(namespace)]
            if hub.casefold() not in map(str.casefold, hubs):
                return NotFound(
                    f"There is no event hub '{hub}' in {namespace}. There are: {_join(hubs)}."
                )
            groups = [entity.name for entity in client.groups(namespace, hub)]
    except (PenstockError, OSError):
        return error
    if group.casefold() in map(str.casefold, groups):
        return error
    return NotFound(
        f"There is no consumer group '{group}' of the event hub '{hub}'. "
        f"There are: {_join(groups)}."
    )


def _join(names: list[str]) -> str:
    first = ", ".join(sorted(names)[:_NAMES_MAX]) or "none"
    return f"{first} and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else first


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on an event loop of its own and return its result."""
    from penstock.io.event_loop import new_event_loop

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(work)


async def run_together(*work: Coroutine[Any, Any, None]) -> None:
    """Run all coroutines at once. The first error cancels the others and is raised after them."""
    tasks = [asyncio.create_task(coroutine) for coroutine in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@functools.cache
def _tls_context(ca_file: str | None) -> ssl.SSLContext:
    """Trusts the system's authorities too: the connection string may be one of Azure."""
    context = ssl.create_default_context()
    if ca_file is not None:
        context.load_verify_locations(ca_file)
    return context
