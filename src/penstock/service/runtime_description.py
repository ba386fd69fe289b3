"""What a running service reports: the ready line of `serve --json`, `runtime.json`, the banner."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import msgspec

from penstock.model.entities import AuthorizationRule
from penstock.service.config.settings import Settings

_AMQPS_DEFAULT = 5671
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

    @staticmethod
    def of(
        settings: Settings,
        *,
        root: AuthorizationRule,
        amqp_port: int | None,
        amqps_port: int,
        https_port: int,
        admin_port: int,
        admin_token: str,
        ca_file: Path,
        portal: str | None = None,
    ) -> RuntimeDescription:
        host = public_host(settings)
        key = f"SharedAccessKeyName={root.name};SharedAccessKey={root.primary_key.reveal()}"
        tls_endpoint = host if amqps_port == _AMQPS_DEFAULT else f"{host}:{amqps_port}"
        plain = None
        if amqp_port is not None:
            plain = f"Endpoint=sb://{host}:{amqp_port};{key};UseDevelopmentEmulator=true;"
        scheme = "http" if settings.is_loopback else "https"
        return RuntimeDescription(
            namespace=root.namespace,
            connection_string=f"Endpoint=sb://{tls_endpoint}/;{key}",
            emulator_connection_string=plain,
            amqp=None if amqp_port is None else f"{host}:{amqp_port}",
            amqps=f"{host}:{amqps_port}",
            https=f"https://{host}:{https_port}",
            admin=f"{scheme}://{host}:{admin_port}",
            portal=portal,
            admin_token=admin_token,
            ca_file=str(ca_file),
            data=str(settings.data.resolve()),
            pid=os.getpid(),
        )

    def as_dict(self) -> dict[str, object]:
        return dict(msgspec.structs.asdict(self))

    def as_json(self) -> str:
        return msgspec.json.encode(self).decode()

    def __repr__(self) -> str:  # without connection strings, which have keys
        return f"RuntimeDescription({self.namespace!r}, amqps={self.amqps!r}, pid={self.pid})"


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
