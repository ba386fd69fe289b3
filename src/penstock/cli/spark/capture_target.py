"""Where a hub's captured files lie, and how its log is read: for commands that look at both."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli.service_options import AdminSession
from penstock.model.errors import ConfigurationError

if TYPE_CHECKING:
    from penstock.capture.destinations import Destination, DestinationFolder
    from penstock.capture.hub_files import FileLocationFilter
    from penstock.client.ranges import RangeSettings
    from penstock.management.client import CaptureStatus


def find_shelves(
    service: AdminSession, told: CaptureStatus, config: Path | None
) -> tuple[list[FileLocationFilter], list[str]]:
    """Where a hub's files lie, now and from before, and what cannot be looked at. Raises
    PenstockError."""
    import msgspec

    from penstock.capture.hub_files import file_locations
    from penstock.capture.runs import FileLocation

    places = msgspec.convert(told.places, list[FileLocation])
    return file_locations(places, load_destinations(service, config), created_ms=told.created_ms)


def load_destinations(service: AdminSession, config: Path | None) -> list[Destination]:
    """By the service's configuration where this machine has it; else by what the service tells and
    credentials of the environment. Raises PenstockError."""
    from penstock.capture.destinations import environment_destination
    from penstock.service.config.loader import load_settings

    settings = load_settings(flags={"config": config}, environ=os.environ)
    return list(settings.capture.destinations) or [
        environment_destination(each["name"], each["url"], os.environ)
        for each in service.client.capture_destinations()
    ]


def parse_target(text: str, known: Sequence[Destination]) -> DestinationFolder:
    """What a user names: a destination with a container or directory in it, a directory of this
    machine, or a URL with credentials of the environment (PENSTOCK_CAPTURE_TO_ACCOUNT_KEY, ...).
    Raises PenstockError."""
    from penstock.capture.destinations import environment_destination, resolve_destination

    name, _, below = text.partition("/")
    if any(each.name.casefold() == name.casefold() for each in known):
        return resolve_destination(known, name, below.strip("/"))
    url = text if "://" in text else Path(text).expanduser().resolve().as_uri()
    return resolve_destination([environment_destination("to", url, os.environ)], "to", "")


def range_settings(service: AdminSession, hub: str, connection_string: str | None) -> RangeSettings:
    """With the string that is given, of the environment, or with a key that the service tells."""
    from penstock.client.ranges import RangeSettings
    from penstock.model import names

    text = connection_string or os.environ.get("PENSTOCK_CONNECTION_STRING")
    if text is None:
        rules = service.client.rules(service.namespace)
        able = [rule.name for rule in rules if {"Listen", "Manage"} & set(rule.rights)]
        if not able:
            raise ConfigurationError("No policy of the namespace may listen.")
        rule = names.ROOT_RULE if names.ROOT_RULE in able else able[0]
        text = service.client.keys(service.namespace, None, rule).primary_connection_string
    return RangeSettings(text, hub, ca_file=service.admin.ca_file)
