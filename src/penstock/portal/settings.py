"""What the portal is told by the service that starts it: by the environment, never by arguments,
which every user of the machine can read."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from penstock.model.errors import ConfigurationError

SESSION_HOURS = 12


class PortalSettings(msgspec.Struct, frozen=True, kw_only=True):
    admin_url: str
    admin_token: str
    ca_file: str | None = None
    environment: str = ""  # the name that every page shows
    read_only: bool = False
    users_file: str | None = None
    mask: str = ""  # fields that administrators alone see
    prices: dict[str, str] = {}  # `currency` and what each unit costs
    sockets: tuple[int, ...] = ()  # listening, inherited
    certificate_file: str | None = None
    key_file: str | None = None
    https_url: str | None = None  # where publishing over HTTPS goes
    session_hours: int = SESSION_HOURS

    def __repr__(self) -> str:  # the token opens everything
        return f"PortalSettings(admin_url={self.admin_url!r})"

    @property
    def is_secure(self) -> bool:
        return self.certificate_file is not None


def from_environ(environ: Mapping[str, str]) -> PortalSettings:
    """As `penstock serve` sets it. Raises ConfigurationError."""
    url, token = environ.get("PENSTOCK_ADMIN_URL"), environ.get("PENSTOCK_ADMIN_TOKEN")
    if not url or not token:
        raise ConfigurationError(
            "The portal needs PENSTOCK_ADMIN_URL and PENSTOCK_ADMIN_TOKEN; `penstock serve` "
            "starts it with both."
        )
    try:
        sockets = tuple(int(word) for word in environ.get("PENSTOCK_PORTAL_SOCKETS", "").split())
        prices = msgspec.json.decode(
            environ.get("PENSTOCK_PORTAL_PRICES", "{}"), type=dict[str, str]
        )
    except (ValueError, msgspec.MsgspecError) as error:
        raise ConfigurationError(f"The portal's environment cannot be read: {error}.") from None
    return PortalSettings(
        admin_url=url,
        admin_token=token,
        ca_file=environ.get("PENSTOCK_CA_FILE"),
        environment=environ.get("PENSTOCK_PORTAL_ENVIRONMENT", ""),
        read_only=environ.get("PENSTOCK_PORTAL_READ_ONLY") == "1",
        users_file=environ.get("PENSTOCK_PORTAL_USERS_FILE") or None,
        mask=environ.get("PENSTOCK_PORTAL_MASK", ""),
        prices=prices,
        sockets=sockets,
        certificate_file=environ.get("PENSTOCK_PORTAL_CERTIFICATE_FILE") or None,
        key_file=environ.get("PENSTOCK_PORTAL_KEY_FILE") or None,
        https_url=environ.get("PENSTOCK_HTTPS_URL") or None,
    )
