"""The figures of README and docs: one file, docs/figures.json, measured by `make figures`.

    make figures                           everything; needs an idle machine and waits for it
    make figures ARGS="--part cli"         one part (repeatable)
    make figures ARGS="--resume"           the parts that the last run did not come to
    make figures ARGS="--trial"            a look: small counts, busy machine, build/figures.json
    python -m tools.figures --write        fill in the documents again, measure nothing
    python -m tools.figures --list         every key with its meaning

A document shows a figure by `<!-- figure: KEY -->VALUE<!-- /figure -->`; the keys and the formats
are in benchmarks/figures/catalog.py.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.figures import catalog, pages, run

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "figures.json"
TRIAL = ROOT / "build" / "figures.json"
# Between backticks it is an example.
MARKER = re.compile(
    r"(?<!`)<!-- figure: ([\w.]+)(?:\|([^ ]+))? -->(.*?)<!-- /figure -->(?!`)", re.DOTALL
)
_ANY_MARKER = re.compile(r"(?<!`)<!-- figure\b|<!-- /figure -->(?!`)")
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"

Figures = dict[str, Any]  # the content of docs/figures.json


class MarkerError(Exception):
    """A document names a figure that is not there, or in a format that does not fit."""


def read(file: Path = RESULTS) -> Figures:
    content: Figures = json.loads(file.read_text())
    return content


def store(figures: Figures, file: Path = RESULTS) -> None:
    """Every key of the catalog is in the file; one that was not measured is null."""
    for key in catalog.figures():
        place = figures
        *path, name = key.split(".")
        for step in path:
            place = place.setdefault(step, {})
        place.setdefault(name, None)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(figures, indent=1, sort_keys=True) + "\n")


def value(figures: Figures, key: str) -> Any:
    place: Any = figures
    for step in key.split("."):
        place = place[step]
    return place


def documents() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def fill(text: str, figures: Figures) -> str:
    """The text with the figures in its markers; raises MarkerError."""
    known = catalog.figures()

    def replace(marker: re.Match[str]) -> str:
        key, wanted = marker.group(1), marker.group(2)
        if key not in known:
            raise MarkerError(f"There is no figure {key}: `python -m tools.figures --list`.")
        try:
            shown = catalog.to_text(value(figures, key), wanted or known[key].format)
        except ValueError as error:
            raise MarkerError(f"{key} cannot be shown as {wanted}: {error}.") from error
        name = f"{key}|{wanted}" if wanted else key
        return f"<!-- figure: {name} -->{shown}<!-- /figure -->"

    filled = MARKER.sub(replace, text)
    if len(_ANY_MARKER.findall(filled)) != 2 * len(MARKER.findall(filled)):
        raise MarkerError("A marker `<!-- figure: KEY -->VALUE<!-- /figure -->` is incomplete.")
    return filled


def fill_section(text: str, section: str) -> str:
    """The text with `section` between the two marks of a generated section."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise MarkerError(f"{BEGIN} and {END} are missing.")
    return f"{before}{BEGIN}\n{section}{END}{after}"


def outputs(figures: Figures) -> dict[Path, str]:
    """Every file that depends on the figures, as it must be."""
    generated: dict[Path, Callable[[Figures], str]] = {
        ROOT / "docs" / "benchmarks.md": pages.benchmarks,
        ROOT / "docs" / "figures.md": pages.all_figures,
    }
    found = {}
    for file in documents():
        text = file.read_text()
        try:
            if file in generated:
                text = fill_section(text, generated[file](figures))
            text = fill(text, figures)
        except MarkerError as error:
            raise MarkerError(f"{file.relative_to(ROOT)}: {error}") from None
        found[file] = text
    chart = pages.chart(figures)
    if chart is not None:
        found[ROOT / "docs" / "images" / "benchmarks.svg"] = chart
    return found


def write(figures: Figures) -> list[Path]:
    """Returns the files that changed."""
    changed = [
        (file, text)
        for file, text in outputs(figures).items()
        if not file.exists() or file.read_text() != text
    ]
    for file, text in changed:
        file.write_text(text)
    return [file for file, _ in changed]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="only fill in the documents")
    parser.add_argument("--list", action="store_true", help="only print the keys")
    parser.add_argument("--part", dest="parts", action="append", choices=catalog.PARTS)
    parser.add_argument("--resume", action="store_true", help="without what was measured lately")
    parser.add_argument("--trial", action="store_true", help="small, on any machine, not stored")
    given = parser.parse_args()
    if given.list:
        for key, figure in catalog.figures().items():
            print(f"{key:55} {figure.meaning}")
        return 0
    try:
        figures = _measured(given)
        if not given.trial:
            for file in write(figures):
                print(f"written: {file.relative_to(ROOT)}")
    except (MarkerError, run.NotIdle, run.PartFailed) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _measured(given: argparse.Namespace) -> Figures:
    if given.write:
        figures = read()
        store(figures)
        return figures
    return run.measure(
        given.parts or list(catalog.PARTS),
        TRIAL if given.trial else RESULTS,
        resume=given.resume,
        trial=given.trial,
    )


if __name__ == "__main__":
    sys.exit(main())
