"""The verb evaluate."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from vitrail.cli import evaluate
from vitrail.evaluation import Score


def test_the_weakest_classes_come_first(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [SimpleNamespace(name=f"c{n}", count=n, precision=0.5, recall=0.5, f1=n / 10) for n in (3, 1, 6, 4, 2, 5)]
    evaluate.show_scores(SimpleNamespace(scores={"top1": Score(0.5, 0.4, 0.6)}, per_class=rows, skipped=("a",)))
    said = capsys.readouterr()
    assert [line.split()[0] for line in said.out.splitlines()[3:]] == ["c1", "c2", "c3", "c4", "c5"]
    assert "0.5000" in said.out
    assert "1 images could not be read" in said.err
