"""The map in CONTRIBUTING.md: what the modules say of themselves, and never out of date."""

from __future__ import annotations

from pathlib import Path

import pytest

from house_map import END, PAGE, ROOT, START, build_map, with_map


def test_the_map_is_up_to_date() -> None:
    page = PAGE.read_text("utf-8")
    assert with_map(page, build_map(ROOT / "src" / "vitrail")) == page, "make map"


def test_every_module_says_what_it_is() -> None:
    tree = build_map(ROOT / "src" / "vitrail").splitlines()[1:]
    assert [line for line in tree if len(line.split()) < 3] == []


def test_the_map_follows_the_line_of_rooms(tmp_path: Path) -> None:
    package = tmp_path / "vitrail"
    files = {
        "errors.py": "What goes wrong.",
        "cli/__init__.py": "The command line.",
        "network/__init__.py": "The transformer.",
        "network/vit.py": "ViT: pixels in, logits out.",
        "weights/__init__.py": "Weights.",
        "weights/families/__init__.py": "One table a family.",
        "weights/families/timm.py": "A long line, with a clause; " + "and words " * 20,
    }
    for name, says in files.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(f'"""{says}\n\nMore."""\n')
    assert build_map(package).splitlines() == [
        "vitrail/",
        "  errors.py                 What goes wrong.",
        "  network/                  The transformer.",
        "    vit.py                  ViT: pixels in, logits out.",
        "  weights/                  Weights.",
        "    families/               One table a family.",
        "      timm.py               A long line, with a clause",
        "  cli/                      The command line.",
    ]


def test_a_page_without_marks_is_refused() -> None:
    assert with_map(f"a\n{START}old{END}b\n", "x\n") == f"a\n{START}```\nx\n```\n{END}b\n"
    with pytest.raises(SystemExit, match="expected the marks"):
        with_map("nothing here", "x\n")
