"""A program: puts a file to each destination of its standard input, and tells what it saw.

By itself, since who trusts a certificate is decided when a process begins.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from penstock.capture.destinations import Destination, resolve_destination
from penstock.capture.storage import FileStore
from penstock.model.errors import PenstockError

PATH = "ns/hub/0/2026/11/17/08/05/00.avro"


def told(store: FileStore, folder: Path) -> dict[str, Any]:
    for content in (b"first", b"second"):
        source = folder / "spooled"
        source.write_bytes(content)
        store.put(source, PATH)
    with store.open(PATH) as opened:
        content = opened.read()
    return {
        "root": store.root,
        "url": store.url(PATH),
        "content": content.decode(),
        "files": store.files(),
        "below": store.files("ns/hub"),
        "size": store.size(PATH),
        "nothing": store.size("ns/other"),
        "shown": [repr(store.target), store.target.url, repr(store.target.destination)],
    }


def main() -> None:
    asked = msgspec.json.decode(sys.stdin.buffer.read(), type=list[tuple[Destination, str]])
    answers = []
    with tempfile.TemporaryDirectory() as folder:
        for destination, container in asked:
            try:
                store = FileStore(resolve_destination([destination], destination.name, container))
                answers.append(told(store, Path(folder)))
            except PenstockError as error:
                answers.append({"error": str(error), "cause": repr(error.__cause__)})
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
