"""Connection strings: `Endpoint=sb://host[:port]/;SharedAccessKeyName=…;SharedAccessKey=…`."""

from __future__ import annotations

import msgspec

from penstock.model.entities import Secret
from penstock.model.errors import ArgumentError

_PARTS = {
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
    """Address and credentials. `tls` is off only with UseDevelopmentEmulator=true.

    Either `key_name` and `key`, or `signature`, a token that the connection string contains.
    """

    host: str
    port: int
    tls: bool
    key_name: str | None = None
    key: Secret | None = None
    signature: Secret | None = None
    hub: str | None = None


def parse_connection_string(text: str, *, ignore_unknown: bool = False) -> Endpoint:
    """Raises ArgumentError, which never quotes the text: it contains a key. An unknown part is an
    error unless `ignore_unknown`."""
    parts: dict[str, str] = {}
    for part in text.strip().strip(";").split(";"):
        name, separator, value = part.partition("=")
        name = name.strip().casefold()
        if not separator or not (ignore_unknown or name in _PARTS):
            raise ArgumentError(
                "The connection string has a part that is not one of Endpoint, "
                "SharedAccessKeyName, SharedAccessKey, SharedAccessSignature, EntityPath, "
                "UseDevelopmentEmulator."
            )
        parts[name] = value.strip()
    tls = parts.get("usedevelopmentemulator", "").casefold() != "true"
    host, port = _parse_authority(parts.get("endpoint", ""), _AMQPS_PORT if tls else _AMQP_PORT)
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


def _parse_authority(endpoint: str, default: int) -> tuple[str, int]:
    authority = endpoint.split("://", 1)[-1]
    authority = authority.partition("/")[0]
    if authority.startswith("["):
        host, _, port = authority[1:].partition("]")
        port = port.removeprefix(":")
    else:
        host, _, port = authority.partition(":")
    if not host:
        raise ArgumentError("The connection string has no Endpoint=sb://host part.")
    if port and (not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536):
        raise ArgumentError("The port in the connection string's Endpoint is not 1 to 65535.")
    return host, int(port) if port else default
