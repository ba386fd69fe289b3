"""Blocking client of the management API, for the CLI, the portal and scripts.

`ManagementClient.find()` finds the service by PENSTOCK_ADMIN_URL with PENSTOCK_ADMIN_TOKEN or
PENSTOCK_ADMIN_TOKEN_FILE, else by `runtime.json` in the data directory. Methods raise Penstock's
errors (NotFound, Unauthorized, AlreadyExists, ServerBusy, ...), and OperationTimedOut or
InternalError when the service does not answer.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from penstock.capture.status import (
    CaptureReport,
    CaptureStatus,
    DestinationSummary,
    RunAssignment,
)
from penstock.io.http_client import HttpClient
from penstock.io.runtime_file import read_runtime
from penstock.management import resources as arm
from penstock.management.errors import error_from_response
from penstock.management.jobs import JobState
from penstock.model import errors

T = TypeVar("T")
API_VERSION = "2024-01-01"
_TIMEOUT_S = 30.0
_OWN = "/providers/Penstock"
_TOKEN_BYTES_MAX = 16 * 1024


class ManagementClient:
    """One service. Only one thread at a time may use it. Each call is one request on a connection
    that stays open."""

    def __init__(
        self,
        url: str,
        token: str | Path,
        *,
        ca_file: Path | str | None = None,
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        """A `token` that is a path is read for each request, because another process replaces the
        file. A request raises ConfigurationError when the file contains no token."""
        self.url = url
        self.ca_file = None if ca_file is None else str(ca_file)
        self._token = token
        self._timeout_s = timeout_s
        self._http = HttpClient(url, ca_file=self.ca_file, timeout_s=timeout_s)
        self._ids: dict[str, str] = {}  # ARM ids of namespaces, by name in lower case
        # `ROLE NAME` of the person on whose behalf requests are sent, the name percent-encoded.
        # The service accepts it from an administrator's token.
        self.on_behalf_of: str | None = None

    @staticmethod
    def find(
        environ: Mapping[str, str] | None = None, *, data: Path | None = None
    ) -> ManagementClient:
        """The service that the environment names, or the one that runs on the data directory."""
        environ = os.environ if environ is None else environ
        url, file = environ.get("PENSTOCK_ADMIN_URL"), environ.get("PENSTOCK_ADMIN_TOKEN_FILE")
        token = environ.get("PENSTOCK_ADMIN_TOKEN") or (Path(file) if file else None)
        if url and token:
            return ManagementClient(url, token, ca_file=environ.get("PENSTOCK_CA_FILE"))
        directory = data or Path(environ.get("PENSTOCK_DATA") or "penstock-data")
        facts = _admin_facts(directory)
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
        self._http.close()

    # --- namespaces -----------------------------------------------------------------------------

    def namespaces(self) -> list[arm.NamespaceResource]:
        namespaces = self._read_list(arm.NamespaceResource, f"{_OWN}/namespaces")
        self._ids = {namespace.name.casefold(): namespace.id for namespace in namespaces}
        return namespaces

    def namespace(self, name: str) -> arm.NamespaceResource:
        return self._read(arm.NamespaceResource, "GET", self._id(name))

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
    ) -> arm.NamespaceResource:
        """Create the namespace in the given resource group, or change what is not None.
        `maximum_units` switches auto-inflate on, 0 switches it off."""
        try:
            path = self._id(name)
        except errors.NotFound:
            path = (
                f"/subscriptions/{_segment(subscription)}/resourceGroups/{_segment(resource_group)}"
                f"/providers/Microsoft.EventHub/namespaces/{_segment(name)}"
            )
        body = arm.NamespaceBody(
            location=location,
            tags=None if tags is None else dict(tags),
            sku=arm.Sku(name=sku, capacity=units),
            properties=arm.NamespaceBodyProperties(
                throughput_units="unlimited" if unlimited else None,
                is_auto_inflate_enabled=None if maximum_units is None else maximum_units > 0,
                maximum_throughput_units=maximum_units,
            ),
        )
        return self._read(arm.NamespaceResource, "PUT", path, body)

    def delete_namespace(self, name: str) -> None:
        self.call("DELETE", self._id(name))
        self._ids.pop(name.casefold(), None)

    # --- hubs -----------------------------------------------------------------------------------

    def hubs(self, namespace: str) -> list[arm.EventHubResource]:
        return self._read_list(arm.EventHubResource, f"{self._id(namespace)}/eventhubs")

    def hub(self, namespace: str, name: str) -> arm.EventHubResource:
        return self._read(arm.EventHubResource, "GET", self._hub_id(namespace, name))

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
    ) -> arm.EventHubResource:
        """Create the hub, or change what is not None."""
        properties = arm.HubBodyProperties(
            partition_count=partition_count,
            retention_description=arm.RetentionDescription(retention_time_in_hours=retention_hours),
            status=status,
            user_metadata=user_metadata,
            capture_description=None if capture is None else dict(capture),
        )
        path = self._hub_id(namespace, name)
        return self._read(arm.EventHubResource, "PUT", path, arm.HubBody(properties=properties))

    def delete_hub(self, namespace: str, name: str) -> None:
        """Raises NotFound."""
        self._delete(self._hub_id(namespace, name))

    def partitions(self, namespace: str, hub: str) -> list[dict[str, Any]]:
        return self._list(f"{_own_path(namespace, hub)}/partitions")

    def readers(self, namespace: str, hub: str) -> list[dict[str, Any]]:
        return self._list(f"{_own_path(namespace, hub)}/readers")

    # --- groups ---------------------------------------------------------------------------------

    def groups(self, namespace: str, hub: str) -> list[arm.ConsumerGroupResource]:
        path = f"{self._hub_id(namespace, hub)}/consumergroups"
        return self._read_list(arm.ConsumerGroupResource, path)

    def group(self, namespace: str, hub: str, name: str) -> arm.ConsumerGroupResource:
        return self._read(arm.ConsumerGroupResource, "GET", self._group_id(namespace, hub, name))

    def put_group(
        self, namespace: str, hub: str, name: str, *, user_metadata: str | None = None
    ) -> arm.ConsumerGroupResource:
        body = arm.GroupBody(properties=arm.GroupBodyProperties(user_metadata=user_metadata))
        return self._read(
            arm.ConsumerGroupResource, "PUT", self._group_id(namespace, hub, name), body
        )

    def delete_group(self, namespace: str, hub: str, name: str) -> None:
        """Raises NotFound."""
        self._delete(self._group_id(namespace, hub, name))

    def lag(
        self, namespace: str, hub: str | None = None, group: str | None = None
    ) -> list[dict[str, Any]]:
        """The lag of each group on each partition: of one hub or of all, of one group or of all."""
        return self._list(f"{_own_path(namespace, hub)}/lag", group=group)

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
        """Move the checkpoints that the service stores so that the group reads `to` next: earliest,
        latest, a sequence number or an ISO time. Returns partition, from_sequence_number,
        to_sequence_number and delta of each. Raises GroupInUse while an event processor holds a
        lease, unless `force` is set."""
        body = arm.SeekBody(to=to, partition=partition, dry_run=dry_run, force=force)
        path = f"{_own_path(namespace, hub)}/consumergroups/{_segment(group)}/seek"
        return list(self.call("POST", path, body)["value"])

    # --- rules and keys ---------------------------------------------------------------------------

    def rules(self, namespace: str, hub: str | None = None) -> list[arm.AuthorizationRuleResource]:
        return self._read_list(arm.AuthorizationRuleResource, self._rules(namespace, hub))

    def put_rule(
        self, namespace: str, hub: str | None, name: str, rights: list[str]
    ) -> arm.AuthorizationRuleResource:
        body = arm.RuleBody(properties=arm.RuleProperties(rights=rights))
        path = self._rule_id(namespace, hub, name)
        return self._read(arm.AuthorizationRuleResource, "PUT", path, body)

    def delete_rule(self, namespace: str, hub: str | None, name: str) -> None:
        """Raises NotFound."""
        self._delete(self._rule_id(namespace, hub, name))

    def keys(self, namespace: str, hub: str | None, name: str) -> arm.AccessKeys:
        return self._read(arm.AccessKeys, "POST", f"{self._rule_id(namespace, hub, name)}/listKeys")

    def regenerate(
        self, namespace: str, hub: str | None, name: str, key_type: str, key: str | None = None
    ) -> arm.AccessKeys:
        """`key_type` is PrimaryKey or SecondaryKey. Without `key` the service makes a random
        one."""
        body = arm.RegenerateBody(key_type=arm.KeyType(key_type), key=key)
        path = f"{self._rule_id(namespace, hub, name)}/regenerateKeys"
        return self._read(arm.AccessKeys, "POST", path, body)

    # --- connections, publishers, usage, metrics --------------------------------------------------

    def connections(self) -> list[dict[str, Any]]:
        return self._list(f"{_OWN}/connections")

    def kill_connection(self, connection_id: str) -> None:
        self.call("DELETE", f"{_OWN}/connections/{_segment(connection_id)}")

    def revoked_publishers(self, namespace: str, hub: str) -> list[dict[str, Any]]:
        return self._list(f"{_own_path(namespace, hub)}/revokedPublishers")

    def revoke_publisher(self, namespace: str, hub: str, name: str) -> None:
        self.call("PUT", f"{_own_path(namespace, hub)}/revokedPublishers/{_segment(name)}")

    def resume_publisher(self, namespace: str, hub: str, name: str) -> None:
        self.call("DELETE", f"{_own_path(namespace, hub)}/revokedPublishers/{_segment(name)}")

    def usage(
        self, *, since_ms: int | None = None, until_ms: int | None = None
    ) -> list[dict[str, Any]]:
        return self._list(f"{_OWN}/usage", sinceMs=since_ms, untilMs=until_ms)

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
        """Metrics over time of a namespace or a hub, of the last hour by default: `step_ms`,
        `at_ms` (the start of each step), `values` (a list for each name, None where nothing was
        recorded), and for a hub `lag_by_group`."""
        return self.call(
            "GET",
            f"{_own_path(namespace, hub)}/metrics",
            names=",".join(names) if names else None,
            sinceMs=since_ms,
            untilMs=until_ms,
            points=points,
        )

    def audit(self, *, newest: int = 100) -> list[dict[str, Any]]:
        return self._list(f"{_OWN}/audit", newest=newest)

    def grants(self, namespace: str) -> list[dict[str, Any]]:
        return self._list(f"{_own_path(namespace)}/quotaGrants")

    def grant(self, namespace: str, kind: str, value: int, *, note: str = "", by: str = "") -> None:
        path = f"{_own_path(namespace)}/quotaGrants/{_segment(kind)}"
        self.call("PUT", path, arm.GrantBody(value=value, note=note, by=by))

    def withdraw(self, namespace: str, kind: str) -> None:
        self.call("DELETE", f"{_own_path(namespace)}/quotaGrants/{_segment(kind)}")

    # --- pipeline jobs ----------------------------------------------------------------------------

    def jobs(self) -> list[dict[str, Any]]:
        """Pipeline jobs as they reported themselves. The state Lost means: no report for a
        minute."""
        return self._list(f"{_OWN}/jobs")

    def put_job(self, name: str, *, state: str = "Running", **fields: Any) -> None:
        """Report a job, every few seconds. `state` is Starting, Running, Stopping, Stopped or
        Failed; the other fields are those of `resources.JobBody`."""
        body = arm.JobBody(state=JobState(state), **fields)
        self.call("PUT", f"{_OWN}/jobs/{_segment(name)}", body)

    def delete_job(self, name: str) -> None:
        self.call("DELETE", f"{_OWN}/jobs/{_segment(name)}")

    # --- Capture ----------------------------------------------------------------------------------

    def capture_status(self) -> list[CaptureStatus]:
        """The status of every hub that has a captureDescription, on or off."""
        return self._read_list(CaptureStatus, f"{_OWN}/capture")

    def capture_destinations(self) -> list[DestinationSummary]:
        """What `storageAccountResourceId` may name: name and url, without credentials."""
        return self._read_list(DestinationSummary, f"{_OWN}/captureDestinations")

    def capture_runs(self, job: str | None = None) -> list[RunAssignment]:
        """All unfinished runs. A capture job gives its id; raises AlreadyExists while another one
        works."""
        return self._read_list(RunAssignment, f"{_OWN}/captureRuns", job=job)

    def report_capture(self, namespace: str, hub: str, report: CaptureReport) -> None:
        self.call("PUT", f"{_own_path(namespace, hub)}/capture", msgspec.to_builtins(report))

    def backfill_capture(self, namespace: str, hub: str, since: str) -> list[dict[str, Any]]:
        """Capture retained events from before it was switched on. Returns partition and events."""
        path = f"{_own_path(namespace, hub)}/capture/backfill"
        return list(self.call("POST", path, {"since": since})["value"])

    # --- the portal -------------------------------------------------------------------------------

    def note_sign_in(self, address: str, *, refused_name: str | None = None) -> None:
        """Record in the audit log that a person signed in to the portal, or was refused."""
        body = arm.SignInBody(address=address, refused_name=refused_name)
        self.call("POST", f"{_OWN}/portal/signIn", body)

    def sign_in_link(self) -> str:
        """An address of the portal that signs the token's holder in once. Raises NotFound when the
        portal is off."""
        return str(self.call("POST", f"{_OWN}/portal/signInLink")["url"])

    def token_holder(self, token: str) -> tuple[str, list[str]] | None:
        """Subject and roles of an admin token; None for an invalid one."""
        path = f"{_OWN}/portal/tokenHolder"
        holder = self._read(arm.TokenHolder, "POST", path, arm.TokenBody(token=token))
        return (holder.subject, holder.roles) if holder.active else None

    # --- admin tokens -----------------------------------------------------------------------------

    def issue_admin_token(self, name: str, *, role: str, lifetime_s: int) -> dict[str, Any]:
        """`id`, `token`, `role`, `expiresAt` of a new token for `name`."""
        body = arm.AdminTokenBody(name=name, role=role, lifetime_seconds=lifetime_s)
        return self.call("POST", f"{_OWN}/adminTokens", body)

    def revoke_admin_token(self, token_id: str) -> None:
        self.call("PUT", f"{_OWN}/revokedAdminTokens/{_segment(token_id)}")

    # --- requests ---------------------------------------------------------------------------------

    def call(
        self,
        method: str,
        path: str,
        body: arm.ArmStruct | Mapping[str, Any] | None = None,
        **query: str | int | None,
    ) -> dict[str, Any]:
        """Send one request, and return the object in the response, empty without one."""
        return self._read(dict[str, Any], method, path, body, **query)

    def _read(
        self,
        kind: type[T],
        method: str,
        path: str,
        body: arm.ArmStruct | Mapping[str, Any] | None = None,
        **query: str | int | None,
    ) -> T:
        """Send one request, and return the content of the response as `kind`. `path` is escaped
        already; a query value of None is left out."""
        fields = {name: value for name, value in query.items() if value is not None}
        text = f"{path}?{urlencode({'api-version': API_VERSION, **fields})}"
        token = read_token(self._token) if isinstance(self._token, Path) else self._token
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        if self.on_behalf_of is not None:
            headers["X-Penstock-On-Behalf-Of"] = self.on_behalf_of
        content = None
        if body is not None:
            content = msgspec.json.encode(body)
            headers["Content-Type"] = "application/json"
        try:
            response = self._http.request(method, text, body=content, headers=headers)
        except TimeoutError:
            raise errors.OperationTimedOut(
                f"{self.url} did not answer within {self._timeout_s:g} seconds."
            ) from None
        except OSError as error:
            raise errors.InternalError(f"{self.url} cannot be reached: {error}.") from None
        if response.status >= 400:
            raise _refusal(response.status, response.body)
        try:
            return msgspec.json.decode(response.body or b"{}", type=kind)
        except msgspec.MsgspecError as error:
            raise errors.InternalError(f"The service's answer cannot be read: {error}.") from None

    def _list(self, path: str, **query: str | int | None) -> list[dict[str, Any]]:
        return self._read_list(dict[str, Any], path, **query)

    def _read_list(self, kind: type[T], path: str, **query: str | int | None) -> list[T]:
        page = self._read(arm.Page[kind], "GET", path, None, **query)  # type: ignore[valid-type]  # mypy: a variable
        return page.value

    def _delete(self, path: str) -> None:
        self.call("GET", path)  # raises NotFound; Resource Manager's DELETE does not
        self.call("DELETE", path)

    def _id(self, namespace: str) -> str:
        """The escaped ARM id of the namespace. Raises NotFound."""
        if namespace.casefold() not in self._ids:
            self.namespaces()
        resource_id = self._ids.get(namespace.casefold())
        if resource_id is None:
            raise errors.NotFound(f"The namespace '{namespace}' does not exist.")
        return quote(resource_id, safe="/$")

    def _hub_id(self, namespace: str, hub: str) -> str:
        return f"{self._id(namespace)}/eventhubs/{_segment(hub)}"

    def _group_id(self, namespace: str, hub: str, group: str) -> str:
        return f"{self._hub_id(namespace, hub)}/consumergroups/{_segment(group)}"

    def _rules(self, namespace: str, hub: str | None) -> str:
        parent = self._id(namespace) if hub is None else self._hub_id(namespace, hub)
        return f"{parent}/authorizationRules"

    def _rule_id(self, namespace: str, hub: str | None, name: str) -> str:
        return f"{self._rules(namespace, hub)}/{_segment(name)}"


def read_token(file: Path) -> str:
    """Raises ConfigurationError."""
    try:
        with file.open("rb") as opened:
            token = opened.read(_TOKEN_BYTES_MAX).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not ASCII"
        raise errors.ConfigurationError(
            f"The admin token in {file} cannot be read: {reason}."
        ) from None
    if not token.isprintable() or not token:
        raise errors.ConfigurationError(
            f"The admin token in {file} cannot be read: it is not one line."
        )
    return token


def _admin_facts(directory: Path) -> dict[str, str]:
    """URL, token and authority of the service that runs on this data directory. Raises NotFound,
    ConfigurationError, DataDirectoryError."""
    facts = read_runtime(directory)
    if facts is None:
        raise errors.NotFound(
            f"No service runs on the data directory {directory}: start one with 'penstock serve', "
            "name the directory with PENSTOCK_DATA, or the service with PENSTOCK_ADMIN_URL and "
            "PENSTOCK_ADMIN_TOKEN."
        )
    try:
        return {name: str(facts[name]) for name in ("admin", "admin_token", "ca_file")}
    except KeyError as error:
        raise errors.ConfigurationError(f"{directory}/runtime.json lacks {error}.") from None


def _refusal(status: int, answer: bytes) -> errors.PenstockError:
    try:
        error = msgspec.json.decode(answer, type=arm.ErrorBody).error
    except msgspec.MsgspecError:
        error = arm.ErrorDetail("", "")
    return error_from_response(status, error.code, error.message)


def _segment(name: str) -> str:
    return quote(name, safe="$")


def _own_path(namespace: str, hub: str | None = None) -> str:
    path = f"{_OWN}/namespaces/{_segment(namespace)}"
    return path if hub is None else f"{path}/eventhubs/{_segment(hub)}"
