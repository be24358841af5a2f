"""The tutorial and the how-to pages: their ```console run blocks are typed, and print what the pages show."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from PIL import Image

from console_blocks import Command, check, commands, fits

DOCS = Path(__file__).resolve().parents[1] / "docs"
CLASSES = {1: "one", 2: "two", 5: "five"}  # the folder of the fixtures -> the class
AFTERWARDS = [
    pytest.param(page, id=page.stem)
    for page in sorted((*DOCS.glob("*.md"), *DOCS.glob("how-to/*.md"), *DOCS.glob("reference/*.md")))
    if page.stem != "tutorial" and commands(page.read_text("utf-8"))
]


def prepare(folder: Path, fixtures: Path) -> None:
    """What the reader of the tutorial begins with: photos/ by class, new/ ones, and a pretrained checkpoint."""
    for number, name in CLASSES.items():
        images = sorted((fixtures / "sign_language_digits" / str(number)).iterdir())
        (folder / "photos" / name).mkdir(parents=True)
        for path in images[:60]:
            shutil.copy(path, folder / "photos" / name)
        (folder / "new").mkdir(exist_ok=True)
        shutil.copy(images[80], folder / "new" / f"{number}.jpg")
    shutil.copy(folder / "photos/one/IMG_1119.JPG", folder / "photos/two/copy.jpg")
    cut = (folder / "photos/five/IMG_1123.JPG").read_bytes()[:1000]
    (folder / "photos/five/cut.jpg").write_bytes(cut)
    (folder / "vit-tiny.safetensors").symlink_to(fixtures / "vit_tiny_patch16_224_in1k.safetensors")


@pytest.fixture(scope="module")
def walked(fixtures: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A folder in which somebody has followed the tutorial, and what was not as it says."""
    folder = tmp_path_factory.mktemp("tutorial")
    prepare(folder, fixtures)
    return folder, check(DOCS / "tutorial.md", folder)


def test_the_tutorial_is_true(walked: tuple[Path, list[str]]) -> None:
    assert "\n".join(walked[1]) == ""


@pytest.mark.parametrize("page", AFTERWARDS)
def test_a_page_for_those_who_followed_it_is_true(page: Path, walked: tuple[Path, list[str]]) -> None:
    assert "\n".join(check(page, walked[0])) == ""


# The tools of this file can fail


def test_commands_are_found_with_what_the_page_shows() -> None:
    page = "# A\n```console run\n$ vitrail models \\\n    --json\nx 1\n…\n$ echo $?\n0\n```\n```console\n$ rm\n```\n"
    assert commands(page) == [Command(3, "vitrail models --json", ["x 1", "…"]), Command(7, "echo $?", ["0"])]


@pytest.mark.parametrize(
    ("shown", "printed", "expected"),
    [
        (["a 1.5 %"], "a   22 %\n", True),
        (["a 1.5 %"], "b 1.5 %\n", False),
        (["a", "…", "z"], "a\nb\nc\nz\n", True),
        (["a", "…", "z"], "a\nb\n", False),
        (["a … z"], "a b c z\n", True),
        ([], "a\n", False),
        (["a"], "", False),
        (["gain +0.12"], "gain -0.3\n", True),
    ],
)
def test_what_is_shown_is_held_against_what_is_printed(shown: list[str], printed: str, expected: bool) -> None:
    assert fits(shown, printed) is expected


def test_a_page_that_promises_too_much_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```console run\n$ echo one\ntwo\n$ false\n$ true\n```\n", "utf-8")
    first, second = check(page, tmp_path)
    assert "shown:\ntwo\nis:\none" in first
    assert second == "page.md: the command before line 5 ended with 1"


def test_the_images_of_the_tutorial_open(fixtures: Path, tmp_path: Path) -> None:
    prepare(tmp_path, fixtures)
    sizes = {Image.open(path).size for path in (tmp_path / "new").iterdir()}
    assert sizes == {(100, 100)}
