"""The tutorial and the how-to pages: their ```console run blocks are typed, and print what the pages show."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from console_blocks import Command, Printed, check, commands, complaints, fits, type_page

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
CLASSES = {1: "one", 2: "two", 5: "five"}  # the folder of the fixtures -> the class
WEIGHTS = "vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors"
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
        for path in images[:80]:
            shutil.copy(path, folder / "photos" / name)
        (folder / "new").mkdir(exist_ok=True)
        shutil.copy(images[100], folder / "new" / f"{number}.jpg")
    shutil.copy(folder / "photos/one/IMG_1119.JPG", folder / "photos/two/copy.jpg")
    cut = (folder / "photos/five/IMG_1123.JPG").read_bytes()[:1000]
    (folder / "photos/five/cut.jpg").write_bytes(cut)
    shutil.copy(fixtures / "fruits360_10/test/Banana/100_100.jpg", folder / "new" / "banana.jpg")
    (folder / "weights" / "timm").mkdir(parents=True)
    (folder / "weights" / "timm" / WEIGHTS).symlink_to(fixtures / "vit_tiny_patch16_224_in1k.safetensors")


@pytest.fixture(scope="module")
def folder(fixtures: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the tutorial is followed, and the other pages go on."""
    folder = tmp_path_factory.mktemp("tutorial")
    prepare(folder, fixtures)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITRAIL_WEIGHTS", str(folder / "weights"))  # instead of fetching them
        yield folder


@pytest.fixture(scope="module")
def tutorial(folder: Path) -> list[tuple[Command, Printed]]:
    """The tutorial, followed to its end."""
    return type_page(DOCS / "tutorial.md", folder)


def test_the_tutorial_is_true(tutorial: list[tuple[Command, Printed]]) -> None:
    assert "\n".join(complaints("tutorial.md", tutorial)) == ""


def test_the_readme_shows_what_the_tutorial_prints(tutorial: list[tuple[Command, Printed]]) -> None:
    """The README's commands are the tutorial's, so that they need not run again."""
    printed = {command.typed: answer for command, answer in tutorial}
    shown = commands((ROOT / "README.md").read_text("utf-8"))
    assert [command.typed for command in shown if command.typed not in printed] == []
    assert len(shown) >= 5
    assert [command.typed for command in shown if not fits(command.shown, printed[command.typed].text)] == []


@pytest.mark.usefixtures("tutorial")
@pytest.mark.parametrize("page", AFTERWARDS)
def test_a_page_for_those_who_followed_it_is_true(page: Path, folder: Path) -> None:
    assert "\n".join(check(page, folder)) == ""


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
    assert second == "page.md:4: $ false\nended with 1\n"


def test_the_tutorial_begins_with_what_it_says(fixtures: Path, tmp_path: Path) -> None:
    prepare(tmp_path, fixtures)
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["1.jpg", "2.jpg", "5.jpg", "banana.jpg"]
    assert {name: len(list((tmp_path / "photos" / name).iterdir())) for name in CLASSES.values()} == {
        "one": 80,
        "two": 81,  # one of another class by mistake
        "five": 81,  # one cut short
    }
