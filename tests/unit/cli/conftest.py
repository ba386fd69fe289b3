"""Commands run in this process, against a service in another thread of it."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.cli.app import run
from penstock.service.config.loader import load_settings
from penstock.service.wiring import Penstock

DEADLINE_S = 100.0
PORTS = ("amqp_port", "amqps_port", "https_port", "admin_port")

Run = Callable[..., str]


@pytest.fixture(scope="package")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The data directory of a service that runs in another thread."""
    directory = tmp_path_factory.mktemp("service") / "data"
    flags = {"data": directory, "portal": False, "flush": "os", "hubs": ["events:2"]}
    settings = load_settings(flags=flags | dict.fromkeys(PORTS, 0), environ={})
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    service = Penstock(settings)
    asyncio.run_coroutine_threadsafe(service.start(), loop).result(DEADLINE_S)
    yield directory
    asyncio.run_coroutine_threadsafe(service.stop(), loop).result(DEADLINE_S)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture
def penstock(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Run:
    """`penstock("hub list", code=0, said="")` returns stdout; `said` is part of stderr."""
    for name in [name for name in os.environ if name.startswith("PENSTOCK_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PENSTOCK_DATA", str(data))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)

    def execute(words: str, *, code: int = 0, said: str = "") -> str:
        monkeypatch.setattr(sys, "argv", ["penstock", *shlex.split(words)])
        with pytest.raises(SystemExit) as ended:
            run()
        printed = capfd.readouterr()
        assert ended.value.code == code, printed.err
        assert said in printed.err
        return printed.out

    return execute
