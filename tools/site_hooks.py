"""What mkdocs cannot read from docs/ by itself: the README as the first page, and reference pages made from the code.

`make docs` builds the site (mkdocs.yml names this file as a hook). Nothing here is written by hand twice: public names
come from `vitrail.__all__`, verbs and options from the command line itself, recipes from their table, and what the
cells of notebooks show from a run of them.
"""

from __future__ import annotations

import inspect
import os
import re
import tempfile
from base64 import b64decode
from pathlib import Path
from typing import Any
from unittest import mock

import nbformat
import typer.main
from mkdocs.structure.files import File, Files
from nbclient import NotebookClient

import vitrail
from vitrail.cli.application import VERBS, load_verbs
from vitrail.training import RECIPES

ROOT = Path(__file__).resolve().parents[1]
COPIED = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
PROJECT = ("architecture.md", "changelog.md", "contributing.md", "decisions.md", "extending.md", "testing.md")
FOUND = {  # words of the terminal lead to where they are explained; a title that has one of them weighs 1,000
    **dict.fromkeys(PROJECT, 0.2),
    **dict.fromkeys(("reference/classes.md", "how-to/notebooks.md"), 0.1),
    **dict.fromkeys(("glossary.md", "tutorial.md"), 10),
    "troubles.md": 30,
}
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
        text, images = notebook_page(path)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
        for name, content in images.items():
            files.append(File.generated(config, f"notebooks/{name}", content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """A page of the project -> as the site needs it: fences without our marks, links that lead somewhere."""
    if page.file.src_uri == "capabilities.md":
        page.meta["search"] = {"exclude": True}  # a table of every test would bury all else
    if page.file.src_uri in FOUND:
        page.meta["search"] = {"boost": FOUND[page.file.src_uri]}
    if page.file.src_uri == "contributing.md":  # so would the map of all files
        markdown = markdown.replace("\n## The map\n", "\n## The map {data-search-exclude}\n")
    base = "" if page.file.src_uri in COPIED.values() else "docs/"
    folder = Path(base + page.file.src_uri).parent
    return LINK.sub(lambda link: _link(link, folder), FENCE.sub(r"\1", markdown))


def on_post_page(output: str, **_: Any) -> str:
    """A page as the theme made it -> one whose search has a name for those who do not see it."""
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"')


def _link(link: re.Match[str], folder: Path) -> str:
    """A link to a page stays, from wherever it is; one to a file that the site does not have becomes its words."""
    mark, words, target, anchor = link[1], link[2], link[3], link[4] or ""
    path = _normal(folder / target)
    if path in COPIED:
        page = COPIED[path]
    elif path.endswith(".ipynb"):
        page = f"notebooks/{Path(path).stem}.md"
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


# ---- notebooks -------------------------------------------------------------------------------------------------------


def notebook_page(path: Path) -> tuple[str, dict[str, bytes]]:
    """A notebook -> a page to read, with what its cells show; and the images on it, by name."""
    parts: list[str] = []
    images: dict[str, bytes] = {}
    for cell in run_notebook(path):
        parts.append(cell.source if cell.cell_type == "markdown" else f"```python\n{cell.source}\n```")
        for output in cell.get("outputs", []):
            parts.append(_shown(output, f"{path.stem}-{len(images) + 1}.png", images))
    return "\n\n".join((*parts, f"The notebook: `{path.relative_to(ROOT)}`.\n")), images


def run_notebook(path: Path) -> list[Any]:
    """The cells of a notebook after a run in an empty folder."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        place = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=300, resources=place, extra_arguments=["--log-level=ERROR"]).execute()
    return list(notebook.cells)


def _shown(output: Any, name: str, images: dict[str, bytes]) -> str:
    """What a cell shows, as it stands on the page: a card, an image (put among them by its name) or lines of text."""
    data = output.get("data", {})
    if "text/html" in data:
        return str(data["text/html"])
    if "image/png" in data:
        images[name] = b64decode(data["image/png"])
        return f"![What the cell above shows]({name})"
    text = output.get("text") or data["text/plain"]
    return f"```{{ .text .output }}\n{text.rstrip()}\n```"


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
    whole = group.make_context("vitrail", [], resilient_parsing=True)
    text = ["# Command line\n", "What `vitrail --help` and `vitrail VERB --help` print, on one page.\n", _help(whole)]
    for name in sorted(VERBS):
        context = group.commands[name].make_context(name, [], parent=whole, resilient_parsing=True)
        text += [f"## {name}\n", _help(context)]
    return "\n".join(text)


def _help(context: Any) -> str:
    with mock.patch.dict(os.environ, {"COLUMNS": "90"}):
        return f"```text\n{context.get_help().strip()}\n```\n"


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
