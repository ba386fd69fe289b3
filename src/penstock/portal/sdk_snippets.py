"""Ready programs for each SDK, with the reader's own connection string or token filled in.

They are in snippets/*.txt: a line `== LABEL` begins a program, `$name` is filled in.
"""

from __future__ import annotations

import re
from pathlib import Path
from string import Template

Snippets = list[tuple[str, str]]

_FOLDER = Path(__file__).parent / "snippets"


def with_connection_string(string: str, hub: str, ca_file: str) -> Snippets:
    return _fill("connection_string.txt", ca_file, string=string, hub=hub)


def with_token(
    token: str, *, endpoint: str, https: str, hub: str, publisher: str | None, ca_file: str
) -> Snippets:
    path = f"{hub}/publishers/{publisher}" if publisher else hub
    string = f"{endpoint};SharedAccessSignature={token}"
    url = f"{https}/{path}"
    programs = _fill("token.txt", ca_file, string=string, hub=hub, token=token, url=url)
    return [*programs, ("Connection string", string)]


def _fill(file: str, ca_file: str, **values: str) -> Snippets:
    values |= {
        "python_ca": f', connection_verify="{ca_file}"' if ca_file else "",
        "javascript_ca": f"// NODE_EXTRA_CA_CERTS={ca_file} node send.mjs\n" if ca_file else "",
        "spark_ca": f'\n    .option("tls.caFile", "{ca_file}")' if ca_file else "",
        "curl_ca": f" --cacert {ca_file}" if ca_file else "",
    }
    _, *parts = re.split(r"^== (.+)\n", (_FOLDER / file).read_text(), flags=re.MULTILINE)
    return [
        (label, Template(text).substitute(values))
        for label, text in zip(parts[::2], parts[1::2], strict=True)
    ]
