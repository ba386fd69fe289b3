"""`python -m tools.sample_texts`: the sample that shows whether texts are understandable."""

from __future__ import annotations

import sys

import pytest
from tools import sample_texts


def test_sample_has_its_size_and_depends_on_the_seed_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = []
    for seed in ("1", "1", "2"):
        monkeypatch.setattr(sys, "argv", ["sample_texts", seed])
        sample_texts.main()
        samples.append(capsys.readouterr().out)
    assert samples[0] == samples[1] != samples[2]
    counts = [part.count("\n- ") for part in samples[0].split("## ")[1:]]
    assert counts == [sample_texts.DOCSTRINGS, sample_texts.HELP_TEXTS, sample_texts.LOG_LINES]
