"""`@with_events`: a command that sends or reads events, at any Event Hubs endpoint."""

from __future__ import annotations

import asyncio
import functools
import os
import ssl
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec, TypeVar

import typer

from penstock.cli.options import parse_seconds
from penstock.cli.service_options import (
    AdminEndpoint,
    ContextOption,
    DataOption,
    ServiceFlags,
    add_options,
    find_admin,
    find_connection_string,
    service_option,
)
from penstock.model.connection_string import Endpoint, parse_connection_string
from penstock.model.errors import NotFound, PenstockError

if TYPE_CHECKING:
    from penstock.client import EventHubConsumerClient, EventHubProducerClient, RetryPolicy

P = ParamSpec("P")
T = TypeVar("T")

_NAMES_MAX = 10  # of hubs or groups that an error lists


@dataclass(kw_only=True, repr=False)  # it may hold a key
class EventsEndpoint:
    """How the events of one service are reached; its fields are options in the order of the help.

    The service is looked up on first use, so that a command reports a wrong option of its own
    first.
    """

    connection_string_flag: Annotated[
        str | None,
        service_option(
            "--connection-string STRING",
            "Connection string of any Event Hubs namespace; prefer PENSTOCK_CONNECTION_STRING: "
            "other users can see command-line arguments",
        ),
    ] = None
    data: DataOption = None
    context: ContextOption = None
    ca_file: Annotated[
        Path | None, service_option("FILE", "CA file to trust in addition to the system's")
    ] = None
    websocket: Annotated[
        bool, service_option("--websocket", "AMQP over WebSocket: port 443, or the endpoint's")
    ] = False
    timeout: Annotated[
        str, service_option("TIME", "How long to wait for each answer of the service")
    ] = "60s"

    def __post_init__(self) -> None:
        self.timeout_s = parse_seconds(self.timeout, option="--timeout")
        if self.timeout_s <= 0:
            raise typer.BadParameter("It must be above 0.", param_hint="--timeout")

    @functools.cached_property
    def _string_and_ca_file(self) -> tuple[str, str | None]:
        return find_connection_string(self.connection_string_flag, self.data, self.context)

    @property
    def connection_string(self) -> str:
        """Raises NotFound when no service is known."""
        return self._string_and_ca_file[0]

    @property
    def resolved_ca_file(self) -> str | None:
        return str(self.ca_file) if self.ca_file else self._string_and_ca_file[1]

    @functools.cached_property
    def endpoint(self) -> Endpoint:
        return parse_connection_string(self.connection_string)

    @functools.cached_property
    def ssl_context(self) -> ssl.SSLContext | None:
        """Trusts the system's authorities too: the connection string may be one of Azure."""
        if not self.endpoint.tls:
            return None
        context = ssl.create_default_context()
        if self.resolved_ca_file is not None:
            context.load_verify_locations(self.resolved_ca_file)
        return context

    def find_admin(self) -> AdminEndpoint:
        """The management API of the service that the options name."""
        return find_admin(ServiceFlags(data=self.data, context=self.context))

    def producer(self, hub: str, *, idempotent: bool = False) -> EventHubProducerClient:
        """A producer that does not retry: the command itself does, and shows it."""
        from penstock.client import EventHubProducerClient, RetryPolicy

        options = self._client_options(hub, RetryPolicy(retry_total=0))
        return EventHubProducerClient(self.connection_string, idempotent=idempotent, **options)

    def consumer(
        self, hub: str, group: str = "$Default", *, retry: RetryPolicy | None = None
    ) -> EventHubConsumerClient:
        from penstock.client import EventHubConsumerClient, RetryPolicy

        options = self._client_options(hub, retry or RetryPolicy())
        return EventHubConsumerClient(self.connection_string, group, **options)

    def _client_options(self, hub: str, retry: RetryPolicy) -> dict[str, Any]:
        return {
            "eventhub_name": hub,
            "retry": retry,
            "ssl_context": self.ssl_context,
            "timeout_s": self.timeout_s,
            "transport": "websocket" if self.websocket else "amqp",
        }


def with_events(function: Callable[Concatenate[EventsEndpoint, P], None]) -> Callable[..., None]:
    """A command on events. It receives an EventsEndpoint."""
    return add_options(function, EventsEndpoint, _open_endpoint)


@contextmanager
def _open_endpoint(endpoint: EventsEndpoint, values: dict[str, Any]) -> Iterator[EventsEndpoint]:
    try:
        yield endpoint
    except NotFound as error:
        raise _with_names(error, endpoint, values) from error


def _with_names(error: NotFound, endpoint: EventsEndpoint, values: dict[str, Any]) -> NotFound:
    """The error with the names that exist, if the service is the one on this machine."""
    hub, group = values.get("hub"), values.get("group") or "$Default"
    # With a connection string it may be the service of another machine.
    is_given = endpoint.connection_string_flag or os.environ.get("PENSTOCK_CONNECTION_STRING")
    if not isinstance(hub, str) or is_given:
        return error
    try:
        admin = endpoint.find_admin()
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


async def run_beside(work: Coroutine[Any, Any, T], *background: Coroutine[Any, Any, None]) -> T:
    """Run `work` to its end and cancel `background` then. If a coroutine of `background` fails
    before, `work` is canceled and the error is raised."""
    working = asyncio.create_task(work)
    others = [asyncio.create_task(coroutine) for coroutine in background]
    try:
        await asyncio.wait((working, *others), return_when=asyncio.FIRST_COMPLETED)
        for other in others:
            if other.done():
                await other
        return await working
    finally:
        tasks = (working, *others)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
