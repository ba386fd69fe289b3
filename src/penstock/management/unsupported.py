"""Resources of Azure that this service does not have: one text for each, instead of a bare 404.

A create or change is refused with 400, which scripts do not mistake for "not found". Reading a
single one is 404. Their lists are empty (`api_service`).
"""

from __future__ import annotations

from penstock.management.paths import decode_name as unescaped
from penstock.model import names
from penstock.model.errors import NotAllowed, NotFound

_SEE = "see 'How it differs from Azure' in docs/management.md"
_REPLICAS = "the data is in one directory of one service; back it up with 'penstock backup'"
_NETWORK = "choose the address to listen on with --host of serve, and use a firewall"
# By the word of the path, in lower case: what it is, and what to do.
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


def check_supported(method: str, path: str) -> None:
    """Raise NotAllowed or NotFound for a canonical path that names what Azure has and Penstock
    does not."""
    words = [word.lower() for word in path.strip("/").split("/")]
    if words[0] != "subscriptions":
        return
    if words[2:3] == ["resources"] or words[4:5] == ["resources"]:
        raise NotAllowed(_RESOURCE_LIST)
    if method == "DELETE" and len(words) == 4 and words[2] == "resourcegroups":
        raise NotAllowed(_GROUP_DELETE)
    _check_providers(method, words)
    _check_resource(method, path, words)


def _check_providers(method: str, words: list[str]) -> None:
    for index, word in enumerate(words[:-1]):
        # `providers` is a word in these positions only; elsewhere it is a name of the user's.
        if word != "providers" or index % 2 or words[index + 1] in _PROVIDERS:
            continue
        if words[index + 1 : index + 3] == ["microsoft.resources", "deployments"]:
            raise NotAllowed(_DEPLOYMENTS)
        text = (
            f"The resource provider '{names.quote_text(unescaped(words[index + 1]))}' is not "
            "supported: "
            "Microsoft.EventHub is."
        )
        raise NotFound(text) if method in ("GET", "HEAD") else NotAllowed(text)


def _check_resource(method: str, path: str, words: list[str]) -> None:
    """The word follows the provider, a namespace or an event hub."""
    if "microsoft.eventhub" not in words:
        return
    start = words.index("microsoft.eventhub") + 1
    for index in range(start, len(words), 2):
        text = _RESOURCES.get(words[index])
        if text is None:
            continue
        if method not in ("GET", "HEAD"):
            raise NotAllowed(f"{text}.")
        below = words[index + 1 :]
        if below and (words[index], below) != ("networkrulesets", ["default"]):
            name = names.quote_text(unescaped(path.strip("/").split("/")[index + 1]))
            raise NotFound(f"There is no '{name}' in {path.strip('/').split('/')[index]}. {text}.")
        return
