"""Where what a run was given is now: where it was, as far from the run as it was, or as typed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vitrail.errors import InputError
from vitrail.evaluation.recorded_paths import find_recorded, record_paths, recorded_places


def test_where_it_was_then_beside_the_run_then_as_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "project"
    (project / "photos").mkdir(parents=True)
    run = project / "runs" / "photos-1"
    run.mkdir(parents=True)
    monkeypatch.chdir(project)
    config = record_paths(Path("runs/photos-1"), ["photos", None, "vitrail:glass", "hf:owner/name"])
    assert config == {"folder": str(run), "paths": {"photos": str(project / "photos")}}
    assert find_recorded(run, config, "photos") == "photos"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert find_recorded(run, config, "photos") == str(project / "photos")
    (elsewhere / "photos").mkdir()
    assert find_recorded(run, config, "photos") == str(project / "photos")  # what is called so here is something else
    moved = tmp_path / "moved"
    project.rename(moved)
    there = moved / "runs" / "photos-1"
    assert find_recorded(there, config, "photos") == str(moved / "photos")
    assert find_recorded(Path(os.path.relpath(there)), config, "photos") == str(moved / "photos")
    (moved / "photos").rmdir()
    assert find_recorded(there, config, "photos") == "photos"  # by its name alone
    (elsewhere / "photos").rmdir()
    with pytest.raises(InputError) as error:
        find_recorded(there, config, "photos")
    places = f"{project / 'photos'}, {moved / 'photos'}, photos"
    assert str(error.value) == f"the images of {there} are not found: looked for {places}"


def test_a_run_recorded_without_places_is_looked_for_beside_it(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "photos-1"
    assert recorded_places(run, {}, "photos") == ["photos", str(tmp_path / "photos")]
    assert recorded_places(run, {}, "/data/photos") == ["/data/photos"]


@pytest.mark.parametrize("name", ["vitrail:fashion", "hf:owner/name", "timm:vit_tiny"])
def test_what_is_no_path_stays_as_it_is(name: str, tmp_path: Path) -> None:
    assert find_recorded(tmp_path, {}, name) == name
