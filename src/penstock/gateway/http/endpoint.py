"""What the endpoints of the data plane share: tokens, deadlines, refusals and their log lines."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence

from starlette.types import Receive, Scope, Send

from penstock.auth.grant import Grant
from penstock.auth.sas import Authority
from penstock.broker.broker import Broker
from penstock.catalog.api import Catalog
from penstock.gateway.http import responses
from penstock.gateway.http.authorization import TokenCache
from penstock.gateway.http.request import ClientDisconnected, HttpRequest, log_refusal
from penstock.gateway.http.responses import HttpResponse, MethodNotAllowed
from penstock.gateway.http.routes import RequestTarget
from penstock.gateway.refusal_log import RefusalLog
from penstock.model import limits, names
from penstock.model.clock import Clock
from penstock.model.entities import Right
from penstock.model.errors import InternalError, PenstockError

log = logging.getLogger("penstock.http")

_INTERNAL = (
    "The service was unable to process the request; please retry the operation. "
    "The operator finds the reason in the log."
)


class DataPlaneEndpoint(ABC):
    """An ASGI application: a raw callable, because routing tables and request objects would cost
    more than the rest of a small publication."""

    def __init__(
        self,
        *,
        broker: Broker,
        catalog: Catalog,
        clock: Clock,
        authorities: Callable[[], Sequence[Authority]],
        new_id: Callable[[], str],
        refusal_log: RefusalLog | None = None,
        deadline_s: float = limits.HTTP_REQUEST_DEADLINE_S,
    ) -> None:
        """`authorities` returns the namespaces as they are now, `new_id` random hex text."""
        self.answered: Counter[int] = Counter()  # requests, by the status of their answer
        self._broker = broker
        self._clock = clock
        self._new_id = new_id
        self._refusal_log = refusal_log or RefusalLog(clock.monotonic_ms)
        self._deadline_s = deadline_s
        self._tokens = TokenCache(authorities, clock)
        self._unsubscribe = catalog.subscribe(self._tokens.on_change)
        self._date = (0, b"")  # second, and its HTTP date
        self._failure_logged_s = -1  # second of the last log line about a failed request
        self._failures_left_out = 0  # since then

    def close(self) -> None:
        """Stop following the catalog; the server ends running requests."""
        self._unsubscribe()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = HttpRequest(scope, receive, send)
        try:
            response = await self._answer(request)
        except ClientDisconnected:
            return
        except PenstockError as error:
            response = self._refuse(request, error)
        except Exception:  # noqa: BLE001 - it costs this request only
            response = self._refuse(request, InternalError(_INTERNAL), is_unexpected=True)
        self.answered[response.status] += 1
        await request.answer(response, self._http_date())

    @abstractmethod
    async def _answer(self, request: HttpRequest) -> HttpResponse:
        """Checks the form, then the token, then existence, and only then reads the body."""

    def _authorize(self, request: HttpRequest, target: RequestTarget, right: Right) -> Grant:
        grant = self._tokens.grant(request.headers, target, right)
        request.authenticate()
        return grant

    def _http_date(self) -> bytes:
        now_ms = self._clock.now_ms()
        second = now_ms // 1000
        if self._date[0] != second:
            self._date = (second, responses.http_date(now_ms))
        return self._date[1]

    def _refuse(
        self, request: HttpRequest, error: PenstockError, *, is_unexpected: bool = False
    ) -> HttpResponse:
        tracking_id = self._new_id()
        host = request.headers.get(b"host", b"").decode("latin-1")
        path = request.raw_path.decode("latin-1").removeprefix("/")
        tracker = names.quote_text(f"{host}:{path}", most=200)
        if error.http_status == 500:
            self._log_failure(request, error, tracking_id, tracker, is_unexpected=is_unexpected)
        log_refusal(self._refusal_log, request.scope, error, tracking_id)
        return responses.error_response(
            error,
            tracking_id=tracking_id,
            tracker=tracker,
            now_ms=self._clock.now_ms(),
        )

    def _log_failure(
        self,
        request: HttpRequest,
        error: PenstockError,
        tracking_id: str,
        tracker: str,
        *,
        is_unexpected: bool,
    ) -> None:
        """One line a second: a failing disk would otherwise fill its remaining space with them."""
        second = self._clock.now_ms() // 1000
        if second == self._failure_logged_s:
            self._failures_left_out += 1
            return
        log.error(
            "request failed id=%s peer=%s resource=%s left_out=%d text=%s",
            tracking_id,
            request.peer,
            tracker,
            self._failures_left_out,
            error,
            exc_info=is_unexpected,
        )
        self._failure_logged_s, self._failures_left_out = second, 0


def check_method(method: str, allowed: tuple[str, ...]) -> None:
    if method not in allowed:
        methods = ", ".join(allowed)
        raise MethodNotAllowed(
            f"The method {names.quote_text(method)} is not supported here: {methods} is.",
            methods.encode(),
        )
