"""Resources of Azure that this service does not have: one text for each, instead of a bare 404.

A create or change is refused with 400, which scripts do not mistake for "not found". Reading a
single one is 404. Their lists are empty (`routes/subscriptions.py`).
"""

from __future__ import annotations

from penstock.model import names
from penstock.model.errors import NotAllowed, NotFound

_SEE = "see 'How it differs from Azure' in docs/reference/management.md"
_REPLICAS = "the data is in one directory of one service; back it up with 'penstock backup'"
_NETWORK = "choose the address to listen on with --host of serve, and use a firewall"
# By resource type, in lower case: what is not supported, and what to do instead.
_RESOURCES = {
    "networkrulesets": f"Network rules are not supported: {_NETWORK}",
    "networksecurityperimeterconfigurations": f"Network perimeters are not supported: {_NETWORK}",
    "privateendpointconnections": f"Private endpoints are not supported: {_NETWORK}",
    "privatelinkresources": f"Private endpoints are not supported: {_NETWORK}",
    "disasterrecoveryconfigs": f"Geo-disaster recovery is not supported: {_REPLICAS}",
    "failover": f"Failover is not supported: {_REPLICAS}",
    "schemagroups": f"The schema registry is not supported: {_SEE}",
    "applicationgroups": f"Application groups are not supported: {_SEE}",
    "fabricshortcuts": f"Fabric shortcuts are not supported: {_SEE}",
    "clusters": "Dedicated clusters are not supported: create a namespace with the sku Premium",
    "availableclusterregions": f"Dedicated clusters are not supported: {_SEE}",
}
_DEPLOYMENTS = (
    "Deployments of templates (ARM, Bicep) are not supported: create namespaces and event hubs "
    "with 'az eventhubs', an SDK or the configuration file."
)
_GROUP_DELETE = (
    "A resource group cannot be deleted: it is only a name here. Delete its namespaces with "
    "'az eventhubs namespace delete'."
)
_RESOURCE_LIST = (
    "Resources cannot be listed together: use 'az eventhubs namespace list' and "
    "'az eventhubs eventhub list'."
)
_PROVIDERS = ("microsoft.eventhub", "penstock")


def check_supported(method: str, segments: list[str]) -> None:
    """Raise NotAllowed or NotFound for a path of something that Azure has and Penstock does not."""
    words = [segment.lower() for segment in segments]
    if words[:1] != ["subscriptions"]:
        return
    if "resources" in (*words[2:3], *words[4:5]):
        raise NotAllowed(_RESOURCE_LIST)
    if method == "DELETE" and len(words) == 4 and words[2] == "resourcegroups":
        raise NotAllowed(_GROUP_DELETE)
    for index in range(0, len(words) - 1, 2):  # the other segments are names
        if words[index] == "providers" and words[index + 1] not in _PROVIDERS:
            _refuse_provider(method, words[index + 1 :])
    if "microsoft.eventhub" in words:
        _check_resource(method, segments, words, words.index("microsoft.eventhub") + 1)


def _refuse_provider(method: str, words: list[str]) -> None:
    if words[:2] == ["microsoft.resources", "deployments"]:
        raise NotAllowed(_DEPLOYMENTS)
    text = (
        f"The resource provider '{names.quote_text(words[0])}' is not supported: "
        "Microsoft.EventHub is."
    )
    raise NotFound(text) if method in ("GET", "HEAD") else NotAllowed(text)


def _check_resource(method: str, segments: list[str], words: list[str], start: int) -> None:
    """Resource types are the segment after the provider and every second one after it."""
    for index in range(start, len(words), 2):
        text = _RESOURCES.get(words[index])
        if text is None:
            continue
        if method not in ("GET", "HEAD"):
            raise NotAllowed(f"{text}.")
        if len(words) > index + 1 and words[index:] != ["networkrulesets", "default"]:
            name, kind = (names.quote_text(segments[at]) for at in (index + 1, index))
            raise NotFound(f"There is no '{name}' in {kind}. {text}.")
        return
