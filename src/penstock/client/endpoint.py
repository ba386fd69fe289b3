"""Connection strings: `Endpoint=sb://host[:port]/;SharedAccessKeyName=…;SharedAccessKey=…`."""

from __future__ import annotations

import msgspec

from penstock.model.entities import Secret
from penstock.model.errors import ArgumentError

_KNOWN = {
    "endpoint",
    "sharedaccesskeyname",
    "sharedaccesskey",
    "sharedaccesssignature",
    "entitypath",
    "usedevelopmentemulator",
}
_AMQPS_PORT = 5671
_AMQP_PORT = 5672


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where to go and who we are. `tls` is off only in the emulator's mode."""

    host: str
    port: int
    tls: bool
    key_name: str | None = None
    key: Secret | None = None
    signature: Secret | None = None
    hub: str | None = None


def parse_connection_string(text: str) -> Endpoint:
    """Raises ArgumentError, which never quotes the text: it holds a key."""
    parts: dict[str, str] = {}
    for piece in text.strip().strip(";").split(";"):
        name, mark, value = piece.partition("=")
        if not mark or name.strip().casefold() not in _KNOWN:
            raise ArgumentError(
                "The connection string has a part that is not one of Endpoint, "
                "SharedAccessKeyName, SharedAccessKey, SharedAccessSignature, EntityPath, "
                "UseDevelopmentEmulator."
            )
        parts[name.strip().casefold()] = value.strip()
    tls = parts.get("usedevelopmentemulator", "").casefold() != "true"
    host, port = _host_and_port(parts.get("endpoint", ""), _AMQPS_PORT if tls else _AMQP_PORT)
    key, signature = parts.get("sharedaccesskey"), parts.get("sharedaccesssignature")
    if not signature and not (key and parts.get("sharedaccesskeyname")):
        raise ArgumentError(
            "The connection string has no key: it needs SharedAccessKeyName and SharedAccessKey, "
            "or SharedAccessSignature."
        )
    return Endpoint(
        host=host,
        port=port,
        tls=tls,
        key_name=parts.get("sharedaccesskeyname"),
        key=None if key is None else Secret(key),
        signature=None if signature is None else Secret(signature),
        hub=parts.get("entitypath"),
    )


def _host_and_port(endpoint: str, default: int) -> tuple[str, int]:
    _, mark, rest = endpoint.partition("://")
    authority = (rest if mark else endpoint).partition("/")[0]
    if not authority:
        raise ArgumentError("The connection string has no Endpoint=sb://host part.")
    if authority.startswith("["):
        host, _, tail = authority[1:].partition("]")
        port = tail.removeprefix(":")
    else:
        host, _, port = authority.partition(":")
    if port and (not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536):
        raise ArgumentError("The port in the connection string's Endpoint is not 1 to 65535.")
    return host, int(port) if port else default
