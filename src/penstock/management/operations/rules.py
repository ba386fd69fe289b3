"""Authorization rules of a namespace (`hub` is None) or of one hub, and their keys."""

from __future__ import annotations

import msgspec

from penstock.catalog.api import require_entity
from penstock.management.operations.base import OperationGroup, format_path
from penstock.management.permissions import Action
from penstock.management.resources import KeyType, RegenerateBody
from penstock.model import limits, names
from penstock.model.entities import AuthorizationRule, Right, Secret
from penstock.model.errors import ArgumentError


class AuthorizationRuleOperations(OperationGroup):
    def list(self, namespace: str, hub: str | None = None) -> list[AuthorizationRule]:
        """The records contain keys. A caller that shows keys must call `keys`, which is audited."""
        self._permit(Action.RULE_READ, namespace, hub)
        self._parent(namespace, hub)
        return self._catalog.rules(namespace, hub)

    def show(self, namespace: str, hub: str | None, name: str) -> AuthorizationRule:
        """Raises NotFound."""
        self._permit(Action.RULE_READ, namespace, hub, name)
        return self._rule(namespace, hub, name)

    def put(self, namespace: str, hub: str | None, name: str, rights: Right) -> AuthorizationRule:
        """Create a rule with random keys, or change its rights. Raises QuotaExceeded when there are
        12 rules already."""
        self._permit(Action.RULE_WRITE, namespace, hub, name)
        self._parent(namespace, hub)
        old = self._catalog.rule(namespace, hub, name)
        if old is None:
            parent = None if hub is None else names.HubName(hub)
            new = self._new_rule(
                names.NamespaceName(namespace), parent, names.rule_name(name), rights
            )
        elif old.rights == rights:
            return old
        else:
            new = msgspec.structs.replace(old, rights=rights, updated_ms=self._now_ms())
        self._catalog.put_rule(new)
        rule = self._rule(namespace, hub, name)
        self._record(Action.RULE_WRITE, f"{_path(rule)}: {', '.join(rights_texts(rights))}")
        return rule

    def delete(self, namespace: str, hub: str | None, name: str) -> None:
        """Delete the rule. Links that were authorized by it are closed. Raises NotFound."""
        self._permit(Action.RULE_DELETE, namespace, hub, name)
        rule = self._rule(namespace, hub, name)
        self._catalog.delete_rule(namespace, hub, name)
        self._record(Action.RULE_DELETE, _path(rule))

    def keys(self, namespace: str, hub: str | None, name: str) -> AuthorizationRule:
        """The rule with its keys. The call is written to the audit log."""
        self._permit(Action.KEYS_LIST, namespace, hub, name)
        rule = self._rule(namespace, hub, name)
        self._record(Action.KEYS_LIST, _path(rule))
        return rule

    def regenerate(
        self, namespace: str, hub: str | None, name: str, body: RegenerateBody
    ) -> AuthorizationRule:
        """Replace a key by the given one, or by a random one. Links that were authorized by the old
        key are closed; those that use the other key stay open. Raises ArgumentError for a key that
        is weak or that would break a connection string."""
        self._permit(Action.KEYS_REGENERATE, namespace, hub, name)
        rule = self._rule(namespace, hub, name)
        new_key = self._context.new_key() if body.key is None else _check_key(body.key)
        field = "primary_key" if body.key_type is KeyType.PRIMARY else "secondary_key"
        change = {field: new_key, "updated_ms": self._now_ms()}
        self._catalog.put_rule(msgspec.structs.replace(rule, **change))
        self._record(Action.KEYS_REGENERATE, f"{_path(rule)}: {body.key_type}")
        return self._rule(namespace, hub, name)

    def _parent(self, namespace: str, hub: str | None) -> None:
        if hub is None:
            self._namespace(namespace)
        else:
            self._hub(namespace, hub)

    def _rule(self, namespace: str, hub: str | None, name: str) -> AuthorizationRule:
        self._parent(namespace, hub)
        return require_entity(self._catalog.rule(namespace, hub, name), "authorization rule", name)


def _check_key(text: str) -> Secret:
    """Raises ArgumentError, without the key in its text."""
    problem = ""
    if not limits.SAS_KEY_SET_MIN <= len(text) <= limits.SAS_KEY_MAX:
        problem = f"has {len(text)} characters"
    elif ";" in text or not (text.isascii() and text.isprintable()):
        problem = "contains ';' or a character that is not printable ASCII"
    if problem:
        raise ArgumentError(
            f"The given key {problem}: {limits.SAS_KEY_SET_MIN} to {limits.SAS_KEY_MAX} printable "
            "ASCII characters without ';' are allowed. Leave the key out to get a random one."
        )
    return Secret(text)


def rights_texts(rights: Right) -> list[str]:
    """The names of rights, in the order of Azure's responses."""
    words = {Right.MANAGE: "Manage", Right.LISTEN: "Listen", Right.SEND: "Send"}
    return [word for right, word in words.items() if rights & right]


def _path(rule: AuthorizationRule) -> str:
    return format_path(rule.namespace, rule.hub, rule.name)
