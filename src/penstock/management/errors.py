"""Errors in the form of Azure Resource Manager: from Penstock's errors, and back in the client."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.management.permissions import Forbidden
from penstock.model import errors

INTERNAL = "The service was unable to process the request; the operator finds why in the log."


class GroupInUse(errors.PenstockError, http_status=409):
    """An event processor holds a lease on a partition whose checkpoint is to be moved."""


class RequestError(errors.ArgumentError):
    """A request that no operation accepts: its path, method, api-version or content is wrong."""

    def __init__(
        self, status: int, code: str, text: str, headers: Sequence[tuple[str, str]] = ()
    ) -> None:
        super().__init__(text)
        self.status = status
        self.code = code
        self.headers = headers


# Subclasses come before their bases. The codes are those of Resource Manager where it has one.
_CODES: tuple[tuple[type[errors.PenstockError], int, str], ...] = (
    (Forbidden, 403, "AuthorizationFailed"),
    (errors.AuthFailed, 401, "InvalidAuthenticationToken"),
    (errors.Unauthorized, 401, "AuthenticationFailed"),
    (errors.NotFound, 404, "ResourceNotFound"),
    (errors.AlreadyExists, 409, "Conflict"),
    (GroupInUse, 409, "ConsumerGroupInUse"),
    (errors.QuotaExceeded, 403, "QuotaExceeded"),
    (errors.ArgumentOutOfRange, 400, "ArgumentOutOfRange"),
    (errors.ArgumentError, 400, "BadRequest"),
    (errors.NotAllowed, 400, "OperationNotAllowed"),
    (errors.MessageTooLarge, 413, "RequestEntityTooLarge"),
    (errors.ServerBusy, 429, "TooManyRequests"),
)
# Clients raise the same error for an invalid token and for a missing one.
_BY_CODE = {code: kind for kind, _, code in _CODES} | {
    "InvalidAuthenticationToken": errors.Unauthorized
}
# The first kind of each status; for these statuses another one.
_BY_STATUS = {status: kind for kind, status, _ in reversed(_CODES)} | {
    400: errors.ArgumentError,
    401: errors.Unauthorized,
    503: errors.ServerBusy,
}


def status_and_code(error: errors.PenstockError) -> tuple[int, str]:
    """HTTP status and error code of the response that reports `error`."""
    if isinstance(error, RequestError):
        return error.status, error.code
    for kind, status, code in _CODES:
        if isinstance(error, kind):
            return status, code
    if error.http_status == 500:
        return 500, "InternalServerError"
    return error.http_status, type(error).__name__


def error_from_response(status: int, code: str, text: str) -> errors.PenstockError:
    """The error that a client raises for a response."""
    kind = _BY_CODE.get(code) or _BY_STATUS.get(status)
    if kind is None:
        kind = errors.ArgumentError if 400 <= status < 500 else errors.InternalError
    return kind(text or f"The service answered {status}.")
