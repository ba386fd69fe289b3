"""Namespaces: the list, making one, deleting one with its name typed."""

from __future__ import annotations

from starlette.responses import Response

from penstock.formats.quantities import format_integer
from penstock.model.errors import ArgumentError
from penstock.portal import components as ui
from penstock.portal.html import Html, el, path
from penstock.portal.layout import page
from penstock.portal.page_request import ActionCompleted, PageRequest, PageRoute
from penstock.portal.users import PortalRole

_SKUS = {"Standard": "Standard", "Basic": "Basic", "Premium": "Premium: no units, 1 MB events"}


async def namespace_list(visit: PageRequest) -> Response:
    found = await visit.backend.namespaces()
    rows = []
    for each in found:
        hubs = [hub for hub in await visit.backend.hubs(each.name) if visit.sees(hub.name)]
        rows.append(
            (
                el("a", each.name, href=path("", namespace=each.name)),
                each.sku.name,
                each.properties.limits,
                "unlimited" if each.unlimited else format_integer(each.capacity),
                format_integer(each.maximum_units) if each.maximum_units else "off",
                format_integer(len(hubs)),
                each.created_at,
                ", ".join(f"{key}={value}" for key, value in each.tags.items()),
            )
        )
    heads = (
        "Name", "Tier", "Limits", "Units", "Auto-inflate up to", "Event hubs", "Created", "Tags",
    )  # fmt: skip
    return await page(
        visit,
        "Namespaces",
        ui.card("", ui.table(heads, rows, empty="There is none.", numbers=(3, 4, 5))),
        _forms(visit) if visit.may(PortalRole.ADMIN) else None,
        active="namespaces",
    )


def _forms(visit: PageRequest) -> Html:
    name = ui.name_field(
        visit, minlength=6, maxlength=50, help_="6 to 50 letters, digits and hyphens"
    )
    tier = ui.select(visit, "Tier", "sku", _SKUS, "Standard")
    delete = ui.delete_box(
        visit,
        visit.link("namespaces", "delete"),
        "namespace",
        visit.namespace,
        "All its event hubs and their events go with it, and cannot be brought back.",
    )
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
    if any(each.name.casefold() == name.casefold() for each in await visit.backend.namespaces()):
        raise ArgumentError(f"There is a namespace '{name}' already.")
    await visit.act(lambda client: client.put_namespace(name, sku=sku))
    raise ActionCompleted(path("", namespace=name), f"The namespace '{name}' is created.")


async def delete(visit: PageRequest) -> Response:
    visit.check_typed(visit.namespace)
    await visit.act(lambda client: client.delete_namespace(visit.namespace))
    raise ActionCompleted("/namespaces", f"The namespace '{visit.namespace}' is deleted.")


ROUTES = (
    PageRoute("GET", "/namespaces", namespace_list),
    PageRoute("POST", "/namespaces", create, PortalRole.ADMIN),
    PageRoute("POST", "/namespaces/delete", delete, PortalRole.ADMIN),
)
