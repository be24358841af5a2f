"""What a checkpoint says of itself in a REPL and a notebook."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import vitrail
from vitrail.checkpoint import Checkpoint, Provenance, Setting
from vitrail.images.ood_detector import OodDetector


@pytest.fixture(scope="module")
def fashion() -> Checkpoint:
    return vitrail.load("vitrail:fashion")


def test_a_checkpoint_says_that_it_knows_unlike_images(fashion: Checkpoint) -> None:
    ood = OodDetector.fit(np.eye(128), np.ones((209, 128)))
    lines = repr(replace(fashion, ood=ood)).splitlines()
    [answers] = [line for line in lines if line.startswith("  answers")]
    assert answers.endswith("minimum confidence 72.5 %, tells unlike images")
    assert max(map(len, lines)) <= 100
    assert "unlike" not in repr(fashion)


def test_a_checkpoint_says_what_it_is_in_ten_lines(fashion: Checkpoint) -> None:
    lines = repr(fashion).splitlines()
    assert lines[0] == "Checkpoint: fashion"
    rows = dict(line.strip().split("  ", 1) for line in lines[1:] if line[2] != " ")
    assert len(lines) <= 10
    assert max(map(len, lines)) <= 100
    assert rows["network"].strip() == (
        "4 blocks of width 128, 4 heads, patches of 8 x 8; 0.906 M weights in float32 on cpu"
    )
    assert rows["classes"].strip().startswith("10: Ankle boot, Bag, Coat,")
    assert rows["answers"].strip() == "one label an image, calibrated, minimum confidence 72.5 %"
    assert rows["scored"].strip().startswith("on test images: accuracy 88.1 %, F1 (mean of classes)")
    assert "calibration error 2.1 %" in " ".join(repr(fashion).split())  # a long row goes on below
    assert rows["learned from"].strip() == "vitrail:fashion"
    assert "Apache-2.0" in rows["licence"]
    assert "tensor" not in repr(fashion)


def test_a_score_by_validation_says_so(fashion: Checkpoint) -> None:
    judged = replace(fashion, provenance=Provenance(run="ants", metrics={"val_top1": 0.974, "val_loss": 0.1}))
    assert repr(judged).startswith("Checkpoint: ants\n")
    assert "on validation images, which also chose it: accuracy 97.4 %" in repr(judged)
    assert "scored" not in repr(replace(fashion, provenance=Provenance(metrics={"val_loss": 0.1})))


def test_what_a_file_of_others_left_open_is_shown(fashion: Checkpoint) -> None:
    settings = (Setting("image_size", "28x28", "the tensors say so"), Setting("heads", "4", "as published"))
    origin = Provenance(source="a.pt", family="timm", settings=(*settings, Setting("activation", "gelu", "a default")))
    text = repr(replace(fashion, provenance=origin))
    assert re.search(r"^  left open +heads 4; activation gelu; \.provenance\.settings says why$", text, re.MULTILINE)
    assert "left open" not in repr(replace(fashion, provenance=replace(origin, settings=settings[:1])))


def test_a_notebook_shows_the_same_words(fashion: Checkpoint) -> None:
    html = fashion._repr_html_()
    assert html.startswith('<div class="vitrail-card"')
    for line in repr(fashion).splitlines()[1:]:
        name = line[2:].split("  ")[0]
        assert not name or f"<dt>{name}</dt>" in html
    assert "88.1 %" in html
