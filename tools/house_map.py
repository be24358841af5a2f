"""Writes the map in CONTRIBUTING.md: every room and module of the package, with the first line of its docstring.

python tools/house_map.py           write it anew
python tools/house_map.py --check   exit 1 where it is out of date
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "CONTRIBUTING.md"
START, END = "<!-- map: made by tools/house_map.py -->\n", "<!-- end of the map -->\n"
WIDTH = 120  # of a line; longer ones stop at the end of a clause

# The line of rooms: each imports only what stands left of it.
ROOMS = (
    *("errors", "types", "files", "images", "reporting", "network", "checkpoint", "weights", "data", "inference"),
    *("evaluation", "auditing", "training", "insight", "quantisation", "exporters", "packed", "shipping"),
    *("scale", "serving", "cli"),
)


def build_map(package: Path) -> str:
    """The tree as text: files of the package, then rooms in their line, each module beside what it says of itself."""
    lines = [f"{package.name}/"]
    lines += [_line(path, 1) for path in _modules(package)]
    for room in ROOMS:
        if (package / room / "__init__.py").exists():
            lines += _room(package / room, 1)
    return "\n".join(lines) + "\n"


def _room(room: Path, depth: int) -> list[str]:
    lines = [_entry(f"{room.name}/", _says(room / "__init__.py"), depth)]
    lines += [_line(path, depth + 1) for path in _modules(room)]
    for inner in sorted(path for path in room.iterdir() if (path / "__init__.py").exists()):
        lines += _room(inner, depth + 1)
    return lines


def _modules(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.py") if not path.stem.startswith("__"))


def _line(path: Path, depth: int) -> str:
    return _entry(path.name, _says(path), depth)


def _entry(name: str, says: str, depth: int) -> str:
    line = f"{'  ' * depth}{name:<{28 - 2 * depth}}{says}".rstrip()
    return line if len(line) <= WIDTH else re.sub(r"[,;:.] [^,;:.]*$", "", line[:WIDTH])


def _says(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    return docstring.partition("\n")[0]


def with_map(page: str, tree: str) -> str:
    """The page, with the tree between its marks."""
    before, start, rest = page.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise SystemExit(f"{PAGE.name}: expected the marks {START.strip()} and {END.strip()}")
    return f"{before}{START}```\n{tree}```\n{END}{after}"


def main() -> None:
    page = PAGE.read_text("utf-8")
    fresh = with_map(page, build_map(ROOT / "src" / "vitrail"))
    if "--check" in sys.argv[1:]:
        sys.exit(0 if page == fresh else f"{PAGE.name}: the map is out of date: python tools/house_map.py")
    PAGE.write_text(fresh, "utf-8")


if __name__ == "__main__":
    main()
