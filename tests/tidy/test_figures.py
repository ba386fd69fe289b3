"""README and docs show the figures of docs/figures.json, and no others by their markers."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.figures import catalog
from tools import figures


def test_documents_show_the_figures_of_the_file() -> None:
    outdated = [
        str(file.relative_to(figures.ROOT))
        for file, text in figures.outputs(figures.read()).items()
        if not file.exists() or file.read_text() != text
    ]
    assert outdated == [], "run `python -m tools.figures --write`"


def test_the_file_has_every_key_of_the_catalog(tmp_path: Path) -> None:
    again = tmp_path / "figures.json"
    figures.store(figures.read(), again)
    assert again.read_text() == figures.RESULTS.read_text()


def test_a_marker_shows_its_figure_in_its_format() -> None:
    measured = {"cli": {"hub_list_ms": 412.3}, "start": {"empty_s": None}}
    text = (
        "takes <!-- figure: cli.hub_list_ms -->?<!-- /figure --> ms, "
        "<!-- figure: cli.hub_list_ms|.2f -->?<!-- /figure --> ms, "
        "<!-- figure: start.empty_s -->?<!-- /figure --> s"
    )
    assert figures.fill(text, measured) == (
        "takes <!-- figure: cli.hub_list_ms -->412<!-- /figure --> ms, "
        "<!-- figure: cli.hub_list_ms|.2f -->412.30<!-- /figure --> ms, "
        f"<!-- figure: start.empty_s -->{catalog.NOT_MEASURED}<!-- /figure --> s"
    )


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        ("<!-- figure: cli.nothing -->1<!-- /figure -->", "no figure cli.nothing"),
        ("<!-- figure: cli.hub_list_ms|.2q -->1<!-- /figure -->", "cannot be shown as .2q"),
        ("<!-- figure: cli.hub_list_ms -->1", "incomplete"),
        ("<!-- figure: cli.hub list -->1<!-- /figure -->", "incomplete"),
    ],
)
def test_a_wrong_marker_is_an_error(marker: str, message: str) -> None:
    with pytest.raises(figures.MarkerError, match=message):
        figures.fill(marker, {"cli": {"hub_list_ms": 412.3}})
