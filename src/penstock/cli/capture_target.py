"""Where a hub's captured files lie, and how its log is read: for commands that look at both."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli.service import Service
from penstock.model.errors import ConfigurationError

if TYPE_CHECKING:
    from penstock.capture.destinations import Target
    from penstock.client.ranges import RangeSettings
    from penstock.management.client import CaptureStatusInfo


def find_target(service: Service, told: CaptureStatusInfo, config: Path | None) -> Target:
    """By the service's configuration where this machine has it; else by what the service tells and
    credentials of the environment. Raises PenstockError."""
    from penstock.capture.description import CaptureSettings
    from penstock.capture.destinations import environment_destination, resolve
    from penstock.service.config import load_settings

    settings = load_settings(flags={"config": config}, environ=os.environ)
    known = list(settings.capture.destinations) or [
        environment_destination(each["name"], each["url"], os.environ)
        for each in service.client.capture_destinations()
    ]
    description = service.client.hub(told.namespace, told.hub).capture
    if description is None:
        raise ConfigurationError(f"The event hub '{told.hub}' has no captureDescription.")
    wanted = CaptureSettings.of(description)
    return resolve(known, wanted.account, wanted.container)


def range_settings(service: Service, hub: str, connection_string: str | None) -> RangeSettings:
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
