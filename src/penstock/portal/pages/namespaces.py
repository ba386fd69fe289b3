"""Namespaces: the list, making one, deleting one with its name typed."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from penstock.management.client import ManagementClient
from penstock.management.resources import NamespaceResource
from penstock.model.errors import ArgumentError
from penstock.portal.page_request import ActionCompleted, PageRequest
from penstock.portal.shell import page
from penstock.portal.urls import path

_SKUS = (
    ("Standard", "Standard"),
    ("Basic", "Basic"),
    ("Premium", "Premium: no units, 1 MB events"),
)


class NamespaceRow(msgspec.Struct, frozen=True):
    namespace: NamespaceResource
    hubs: int


async def namespace_list(visit: PageRequest) -> Response:
    rows = []
    for namespace in await visit.backend.read(ManagementClient.namespaces):
        hubs = await visit.backend.read(ManagementClient.hubs, namespace.name)
        rows.append(NamespaceRow(namespace, sum(visit.sees(hub.name) for hub in hubs)))
    return await page(visit, "namespaces.html", rows=rows)


async def new_namespace(visit: PageRequest) -> Response:
    return await page(visit, "namespace_new.html", skus=_SKUS)


async def create(visit: PageRequest) -> Response:
    name, sku = visit.text("name"), visit.form.get("sku", "Standard")
    if await visit.backend.find(name, ManagementClient.namespaces) is not None:
        raise ArgumentError(f"There is a namespace '{name}' already.")
    await visit.act(lambda client: client.put_namespace(name, sku=sku))
    raise ActionCompleted(path("", namespace=name), f"The namespace '{name}' is created.")


async def confirm_delete(visit: PageRequest) -> Response:
    return await page(visit, "namespace_delete.html")


async def delete(visit: PageRequest) -> Response:
    visit.check_typed(visit.namespace)
    await visit.act(lambda client: client.delete_namespace(visit.namespace))
    raise ActionCompleted("/namespaces", f"The namespace '{visit.namespace}' is deleted.")
