"""Names that the Tab key offers for a value, found without importing torch."""

from __future__ import annotations

import ast
from pathlib import Path


def recipe_names() -> list[str]:
    return _written_keys("training/published.py", "RECIPES")


def preset_names() -> list[str]:
    return _written_keys("network/presets.py", "PRESETS")


def start_names() -> list[str]:
    """What --from takes beside files."""
    from vitrail.weights.pretrained import PRETRAINED

    return ["vitrail:fashion", "vitrail:glass", *(each.name for each in PRETRAINED)]


def _written_keys(file: str, table: str) -> list[str]:
    """The keys of a table as they are written in its module, which is not run: it would bring torch."""
    source = Path(__file__).parents[1] / file
    for node in ast.parse(source.read_text("utf-8")).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == table:
            keys = node.value.keys if isinstance(node.value, ast.Dict) else []
            return [str(key.value) for key in keys if isinstance(key, ast.Constant)]
    return []
