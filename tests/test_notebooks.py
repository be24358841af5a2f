"""The notebooks run from the first cell to the last, and stand in the project without what they printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "notebooks"
NOTEBOOKS = [pytest.param(path, id=path.stem) for path in sorted(FOLDER.glob("*.ipynb"))]


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def text_of(cell: Any) -> str:
    """All that a cell printed, and the names of the forms it was shown in."""
    parts = [output.get("text", "") or " ".join(map(str, output.get("data", {}).values())) for output in cell.outputs]
    return "\n".join((*parts, *(kind for output in cell.outputs for kind in output.get("data", {}))))


def executed(path: Path, folder: Path) -> Any:
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    ).execute()
    return notebook


def test_your_own_images_are_learned(tmp_path: Path) -> None:
    cells = code_cells(executed(FOLDER / "your-own-images.ipynb", tmp_path))
    assert (tmp_path / "runs" / "photos-1" / "report.html").is_file()
    [scores] = [text_of(cell) for cell in cells if cell.source.startswith("evaluation =")]
    assert "on 80 images" in scores
    assert float(scores.split()[1].rstrip("%,")) > 60
    [errors] = [text_of(cell) for cell in cells if "evaluation.worst" in cell.source]
    assert "taken for" in errors
    assert "image/png" in errors


def test_a_look_inside_shows_what_it_says(tmp_path: Path) -> None:
    cells = code_cells(executed(FOLDER / "look-inside.ipynb", tmp_path))
    printed = "\n".join(text_of(cell) for cell in cells)
    assert "rows sum to 1.0" in printed or "rows sum to 0.99999" in printed
    [verdicts] = [text_of(cell) for cell in cells if "verdicts" in cell.source]
    assert verdicts.count("faithfulness: strong, +0.") == 4
    [pruned] = [text_of(cell) for cell in cells if "prune_heads" in cell.source]
    difference, change = (float(line.split()[-1]) for line in pruned.splitlines()[:2])
    assert difference < 1e-4 < change


@pytest.mark.parametrize("path", NOTEBOOKS)
def test_a_notebook_stands_without_its_output(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert [cell.outputs or cell.execution_count for cell in code_cells(notebook)] == [None] * len(code_cells(notebook))
    assert all(len(cell.source) < 600 for cell in notebook.cells if cell.cell_type == "markdown")
