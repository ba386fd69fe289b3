"""The older management of hubs and groups over HTTPS, with a Manage token (protocol.md 7.2)."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from urllib.parse import quote, unquote_to_bytes

import msgspec
from starlette.types import Receive, Scope, Send

from penstock.auth import Authority, Grant, missing_claim_text, verify_sas_token
from penstock.io import asgi
from penstock.management import atom, faults, xml
from penstock.management.operations import ManagementContext, Operations
from penstock.management.permissions import Actor, AdminRole
from penstock.model import limits, names
from penstock.model.entities import Right
from penstock.model.errors import (
    ArgumentError,
    AuthFailed,
    InternalError,
    NotAllowed,
    NotFound,
    PenstockError,
    Unauthorized,
)

log = logging.getLogger("penstock.management")

_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?")
_LIST = ("$resources", "eventhubs")
_ENTRY = "application/atom+xml;type=entry;charset=utf-8"
_FEED = "application/atom+xml;type=feed;charset=utf-8"
_FEED_MAX = 1000
_BODY_DEADLINE_S = 30

_Answer = tuple[int, str, str]  # status, content type, body


class Target(msgspec.Struct, frozen=True):
    """What a path names; everything None is the list of hubs."""

    hub: str | None = None
    groups: bool = False  # below `consumergroups`
    group: str | None = None
    partitions: bool = False
    partition: str | None = None


class MethodNotAllowed(NotAllowed):
    http_status = 405


class AtomDoor:
    """`authorities` gives the namespaces as they are now, `new_id` random hex text."""

    def __init__(
        self,
        administration: ManagementContext,
        *,
        authorities: Callable[[], Sequence[Authority]],
        new_id: Callable[[], str],
        log_refusal: Callable[[Scope, PenstockError, str], None] = lambda *_: None,
    ) -> None:
        self._administration = administration
        self._authorities = authorities
        self._new_id = new_id
        self._log_refusal = log_refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            status, content_type, body = await self._answer(scope, receive)
        except asgi.ClientDisconnected:
            return
        except PenstockError as error:
            await self._refuse(scope, send, error)
        except Exception:
            log.exception("management request failed: path=%s", names.quote_text(scope["path"]))
            await self._refuse(scope, send, InternalError(faults.INTERNAL))
        else:
            await asgi.send_response(send, status, body.encode(), content_type=content_type)

    async def _answer(self, scope: Scope, receive: Receive) -> _Answer:
        """Form, then the token, then the body, then what is there."""
        target = parse_target(scope.get("raw_path") or quote(scope["path"]).encode())
        host = asgi.get_header(scope, b"host")
        if _HOST.fullmatch(host) is None:
            raise ArgumentError("The request needs a Host header that names a host.")
        grant = self._grant(host, asgi.get_header(scope, b"authorization"), target)
        asgi.authenticate(scope)
        body = await asgi.read_request_body(
            scope, receive, bytes_max=limits.ATOM_BODY_BYTES_MAX, deadline_s=_BODY_DEADLINE_S
        )
        actor = Actor(f"policy {grant.rule_name}", AdminRole.OPERATOR)
        act = _Act(self._administration, actor, grant.namespace, host)
        match scope["method"]:
            case "GET":
                return act.get(target, asgi.parse_query(scope))
            case "PUT":
                # The token allows one hub or all; what is new is made, `If-Match: *` changes.
                is_change = asgi.get_header(scope, b"if-match") == "*"
                return act.put(target, body, is_change=is_change)
            case "DELETE":
                return act.delete(target)
            case method:
                raise _not_here(method)

    def _grant(self, host: str, token: str, target: Target) -> Grant:
        if not token:
            raise AuthFailed("MissingToken: The request has no Authorization header.")
        path = () if target.hub is None else tuple(target.hub.split("/"))
        uri = "".join(f"/{quote(segment, safe='')}" for segment in path)
        now_s = self._administration.clock.now_ms() // 1000
        grant = verify_sas_token(
            token, audience=f"//{host}{uri}", authorities=self._authorities(), now_s=now_s
        )
        if not grant.allows(path, Right.MANAGE):
            resource = names.quote_text(f"sb://{host}{uri}", most=200)
            raise Unauthorized(missing_claim_text(Right.MANAGE, resource))
        return grant

    async def _refuse(self, scope: Scope, send: Send, error: PenstockError) -> None:
        """The service's XML of an error, as at the data plane's door (protocol.md 7.1)."""
        status = error.http_status
        if status == 500:
            log.error("management request failed text=%s", error)
        tracking_id = self._new_id()
        self._log_refusal(scope, error, tracking_id)
        detail = f"{faults.INTERNAL if status == 500 else error} TrackingId:{tracking_id}"
        body = f"<Error><Code>{status}</Code><Detail>{xml.text(detail)}</Detail></Error>"
        headers = [("www-authenticate", "SharedAccessSignature")] if status == 401 else []
        await asgi.send_response(
            send,
            status,
            body.encode(),
            content_type="application/xml; charset=utf-8",
            headers=headers,
        )


class _Act:
    """One request's acts, in the namespace that its token belongs to."""

    def __init__(
        self, administration: ManagementContext, actor: Actor, namespace: str, host: str
    ) -> None:
        self._operations = Operations(administration, actor)
        self._clock = administration.clock
        self._namespace = namespace
        self._host = host

    def get(self, target: Target, query: dict[str, str]) -> _Answer:
        namespace, host = self._namespace, self._host
        if target.hub is None:
            hubs = self._operations.hubs.list(namespace)
            return self._feed(
                "$Resources/EventHubs", [atom.hub_entry(h, host) for h in hubs], query
            )
        if target.partitions:
            return self._partitions(target, query)
        if target.group is not None:
            group = self._operations.groups.show(namespace, target.hub, target.group)
            return 200, _ENTRY, atom.group_entry(group, host)
        if target.groups:
            groups = self._operations.groups.list(namespace, target.hub)
            entries = [atom.group_entry(each, host) for each in groups]
            return self._feed(f"{target.hub}/consumergroups", entries, query)
        hub = self._operations.hubs.show(namespace, target.hub)
        return 200, _ENTRY, atom.hub_entry(hub, host)

    def put(self, target: Target, body: bytes, *, is_change: bool) -> _Answer:
        namespace, host = self._namespace, self._host
        if target.hub is None or target.partitions or (target.groups and target.group is None):
            raise _not_here("PUT")
        if target.group is not None:
            metadata = atom.read_group(body)
            groups = self._operations.groups
            if is_change:
                groups.show(namespace, target.hub, target.group)
            act = groups.put if is_change else groups.create
            group = act(namespace, target.hub, target.group, user_metadata=metadata)
            return 200 if is_change else 201, _ENTRY, atom.group_entry(group, host)
        request = atom.read_hub(body, is_new=not is_change)
        hubs = self._operations.hubs
        if is_change:
            hubs.show(namespace, target.hub)
        hub = (hubs.put if is_change else hubs.create)(namespace, target.hub, request)
        return 200 if is_change else 201, _ENTRY, atom.hub_entry(hub, host)

    def delete(self, target: Target) -> _Answer:
        if target.hub is None or target.partitions or (target.groups and target.group is None):
            raise _not_here("DELETE")
        if target.group is not None:
            self._operations.groups.delete(self._namespace, target.hub, target.group)
        else:
            self._operations.hubs.delete(self._namespace, target.hub)
        return 200, _ENTRY, ""

    def _partitions(self, target: Target, query: dict[str, str]) -> _Answer:
        assert target.hub is not None
        name = target.group or names.DEFAULT_GROUP
        group = self._operations.groups.show(self._namespace, target.hub, name)
        found = self._operations.reports.partitions(self._namespace, target.hub)
        entries = {each.id: atom.partition_entry(each, group, self._host) for each in found}
        if target.partition is None:
            path = f"{target.hub}/consumergroups/{group.name}/partitions"
            return self._feed(path, list(entries.values()), query)
        if target.partition not in entries:
            raise NotFound(f"There is no partition '{names.quote_text(target.partition)}'.")
        return 200, _ENTRY, entries[target.partition]

    def _feed(self, path: str, entries: list[str], query: dict[str, str]) -> _Answer:
        skip, top = _count(query, "$skip", 0), _count(query, "$top", _FEED_MAX)
        title = path.rpartition("/")[2]
        some = entries[skip : skip + top]
        return 200, _FEED, atom.feed(title, self._host, path, some, self._clock.now_ms())


def parse_target(raw_path: bytes) -> Target:
    """Words in any case; a hub's name may hold a plain slash. ArgumentError, NotFound."""
    if len(raw_path) > limits.HTTP_PATH_BYTES_MAX:
        raise ArgumentError(
            f"The path has {len(raw_path)} bytes: at most {limits.HTTP_PATH_BYTES_MAX} are allowed."
        )
    parts = raw_path.removeprefix(b"/").removesuffix(b"/").split(b"/")
    try:
        segments = [unquote_to_bytes(part).decode() for part in parts]
    except UnicodeDecodeError:
        raise ArgumentError("The path is not escaped UTF-8.") from None
    words = [segment.casefold() for segment in segments]
    if tuple(words) == _LIST:
        return Target()
    length = len(words)
    # No hub has these words behind its first part (catalog.checks): there is one reading.
    end = next(
        (at for at in range(1, length) if words[at] in ("consumergroups", "partitions")), length
    )
    hub = "/".join(segments[:end])
    if not all(segments[:end]) or len(hub) > limits.HUB_NAME_MAX:
        raise NotFound("There is nothing at this path: it names no event hub.")
    rest, words = segments[end:], words[end:]
    if words and words[0] == "partitions":
        words, rest = ["consumergroups", "", *words], ["consumergroups", "", *rest]
    shape = (len(rest), words[2] if len(words) > 2 else "")
    if len(rest) > 4 or (len(rest) > 2 and shape[1] != "partitions"):
        raise NotFound("There is nothing at this path.")
    return Target(
        hub=hub,
        groups=bool(rest),
        group=(rest[1] or None) if len(rest) > 1 else None,
        partitions=len(rest) > 2,
        partition=rest[3] if len(rest) > 3 else None,
    )


def _count(query: dict[str, str], name: str, default: int) -> int:
    given = query.get(name)
    if given is None:
        return default
    if not (given.isascii() and given.isdigit() and len(given) <= 6):
        raise ArgumentError(f"{name} is '{names.quote_text(given)}': a whole number is needed.")
    return int(given)


def _not_here(method: str) -> PenstockError:
    return MethodNotAllowed(f"The method {names.quote_text(method)} is not supported here.")
