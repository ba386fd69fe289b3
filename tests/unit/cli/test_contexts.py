"""Contexts: kept for one user's eyes; and the order in which a service is looked for."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.cli.contexts import (
    ServiceContext,
    ServiceContexts,
    contexts_file,
    read_contexts,
    write_contexts,
)
from penstock.cli.service_options import (
    ServiceFlags,
    data_directory,
    find_admin,
    find_connection_string,
)
from penstock.model.connection_string import parse_connection_string
from penstock.model.errors import ConfigurationError, NotFound
from penstock.service.data_directory import DataDirectory

STRING = "Endpoint=sb://{host}/;SharedAccessKeyName=p;SharedAccessKey=k;UseDevelopmentEmulator=true"


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the machine's environment nor its contexts count."""
    for name in ("ADMIN_URL", "ADMIN_TOKEN", "CA_FILE", "CONTEXT", "DATA", "NAMESPACE"):
        monkeypatch.delenv(f"PENSTOCK_{name}", raising=False)
    monkeypatch.delenv("PENSTOCK_CONNECTION_STRING", raising=False)
    monkeypatch.setenv("PENSTOCK_CONTEXTS", str(tmp_path / "own" / "contexts.json"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Path]:
    """A data directory whose service runs, as its runtime.json tells."""
    data = DataDirectory(tmp_path / "penstock-data")
    data.write_runtime(
        {
            "namespace": "nearby",
            "admin": "http://runtime",
            "admin_token": "t",
            "ca_file": "ca",
            "emulator_connection_string": STRING.format(host="runtime"),
        }
    )
    yield data.path
    data.remove_runtime()


def keep(current: str | None = None, **contexts: ServiceContext) -> Path:
    file = contexts_file()
    write_contexts(ServiceContexts(current=current, contexts=contexts))
    return file


def test_file_is_for_its_owner_alone_and_comes_back_whole() -> None:
    context = ServiceContext(connection_string="secret", admin_url="http://x", namespace="n")
    file = keep("a", a=context)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert read_contexts() == ServiceContexts(current="a", contexts={"a": context})
    assert "secret" not in repr(context)


def test_file_that_others_may_read_is_refused() -> None:
    file = keep(a=ServiceContext(data="/x"))
    file.chmod(0o640)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        read_contexts()


def test_file_with_other_content_is_named() -> None:
    file = keep()
    file.write_text("[1]")
    with pytest.raises(ConfigurationError, match=r"contexts\.json holds no contexts"):
        read_contexts()


def test_file_follows_xdg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_CONTEXTS")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/config")
    assert contexts_file() == Path("/config/penstock/contexts.json")


def test_context_that_is_not_there_is_named_with_those_that_are() -> None:
    keep(a=ServiceContext(data="/x"), b=ServiceContext(data="/y"))
    with pytest.raises(NotFound, match=r"'c'\. There are: a, b"):
        find_admin(ServiceFlags(context="c"))


def test_flags_win_over_environment_over_context_over_runtime(
    running: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_admin(ServiceFlags()).url == "http://runtime"
    keep("c", c=ServiceContext(admin_url="http://context", admin_token="t", namespace="in-c"))
    assert find_admin(ServiceFlags()).url == "http://context"
    assert find_admin(ServiceFlags()).namespace == "in-c"
    monkeypatch.setenv("PENSTOCK_ADMIN_URL", "http://environment")
    monkeypatch.setenv("PENSTOCK_ADMIN_TOKEN", "of-environment")
    assert find_admin(ServiceFlags()).url == "http://environment"
    assert find_admin(ServiceFlags(data=running)).url == "http://runtime"
    assert find_admin(ServiceFlags(context="c")).url == "http://context"
    flags = find_admin(ServiceFlags(admin_url="http://flag", admin_token="of-flag"))
    assert flags[:2] == ("http://flag", "of-flag")


def test_token_of_the_environment_is_not_given_to_another_context(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keep(c=ServiceContext(admin_url="http://context"))
    monkeypatch.setenv("PENSTOCK_ADMIN_URL", "http://environment")
    monkeypatch.setenv("PENSTOCK_ADMIN_TOKEN", "of-environment")
    found = find_admin(ServiceFlags(context="c"))
    assert (found.url, found.token) == ("http://context", None)
    with pytest.raises(ConfigurationError, match="--admin-token"):
        found.client()
    assert find_admin(ServiceFlags(admin_url="http://flag")).token is None
    monkeypatch.delenv("PENSTOCK_ADMIN_URL")
    assert find_admin(ServiceFlags(admin_url="http://flag")).token == "of-environment"


def test_token_file_belongs_to_the_service_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keep(c=ServiceContext(admin_url="http://context"))
    monkeypatch.setenv("PENSTOCK_ADMIN_URL", "http://environment")
    monkeypatch.setenv("PENSTOCK_ADMIN_TOKEN_FILE", "/run/token")
    assert find_admin(ServiceFlags()).token == Path("/run/token")
    assert find_admin(ServiceFlags(admin_token="of-flag")).token == "of-flag"
    assert find_admin(ServiceFlags(context="c")).token is None
    assert find_admin(ServiceFlags(admin_url="http://flag")).token is None
    monkeypatch.setenv("PENSTOCK_ADMIN_TOKEN", "of-environment")
    assert find_admin(ServiceFlags()).token == "of-environment"


def test_namespace_by_flag_environment_then_the_service_itself(
    running: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_admin(ServiceFlags()).namespace == "nearby"
    monkeypatch.setenv("PENSTOCK_NAMESPACE", "of-environment")
    assert find_admin(ServiceFlags()).namespace == "of-environment"
    assert find_admin(ServiceFlags(namespace="of-flag")).namespace == "of-flag"


def test_no_service_is_one_sentence_that_says_what_to_do() -> None:
    with pytest.raises(NotFound, match=r"penstock-data: start one with `penstock serve`"):
        find_admin(ServiceFlags())


def test_stale_runtime_is_no_service(running: Path, tmp_path: Path) -> None:
    stale = tmp_path / "stale"
    stale.mkdir()
    (stale / "runtime.json").write_text((running / "runtime.json").read_text())
    with pytest.raises(NotFound):
        find_admin(ServiceFlags(data=stale))


def test_events_go_to_flag_environment_context_runtime(
    running: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def host(*given: object) -> str:
        text, _ = find_connection_string(*given)  # type: ignore[arg-type]  # as the flags come
        return parse_connection_string(text).host

    assert host(None, None) == "runtime"
    keep("c", c=ServiceContext(connection_string=STRING.format(host="context")))
    assert host(None, None) == "context"
    monkeypatch.setenv("PENSTOCK_CONNECTION_STRING", STRING.format(host="environment"))
    assert host(None, None) == "environment"
    assert host(None, running) == "runtime"
    assert host(None, None, "c") == "context"
    assert host(STRING.format(host="flag"), None) == "flag"


def test_data_directory_by_flag_environment_context_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert data_directory(ServiceFlags()) == Path("penstock-data")
    keep("c", c=ServiceContext(data="/of-context"))
    assert data_directory(ServiceFlags()) == Path("/of-context")
    monkeypatch.setenv("PENSTOCK_DATA", "/of-environment")
    assert data_directory(ServiceFlags()) == Path("/of-environment")
    assert data_directory(ServiceFlags(data=Path("/of-flag"))) == Path("/of-flag")
