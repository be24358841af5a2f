"""The documentation is true: its code runs, the lines it quotes stand in the source.

In docs/*.md and README.md, a fence says how its block is meant:
    ```python                 runs, in one namespace a page, in an empty folder
    ```python no-run          is only read
    ```python quote=FILE      every line must stand in that file of the project, however far indented
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
from PIL import Image

import vitrail

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAPER = ROOT / "docs" / "paper.md"

FENCE = re.compile(r"^(?P<indent> *)(?P<marks>`{3,}|~{3,})(?P<info>[^`\n]*)$")


class Code(NamedTuple):
    """One fenced block of Python."""

    section: str  # the heading it stands under
    how: str  # what the fence says after the language
    line: int  # of its first line, from 1
    source: str


def blocks(page: str) -> list[Code]:
    """The Python blocks of a page, in order."""
    found: list[Code] = []
    section = ""
    opened: re.Match[str] | None = None
    lines: list[str] = []
    start = 0
    for number, line in enumerate(page.splitlines(), start=1):
        fence = FENCE.match(line)
        if opened is None:
            if fence:
                opened, lines, start = fence, [], number + 1
            elif line.startswith("#"):
                section = line.lstrip("#").strip()
        elif fence and not fence["info"].strip() and fence["marks"].startswith(opened["marks"]):
            language, _, how = opened["info"].strip().partition(" ")
            if language in ("python", "py"):
                indent = len(opened["indent"])
                source = "".join(f"{each[indent:]}\n" for each in lines)
                found.append(Code(section, how.strip(), start, source))
            opened = None
        else:
            lines.append(line)
    assert opened is None, f"a fence is never closed: {opened}"
    return found


def run(codes: Iterable[Code], name: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> dict[str, Any]:
    """Run blocks in one namespace, as a module of its own, in a folder; errors name the line of the page."""
    module = ModuleType("documented")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.chdir(folder)
    for code in codes:
        padded = "\n" * (code.line - 1) + code.source
        exec(compile(padded, name, "exec", dont_inherit=True), module.__dict__)
    return module.__dict__


def unquoted(code: Code) -> list[str]:
    """Lines of a quotation that do not stand in the file it names."""
    file = ROOT / code.how.removeprefix("quote=")
    if not file.is_file():
        return [f"line {code.line}: there is no file {file.name}"]
    lines = {each.strip() for each in file.read_text("utf-8").splitlines()}
    quoted = [each.strip() for each in code.source.splitlines()]
    return [f"{file.name} has no line {each!r}" for each in quoted if each not in lines]


def pages_with(kind: str) -> list[Any]:
    """Pages that have such blocks: `run`, `quote` or neither."""
    return [
        pytest.param(path, id=path.name)
        for path in PAGES
        if any(kind_of(each) == kind for each in blocks(path.read_text("utf-8")))
    ]


def kind_of(code: Code) -> str:
    return "run" if not code.how else code.how.partition("=")[0]


@pytest.mark.parametrize("page", pages_with("run"))
def test_the_code_of_a_page_runs(page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    codes = [each for each in blocks(page.read_text("utf-8")) if kind_of(each) == "run"]
    run(codes, page.name, monkeypatch, tmp_path)


@pytest.mark.parametrize("page", pages_with("quote"))
def test_quoted_lines_stand_in_the_source(page: Path) -> None:
    codes = [each for each in blocks(page.read_text("utf-8")) if kind_of(each) == "quote"]
    assert [complaint for each in codes for complaint in unquoted(each)] == []


@pytest.mark.parametrize("page", [pytest.param(path, id=path.name) for path in PAGES])
def test_every_block_says_how_it_is_meant(page: Path) -> None:
    for code in blocks(page.read_text("utf-8")):
        assert kind_of(code) in ("run", "no-run", "quote"), f"{page.name}:{code.line} says {code.how!r}"
        compile(code.source if kind_of(code) != "quote" else "", page.name, "exec")


# The page about the paper


def section(title: str) -> list[Code]:
    found = [each for each in blocks(PAPER.read_text("utf-8")) if each.section == title]
    assert found, f"docs/paper.md has no section {title!r} with code"
    return found


@pytest.fixture(scope="module")
def paper(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """All names of the page, after its code has run once."""
    codes = [each for each in blocks(PAPER.read_text("utf-8")) if kind_of(each) == "run"]
    torch.manual_seed(0)
    with pytest.MonkeyPatch.context() as monkeypatch:
        return run(codes, PAPER.name, monkeypatch, tmp_path_factory.mktemp("paper"))


def test_all_four_equations_are_set_beside_code() -> None:
    files = {
        "Equation 1: from an image to tokens": ["patches.py", "tokens.py", "tokens.py"],
        "Equation 2: attention": ["encoder.py", "attention.py"],
        "Equation 3: the MLP": ["encoder.py"],
        "Equation 4: the answer": ["vit.py", "heads.py"],
    }
    for title, expected in files.items():
        quoted = [each.how for each in section(title) if kind_of(each) == "quote"]
        assert quoted == [f"quote=src/vitrail/network/{name}" for name in expected]


@pytest.mark.row("000.30")
def test_the_page_teaches_views_and_contiguous_memory(paper: dict[str, Any]) -> None:
    table, turned, copied = paper["table"], paper["turned"], paper["copied"]
    assert (table.is_contiguous(), turned.is_contiguous(), copied.is_contiguous()) == (True, False, True)
    assert (table.stride(), turned.stride(), copied.stride()) == ((3, 1), (1, 3), (2, 1))
    assert turned.data_ptr() == table.data_ptr() != copied.data_ptr()


@pytest.mark.row("004.15")
def test_the_page_says_what_convolutions_assume_and_attention_does_not() -> None:
    text = " ".join((ROOT / "docs" / "network.md").read_text("utf-8").split())
    assert "A convolution assumes that near pixels belong together" in text
    assert "attention assumes neither" in text


@pytest.mark.row("002.09")
def test_the_page_walks_through_a_grid_of_14_by_14(paper: dict[str, Any]) -> None:
    assert [shape for _, shape in paper["walk"][:3]] == [(1, 3, 224, 224), (1, 196, 768), (1, 197, 768)]
    text = PAPER.read_text("utf-8").partition("## A walk with fixed shapes")[2].partition("\n## ")[0]
    for fact in ("14 × 14 × 768", "196 patches", "197 tokens"):
        assert fact in text


@pytest.mark.row("002.10")
def test_the_page_states_names_and_sets_rightly(paper: dict[str, Any]) -> None:
    assert paper["huge"].grid == (16, 16)
    text = PAPER.read_text("utf-8").partition("## What a name means")[2].partition("\n## ")[0]
    for fact in ("patches of **14 pixels**", "16 × 16 = 256 patches", "303 million", "14 million", "1.3 million"):
        assert fact in text
    for figure in ("88.55", "87.76", "85.30"):  # of the paper's table 2
        assert figure in text


@pytest.mark.row("003.14")
def test_the_page_sets_dot_product_beside_additive_attention(paper: dict[str, Any]) -> None:
    queries, keys = paper["queries"], paper["keys"]
    assert paper["dot"].shape == paper["additive"].shape == (5, 7)
    hidden = (queries[2] @ paper["W"] + keys[3] @ paper["U"]).tanh()
    assert paper["additive"][2, 3].item() == pytest.approx((hidden @ paper["w"]).item(), abs=1e-4)
    assert paper["dot"][2, 3].item() == pytest.approx((queries[2] @ keys[3]).item() / 4, abs=1e-5)


@pytest.mark.row("000.27")
def test_the_example_with_an_image_runs_on_a_local_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As it stands on the page; the image is already there, so that nothing is fetched."""
    [code] = section("An image from the web, or from your disk")
    assert kind_of(code) == "no-run"
    checkpoint = vitrail.Checkpoint(
        model=vitrail.create("vit-nano4-28"),
        preprocess=vitrail.Preprocess(size=28),
        classes=tuple(f"class {number}" for number in range(10)),
    )
    vitrail.save(checkpoint, tmp_path / "model.safetensors")
    Image.new("RGB", (64, 48), (90, 120, 150)).save(tmp_path / "cats.jpg")
    monkeypatch.setattr("urllib.request.urlretrieve", lambda *_: pytest.fail("the example reached for the web"))
    names = run([code], PAPER.name, monkeypatch, tmp_path)
    assert len(names["prediction"].labels) == 5
    assert sum(names["prediction"].probabilities) <= 1.0001
    assert capsys.readouterr().out.count("class ") == 5


# The tools of this file can fail


def test_blocks_are_found_with_their_sections_and_lines() -> None:
    page = "# A\n```python\nx = 1\n```\ntext\n## B\n```sh\nls # no\n```\n"
    page += "  ```python no-run\n  y\n  ```\n````python\n```\n````\n"
    assert blocks(page) == [
        Code("A", "", 3, "x = 1\n"),
        Code("B", "no-run", 11, "y\n"),
        Code("B", "", 14, "```\n"),
    ]
    with pytest.raises(AssertionError, match="never closed"):
        blocks("```python\nx\n")


def test_an_error_names_the_line_of_the_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    codes = blocks("text\n\n```python\nx = 1\n```\n\n```python\nassert x == 1\nassert x == 2\n```\n")
    with pytest.raises(AssertionError) as caught:
        run(codes, "page.md", monkeypatch, tmp_path)
    assert caught.traceback[-1].lineno + 1 == 9


def test_a_wrong_quotation_is_found() -> None:
    source = (ROOT / "src" / "vitrail" / "errors.py").read_text("utf-8").splitlines()[0]
    assert unquoted(Code("", "quote=src/vitrail/errors.py", 1, f"{source}\n")) == []
    assert len(unquoted(Code("", "quote=src/vitrail/errors.py", 1, f"{source}\nno such line\n"))) == 1
    assert len(unquoted(Code("", "quote=src/vitrail/no_such_file.py", 1, "x\n"))) == 1


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_that_are_there(page: Path) -> None:
    prose = re.sub(r"```.*?```|`[^`]*`", "", page.read_text("utf-8"), flags=re.DOTALL)
    links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", prose)
    assert [link for link in links if not (page.parent / link).exists()] == []


COMMAND = re.compile(r"^(?:[$] )?vitrail +(.*)$|`vitrail +([^`]*)`", re.MULTILINE)


def wrong_commands(page: str) -> list[str]:
    """Commands of a page, in blocks or in lines, with a verb or an option that does not exist."""
    from typer.main import get_command

    from vitrail.cli import load_verbs

    group: Any = get_command(load_verbs())
    complaints = []
    for command in COMMAND.finditer(page):
        words = " ".join((command[1] or command[2]).partition(" #")[0].split()).split(" ")
        if words[0] in ("VERB", "…") or words[0].startswith("-"):
            continue
        verb = group.commands.get(words[0])
        known = {name for param in verb.params for name in param.opts} | {"-h", "--help"} if verb else set()
        unknown = [
            word for word in words if word.startswith("--") and word.partition("=")[0].rstrip(",;:") not in known
        ]
        complaints += [command[0]] if verb is None or unknown else []
    return complaints


TO_COME = ("capabilities.md", "translations.md")  # they speak of what is still to come, too


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in TO_COME], ids=lambda page: page.name)
def test_pages_name_verbs_and_options_that_exist(page: Path) -> None:
    assert wrong_commands(page.read_text("utf-8")) == []


def test_a_command_that_does_not_exist_is_found() -> None:
    page = (
        "```\nvitrail predict a --top 3  # --no\nvitrail fly a\n```\n`vitrail train x --wings 2` `vitrail VERB --x`\n"
    )
    assert wrong_commands(page) == ["vitrail fly a", "`vitrail train x --wings 2`"]


PARTS = re.compile(r"\n\s*\n|\n(?= *(?:[-*#|]|\d+\.))|(?<!\\)\||(?<=[.!?])[)\"*]*\s")  # where a sentence may end


def long_sentences(page: str) -> list[str]:
    """Sentences of a page with more than 30 words; items of a list and cells of a table stand alone."""
    prose = re.sub(r"^ *(`{3,}).*?^ *\1$", "", page, flags=re.DOTALL | re.MULTILINE)
    prose = re.sub(r"\]\([^)]*\)", "]", prose)  # addresses are no words
    return [" ".join(part.split()) for part in PARTS.split(prose) if len(re.findall(r"\S*\w\S*", part)) > 30]


SHORT = [page for page in PAGES if page.name != "decisions.md"]  # which holds reasons, for those who look for them


@pytest.mark.parametrize("page", SHORT, ids=lambda page: page.name)
def test_sentences_are_short(page: Path) -> None:
    assert long_sentences(page.read_text("utf-8")) == []


def test_a_long_sentence_is_found() -> None:
    words = "word " * 28
    assert long_sentences(f"Begins {words}[end](a.md).\n\n| {words}a | {words}b |\n- {words}c (d). {words}e\n") == []
    assert long_sentences(f"One.\n# Two\n- Begins {words}\n  with two lines.\n") == [f"- Begins {words}with two lines."]
