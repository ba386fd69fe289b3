"""The management API from the other side: typed, synchronous, the standard library alone.

Used by the command line and the portal. `ManagementClient.find()` looks for the service as its
users do: PENSTOCK_ADMIN_URL with PENSTOCK_ADMIN_TOKEN or PENSTOCK_ADMIN_TOKEN_FILE, else the data
directory's `runtime.json`.
Raises penstock's own errors (NotFound, Unauthorized, AlreadyExists, ServerBusy, ...) and
OperationTimedOut or InternalError when the service does not answer.
"""

from __future__ import annotations

import fcntl
import http.client
import os
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from penstock.capture.status import (
    CaptureReport,
    CaptureStatus,
    DestinationSummary,
    RunAssignment,
)
from penstock.management.faults import error_from_response
from penstock.management.infos import (
    AccessKeys,
    AuthorizationRuleResource,
    ConsumerGroupResource,
    EventHubResource,
    NamespaceResource,
    group_info,
    hub_info,
    namespace_info,
    rule_info,
)
from penstock.model.errors import (
    ConfigurationError,
    InternalError,
    NotFound,
    OperationTimedOut,
    PenstockError,
)

__all__ = [
    "AccessKeys",
    "AuthorizationRuleResource",
    "ConsumerGroupResource",
    "EventHubResource",
    "ManagementClient",
    "NamespaceResource",
]

API_VERSION = "2024-01-01"
_TIMEOUT_S = 30.0
_ANSWER_BYTES_MAX = 64 * 1024 * 1024
_OWN = "/providers/Penstock"
_RUNTIME_BYTES_MAX = 64 * 1024
_TOKEN_BYTES_MAX = 16 * 1024
_DATA_DEFAULT = "penstock-data"


class ManagementClient:
    """One service. Not for several threads at once; each call is one request on a connection
    that is kept open between them."""

    def __init__(
        self,
        url: str,
        token: str | Path,
        *,
        ca_file: Path | str | None = None,
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        """`token` is a path where another process replaces the token: it is read for each request.
        Such a request raises ConfigurationError when there is no token in the file."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigurationError(f"'{url}' is no URL of a service: http:// or https:// it is.")
        self.url = url
        self.ca_file = None if ca_file is None else str(ca_file)
        self._token = token
        self._host, self._port = parts.hostname, parts.port
        self._tls: ssl.SSLContext | None = None
        if parts.scheme == "https":
            self._tls = ssl.create_default_context(cafile=self.ca_file)
        self._timeout_s = timeout_s
        self._connection: http.client.HTTPConnection | None = None
        self._ids: dict[str, str] = {}  # of namespaces, by name
        # Who asks, where the token is not their own: `role name`, the name percent-encoded. The
        # service takes an administrator's word for it, and at most that role.
        self.on_behalf_of: str | None = None

    @staticmethod
    def find(
        environ: Mapping[str, str] | None = None, *, data: Path | None = None
    ) -> ManagementClient:
        """By the environment, or by what the service on this machine tells."""
        environ = os.environ if environ is None else environ
        url, token = environ.get("PENSTOCK_ADMIN_URL"), environment_token(environ)
        if url and token:
            return ManagementClient(url, token, ca_file=environ.get("PENSTOCK_CA_FILE"))
        directory = data or Path(environ.get("PENSTOCK_DATA") or _DATA_DEFAULT)
        facts = read_runtime(directory)
        return ManagementClient(
            url or facts["admin"], token or facts["admin_token"], ca_file=facts["ca_file"]
        )

    def __enter__(self) -> ManagementClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"ManagementClient({self.url!r})"

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # --- namespaces -----------------------------------------------------------------------------

    def namespaces(self) -> list[NamespaceResource]:
        found = [namespace_info(each) for each in self._list(f"{_OWN}/namespaces")]
        self._ids = {each.name.casefold(): each.id for each in found}
        return found

    def namespace(self, name: str) -> NamespaceResource:
        return namespace_info(self.call("GET", self._id(name)))

    def put_namespace(
        self,
        name: str,
        *,
        units: int | None = None,
        unlimited: bool = False,
        sku: str | None = None,
        tags: Mapping[str, str] | None = None,
        location: str | None = None,
        maximum_units: int | None = None,
        resource_group: str = "penstock",
        subscription: str = "00000000-0000-0000-0000-000000000000",
    ) -> NamespaceResource:
        """Create it (at the place given), or change what is said."""
        try:
            path = self._id(name)
        except NotFound:
            path = (
                f"/subscriptions/{_segment(subscription)}/resourceGroups/{_segment(resource_group)}"
                f"/providers/Microsoft.EventHub/namespaces/{_segment(name)}"
            )
        properties: dict[str, Any] = {}
        if unlimited:
            properties["throughputUnits"] = "unlimited"
        if maximum_units is not None:
            properties |= {
                "isAutoInflateEnabled": maximum_units > 0,
                "maximumThroughputUnits": maximum_units,
            }
        body = _without_none(
            {
                "location": location,
                "tags": None if tags is None else dict(tags),
                "sku": _without_none({"name": sku, "capacity": units}) or None,
                "properties": properties or None,
            }
        )
        return namespace_info(self.call("PUT", path, body))

    def delete_namespace(self, name: str) -> None:
        self.call("DELETE", self._id(name))
        self._ids.pop(name.casefold(), None)

    # --- hubs -----------------------------------------------------------------------------------

    def hubs(self, namespace: str) -> list[EventHubResource]:
        return [hub_info(each) for each in self._list(f"{self._id(namespace)}/eventhubs")]

    def hub(self, namespace: str, name: str) -> EventHubResource:
        return hub_info(self.call("GET", self._hub_id(namespace, name)))

    def put_hub(
        self,
        namespace: str,
        name: str,
        *,
        partition_count: int | None = None,
        retention_hours: int | None = None,
        status: str | None = None,
        user_metadata: str | None = None,
        capture: Mapping[str, Any] | None = None,
    ) -> EventHubResource:
        retention = None if retention_hours is None else {"retentionTimeInHours": retention_hours}
        properties = _without_none(
            {
                "partitionCount": partition_count,
                "retentionDescription": retention,
                "status": status,
                "userMetadata": user_metadata,
                "captureDescription": None if capture is None else dict(capture),
            }
        )
        body = {"properties": properties}
        return hub_info(self.call("PUT", self._hub_id(namespace, name), body))

    def delete_hub(self, namespace: str, name: str) -> None:
        """NotFound when there is none."""
        self.hub(namespace, name)
        self.call("DELETE", self._hub_id(namespace, name))

    def partitions(self, namespace: str, hub: str) -> list[dict[str, Any]]:
        return self._list(f"{_own_hub(namespace, hub)}/partitions")

    def readers(self, namespace: str, hub: str) -> list[dict[str, Any]]:
        return self._list(f"{_own_hub(namespace, hub)}/readers")

    # --- groups ---------------------------------------------------------------------------------

    def groups(self, namespace: str, hub: str) -> list[ConsumerGroupResource]:
        found = self._list(f"{self._hub_id(namespace, hub)}/consumergroups")
        return [group_info(each) for each in found]

    def group(self, namespace: str, hub: str, name: str) -> ConsumerGroupResource:
        return group_info(self.call("GET", self._group_id(namespace, hub, name)))

    def put_group(
        self, namespace: str, hub: str, name: str, *, user_metadata: str | None = None
    ) -> ConsumerGroupResource:
        body = {"properties": _without_none({"userMetadata": user_metadata})}
        return group_info(self.call("PUT", self._group_id(namespace, hub, name), body))

    def delete_group(self, namespace: str, hub: str, name: str) -> None:
        """NotFound when there is none."""
        self.group(namespace, hub, name)
        self.call("DELETE", self._group_id(namespace, hub, name))

    def lag(
        self, namespace: str, hub: str | None = None, group: str | None = None
    ) -> list[dict[str, Any]]:
        """How far each group is behind on each partition; of all hubs without one."""
        parent = _own_namespace(namespace) if hub is None else _own_hub(namespace, hub)
        return self._list(f"{parent}/lag", **_without_none({"group": group}))

    def seek(
        self,
        namespace: str,
        hub: str,
        group: str,
        to: str,
        partition: str | None = None,
        dry_run: bool = False,
        force: bool = False,
    ) -> list[dict[str, Any]]:
        """Move the checkpoints that the service keeps so that `to` (earliest, latest, a sequence
        number, an ISO time) is seen next: partition, from_sequence_number, to_sequence_number,
        delta. GroupInUse while a processor holds a lease, unless forced."""
        body = _without_none({"to": to, "partition": partition, "dryRun": dry_run, "force": force})
        path = f"{_own_hub(namespace, hub)}/consumergroups/{_segment(group)}/seek"
        return list(self.call("POST", path, body)["value"])

    # --- rules and keys ---------------------------------------------------------------------------

    def rules(self, namespace: str, hub: str | None = None) -> list[AuthorizationRuleResource]:
        return [rule_info(each) for each in self._list(self._rules(namespace, hub))]

    def put_rule(
        self, namespace: str, hub: str | None, name: str, rights: list[str]
    ) -> AuthorizationRuleResource:
        body = {"properties": {"rights": rights}}
        return rule_info(self.call("PUT", self._rule_id(namespace, hub, name), body))

    def delete_rule(self, namespace: str, hub: str | None, name: str) -> None:
        """NotFound when there is none."""
        path = self._rule_id(namespace, hub, name)
        self.call("GET", path)
        self.call("DELETE", path)

    def keys(self, namespace: str, hub: str | None, name: str) -> AccessKeys:
        found = self.call("POST", f"{self._rule_id(namespace, hub, name)}/listKeys")
        return msgspec.convert(found, AccessKeys)

    def regenerate(
        self, namespace: str, hub: str | None, name: str, key_type: str, key: str | None = None
    ) -> AccessKeys:
        """`key_type` PrimaryKey or SecondaryKey."""
        body = _without_none({"keyType": key_type, "key": key})
        path = f"{self._rule_id(namespace, hub, name)}/regenerateKeys"
        return msgspec.convert(self.call("POST", path, body), AccessKeys)

    # --- what runs and what ran -------------------------------------------------------------------

    def connections(self) -> list[dict[str, Any]]:
        return self._list(f"{_OWN}/connections")

    def kill_connection(self, connection_id: str) -> None:
        self.call("DELETE", f"{_OWN}/connections/{_segment(connection_id)}")

    def revoked_publishers(self, namespace: str, hub: str) -> list[dict[str, Any]]:
        return self._list(f"{_own_hub(namespace, hub)}/revokedPublishers")

    def revoke_publisher(self, namespace: str, hub: str, name: str) -> None:
        self.call("PUT", f"{_own_hub(namespace, hub)}/revokedPublishers/{_segment(name)}")

    def resume_publisher(self, namespace: str, hub: str, name: str) -> None:
        self.call("DELETE", f"{_own_hub(namespace, hub)}/revokedPublishers/{_segment(name)}")

    def usage(
        self, *, since_ms: int | None = None, until_ms: int | None = None
    ) -> list[dict[str, Any]]:
        query = _without_none({"sinceMs": since_ms, "untilMs": until_ms})
        return self._list(f"{_OWN}/usage", **query)

    def metric_history(
        self,
        namespace: str,
        hub: str | None = None,
        *,
        names: Sequence[str] | None = None,
        since_ms: int | None = None,
        until_ms: int | None = None,
        points: int = 500,
    ) -> dict[str, Any]:
        """Numbers over time of a namespace or a hub, of the last hour unless it is said:
        `step_ms`, `at_ms` (when each step begins), `values` (a list for each name, None where
        nothing was recorded), and of a hub `lag_by_group`."""
        query = _without_none(
            {
                "names": ",".join(names) if names else None,
                "sinceMs": since_ms,
                "untilMs": until_ms,
                "points": points,
            }
        )
        parent = _own_namespace(namespace) if hub is None else _own_hub(namespace, hub)
        return self.call("GET", f"{parent}/metrics", **query)

    def jobs(self) -> list[dict[str, Any]]:
        """Pipeline jobs as they reported themselves; state Lost: not heard of for a minute."""
        return self._list(f"{_OWN}/jobs")

    def put_job(
        self,
        name: str,
        *,
        kind: str = "",
        state: str = "Running",
        pid: int | None = None,
        master: str = "",
        ui_url: str = "",
        rows_per_second: float | None = None,
        batch_seconds: float | None = None,
        lag_events: int | None = None,
        last_error: str = "",
    ) -> None:
        """A job's report of itself, every few seconds; `state` is Starting, Running, Stopping,
        Stopped or Failed."""
        body = {
            "kind": kind,
            "state": state,
            "pid": pid,
            "master": master,
            "uiUrl": ui_url,
            "rowsPerSecond": rows_per_second,
            "batchSeconds": batch_seconds,
            "lagEvents": lag_events,
            "lastError": last_error,
        }
        self.call("PUT", f"{_OWN}/jobs/{_segment(name)}", _without_none(body))

    def delete_job(self, name: str) -> None:
        self.call("DELETE", f"{_OWN}/jobs/{_segment(name)}")

    def capture_status(self) -> list[CaptureStatus]:
        """The status of every hub that has a captureDescription, on or off."""
        return msgspec.convert(self._list(f"{_OWN}/capture"), list[CaptureStatus])

    def capture_destinations(self) -> list[DestinationSummary]:
        """What `storageAccountResourceId` may name: name and url, without credentials."""
        return msgspec.convert(self._list(f"{_OWN}/captureDestinations"), list[DestinationSummary])

    def capture_runs(self, job: str | None = None) -> list[RunAssignment]:
        """All unfinished runs. A capture job gives its id; raises AlreadyExists while another one
        works."""
        runs = self._list(f"{_OWN}/captureRuns", **_without_none({"job": job}))
        return msgspec.convert(runs, list[RunAssignment])

    def report_capture(self, namespace: str, hub: str, report: CaptureReport) -> None:
        self.call("PUT", f"{_own_hub(namespace, hub)}/capture", msgspec.to_builtins(report))

    def backfill_capture(self, namespace: str, hub: str, since: str) -> list[dict[str, Any]]:
        """Capture retained events from before it was switched on. Returns partition and events."""
        path = f"{_own_hub(namespace, hub)}/capture/backfill"
        return list(self.call("POST", path, {"since": since})["value"])

    def audit(self, *, newest: int = 100) -> list[dict[str, Any]]:
        return self._list(f"{_OWN}/audit", newest=newest)

    def note_sign_in(self, address: str, *, refused_name: str | None = None) -> None:
        """Into the audit log: somebody signed in to the portal from there, or was refused."""
        body = _without_none({"address": address, "refusedName": refused_name})
        self.call("POST", f"{_OWN}/portal/signIn", body)

    def sign_in_link(self) -> str:
        """An address of the portal that signs the token's holder in once. NotFound without one."""
        return str(self.call("POST", f"{_OWN}/portal/signInLink")["url"])

    def token_holder(self, token: str) -> tuple[str, list[str]] | None:
        """Subject and roles of an admin token; None for one that is not valid."""
        found = self.call("POST", f"{_OWN}/portal/tokenHolder", {"token": token})
        return (found["subject"], list(found["roles"])) if found["active"] else None

    def grants(self, namespace: str) -> list[dict[str, Any]]:
        return self._list(f"{_OWN}/namespaces/{_segment(namespace)}/quotaGrants")

    def grant(self, namespace: str, kind: str, value: int, *, note: str = "", by: str = "") -> None:
        path = f"{_OWN}/namespaces/{_segment(namespace)}/quotaGrants/{_segment(kind)}"
        self.call("PUT", path, {"value": value, "note": note, "by": by})

    def withdraw(self, namespace: str, kind: str) -> None:
        path = f"{_OWN}/namespaces/{_segment(namespace)}/quotaGrants/{_segment(kind)}"
        self.call("DELETE", path)

    # --- admin tokens -----------------------------------------------------------------------------

    def issue_admin_token(self, name: str, *, role: str, lifetime_s: int) -> dict[str, Any]:
        """`id`, `token`, `role`, `expiresAt` of a new token for `name`."""
        body = {"name": name, "role": role, "lifetimeSeconds": lifetime_s}
        return self.call("POST", f"{_OWN}/adminTokens", body)

    def revoke_admin_token(self, token_id: str) -> None:
        self.call("PUT", f"{_OWN}/revokedAdminTokens/{_segment(token_id)}")

    def revoked_admin_tokens(self) -> list[str]:
        return [str(each["id"]) for each in self._list(f"{_OWN}/revokedAdminTokens")]

    # --- requests ---------------------------------------------------------------------------------

    def call(
        self, method: str, path: str, body: object = None, **query: str | int
    ) -> dict[str, Any]:
        """One request; `path` is escaped already. The answer's object, empty without one."""
        text = f"{path}?{urlencode({'api-version': API_VERSION, **query})}"
        token = read_token(self._token) if isinstance(self._token, Path) else self._token
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        if self.on_behalf_of is not None:
            headers["X-Penstock-On-Behalf-Of"] = self.on_behalf_of
        content = None
        if body is not None:
            content = msgspec.json.encode(body)
            headers["Content-Type"] = "application/json"
        status, answer = self._exchange(method, text, content, headers)
        if status >= 400:
            raise _refusal(status, answer)
        return _object(answer) if answer else {}

    def _exchange(
        self, method: str, target: str, content: bytes | None, headers: dict[str, str]
    ) -> tuple[int, bytes]:
        """A kept connection that the service closed meanwhile is opened once more."""
        for kept in (self._connection is not None, False):
            connection = self._connection or self._connect()
            self._connection = connection
            try:
                connection.request(method, target, body=content, headers=headers)
                response = connection.getresponse()
                answer = response.read(_ANSWER_BYTES_MAX)
            except TimeoutError:
                self.close()
                raise OperationTimedOut(
                    f"{self.url} did not answer within {self._timeout_s:g} seconds."
                ) from None
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if kept and not isinstance(error, ssl.SSLError):
                    continue
                raise InternalError(f"{self.url} cannot be reached: {error}.") from None
            return response.status, answer
        raise AssertionError("unreachable")

    def _connect(self) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=self._timeout_s, context=self._tls
        )

    def _list(self, path: str, **query: str | int) -> list[dict[str, Any]]:
        return list(self.call("GET", path, **query)["value"])

    def _id(self, namespace: str) -> str:
        """Where the namespace lies; looked up once."""
        if namespace.casefold() not in self._ids:
            self.namespaces()
        found = self._ids.get(namespace.casefold())
        if found is None:
            raise NotFound(f"The namespace '{namespace}' does not exist.")
        return quote(found, safe="/$")

    def _hub_id(self, namespace: str, hub: str) -> str:
        return f"{self._id(namespace)}/eventhubs/{_segment(hub)}"

    def _group_id(self, namespace: str, hub: str, group: str) -> str:
        return f"{self._hub_id(namespace, hub)}/consumergroups/{_segment(group)}"

    def _rules(self, namespace: str, hub: str | None) -> str:
        parent = self._id(namespace) if hub is None else self._hub_id(namespace, hub)
        return f"{parent}/authorizationRules"

    def _rule_id(self, namespace: str, hub: str | None, name: str) -> str:
        return f"{self._rules(namespace, hub)}/{_segment(name)}"


def environment_token(environ: Mapping[str, str]) -> str | Path | None:
    """The token that the environment gives, or the file that it names."""
    file = environ.get("PENSTOCK_ADMIN_TOKEN_FILE")
    return environ.get("PENSTOCK_ADMIN_TOKEN") or (Path(file) if file else None)


def read_token(file: Path) -> str:
    """Raises ConfigurationError."""
    try:
        with file.open("rb") as opened:
            token = opened.read(_TOKEN_BYTES_MAX).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not ASCII"
        raise ConfigurationError(f"The admin token in {file} cannot be read: {reason}.") from None
    if not token.isprintable() or not token:
        raise ConfigurationError(f"The admin token in {file} cannot be read: it is not one line.")
    return token


def read_runtime(directory: Path) -> dict[str, str]:
    """What the service that runs on this directory tells. It holds a lock on the file while it
    does, and the system lets go of that however it ends."""
    file = directory / "runtime.json"
    try:
        with file.open("rb") as opened:
            if is_stale(opened.fileno()):
                raise FileNotFoundError
            facts = msgspec.json.decode(opened.read(_RUNTIME_BYTES_MAX))
        return {name: str(facts[name]) for name in ("admin", "admin_token", "ca_file")}
    except FileNotFoundError:
        raise NotFound(
            f"No service runs on the data directory {directory}: start one with 'penstock serve', "
            "name the directory with PENSTOCK_DATA, or the service with PENSTOCK_ADMIN_URL and "
            "PENSTOCK_ADMIN_TOKEN."
        ) from None
    except (OSError, KeyError, TypeError, msgspec.MsgspecError) as error:
        raise ConfigurationError(f"{file} cannot be read: {error}.") from None


def is_stale(opened: int) -> bool:
    try:
        fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _refusal(status: int, answer: bytes) -> PenstockError:
    try:
        error = msgspec.json.decode(answer)["error"]
        return error_from_response(status, str(error["code"]), str(error["message"]))
    except (msgspec.MsgspecError, KeyError, TypeError):
        return error_from_response(status, "", "")


def _object(answer: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(answer, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise InternalError(f"The service's answer cannot be read: {error}.") from None


def _segment(name: str) -> str:
    return quote(name, safe="$")


def _own_namespace(namespace: str) -> str:
    return f"{_OWN}/namespaces/{_segment(namespace)}"


def _own_hub(namespace: str, hub: str) -> str:
    return f"{_own_namespace(namespace)}/eventhubs/{_segment(hub)}"


def _without_none(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
