"""Settings of the portal, which the service that starts it passes in the environment and not as
arguments: every user of the machine can read those."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec

from penstock.model.errors import ConfigurationError
from penstock.model.usage import PriceList

SESSION_HOURS = 12
VARIABLE = "PENSTOCK_PORTAL_SETTINGS"  # of the environment: the settings as JSON


class PortalSettings(msgspec.Struct, frozen=True, kw_only=True):
    admin_url: str
    token_file: str  # has the portal's own token; the service replaces it
    admin_token_hash: str = ""  # of the token that `penstock serve` shows
    secret: str  # signs sessions and sign-in links; the service has it too
    revocations_file: str | None = None  # ended sessions and used links, for the next start
    ca_file: str | None = None
    namespace: str = ""  # shown where an address names none; empty: the first by name
    environment: str = ""  # the name that every page shows
    read_only: bool = False
    users_file: str | None = None
    mask: str = ""  # fields of events that only administrators see
    prices: PriceList | None = None
    sockets: tuple[int, ...] = ()  # listening, inherited
    certificate_file: str | None = None
    key_file: str | None = None
    https_url: str | None = None  # the endpoint for publishing over HTTPS
    trusted_proxies: int = 0  # entries of X-Forwarded-For that are believed, from the right
    hosts: tuple[str, ...] = ()  # host names that it answers to, beside loopback ones
    session_hours: int = SESSION_HOURS

    def __repr__(self) -> str:  # without the secret
        return f"PortalSettings(admin_url={self.admin_url!r})"

    @property
    def is_secure(self) -> bool:
        return self.certificate_file is not None


def hash_token(token: str) -> str:
    """The hash by which the portal recognizes an admin token. A plain hash does not reveal a token,
    which has 256 random bits."""
    return hashlib.sha256(token.encode()).hexdigest()


def to_environ(settings: PortalSettings) -> dict[str, str]:
    """The environment of a portal's process with these settings."""
    return {VARIABLE: msgspec.json.encode(settings).decode()}


def from_environ(environ: Mapping[str, str]) -> PortalSettings:
    """As `penstock serve` sets it. Raises ConfigurationError."""
    try:
        return msgspec.json.decode(environ[VARIABLE], type=PortalSettings)
    except KeyError:
        raise ConfigurationError(
            f"The portal needs {VARIABLE}; `penstock serve` starts it with that."
        ) from None
    except msgspec.MsgspecError as error:
        raise ConfigurationError(f"{VARIABLE} cannot be read: {error}.") from None
