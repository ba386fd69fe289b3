"""Namespaces: the list, making one, deleting one with its name typed."""

from __future__ import annotations

from starlette.responses import Response

from penstock.management.client import ManagementClient
from penstock.management.permissions import AdminRole
from penstock.model.errors import ArgumentError
from penstock.portal import components as ui
from penstock.portal.html import Html, el, path
from penstock.portal.layout import page
from penstock.portal.page_request import ActionCompleted, PageRequest

_SKUS = {"Standard": "Standard", "Basic": "Basic", "Premium": "Premium: no units, 1 MB events"}


async def namespace_list(visit: PageRequest) -> Response:
    rows = []
    for namespace in await visit.backend.read(ManagementClient.namespaces):
        hubs = await visit.backend.read(ManagementClient.hubs, namespace.name)
        rows.append(
            {
                "Name": el("a", namespace.name, href=path("", namespace=namespace.name)),
                "Tier": namespace.sku.name,
                "Limits": namespace.properties.limits,
                "Units": "unlimited" if namespace.unlimited else namespace.capacity,
                "Auto-inflate up to": namespace.maximum_units or "off",
                "Event hubs": sum(visit.sees(hub.name) for hub in hubs),
                "Created": namespace.created_at,
                "Tags": ", ".join(f"{key}={value}" for key, value in namespace.tags.items()),
            }
        )
    numbers = ("Units", "Auto-inflate up to", "Event hubs")
    return await page(
        visit,
        ui.card("", ui.table(rows, empty="There is none.", numbers=numbers)),
        _forms(visit) if visit.may(AdminRole.ADMIN) else None,
    )


def _forms(visit: PageRequest) -> Html:
    name = ui.name_field(
        visit, minlength=6, maxlength=50, help_="6 to 50 letters, digits and hyphens"
    )
    tier = ui.select(visit, "Tier", "sku", _SKUS, "Standard")
    to = visit.link("namespaces", "delete")
    loss = "All its event hubs and their events go with it, and cannot be brought back."
    delete = ui.delete_box(visit, to, "namespace", visit.namespace, loss)
    note = f"{visit.namespace} is in view; another one can be chosen at the top."
    create = ui.form(visit, visit.link("namespaces"), name, tier, ui.submit("Create namespace"))
    return el(
        "div",
        ui.card("Create a namespace", create),
        ui.card("This namespace", el("p", note), delete),
        class_="columns",
    )


async def create(visit: PageRequest) -> Response:
    name, sku = visit.text("name"), visit.form.get("sku", "Standard")
    if await visit.backend.find(name, ManagementClient.namespaces) is not None:
        raise ArgumentError(f"There is a namespace '{name}' already.")
    await visit.act(lambda client: client.put_namespace(name, sku=sku))
    raise ActionCompleted(path("", namespace=name), f"The namespace '{name}' is created.")


async def delete(visit: PageRequest) -> Response:
    visit.check_typed(visit.namespace)
    await visit.act(lambda client: client.delete_namespace(visit.namespace))
    raise ActionCompleted("/namespaces", f"The namespace '{visit.namespace}' is deleted.")
