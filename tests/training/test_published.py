"""The published results on the page are those in the recipes' notes."""

from __future__ import annotations

import re
from pathlib import Path

from vitrail.training import RECIPES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "training.md"


def test_published_results_stand_on_the_page_as_in_the_notes() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if re.match(r"\| `[a-z0-9-]+` \|", line)]
    assert len(rows) == 5
    page = {row.split("`")[1]: set(re.findall(r"\b\d\d\.\d+\b", row)) for row in rows}
    assert page["jeonsworld-cifar"] == {"99.08", "92.3"}
    for name in ("jeonsworld-cifar", "qucy-cifar100", "deit-imagenet"):
        assert page[name] <= set(re.findall(r"\d\d\.\d+", RECIPES[name].note)), name
