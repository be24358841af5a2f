"""Three people's first hour, typed again line by line: what is printed is what was recorded."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from walks.walking import Line, differences, environment_for, parse, same_text, walk

HERE = Path(__file__).parent
FIXTURES = Path(os.environ.get("VITRAIL_FIXTURES", HERE.parents[2] / "shared" / "fixtures")).resolve()
FILES = 1045  # of the engineer's folder


def own_photos(home: Path) -> None:
    """Class folders of real photos, a colleague's checkpoint, and what lies about in such folders."""
    for name in ("Kiwi", "Lemon"):
        shutil.copytree(FIXTURES / "fruits360_10" / "train" / name, home / "my photos" / name.lower())
    new = home / "new photos"
    new.mkdir()
    for name in ("Kiwi", "Lemon", "Strawberry"):
        first = sorted((FIXTURES / "fruits360_10" / "test" / name).iterdir())[0]
        shutil.copy(first, new / f"{name.lower()}.jpg")
    (home / "my photos" / "kiwi" / "notes.txt").write_text("taken in May\n")
    (home / "my photos" / "__pycache__").mkdir()
    (home / "my photos" / "lemon" / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 cut short")
    shutil.copy(FIXTURES / "vit_tiny_patch16_224_in1k.safetensors", home / "vit.safetensors")


def four_families(home: Path) -> None:
    """Two checkpoints of others; the walk makes the third and fourth family of them."""
    home.mkdir()
    shutil.copy(FIXTURES / "vit_tiny_patch16_224_in1k.safetensors", home / "vit.safetensors")
    shutil.copy(FIXTURES / "vit_mnist_d64_l6_h4_p4.pt", home / "mnist.pt")
    shutil.copy(FIXTURES / "fruits360_10" / "test" / "Banana" / "100_100.jpg", home / "banana.jpg")


def a_thousand_files(home: Path) -> None:
    """A folder as it comes from a customer: 1,045 files, some of which are no images at all."""
    photos = home / "customer"
    hands = sorted((FIXTURES / "sign_language_digits").glob("[0-6]/*.JPG"))[: FILES - 8]
    for number, file in enumerate(hands):
        folder = photos / f"day {number % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, folder / f"{number:04}.jpg")
    image = hands[0].read_bytes()
    (photos / "no_ending").write_bytes(image)
    (photos / "cut.jpg").write_bytes(image[: len(image) // 2])
    (photos / "empty.jpg").write_bytes(b"")
    (photos / "page.jpg").write_text("<html><body>404</body></html>")
    (photos / "readme.txt").write_text("from the camera\n")
    (photos / "table.csv").write_text("file,label\n")
    (photos / ".hidden.jpg").write_bytes(image)
    (photos / "gone.jpg").symlink_to("nowhere.png")


FOLDERS: dict[str, Callable[[Path], None]] = {
    "own_photos": own_photos,
    "four_families": four_families,
    "a_thousand_files": a_thousand_files,
}


@pytest.mark.parametrize("name", sorted(FOLDERS))
def test_a_walk_prints_what_was_recorded(name: str, tmp_path: Path, fixtures: Path) -> None:
    home = tmp_path / "home"
    FOLDERS[name](home)
    recorded = parse((HERE / f"{name}.txt").read_text("utf-8"))
    now = list(walk(recorded, home, environment_for(home)))
    assert not (complaints := differences(recorded, now)), "\n\n".join(complaints)


def test_every_walk_has_a_folder() -> None:
    assert {path.stem for path in HERE.glob("*.txt")} == set(FOLDERS)


@pytest.mark.parametrize(
    ("recorded", "now", "same"),
    [
        ("accuracy  91.2 %", "accuracy 93.0 %", True),
        ("accuracy  91.2 %", "accuracy 71.0 %", False),
        ("accuracy  91.2 %", "error 91.2 %", False),
        ("8 of 1,045 images", "9 of 1,045 images", False),
        ("12 steps; 31 s", "12 steps; 7.5 s", True),
        ("12 steps; 31 s", "13 steps; 31 s", False),
        ("ms an image  21.43  3.7\nspeed 5.79 times", "ms an image 8.7 2.3\nspeed 3.7 times", True),
        ("22.9 MB", "22.8 MB", True),
        ("22.9 MB", "44.9 MB", False),
        ("1.24e-06", "4.1e-06", True),
        ("1.24e-06", "1.3e-05", False),
        ("", "something", False),
    ],
)
def test_what_counts_as_the_same(recorded: str, now: str, same: bool) -> None:
    assert same_text(recorded, now) is same


def test_a_walk_is_read_and_walked(tmp_path: Path) -> None:
    text = "$ echo one; exit 3\none\n[exit code 3]\n>>> x = 2\n>>> for i in range(x):\n...     print(i)\n... \n0\n1\n"
    lines = parse(text)
    assert lines[0] == Line("$ echo one; exit 3", ("one", "[exit code 3]"))
    now = list(walk(lines, tmp_path, environment_for(tmp_path)))
    assert now == lines
    assert differences(lines, [now[0]._replace(printed=("two", "[exit code 3]")), *now[1:]])
