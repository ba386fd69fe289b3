"""Penstock's errors as Resource Manager tells them: status, code, text; and back again."""

from __future__ import annotations

from penstock.management.errors import GroupInUse
from penstock.management.permissions import Forbidden
from penstock.model.errors import (
    AlreadyExists,
    ArgumentError,
    ArgumentOutOfRange,
    AuthFailed,
    InternalError,
    MessageTooLarge,
    NotAllowed,
    NotFound,
    PenstockError,
    QuotaExceeded,
    ServerBusy,
    Unauthorized,
)

INTERNAL = "The service was unable to process the request; the operator finds why in the log."

# The most special first. The codes are Resource Manager's own words where it has one.
_CODES: tuple[tuple[type[PenstockError], int, str], ...] = (
    (Forbidden, 403, "AuthorizationFailed"),
    (AuthFailed, 401, "InvalidAuthenticationToken"),
    (Unauthorized, 401, "AuthenticationFailed"),
    (NotFound, 404, "ResourceNotFound"),
    (AlreadyExists, 409, "Conflict"),
    (GroupInUse, 409, "ConsumerGroupInUse"),
    (QuotaExceeded, 403, "QuotaExceeded"),
    (ArgumentOutOfRange, 400, "ArgumentOutOfRange"),
    (ArgumentError, 400, "BadRequest"),
    (NotAllowed, 400, "OperationNotAllowed"),
    (MessageTooLarge, 413, "RequestEntityTooLarge"),
    (ServerBusy, 429, "TooManyRequests"),
)
# A client need not tell a bad token from a missing one.
_BY_CODE = {code: kind for kind, _, code in _CODES} | {"InvalidAuthenticationToken": Unauthorized}
_BY_STATUS: dict[int, type[PenstockError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: AlreadyExists,
    413: MessageTooLarge,
    429: ServerBusy,
    503: ServerBusy,
}


class ApiVersionError(ArgumentError):
    """The query's api-version is missing or no date that was ever one."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


def status_and_code(error: PenstockError) -> tuple[int, str]:
    if isinstance(error, ApiVersionError):
        return 400, error.code
    for kind, status, code in _CODES:
        if isinstance(error, kind):
            return status, code
    if error.http_status == 500:
        return 500, "InternalServerError"
    return error.http_status, type(error).__name__


def error_from_response(status: int, code: str, text: str) -> PenstockError:
    """What a client raises for an answer."""
    kind = _BY_CODE.get(code) or _BY_STATUS.get(status)
    if kind is None:
        kind = ArgumentError if 400 <= status < 500 else InternalError
    return kind(text or f"The service answered {status}.")
