"""The verb audit."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from auditing.placeholder_images import placeholder
from cli.command_line import Line
from vitrail.cli.terminal import SOME_UNREADABLE


def test_audit(vit: Line, photos: Path, tmp_path: Path) -> None:
    said = vit("audit", photos, "--out", tmp_path)
    assert said.code == SOME_UNREADABLE, said.err
    assert "Copies of others, pixel for pixel: 1 image" in said.out
    assert "Unreadable: 1 file" in said.out
    assert {"audit.html", "audit.csv", "audit.json"} == {path.name for path in tmp_path.iterdir()}
    assert vit("audit", photos, "--json").json["counts"]["exact_copies"] == 1
    flags = ("--epochs", "0.1", "--batch", "8", "--out", tmp_path / "runs", "--exclude", tmp_path / "audit.csv")
    told = vit("train", photos, *flags)
    assert told.code == 0, told.err
    assert f"2 left out, as {tmp_path / 'audit.csv'} asks" in told.err  # the copy, and the one that cannot be read


def messy(folder: Path) -> Path:
    """Three classes by colour, and what stands between real images; wide enough that a centre crop would cut them."""
    dice = np.random.default_rng(4)
    for number, name in enumerate(("red", "green", "blue")):
        (folder / name).mkdir(parents=True)
        for row in range(12):
            pixels = dice.integers(0, 90, (16, 20 + row, 3), dtype=np.uint8)
            pixels[:, :, number] += 120
            Image.fromarray(pixels).save(folder / name / f"{row}.png")
        placeholder(1, (200, 150)).save(folder / name / "gone.jpg", quality=60 + 10 * number)
    Image.open(folder / "blue/0.png").save(folder / "blue/copy.bmp")
    Image.open(folder / "blue/1.png").transpose(Image.Transpose.ROTATE_90).save(folder / "blue/IMG_0001", "png")
    (folder / "red/page.jpg").write_text("<!doctype html>")
    (folder / "red/empty.png").touch()
    (folder / "green/notes.txt").write_text("notes")
    (folder / "green/gone.png").symlink_to("never.png")
    (folder / "__pycache__").mkdir()
    return folder


def test_files_are_named_and_the_next_command_works_as_printed(vit: Line, tmp_path: Path) -> None:
    data, out = messy(tmp_path / "my photos"), tmp_path / "my audit"
    said = vit("audit", data, "--out", out)
    assert said.code == SOME_UNREADABLE, said.err
    lines = said.out.splitlines()
    assert lines[0] == f"41 images of 3 classes in {data}"
    for finding, names in {
        "Placeholder images, such as “image not found” or a single colour: 3.": (
            "  blue/gone.jpg, green/gone.jpg, red/gone.jpg"
        ),
        "Copies of others, pixel for pixel: 1 image.": "  blue/copy.bmp",
    }.items():
        assert set(lines[lines.index(finding) + 1].strip().split(", ")) == set(names.strip().split(", "))
    unreadable = lines[lines.index("Unreadable: 2 files.") + 1 :][:2]
    assert [each.rpartition(": ")[2] for each in sorted(unreadable)] == ["red/empty.png", "red/page.jpg"]
    left_out = (
        "1 folder of a tool: __pycache__",
        "1 broken link: green/gone.png",
        "1 file that is not an image (.txt): green/notes.txt",
    )
    assert {f"left out: {each}" for each in left_out} <= set(lines)
    assert any(line.startswith(f"All files of each finding stand in {out / 'audit.csv'}") for line in lines)
    command = shlex.split(lines[-1])
    assert command[:5] == ["vitrail", "train", str(data), "--exclude", str(out / "audit.csv")]
    assert command[5:] in (["--resize", "pad"], ["--resize", "squash"])
    told = vit(*command[1:], "--epochs", "0.1", "--batch", "8", "--out", tmp_path / "runs")
    assert told.code == 0, told.err
    assert "6 left out, as" in told.err  # two unreadable ones, three placeholders, one copy
    assert "left out: 1 broken link: green/gone.png" in told.err


def test_without_a_folder_the_next_command_writes_one(
    vit: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    messy(tmp_path / "my photos")
    last = vit("audit", "my photos").out.splitlines()[-1]
    command = shlex.split(last.partition("written by: ")[2])
    assert command == ["vitrail", "audit", "my photos", "--out", "audit"]
    assert vit(*command[1:]).code == SOME_UNREADABLE
    assert (tmp_path / "audit/audit.html").is_file()


def test_decisions_in_an_older_table_are_kept(vit: Line, tmp_path: Path) -> None:
    data, out = messy(tmp_path / "my photos"), tmp_path / "audit"
    vit("audit", data, "--out", out)
    written = (out / "audit.csv").read_bytes()
    assert "audit-before" not in vit("audit", data, "--out", out).err  # nothing was changed, nothing is kept
    edited = written.replace(b",1\r\n", b",0\r\n")
    (out / "audit.csv").write_bytes(edited)
    told = (
        f"vitrail: {out / 'audit.csv'} is written anew; the table that was there is kept as {out / 'audit-before.csv'}"
    )
    assert told in vit("audit", data, "--out", out).err.splitlines()
    assert ((out / "audit.csv").read_bytes(), (out / "audit-before.csv").read_bytes()) == (written, edited)


def test_heic_without_its_library_is_told_by_name(vit: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    data = messy(tmp_path / "photos")
    for row in range(12):
        (data / "red" / f"{row}.heic").write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(100))
    told = (
        "12 HEIC images need pillow-heif: pip install 'vitrail[heif]' (red/0.heic, red/1.heic, red/2.heic and 9 more)"
    )
    assert f"  {told}" in vit("audit", data).out.splitlines()
    said = vit("train", data, "--epochs", "0.1", "--batch", "8", "--out", tmp_path / "runs")
    assert said.code == 0, said.err
    assert told in said.err
