"""The page of an audit: it shows what was found, stays small and fetches nothing."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import shlex
from pathlib import Path

import numpy as np
import pytest

from auditing.memory import array_dataset
from evaluation import markup
from evaluation.photos import photo
from vitrail.auditing import audit_page
from vitrail.auditing.audit_page import build_page, write_audit
from vitrail.auditing.auditor import Audit, audit
from vitrail.data.readers import read_data
from vitrail.data.samples import Dataset, Sample
from vitrail.errors import InputError


def test_three_files(written: dict[str, Path]) -> None:
    assert sorted(written) == ["audit.csv", "audit.html", "audit.json"]
    assert all(path.is_file() for path in written.values())


def test_the_page_shows_what_was_found_and_fetches_nothing(written: dict[str, Path]) -> None:
    page = markup.read(written["audit.html"].read_text("utf-8"))
    titles = [each.text for each in page.all("h2")]
    assert titles == [
        *(
            "In short",
            "Leaks across splits",
            "One image, two labels",
            "Placeholder images",
            "Duplicates",
            "Classes",
            "Sizes",
        ),
        *("Unreadable files", "What to do next"),
    ]
    for name in ("train/cat/exact_leak.bmp", "train/cat/twin_c.png", "train/dog/two_labels.png", "train/cat/empty.png"):
        assert name in page.text
    marked = [each.text for each in page.all("figure", "bad")]
    assert len(marked) == 4  # two leaked, two copies
    assert f"--exclude {shlex.quote(str(written['audit.csv']))}" in page.text
    assert "2 nearly the same" in page.text
    assert len(page.all("img")) > 20


def test_names_are_text_on_the_page_and_stay_what_they_are_in_the_table(tmp_path: Path) -> None:
    image = np.asarray(photo(1))
    samples = tuple(Sample(name, ("<b>x</b>",)) for name in ("<script>a\n.png", "caf\udce9.png", "=1+1,2.png"))
    dataset = Dataset("<i>here</i>", samples, np.stack([image] * 3), ("<b>x</b>",))
    page, table, plain = write_audit(audit(dataset), tmp_path, dataset)
    read = markup.read(page.read_text("utf-8"))
    assert "<script>a" in read.text
    assert "<b>x</b>" in read.text
    rows = list(csv.DictReader(io.StringIO(table.read_bytes().decode("utf-8", "surrogateescape"), newline="")))
    assert [row["path"] for row in rows] == [each.name for each in samples]
    assert json.loads(plain.read_text("utf-8"))["duplicates"][0]["members"][1]["name"] == "caf\udce9.png"


def test_the_page_stays_small_whatever_is_found() -> None:
    """Two hundred groups of duplicates of large noisy images."""
    dice = np.random.default_rng(0)
    images = dice.integers(0, 256, (200, 40, 40, 3), np.uint8)
    both = np.concatenate([images, images])
    dataset = array_dataset(both, *[("a", "train", "")] * 200, *[("a", "test", "")] * 200)
    found = audit(dataset)
    assert len(found.leaks) == 200
    page = build_page(found, dataset)
    assert len(page) < 1_500_000
    assert f"and {200 - audit_page.GROUPS} groups more in audit.csv" in page


def test_an_image_that_has_gone_since_is_a_grey_pane(found: Audit, root: Path) -> None:
    data = read_data(str(root))
    missing = [path.with_name("gone.png") for path in data.images]
    page = markup.read(build_page(found, dataclasses.replace(data, images=missing)))
    assert "train/cat/exact_leak.bmp" in page.text


def test_a_folder_that_cannot_be_written_is_an_error(found: Audit, root: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write to"):
        write_audit(found, tmp_path / "file", read_data(str(root)))


def test_one_of_a_kind_is_one() -> None:
    images = np.random.default_rng(0).integers(0, 256, (4, 40, 40, 3), np.uint8)
    images[1] = images[0]
    dataset = array_dataset(images, *[("a", "train", "")] * 4)
    found = dataclasses.replace(audit(dataset), unreadable=(("b.png", "cut off"),))
    tiles = [each.text for each in markup.read(build_page(found, dataset)).all("div", "tile")]
    assert any(each.startswith("1group of duplicates") for each in tiles)
    assert any(each.startswith("1unreadable file") and "files" not in each for each in tiles)


@pytest.mark.parametrize("agreement, doubted", [(None, False), (0.79, True), (0.81, False)])
def test_look_alikes_of_a_weak_network_are_doubted(
    found: Audit, root: Path, agreement: float | None, doubted: bool
) -> None:
    alike = dataclasses.replace(found, lookalikes=found.duplicates[:1], agreement=agreement)
    page = markup.read(build_page(alike, read_data(str(root))))
    assert ("finds only 79.0 % of the labels: what it takes for alike may not be" in page.text) == doubted


def test_images_of_one_size_are_told_in_plain_numbers() -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 40, 40, 3), np.uint8)
    dataset = array_dataset(images, *[("a", "train", "")] * 3)
    page = markup.read(build_page(audit(dataset), dataset))
    told = dict(zip((each.text for each in page.all("dt")), (each.text for each in page.all("dd")), strict=True))
    assert told["short side"] == "40 pixels"
    assert told["most common"] == "40x40 (3 images)"
    assert told["kinds"].endswith("(3 images)")
