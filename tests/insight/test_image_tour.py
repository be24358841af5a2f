"""The tour: a folder of images and a page, for networks of every kind."""

from __future__ import annotations

import dataclasses
import html.parser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from evaluation.markup import read
from network import renames
from vitrail.checkpoint import Checkpoint
from vitrail.data.glass import CLASSES, window
from vitrail.errors import InputError
from vitrail.images import Preprocess
from vitrail.inference import predict
from vitrail.insight import image_tour as tours
from vitrail.insight.attention_figures import HOW_IT_WORKS
from vitrail.insight.image_tour import tour
from vitrail.insight.tracing import LaidOutTrace, Trace
from vitrail.network import Positions, Rotary, ViT, ViTConfig

CONFIG = ViTConfig(image_size=32, patch_size=8, width=16, depth=2, heads=2, mlp_width=32, classes=8)


def small(names: tuple[str, ...] = CLASSES, size: int | tuple[int, int] = 32, **changes: Any) -> Checkpoint:
    model = ViT(dataclasses.replace(CONFIG, **{"classes": len(names), "head_width": 0, **changes})).eval()
    renames.randomise(model)
    return Checkpoint(model, Preprocess(size=size, crop=1.0), names)


def test_the_tour_writes_its_images_and_a_page(tmp_path: Path) -> None:
    checkpoint, image = small(), window(12, 128).image
    found = tour(checkpoint, image, tmp_path / "new" / "folder")
    assert found.prediction == predict(checkpoint, [image])[0]
    assert [step.name for step in found.walk][:3] == ["pixels", "patches", "tokens"]
    names = {file.name for file in found.files}
    figures = {"1-patches", "2-answer", "3-attention", "4-one-patch", "5-positions", "6-filters", "7-sincos"}
    assert {f"{name}.png" for name in figures} <= names
    assert names - {f"{name}.png" for name in figures} == {"image.png", "2-answer.svg"}  # a chart is both
    for file in (each for each in found.files if each.suffix == ".png"):
        with Image.open(file) as opened:
            opened.load()
            assert opened.format == "PNG"
            assert np.asarray(opened.convert("RGB")).std() > 5  # there is something on it
    text = found.page.read_text("utf-8")
    page = read(text)  # strict: nothing is fetched, nothing runs
    assert len(page.all("figure", "plate")) == len(figures)
    assert len(page.all("ul", "heat")) == 5  # scales of all but the patches and the filters
    assert HOW_IT_WORKS in page.text
    assert len(page.all("img")) == 0  # all are drawn in the colours of the page, light or dark
    assert len(page.all("svg", "plot")) == len(figures)
    assert f"{found.prediction.labels[0]} ({100 * found.prediction.probabilities[0]:.1f} %)" in page.text
    assert sorted(file.name for file in found.page.parent.iterdir()) == sorted({*names, "index.html"})


def test_the_same_image_gives_the_same_bytes(tmp_path: Path) -> None:
    checkpoint = small()
    first = tour(checkpoint, window(3, 64).image, tmp_path / "a")
    second = tour(checkpoint, window(3, 64).image, tmp_path / "b")
    for one, other in zip((*first.files, first.page), (*second.files, second.page), strict=True):
        assert one.read_bytes() == other.read_bytes()


def test_the_page_escapes_what_classes_are_called(tmp_path: Path) -> None:
    class Tags(html.parser.HTMLParser):
        seen: set[str]

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.seen.add(tag)

    names = tuple(f"<script>alert('{number}')</script>&\"" for number in range(8))
    found = tour(small(names), window(1, 64).image, tmp_path)
    tags = Tags()
    tags.seen = set()
    text = found.page.read_text("utf-8")
    tags.feed(text)
    assert text.count("<script") == 1  # the page's own
    assert {"figure", "svg", "table"} <= tags.seen
    assert "&lt;script&gt;" in found.page.read_text("utf-8")


@pytest.mark.parametrize(
    "changes",
    [
        {"pool": "mean", "cls_token": False},
        {"pool": "map", "cls_token": False},
        {"pool": "cls+distillation", "distillation_token": True, "registers": 3},
        {"positions": Positions("none"), "rotary": Rotary("axial")},
        {"positions": Positions("sincos-2d"), "axial": True, "cls_token": False, "pool": "mean"},
        {"width": 18, "heads": 3},
        {"size": (32, 64)},
        {"names": ("a", "b"), "depth": 1, "heads": 1},
    ],
    ids=str,
)
def test_other_networks(tmp_path: Path, changes: dict[str, Any]) -> None:
    checkpoint = small(**changes)
    found = tour(checkpoint, window(2, 96).image, tmp_path)
    assert len(found.files) >= 6
    for words in ("the cls token looks", "The cls token is an extra one"):
        assert (words in found.page.read_text("utf-8")) == (checkpoint.model.config.pool == "cls")
    height, width = checkpoint.preprocess.size
    with Image.open(tmp_path / "1-patches.png") as image:
        assert image.width / image.height == pytest.approx(width / height, abs=0.05)


def test_half_precision_and_training_mode(tmp_path: Path) -> None:
    checkpoint = small()
    checkpoint.model.to(torch.bfloat16).train()
    assert len(tour(checkpoint, window(2, 64).image, tmp_path).files) >= 7


def test_a_tour_looks_at_the_network_as_it_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is dropped while it looks, though the network was training; afterwards it trains on."""
    seen: list[Trace] = []

    def keep(checkpoint: Checkpoint, traced: LaidOutTrace, *given: Any) -> list[Any]:
        seen.append(traced.trace)
        return []

    monkeypatch.setattr(tours, "draw_figures", keep)
    checkpoint = small(dropout=0.5, attention_dropout=0.5)
    image = window(3, 64).image
    tour(checkpoint, image, tmp_path)
    checkpoint.model.train()
    tour(checkpoint, image, tmp_path)
    assert checkpoint.model.training
    for one, other in zip(seen[0].attention, seen[1].attention, strict=True):
        assert torch.equal(one, other)
    assert torch.equal(seen[0].tokens, seen[1].tokens)


def test_a_crop_shows_what_the_network_sees(tmp_path: Path) -> None:
    """With a crop the large image is the part inside it, so that maps lie where they belong."""
    image = Image.new("RGB", (100, 100), (255, 0, 0))
    image.paste((0, 0, 255), (20, 20, 80, 80))
    model = small().model
    tour(Checkpoint(model, Preprocess(size=32, crop=0.6), CLASSES), image, tmp_path)
    with Image.open(tmp_path / "1-patches.png") as opened:
        red, _, blue = np.asarray(opened, float)[10:-10, 10:-10].reshape(-1, 3).mean(axis=0)
    assert blue > 2 * red


def test_what_the_tour_cannot_show(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="merges them: use vitrail.network.with_merging"):
        tour(small(merge_per_block=2), window(2, 64).image, tmp_path)
    with pytest.raises(InputError, match="no head"):
        tour(Checkpoint(ViT(dataclasses.replace(CONFIG, classes=0)), Preprocess(size=32)), window(2).image, tmp_path)
    assert list(tmp_path.iterdir()) == []
