"""Paths of images as they are typed: patterns, and names on standard input."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from PIL import Image

import vitrail
from cli.command_line import Line, process
from vitrail.cli.budget_images import images_for
from vitrail.cli.image_paths import typed_paths
from vitrail.errors import InputError


def read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, typed: bytes) -> list[str]:
    (tmp_path / "typed").write_bytes(typed)
    with open(tmp_path / "typed", encoding="utf-8") as file:
        monkeypatch.setattr("sys.stdin", file)
        return [os.fspath(path) for path in typed_paths([Path("z.png"), Path("-")])]


@pytest.mark.parametrize(
    "typed, names",
    [
        (b"a.png\nb c.png\n", ["a.png", "b c.png"]),
        (b"a.png\r\n\r\nb.png", ["a.png", "b.png"]),
        (b"a\nb.png\0c.png\0", ["a\nb.png", "c.png"]),  # as `find -print0` writes them
        ("\u00e9t\u00e9.png\n".encode(), ["\u00e9t\u00e9.png"]),
        (b"\xff.png\n", [os.fsdecode(b"\xff.png")]),
    ],
)
def test_names_on_standard_input(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, typed: bytes, names: list[str]
) -> None:
    assert read(monkeypatch, tmp_path, typed) == ["z.png", *names]


def test_nothing_on_standard_input(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for empty in (b"", b"\n \n"):
        with pytest.raises(InputError, match="reads paths of images from standard input, one a line, and none came"):
            read(monkeypatch, tmp_path, empty)


def test_an_image_on_standard_input_is_not_taken_for_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("a.jpg", "a.png", "a.gif", "a.bmp"):
        Image.new("RGB", (8, 8), "red").save(tmp_path / name)
        with pytest.raises(InputError, match="^standard input holds an image, .*: save the image to a file, and name"):
            read(monkeypatch, tmp_path, (tmp_path / name).read_bytes())
    assert read(monkeypatch, tmp_path, b"P1 2.jpg\n") == ["z.png", "P1 2.jpg"]


def test_predict_reads_names_from_a_pipe(file: Path, folder: Path) -> None:
    names = f"{folder / '2.png'}\n{folder / '1.png'}\n".encode()
    run = process("predict", file, "-", "--top", "1", input=names)
    assert run.returncode == 0, run.stderr
    lines = run.stdout.decode().splitlines()
    assert [line.partition(": ")[0] for line in lines] == [str(folder / "2.png"), str(folder / "1.png")]


def test_patterns_in_quotes(vit: Line, file: Path, folder: Path, tmp_path: Path) -> None:
    (folder / "3 broken.png").unlink()
    rows = vit("predict", file, folder / "*.png", "--json").json["predictions"]
    assert [Path(row["path"]).name for row in rows] == ["1.png", "2.png", "10.png"]
    paths = vit("embed", file, folder / "1*.png", "--json").json["paths"]
    assert [Path(path).name for path in paths] == ["1.png", "10.png"]
    explained = vit("explain", file, folder / "1*.png", "--no-check", "--out", tmp_path / "out", "--json").json
    assert [Path(row["path"]).name for row in explained["explained"]] == ["1.png", "10.png"]
    for verb in ("predict", "explain"):
        told = vit.mistake(verb, file, folder / "*.gif")
        assert told == f"no file or folder fits the pattern {folder / '*.gif'}"


def test_images_without_labels_that_are_passed_over_are_told(
    file: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "3 broken.png").unlink()
    (folder / ".4.png").touch()
    assert len(images_for(vitrail.load(file), "", str(folder), True)) == 3
    assert capsys.readouterr().err == f"vitrail: 1 hidden file passed over: {folder / '.4.png'}\n"
