"""The command after an audit names what exists, and is not given where it would be refused."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
from PIL import Image

from vitrail.auditing import audit
from vitrail.auditing.audit_page import write_audit
from vitrail.auditing.next_step import next_command, obstacle
from vitrail.data.readers import read_data


def images(folder: Path, size: tuple[int, int], count: int = 6) -> Path:
    dice = np.random.default_rng(0)
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
        for row in range(count):
            width = size[0] + 8 * row if size[0] != size[1] else size[0]
            Image.fromarray(dice.integers(0, 256, (size[1], width, 3), np.uint8)).save(folder / name / f"{row}.png")
    return folder


def test_square_images_need_no_resize_and_others_get_theirs(tmp_path: Path) -> None:
    square = images(tmp_path / "square ones", (32, 32))
    table = tmp_path / "out put/audit.csv"
    assert shlex.split(next_command(audit(square), table)) == [
        *("vitrail", "train", str(square), "--exclude", str(table)),
    ]
    wide = audit(images(tmp_path / "wide", (64, 32)))
    assert wide.sizes.suggestion.resize in ("pad", "squash")
    assert shlex.split(next_command(wide, table))[-2:] == ["--resize", wide.sizes.suggestion.resize]


def test_images_of_one_shape_are_trained_on_in_that_shape(tmp_path: Path) -> None:
    folder = tmp_path / "wide"
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
        for row in range(3):
            Image.new("RGB", (300, 100), (40 * row, 90, 0 if name == "a" else 200)).save(folder / name / f"{row}.png")
    audited = audit(folder)
    height, width = audited.sizes.suggestion.size
    assert width == 3 * height  # height first, as --size reads it
    assert shlex.split(next_command(audited)) == [
        *("vitrail", "train", str(folder), "--resize", "squash", "--size", f"{height}x{width}"),
    ]
    assert f"{height}x{width} (height x width)" in audited.sizes.suggestion.reason


def test_what_a_training_would_refuse_is_said_in_place_of_the_command(tmp_path: Path) -> None:
    folder = images(tmp_path / "data", (32, 32), count=2)
    (folder / "c").mkdir()
    (folder / "c/broken.png").write_bytes(b"no image")
    audited = audit(folder)
    write_audit(audited, tmp_path / "out", read_data(folder))
    said = obstacle(audited, tmp_path / "out/audit.csv", read_data(folder))
    assert said.startswith("Before a training, change what the table excludes: ")
    assert "without any image of 'c'" in said
    rows = ["p/0.png,a,train,patient", "p/1.png,b,test,patient"]
    (tmp_path / "p").mkdir()
    for row in range(2):
        Image.open(folder / f"a/{row}.png").save(tmp_path / f"p/{row}.png")
    (tmp_path / "table.csv").write_text("\n".join(["path,label,split,group", *rows, "data/b/1.png,b,train,"]))
    torn = read_data(tmp_path / "table.csv")
    assert "into one split" in obstacle(audit(torn), tmp_path / "out/audit.csv", torn)
