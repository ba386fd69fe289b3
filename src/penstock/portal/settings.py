"""What the portal is told by the service that starts it: by the environment, never by arguments,
which every user of the machine can read."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec

from penstock.model.errors import ConfigurationError

SESSION_HOURS = 12


class PortalSettings(msgspec.Struct, frozen=True, kw_only=True):
    admin_url: str
    token_file: str  # holds the portal's own token; the service replaces it
    admin_token_hash: str = ""  # of the token that `penstock serve` shows
    secret: str  # signs sessions and sign-in links; the service has it too
    revocations_file: str | None = None  # ended sessions and used links, kept over restarts
    ca_file: str | None = None
    namespace: str = ""  # in view where an address names none; else the first by name
    environment: str = ""  # the name that every page shows
    read_only: bool = False
    users_file: str | None = None
    mask: str = ""  # fields that administrators alone see
    prices: dict[str, str] = {}  # `currency` and what each unit costs
    sockets: tuple[int, ...] = ()  # listening, inherited
    certificate_file: str | None = None
    key_file: str | None = None
    https_url: str | None = None  # where publishing over HTTPS goes
    trusted_proxies: int = 0  # entries of X-Forwarded-For that are believed, from the right
    hosts: tuple[str, ...] = ()  # names that it answers for, beside loopback ones
    session_hours: int = SESSION_HOURS

    def __repr__(self) -> str:  # the secret opens everything
        return f"PortalSettings(admin_url={self.admin_url!r})"

    @property
    def is_secure(self) -> bool:
        return self.certificate_file is not None


def hash_token(token: str) -> str:
    """By which the portal recognizes an admin token that it does not have. A token has 256 bits
    that nobody can guess, so that a plain hash does not give it away."""
    return hashlib.sha256(token.encode()).hexdigest()


def from_environ(environ: Mapping[str, str]) -> PortalSettings:
    """As `penstock serve` sets it. Raises ConfigurationError."""
    url, token_file = environ.get("PENSTOCK_ADMIN_URL"), environ.get("PENSTOCK_ADMIN_TOKEN_FILE")
    secret = environ.get("PENSTOCK_PORTAL_SECRET")
    if not url or not token_file or not secret:
        raise ConfigurationError(
            "The portal needs PENSTOCK_ADMIN_URL, PENSTOCK_ADMIN_TOKEN_FILE and "
            "PENSTOCK_PORTAL_SECRET; `penstock serve` starts it with all three."
        )
    try:
        sockets = tuple(int(word) for word in environ.get("PENSTOCK_PORTAL_SOCKETS", "").split())
        proxies = int(environ.get("PENSTOCK_PORTAL_TRUSTED_PROXIES") or 0)
        prices = msgspec.json.decode(
            environ.get("PENSTOCK_PORTAL_PRICES", "{}"), type=dict[str, str]
        )
    except (ValueError, msgspec.MsgspecError) as error:
        raise ConfigurationError(f"The portal's environment cannot be read: {error}.") from None
    return PortalSettings(
        admin_url=url,
        token_file=token_file,
        admin_token_hash=environ.get("PENSTOCK_PORTAL_ADMIN_TOKEN_HASH", ""),
        secret=secret,
        revocations_file=environ.get("PENSTOCK_PORTAL_REVOCATIONS_FILE") or None,
        ca_file=environ.get("PENSTOCK_CA_FILE"),
        namespace=environ.get("PENSTOCK_PORTAL_NAMESPACE", ""),
        environment=environ.get("PENSTOCK_PORTAL_ENVIRONMENT", ""),
        read_only=environ.get("PENSTOCK_PORTAL_READ_ONLY") == "1",
        users_file=environ.get("PENSTOCK_PORTAL_USERS_FILE") or None,
        mask=environ.get("PENSTOCK_PORTAL_MASK", ""),
        prices=prices,
        sockets=sockets,
        certificate_file=environ.get("PENSTOCK_PORTAL_CERTIFICATE_FILE") or None,
        key_file=environ.get("PENSTOCK_PORTAL_KEY_FILE") or None,
        trusted_proxies=proxies,
        hosts=tuple(environ.get("PENSTOCK_PORTAL_HOSTS", "").split()),
        https_url=environ.get("PENSTOCK_HTTPS_URL") or None,
    )
