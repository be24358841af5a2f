"""The verb demo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import vitrail
from cli.command_line import Line
from evaluation.markup import read
from vitrail.cli import demo


def test_demo(vit: Line, tmp_path: Path) -> None:
    out = tmp_path / "tour"
    found = vit("demo", "--out", out, "--epochs", "0", "--json").json
    assert found["page"] == str(out / "index.html")
    assert found["labels"][0] == found["drawn"]
    assert found["probabilities"][0] > 0.5
    files = [Path(name) for name in found["files"]]
    for name in (file for file in files if file.suffix == ".png"):
        with Image.open(name) as image:
            assert min(image.size) > 100
            image.load()
    drawn = {file.stem for file in files} - {"image"}  # each a file, and on the page
    assert len(drawn) >= 6
    assert (out / "index.html").read_text().count('<figure class="plate"') == len(drawn)
    said = vit("demo", "--out", out, "--seed", "3", "--epochs", "0")
    assert said.code == 0
    assert str(out / "index.html") in said.out
    assert "the network says:" in said.out


def test_demo_trains_and_predicts(vit: Line, tmp_path: Path) -> None:
    found = vit("demo", "--out", tmp_path, "--epochs", "0.05", "--json").json
    assert found["run"]["run"] == str(tmp_path / "fashion")
    assert found["run"]["evaluation"]["n"] == 1000
    assert (tmp_path / "fashion" / "report.html").stat().st_size > 10_000
    assert [Path(each["path"]).parent for each in found["predictions"]] == [tmp_path / "images"] * 6
    pages = [
        tmp_path / name for name in ("index.html", "fashion/report.html", "explained/index.html", "inside/index.html")
    ]
    assert found["explained"] == str(pages[2])
    for page in pages:  # each leads to all the others, and nowhere else
        links = [each.attributes["href"] for each in read(page.read_text("utf-8")).all("a")]
        beyond = {(page.parent / each).resolve() for each in links if not each.startswith("#")}
        assert beyond == {each.resolve() for each in pages} - {page.resolve()}


def test_demo_on_an_image_of_ones_own(vit: Line, tmp_path: Path, folder: Path) -> None:
    said = vit("demo", "--out", tmp_path / "tour", "--image", folder / "1.png", "--epochs", "0")
    assert (said.code, said.err) == (0, "")
    assert f"the image: {folder / '1.png'}; the network says:" in said.out
    assert "no such" in vit.mistake("demo", "--image", tmp_path / "none.png").lower()
    assert f"cannot write to {folder / '1.png'}" in vit.mistake("demo", "--out", folder / "1.png")


def test_a_demo_that_was_stopped_goes_on_and_a_finished_one_starts_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(demo, "train_with_bar", lambda data, options: asked.append((data, options)))
    demo._train(tmp_path, 3.0)
    (tmp_path / "fashion").mkdir()
    demo._train(tmp_path, 3.0)  # stopped: there is no result
    (tmp_path / "fashion" / "result.json").touch()
    demo._train(tmp_path, 3.0)
    assert [(data, each.name, each.fresh) for data, each in asked] == [
        ("vitrail:fashion", "fashion", fresh) for fresh in (False, False, True)
    ]


def test_the_built_in_network_knows_its_windows() -> None:
    from vitrail.data.glass import CLASSES, window

    glass = vitrail.load("vitrail:glass")
    assert glass.classes == CLASSES
    assert glass.provenance.metrics["accuracy"] > 0.9
    windows = [window(20_000_000 + seed, 96) for seed in range(64)]
    found = vitrail.predict(glass, [each.image for each in windows], top=1)
    right = sum(each.labels[0] == CLASSES[drawn.label] for each, drawn in zip(found, windows, strict=True))
    assert right >= 55
