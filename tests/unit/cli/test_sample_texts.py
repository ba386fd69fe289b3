"""`python -m tools.sample_texts`: the sample that shows whether texts are understandable."""

from __future__ import annotations

from tools import sample_texts


def test_sample_has_its_size_and_depends_on_the_seed_alone() -> None:
    one, again, other = (sample_texts.sample(seed) for seed in (1, 1, 2))
    assert one == again != other
    counts = [part.count("\n- ") for part in one.split("## ")[1:]]
    assert counts == [sample_texts.DOCSTRINGS, sample_texts.HELP_TEXTS, sample_texts.LOG_LINES]
