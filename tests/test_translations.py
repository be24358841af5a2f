"""docs/translations.md: every capability has its line there, and every line of ours runs.

The blocks of the page run in tests/test_docs.py too; here the tables are read. In a table with a column "ours", each
piece of code in that column is run, in the names the page leaves behind: Python, or a command that starts `vitrail `.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
import typer

import vitrail
from test_docs import ROOT, blocks, kind_of, run
from vitrail.cli import load_verbs

PAGE = ROOT / "docs" / "translations.md"
TEXT = PAGE.read_text("utf-8")
GROUPS = json.loads((ROOT / "docs" / "rows.json").read_text("utf-8"))["groups"]
KNOWN = [row["id"] for group in GROUPS for row in group["rows"]]
VERBS: dict[str, Any] = dict(typer.main.get_command(load_verbs()).commands)  # type: ignore[attr-defined]

# What the network and the house around it must show.
NEEDED = [
    *(f"000.{number:02}" for number in range(1, 31) if number != 26),
    *(f"001.{number:02}" for number in (1, 2, 3, 4, 5, 6, 7, 9, 15)),
    *(f"002.{number:02}" for number in (1, 2, 3, 4, 5, 6, 7, 9, 10)),
    *(f"003.{number:02}" for number in (*range(1, 16), 19)),
    *(f"004.{number:02}" for number in (*range(1, 11), *range(12, 16))),
    *("P.1", "P.2", "P.3", "P.4", "P.5", "P.8", "P.9", "P.10"),
    *("VE.1", "VE.2", "VE.3", "VE.4", "4.DINO"),
    *("DL.6", "DL.7", "4.TRT"),
    *("4.REG", "4.ROPE", "4.GAP", "4.REP", "4.SIN"),
]


class Line(NamedTuple):
    """One row of a table on the page."""

    number: int  # the line of the page, from 1
    cells: dict[str, str]  # heading -> cell


def lines(text: str) -> list[Line]:
    """Every row of every table, without headings and rules; code blocks are passed over."""
    found: list[Line] = []
    heading: tuple[str, ...] = ()
    fenced = False
    for number, line in enumerate(text.splitlines(), start=1):
        fenced ^= line.startswith("```")
        if fenced or not line.startswith("|"):
            heading = ()
            continue
        cells = tuple(cell.strip() for cell in line.strip().strip("|").split("|"))
        if not heading:
            heading = cells
        elif not set(line) <= set("|-: "):
            assert len(cells) == len(heading), f"line {number} has {len(cells)} cells, its heading {len(heading)}"
            found.append(Line(number, dict(zip(heading, cells, strict=True))))
    return found


def code_in(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


LINES = lines(TEXT)
OURS = [line for line in LINES if "ours" in line.cells]
LATER = [line for line in LINES if "comes later" in line.cells]


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """All names of the page, after its code has run once."""
    codes = [code for code in blocks(TEXT) if kind_of(code) == "run"]
    with pytest.MonkeyPatch.context() as monkeypatch:
        return run(codes, PAGE.name, monkeypatch, tmp_path_factory.mktemp("page"))


def test_every_row_has_its_line() -> None:
    translated = {each for line in OURS for each in line.cells["row"].split()}
    assert [each for each in NEEDED if each not in translated] == []


def test_the_page_names_all_rows_and_no_others() -> None:
    named = {each for line in LINES for each in line.cells["row"].split()}
    assert sorted(set(KNOWN) - named) == []
    assert sorted(named - set(KNOWN)) == []


def test_every_line_of_ours_runs(
    names: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    wrong: list[str] = []
    for line in OURS:
        codes = code_in(line.cells["ours"])
        assert codes, f"{PAGE.name}:{line.number} says nothing of ours"
        for code in codes:
            try:
                if code.startswith("vitrail "):
                    load_verbs()(code.split()[1:], standalone_mode=False)
                else:
                    exec(compile(code, PAGE.name, "exec"), names)
            except Exception as error:
                wrong.append(f"{PAGE.name}:{line.number} `{code}`: {type(error).__name__}: {error}")
    assert wrong == []
    assert "86,567,656" in capsys.readouterr().out  # of `vitrail inspect vit-b16`
    assert vitrail.load(tmp_path / "model.safetensors").classes == tuple("abcdefghij")


def test_what_stands_for_their_flags_when_training_is_there(names: dict[str, Any]) -> None:
    from vitrail.training import RECIPES

    flags = {flag for option in VERBS["train"].params for flag in option.opts}
    found = [line for line in LINES if "when training" in line.cells]
    assert len(found) > 20
    for line in found:
        for code in code_in(line.cells["when training"]):
            where = f"{PAGE.name}:{line.number} `{code}`"
            if code.startswith("--"):
                flag, _, value = code.partition(" ")
                assert flag in flags, where
                assert flag != "--recipe" or value in RECIPES, where
            elif code.startswith("recipes/"):
                assert (ROOT / code).is_file(), where
            else:
                assert eval(code, names) is not None, where


def test_what_comes_later_is_not_there_yet() -> None:
    """Fails when one of these is built: then its row moves up the page, with code that runs."""
    built: list[str] = []
    for line in LATER:
        for code in code_in(line.cells["comes later"]):
            words = code.split()
            if words[0] != "vitrail":
                continue
            verb, flags = VERBS.get(words[1]), words[2:]
            options = {option for parameter in verb.params for option in parameter.opts} if verb else set()
            if verb and all(flag in options for flag in flags):
                built.append(f"{PAGE.name}:{line.number} `{code}` exists")
    assert LATER
    assert built == []


@pytest.mark.row("000.06")
def test_the_defaults_set_beside_ours_are_theirs(names: dict[str, Any], transformers: ModuleType) -> None:
    theirs = transformers.ViTConfig()
    assert {name: getattr(theirs, name) for name in names["hf_defaults"]} == names["hf_defaults"]
    ours = vitrail.ViTConfig()
    differ = {
        name for name, our in names["hf_names"].items() if as_pair(getattr(ours, our)) != as_pair(getattr(theirs, name))
    }
    assert differ == {"layer_norm_eps"}


def as_pair(value: Any) -> Any:
    return (value, value) if type(value) is int else value


def test_links_lead_somewhere() -> None:
    lost: list[str] = []
    prose = re.sub(r"^```.*?^```|`[^`\n]*`", "", TEXT, flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)]+)\)", prose):
        file, _, anchor = target.partition("#")
        page = PAGE.parent / file if file else PAGE
        if not page.is_file() or (anchor and anchor not in anchors(page.read_text("utf-8"))):
            lost.append(target)
    assert lost == []


def anchors(text: str) -> set[str]:
    """What the headings of a page are called in links."""
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


# The tools of this file can fail


def test_tables_are_read_by_their_headings() -> None:
    page = "| theirs | ours | row |\n|---|---|---|\n| a | `b`, `c` | 1.1 1.2 |\n\n"
    page += "```python\nx = 1\n| 2\n```\n| row |\n|---|\n| 2.1 |\n"
    first, second = lines(page)
    assert (first.cells["ours"], first.cells["row"].split(), code_in(first.cells["ours"])) == (
        "`b`, `c`",
        ["1.1", "1.2"],
        ["b", "c"],
    )
    assert second == Line(11, {"row": "2.1"})
    with pytest.raises(AssertionError, match="line 3 has 1 cells, its heading 2"):
        lines("| a | b |\n|---|---|\n| c |\n")


def test_anchors_are_as_pages_show_them() -> None:
    assert anchors("# A walk: views, and more\n## jeonsworld/ViT-pytorch\n") == {
        "a-walk-views-and-more",
        "jeonsworldvit-pytorch",
    }
