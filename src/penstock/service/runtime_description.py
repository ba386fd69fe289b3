"""What a running service reports: the ready line of `serve --json`, `runtime.json`, the banner."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path

import msgspec

from penstock.model.entities import AuthorizationRule
from penstock.service.config.settings import Settings

_AMQPS_DEFAULT = ":5671"
_LOCALHOST = ("localhost", "127.0.0.1", "::1")  # any other loopback address is not localhost


class RuntimeDescription(msgspec.Struct, frozen=True, kw_only=True):
    """Names and order of the fields are those of the JSON object that users read."""

    namespace: str
    connection_string: str
    emulator_connection_string: str | None
    amqp: str | None
    amqps: str
    kafka: str | None = None  # no Kafka listener yet
    kafka_tls: str | None = None
    https: str
    admin: str
    portal: str | None
    admin_token: str
    ca_file: str
    data: str
    pid: int

    def as_dict(self) -> dict[str, object]:
        return dict(msgspec.structs.asdict(self))

    def as_json(self) -> str:
        return msgspec.json.encode(self).decode()

    def __repr__(self) -> str:  # without connection strings, which have keys
        return f"RuntimeDescription({self.namespace!r}, amqps={self.amqps!r}, pid={self.pid})"


def describe_runtime(
    settings: Settings,
    root: AuthorizationRule,
    ports: Mapping[str, int],
    *,
    admin_token: str,
    ca_file: Path,
    portal: str | None,
) -> RuntimeDescription:
    """`ports` of the listeners amqp, amqps, https and admin; amqp may be absent."""
    host = public_host(settings)
    key = f"SharedAccessKeyName={root.name};SharedAccessKey={root.primary_key.reveal()}"
    amqp = f"{host}:{ports['amqp']}" if "amqp" in ports else None
    amqps = f"{host}:{ports['amqps']}"
    plain = f"Endpoint=sb://{amqp};{key};UseDevelopmentEmulator=true;" if amqp else None
    scheme = "http" if settings.is_plain else "https"
    return RuntimeDescription(
        namespace=root.namespace,
        connection_string=f"Endpoint=sb://{amqps.removesuffix(_AMQPS_DEFAULT)}/;{key}",
        emulator_connection_string=plain,
        amqp=amqp,
        amqps=amqps,
        https=f"https://{host}:{ports['https']}",
        admin=f"{scheme}://{host}:{ports['admin']}",
        portal=portal,
        admin_token=admin_token,
        ca_file=str(ca_file),
        data=str(settings.data.resolve()),
        pid=os.getpid(),
    )


def public_host(settings: Settings) -> str:
    """The host name for clients: localhost, the bound address, or, where all addresses are bound,
    the first public host or else the machine's name."""
    host = settings.host
    if host in _LOCALHOST:
        return "localhost"
    if host in ("0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        # getfqdn could wait for a name server
        host = settings.public_hosts[0] if settings.public_hosts else socket.gethostname()
    return f"[{host}]" if ":" in host else host
