"""A run repeated from its record, wherever one stands and wherever the run was moved."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import vitrail
from training.quick import NETWORK, draw
from vitrail.errors import InputError
from vitrail.evaluation import data_for
from vitrail.training import rerun, train


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return draw(tmp_path / "drawn")


def test_a_run_is_judged_and_repeated_from_any_folder(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images and weights were typed as seen from one folder; the whole project is moved, and one looks from another."""
    project = tmp_path / "project"
    shutil.copytree(photos, project / "photos")
    monkeypatch.chdir(project)
    options: dict[str, Any] = {"steps": 2, "batch": 8, "report": False, "check": False}
    train("photos", model=NETWORK, size=NETWORK.image_size, name="base", **options)
    first = train("photos", start="runs/base/best.safetensors", **options)
    monkeypatch.chdir(tmp_path)
    assert rerun(Path("project") / first.folder, "again").same
    project.rename(tmp_path / "moved")
    moved = tmp_path / "moved" / first.folder
    judged = vitrail.evaluate(vitrail.load(moved), data_for(moved))
    assert judged.split == "test"
    assert judged.scores["top1"] == first.evaluation.scores["top1"]
    second = rerun(moved, tmp_path / "once more")
    assert second.same, second.differences
    third = rerun(second.run.folder)  # what was repeated from elsewhere can be repeated again
    assert third.same, third.differences
    shutil.rmtree(tmp_path / "moved" / "photos")
    with pytest.raises(InputError, match="the images of .* are not found: looked for .*, photos$"):
        rerun(moved)
