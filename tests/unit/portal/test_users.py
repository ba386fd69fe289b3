"""The user file: roles, hashes, changes that are seen, mistakes that let nobody in."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.management.permissions import AdminRole
from penstock.model.errors import ConfigurationError
from penstock.portal.users import (
    Users,
    can_see_hub,
    hash_password,
    read_users,
    unknown_user_hash,
    verify_password,
)


def test_password_matches_its_own_hash_alone() -> None:
    stored = hash_password("correct horse")
    assert verify_password("correct horse", stored)
    assert not verify_password("correct horsf", stored)
    assert not verify_password("", stored)
    assert "correct" not in stored
    assert stored != hash_password("correct horse")  # salted


@pytest.mark.parametrize(
    "stored",
    [
        "",
        "scrypt$",
        "scrypt$1$1$1$x$y",
        "scrypt$999999999$8$1$AAAA$AAAA",
        "md5$x",
        unknown_user_hash(),
    ],
)
def test_hash_that_is_none_matches_nothing(stored: str) -> None:
    assert not verify_password("x", stored)


def test_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "users.toml"
    file.write_text(f'[users]\nbob = {{ role = "operator", password = "{hash_password("x")}" }}\n')
    users = Users(file)
    bob = users.find("bob")
    assert bob is not None
    assert bob.role is AdminRole.OPERATOR
    assert bob.stamp == (users.find("bob") or bob).stamp
    file.write_text(f'[users]\nbob = {{ role = "viewer", password = "{hash_password("x")}" }}\n')
    os.utime(file, ns=(1, 1))
    changed = users.find("bob")
    assert changed is not None
    assert changed.stamp != bob.stamp
    file.write_text("[users]\n")
    os.utime(file, ns=(2, 2))
    assert users.find("bob") is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[users", "TOML"),
        ("users = 1", "table"),
        ("[users]\nbob = 1", "table"),
        ('[users]\nbob = { role = "god", password = "scrypt$x" }', "viewer, operator or admin"),
        ('[users]\nbob = { role = "admin", password = "plain" }', "penstock portal password"),
        ('[users]\nbob = { role = "admin", password = "scrypt$x", hub = "a" }', "hub"),
        ('[users]\nbob = { role = "admin", password = "scrypt$x", hubs = "a" }', "list"),
    ],
)
def test_file_with_a_mistake_is_refused_with_a_sentence(text: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        read_users(text, "users.toml")


def test_file_that_cannot_be_read_lets_nobody_in(tmp_path: Path) -> None:
    file = tmp_path / "users.toml"
    file.write_text(f'[users]\nbob = {{ role = "viewer", password = "{hash_password("x")}" }}\n')
    users = Users(file)
    assert users.find("bob") is not None
    file.unlink()
    with pytest.raises(ConfigurationError, match="cannot be read"):
        users.find("bob")


def test_hubs_are_seen_by_pattern() -> None:
    assert can_see_hub((), "anything")
    assert can_see_hub(("orders", "bill-*"), "Bill-eu")
    assert not can_see_hub(("orders", "bill-*"), "orders2")


def test_repr_keeps_the_hash() -> None:
    stored = hash_password("x")
    (user,) = read_users(
        f'[users]\nbob = {{ role = "viewer", password = "{stored}" }}', "f"
    ).values()
    assert stored not in repr(user)
