"""The management API in Azure Resource Manager's shapes (protocol.md 7.3), on FastAPI.

Loaded late (`management.door`), which has seen to token, rate, version and body before. Every
route is a coroutine: operations run on the owner's thread, and none of them waits.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

import penstock
from penstock.management import faults
from penstock.management.routes import capture, entities, penstock_provider, subscriptions
from penstock.management.routes.parameters import ERRORS
from penstock.management.shapes import error_shape
from penstock.model import names
from penstock.model.errors import PenstockError

_DESCRIPTION = (
    "Namespaces, event hubs, consumer groups, authorization rules and keys in the shapes of Azure "
    "Resource Manager, provider Microsoft.EventHub; Penstock's own below /providers/Penstock."
)


class _Application(FastAPI):
    def openapi(self) -> dict[str, Any]:
        """Without FastAPI's own 422: what it would say is answered as 400, in Azure's shape."""
        if self.openapi_schema is None:
            document = super().openapi()
            for methods in document["paths"].values():
                for method in methods.values():
                    method["responses"].pop("422", None)
            for name in ("HTTPValidationError", "ValidationError"):
                document["components"]["schemas"].pop(name, None)
        return super().openapi()


@cache
def application() -> FastAPI:
    """One for the process: what it works on comes with each request's scope."""
    app = _Application(
        title="Penstock management API",
        version=penstock.__version__,
        description=_DESCRIPTION,
        docs_url=None,  # their pages load scripts from elsewhere
        redoc_url=None,
        openapi_url=None,  # the door serves it, without a token
        responses=ERRORS,
        redirect_slashes=False,
    )
    app.include_router(subscriptions.router)
    app.include_router(entities.router)
    app.include_router(penstock_provider.router)
    app.include_router(capture.router)
    app.add_exception_handler(PenstockError, _refusal_response)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _no_route)
    app.add_exception_handler(Exception, _failure_response)
    return app


async def _refusal_response(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, PenstockError)
    status, code = faults.status_and_code(error)
    if status == 500:
        raise error  # on to `_failed`, and from there to the door, which logs it
    return JSONResponse(error_shape(code, str(error)), status_code=status)


async def _failure_response(request: Request, error: Exception) -> JSONResponse:
    body = error_shape("InternalServerError", faults.INTERNAL)
    return JSONResponse(body, status_code=500)


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    text = f"{names.quote_text(where, most=200)}: {first['msg']}."
    return JSONResponse(error_shape("InvalidRequestContent", text), status_code=400)


async def _no_route(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    code = "MethodNotAllowed" if error.status_code == 405 else "InvalidResourceType"
    path = names.quote_text(request.url.path, most=300)
    text = f"{request.method} {path} is not supported; docs/management.md lists what is."
    headers = error.headers
    return JSONResponse(error_shape(code, text), status_code=error.status_code, headers=headers)
