"""What mkdocs cannot read from docs/ by itself: the README as the first page, and reference pages made from the code.

`make docs` builds the site (mkdocs.yml names this file as a hook). Nothing here is written by hand twice: public names
come from `vitrail.__all__`, verbs and options from the command line itself, recipes from their table.
"""

from __future__ import annotations

import inspect
import json
import os
import re
from pathlib import Path
from typing import Any
from unittest import mock

import typer.main
from mkdocs.structure.files import File, Files

import vitrail
from vitrail.cli.application import VERBS, load_verbs
from vitrail.training import RECIPES

ROOT = Path(__file__).resolve().parents[1]
COPIED = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
PROJECT = ("architecture.md", "changelog.md", "contributing.md", "decisions.md", "extending.md", "testing.md")
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")
FENCE = re.compile(r"^( *(?:`{3,}|~{3,}) *[a-z]+) [^`\n]*$", re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    """Files of docs/ -> the same, with those that are made."""
    for source, page in COPIED.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text("utf-8")))
    made = {"python": python_page(), "classes": classes_page(), "command-line": verbs_page(), "recipes": recipes_page()}
    for name, text in made.items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    for path in sorted((ROOT / "examples" / "notebooks").glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=notebook_page(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """A page of the project -> as the site needs it: fences without our marks, links that lead somewhere."""
    if page.file.src_uri == "capabilities.md":
        page.meta["search"] = {"exclude": True}  # a table of every test would bury all else
    if page.file.src_uri in PROJECT:
        page.meta["search"] = {"boost": 0.2}  # found below what is for users
    if page.file.src_uri == "contributing.md":  # so would the map of all files
        markdown = markdown.replace("\n## The map\n", "\n## The map {data-search-exclude}\n")
    base = "" if page.file.src_uri in COPIED.values() else "docs/"
    folder = Path(base + page.file.src_uri).parent
    return LINK.sub(lambda link: _link(link, folder), FENCE.sub(r"\1", markdown))


def _link(link: re.Match[str], folder: Path) -> str:
    """A link to a page stays, from wherever it is; one to a file that the site does not have becomes its words."""
    mark, words, target, anchor = link[1], link[2], link[3], link[4] or ""
    path = _normal(folder / target)
    if path in COPIED:
        page = COPIED[path]
    elif path.startswith("docs/") and not path.endswith(("/", ".json")):
        page = path.removeprefix("docs/")
    else:
        return words
    own = folder.as_posix().removeprefix("docs").strip("/.")
    up = "../" * (own.count("/") + 1 if own else 0)
    return f"{mark}[{words}]({up}{page}{anchor})"


def _normal(path: Path) -> str:
    """A path without its `..`, from the project's root."""
    parts: list[str] = []
    for part in path.parts:
        if part == ".." and parts:
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)


def notebook_page(path: Path) -> str:
    """A notebook as a page to read."""
    cells = json.loads(path.read_text("utf-8"))["cells"]
    texts = ["".join(cell["source"]) for cell in cells]
    kinds = [cell["cell_type"] for cell in cells]
    parts = [text if kind == "markdown" else f"```python\n{text}\n```" for kind, text in zip(kinds, texts, strict=True)]
    return "\n\n".join((*parts, f"The notebook: `{path.relative_to(ROOT)}`.\n"))


# ---- Python ----------------------------------------------------------------------------------------------------------


def python_page() -> str:
    """Every public function, its text taken from its docstring."""
    names = [name for name in sorted(vitrail.__all__) if not inspect.isclass(getattr(vitrail, name))]
    intro = "Every public function. What they take and return stands under [Classes](classes.md).\n"
    return "\n".join(["# Functions\n", intro, *(f"::: vitrail.{name}\n" for name in names)])


def classes_page() -> str:
    """Every public class, with its fields and methods."""
    names = [name for name in sorted(vitrail.__all__) if inspect.isclass(getattr(vitrail, name))]
    intro = "What the [functions](python.md) take and return.\n"
    return "\n".join(["# Classes\n", intro, *(f"::: vitrail.{name}\n" for name in names)])


# ---- the command line ------------------------------------------------------------------------------------------------


def verbs_page() -> str:
    """What `vitrail --help` and every `vitrail VERB --help` print."""
    group: Any = typer.main.get_command(load_verbs())
    text = ["# Command line\n", "What `vitrail --help` and `vitrail VERB --help` print, on one page.\n", _help(group)]
    for name in sorted(VERBS):
        text += [f"## {name}\n", _help(group.commands[name])]
    return "\n".join(text)


def _help(command: Any) -> str:
    with mock.patch.dict(os.environ, {"COLUMNS": "90"}):
        context = command.make_context(command.name, [], resilient_parsing=True)
        return f"```text\n{command.get_help(context).strip()}\n```\n"


def _cell(text: str) -> str:
    """Text that stands in a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("[", "\\[")


# ---- recipes ---------------------------------------------------------------------------------------------------------


def recipes_page() -> str:
    """The table of recipes by name."""
    rows = [
        f"| `{name}` | {preset.model or 'any'} | {preset.size or 'any'} | {_length(preset)} "
        f"| {preset.recipe.optimiser}, {preset.recipe.lr:g} | {_cell(preset.note)} |"
        for name, preset in RECIPES.items()
    ]
    head = "| name | network | pixels | length | optimiser, learning rate | from |\n|---|---|---|---|---|---|"
    intro = "For `vitrail train --recipe NAME`, and in Python `vitrail.training.RECIPES[NAME].recipe`.\n"
    return "\n".join(["# Recipes\n", intro, head, *rows, ""])


def _length(preset: Any) -> str:
    return f"{preset.steps:,} steps" if preset.steps else f"{preset.recipe.epochs:g} epochs"
