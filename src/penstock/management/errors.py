"""Refusals that only the control plane knows."""

from __future__ import annotations

from penstock.model.errors import PenstockError


class GroupInUse(PenstockError):
    """An event processor holds a lease on a partition whose checkpoint is to be moved."""

    http_status = 409
