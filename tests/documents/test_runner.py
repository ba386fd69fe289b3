"""The runner of the documents' blocks: what it understands, and that a wrong block fails."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.documents.page import PageError, parse_blocks
from tests.documents.programs import BlockFailed, matches
from tests.documents.session import Session
from tests.documents.syntax import find_syntax_error


def page(*blocks: str) -> str:
    return "\n".join(blocks) + "\n"


def run(tmp_path: Path, text: str, *, deadline_s: float = 30.0) -> Session:
    blocks = parse_blocks("page.md", text)
    with Session(tmp_path, blocks, needs_service=False, block_deadline_s=deadline_s) as session:
        session.run()
    return session


def test_blocks_have_their_line_language_and_directives() -> None:
    text = page(
        "Text",
        "```sh",
        "echo 1",
        "```",
        "- in a list:",
        "  <!-- test: skip needs Azure -->",
        "  ```python",
        "  if x:",
        "      y",
        "  ```",
        "<!-- test: spark -->",
        "<!-- test: background -->",
        "",
        "~~~~sh",
        "```",
        "~~~~",
    )
    first, second, third = parse_blocks("page.md", text)
    assert (first.line, first.language, first.text, first.directives) == (2, "sh", "echo 1\n", {})
    assert (second.place, second.text) == ("page.md:7", "if x:\n    y\n")
    assert second.directives == {"skip": "needs Azure"}
    assert (third.text, third.directives) == ("```\n", {"spark": "", "background": ""})


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("<!-- test: skip -->\n```sh\n```", "skip needs a reason"),
        ("<!-- test: spark now -->\n```sh\n```", "spark takes no argument"),
        ("<!-- test: run -->\n```sh\n```", "no directive 'run'"),
        ("<!--test skip x -->\n```sh\n```", "write <!-- test: NAME"),
        ("<!-- test: skip x --> text\n```sh\n```", "write <!-- test: NAME"),
        ("<!-- test: skip x -->\ntext\n```sh\n```", "directly before its block"),
        ("<!-- test: skip x -->\n<!-- test: skip y -->\n```sh\n```", "twice"),
        ("<!-- test: skip x -->\n<!-- test: background -->\n```sh\n```", "do not go together"),
        ("<!-- test: background -->\n```json\n```", "only sh and python"),
        ("<!-- test: file ../x -->\n```json\n```", "in the page's directory"),
        ("<!-- test: output -->\n```\n```", "directly after a block that is run"),
        ("```sql\nselect 1\n```", "sql runs with Spark"),
        ("text\n```sh\necho", "page.md:2: this block has no end"),
    ],
)
def test_a_directive_that_is_not_understood_is_an_error(text: str, error: str) -> None:
    with pytest.raises(PageError, match=r"page\.md:") as raised:
        parse_blocks("page.md", text)
    assert error in str(raised.value)


@pytest.mark.parametrize(
    ("language", "text", "error"),
    [
        ("python", "x = 1", None),
        ("python", "x =", "invalid syntax"),
        ("sh", "if true; then echo; fi", None),
        ("sh", "if true; then", "unexpected end of file"),
        ("json", '{"a": 1}', None),
        ("json", "{", "Expecting property name"),
        ("json", '{"UserConfig": {"NamespaceConfig": 1}}', "NamespaceConfig"),
        ("yaml", "a: [1]\n---\nb: 2", None),
        ("yaml", "a: [1", "expected ',' or ']'"),
        ("toml", "flush = 'os'", None),
        ("toml", "flush = ", "Invalid value"),
        ("toml", "flsh = 'os'", "flsh"),
        ("toml", '[tls]\nkey_file = "/none"\ncertificate_file = "/none"', None),
        ("toml", "[tool.pytest]\nx = 1", None),
        ("text", "{", None),
    ],
)
def test_blocks_that_are_not_run_are_parsed(language: str, text: str, error: str | None) -> None:
    (block,) = parse_blocks("page.md", f"```{language}\n{text}\n```\n")
    if error is None:
        assert find_syntax_error(block) is None
    else:
        assert error in (find_syntax_error(block) or "")


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        ("a\nb", "a\nb\n", True),
        ("a\nb", "a  \nb", True),
        ("a...b", "a 1\n2 b", True),
        ("...", "", True),
        ("a\n...\nz", "a\nb\nc\nz", True),
        ("a", "a b", False),
        ("a.c", "abc", False),
        ("a\n...\nz", "a\nb", False),
    ],
)
def test_output_is_compared_with_gaps(expected: str, printed: str, same: bool) -> None:
    assert matches(expected, printed) is same


def test_shell_blocks_share_directory_and_exported_variables(tmp_path: Path) -> None:
    run(
        tmp_path,
        page(
            "```sh\nmkdir sub\ncd sub\nexport WORD=hello\n```",
            "<!-- test: file words/list.txt -->\n```\none\n```",
            '```sh\necho "$WORD $(basename "$PWD") $(cat words/list.txt)"\n```',
            "<!-- test: output -->\n```\nhello sub one\n```",
            "```python\nimport os\nprint(os.environ['WORD'])\n```",
            "<!-- test: output -->\n```\nhello\n```",
        ),
    )


def test_named_python_blocks_are_files(tmp_path: Path) -> None:
    run(
        tmp_path,
        page(
            "```python\n# double.py\ndef double(x):\n    return 2 * x\n```",
            "```sh\npython -c 'import double; print(double.double(21))'\n```",
            "<!-- test: output -->\n```text\n42\n```",
        ),
    )


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (
            "```sh\necho 1\n```\n\n```sh\necho out; echo err >&2\nfalse\necho no\n```",
            ["page.md:5: the block ended with exit code 1", "--- stdout\nout\n", "err", "false"],
        ),
        ("```python\nprint(1 / 0)\n```", ["page.md:1", "exit code 1", "ZeroDivisionError"]),
        (
            "```sh\necho 1\n```\n<!-- test: output -->\n```\n2\n```",
            ["page.md:1", "page.md:5 says:\n2", "--- stdout\n1"],
        ),
        (
            "<!-- test: background -->\n```sh\nexit 3\n```\n```sh\ntrue\n```",
            ["page.md:2: the block ended with exit code 3"],
        ),
    ],
)
def test_a_wrong_block_fails_with_its_place_and_output(
    tmp_path: Path, text: str, parts: list[str]
) -> None:
    with pytest.raises(BlockFailed) as raised:
        run(tmp_path, text)
    assert [part for part in parts if part not in str(raised.value)] == []


def test_a_block_that_does_not_end_fails(tmp_path: Path) -> None:
    with pytest.raises(BlockFailed, match=r"page.md:1: the block did not end within 0.5 s"):
        run(tmp_path, "```sh\ntail -f /dev/null\n```", deadline_s=0.5)


def test_background_output_is_awaited_and_programs_end_with_the_page(tmp_path: Path) -> None:
    text = page(
        "<!-- test: background -->",
        "```sh\necho $$ > pid\ntail -n +1 -F words\n```",
        "<!-- test: output -->\n```\nhello\n```",
        "```sh\necho hello > words\n```",
    )
    run(tmp_path, text)
    pid = (tmp_path / "page" / "pid").read_text().strip()
    assert not Path(f"/proc/{pid}").exists()


def test_a_page_gets_a_service_on_ports_of_its_own(tmp_path: Path) -> None:
    text = page(
        "```sh\npenstock send events --text hello\n```",
        "```python\nimport os\n",
        'assert "localhost:5672;" in os.environ["PENSTOCK_CONNECTION_STRING"]',
        'assert os.environ["PENSTOCK_ADMIN_URL"] == "http://localhost:5300"\n```',
        "```sh\npenstock tail events --from earliest -n 1 --format %b\n```",
        "<!-- test: output -->\n```\nhello\n```",
    )
    with Session(tmp_path, parse_blocks("page.md", text)) as session:
        session.run()
    assert len({*session.ports.values()} - {5672, 5671, 8443, 5300, 5380}) == 5


def test_a_page_may_start_kill_and_restart_its_service(tmp_path: Path) -> None:
    serve = "<!-- test: background -->\n```sh\npenstock serve --data here --no-portal\n```"
    text = page(
        serve,
        "```sh\nexport PENSTOCK_CONNECTION_STRING=$(penstock policy connection-string)",
        "penstock send events --text kept",
        'python -c \'import json; print(json.load(open("here/runtime.json"))["pid"])\' > pid',
        "kill -9 $(cat pid)\n```",
        serve,
        "```sh\npenstock tail events --from earliest -n 1 --format %b\n```",
        "<!-- test: output -->\n```\nkept\n```",
    )
    with Session(tmp_path, parse_blocks("page.md", text)) as session:
        session.run()


def test_spark_blocks_share_an_interpreter(tmp_path: Path) -> None:
    text = page(
        "<!-- test: spark -->\n```python\nwords = ['one']\nprint('first')\n```",
        "<!-- test: output -->\n```\nfirst\n```",
        "```sh\nexport MORE=two\n```",
        "<!-- test: spark -->\n```python\nimport os\nprint(words, os.environ['MORE'])\n```",
        "<!-- test: output -->\n```\n['one'] two\n```",
        "<!-- test: spark -->\n```python\nwords.nothing\n```",
    )
    blocks = parse_blocks("page.md", text)
    with Session(tmp_path / "without", blocks, needs_service=False) as session:
        session.run()
    with (
        Session(tmp_path / "with", blocks, with_spark=True, needs_service=False) as session,
        pytest.raises(BlockFailed, match="AttributeError") as raised,
    ):
        session.run()
    assert str(raised.value).startswith("page.md:23: ")
