"""Authorization rules of a namespace (`hub` None) or of one hub, and their keys."""

from __future__ import annotations

import msgspec

from penstock.management.operations.base import OperationGroup, format_path
from penstock.management.permissions import Action
from penstock.management.resources import KeyType
from penstock.model import limits, names
from penstock.model.entities import AuthorizationRule, Right, Secret
from penstock.model.errors import ArgumentError, NotFound


class AuthorizationRuleOperations(OperationGroup):
    def list(self, namespace: str, hub: str | None = None) -> list[AuthorizationRule]:
        """Keys are in the records: whoever shows them asks `keys` first."""
        self._permit(Action.RULE_READ, namespace, hub)
        self._parent(namespace, hub)
        return self._catalog.rules(namespace, hub)

    def show(self, namespace: str, hub: str | None, name: str) -> AuthorizationRule:
        self._permit(Action.RULE_READ, namespace, hub, name)
        return self._rule(namespace, hub, name)

    def put(self, namespace: str, hub: str | None, name: str, rights: Right) -> AuthorizationRule:
        """Create it with new keys, or change its rights. QuotaExceeded beyond 12 of a level."""
        self._permit(Action.RULE_WRITE, namespace, hub, name)
        self._parent(namespace, hub)
        old = self._catalog.rule(namespace, hub, name)
        now_ms = self._now_ms()
        if old is None:
            wanted = AuthorizationRule(
                namespace=names.NamespaceName(namespace),
                hub=None if hub is None else names.HubName(hub),
                name=names.rule_name(name),
                rights=rights,
                primary_key=self._administration.new_key(),
                secondary_key=self._administration.new_key(),
                created_ms=now_ms,
                updated_ms=now_ms,
            )
        elif old.rights == rights:
            return old
        else:
            wanted = msgspec.structs.replace(old, rights=rights, updated_ms=now_ms)
        self._catalog.put_rule(wanted)
        rule = self._rule(namespace, hub, name)
        self._record(Action.RULE_WRITE, f"{_path(rule)}: {', '.join(rights_texts(rights))}")
        return rule

    def delete(self, namespace: str, hub: str | None, name: str) -> None:
        """Links that came in by it end. NotFound."""
        self._permit(Action.RULE_DELETE, namespace, hub, name)
        rule = self._rule(namespace, hub, name)
        self._catalog.delete_rule(namespace, hub, name)
        self._record(Action.RULE_DELETE, _path(rule))

    def keys(self, namespace: str, hub: str | None, name: str) -> AuthorizationRule:
        """The rule, for somebody who may see its keys; recorded."""
        self._permit(Action.KEYS_LIST, namespace, hub, name)
        rule = self._rule(namespace, hub, name)
        self._record(Action.KEYS_LIST, _path(rule))
        return rule

    def regenerate(
        self,
        namespace: str,
        hub: str | None,
        name: str,
        key_type: KeyType,
        key: Secret | None = None,
    ) -> AuthorizationRule:
        """A new key, random or given. The old one is worth nothing from now on, on open links
        too; those that use the other key go on. ArgumentError for a given key that is weak or
        that would break a connection string."""
        self._permit(Action.KEYS_REGENERATE, namespace, hub, name)
        rule = self._rule(namespace, hub, name)
        new = self._administration.new_key() if key is None else _checked_key(key)
        now_ms = self._now_ms()
        if key_type is KeyType.PRIMARY:
            wanted = msgspec.structs.replace(rule, primary_key=new, updated_ms=now_ms)
        else:
            wanted = msgspec.structs.replace(rule, secondary_key=new, updated_ms=now_ms)
        self._catalog.put_rule(wanted)
        self._record(Action.KEYS_REGENERATE, f"{_path(rule)}: {key_type}")
        return self._rule(namespace, hub, name)

    def _parent(self, namespace: str, hub: str | None) -> None:
        if hub is None:
            self._namespace(namespace)
        else:
            self._hub(namespace, hub)

    def _rule(self, namespace: str, hub: str | None, name: str) -> AuthorizationRule:
        self._parent(namespace, hub)
        rule = self._catalog.rule(namespace, hub, name)
        if rule is None:
            raise NotFound(f"The authorization rule '{names.quote_text(name)}' does not exist.")
        return rule


def _checked_key(key: Secret) -> Secret:
    """The error does not repeat the key."""
    text = key.reveal()
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
    return key


def rights_texts(rights: Right) -> list[str]:
    """Azure's words, in the order in which its own answers have them."""
    words = {Right.MANAGE: "Manage", Right.LISTEN: "Listen", Right.SEND: "Send"}
    return [word for right, word in words.items() if rights & right]


def _path(rule: AuthorizationRule) -> str:
    return format_path(rule.namespace, rule.hub, rule.name)
