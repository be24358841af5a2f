"""A recipe whose objective does not exist is refused, whichever way it comes in: nothing is trained in its name."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from training import tiny
from vitrail.cli import main
from vitrail.errors import ConfigError, InputError
from vitrail.training import RECIPES, Options, Recipe, Run, rerun, train
from vitrail.training.dry_run import run_dry
from vitrail.training.loop import fit
from vitrail.training.recipe import OBJECTIVES, TRAINABLE

NAME = "paper-pretrain-masked-patch"
REFUSED = "learns by masked-patch, which cannot be trained here yet"
SHORT: dict[str, Any] = {"steps": 1, "limit": 20, "check": False, "report": False}
OTHERS = [each for each in OBJECTIVES if each not in TRAINABLE]


def files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def finished(tmp_path: Path) -> Run:
    return train("vitrail:fashion", recipe=Recipe(batch=8), name="run", out=tmp_path, **SHORT)


def spoilt(run: Run) -> Path:
    """The same run's folder, whose record asks for another objective."""
    path = run.folder / "config.json"
    config: dict[str, Any] = json.loads(path.read_text())
    for recipe in (config["plan"]["recipe"], config["options"]["recipe"]):
        assert recipe["objective"] == "classify"
        recipe["objective"] = "masked-patch"
    path.write_text(json.dumps(config))
    return run.folder


def test_the_only_recipe_with_another_objective_says_so() -> None:
    assert [name for name, each in RECIPES.items() if each.recipe.objective not in TRAINABLE] == [NAME]
    assert RECIPES[NAME].recipe.objective == "masked-patch"


@pytest.mark.row("P.6")
@pytest.mark.parametrize(
    "recipe", [NAME, RECIPES[NAME].recipe, *(Recipe(objective=each) for each in OTHERS)], ids=["name", "object", "own"]
)
def test_by_name_and_as_an_object(tmp_path: Path, recipe: str | Recipe) -> None:
    with pytest.raises(InputError, match=REFUSED):
        train("vitrail:fashion", recipe=recipe, out=tmp_path)
    with pytest.raises(InputError, match=REFUSED):
        run_dry("vitrail:fashion", Options(recipe=recipe, out=tmp_path))
    with pytest.raises(InputError, match=REFUSED):  # whoever is not stopped by an unwise recipe is stopped by this
        train("vitrail:fashion", recipe=recipe, out=tmp_path, check=False)
    assert not files(tmp_path)


def test_an_objective_that_nobody_knows() -> None:
    with pytest.raises(ConfigError, match="objective 'clasify' is unknown: did you mean 'classify'"):
        Recipe(objective="clasify")
    with pytest.raises(ConfigError, match="objective"):
        Recipe.from_dict(Recipe().to_dict() | {"objective": "clasify"})


@pytest.mark.parametrize("more", [[], ["--check"], ["--show-lr"], ["--find-lr"]])
def test_on_the_command_line(
    tmp_path: Path, more: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["train", "vitrail:fashion", "--recipe", NAME, "--out", str(tmp_path), *more]
    monkeypatch.setattr("sys.argv", ["vitrail", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    assert REFUSED.split(",")[0] in " ".join(capsys.readouterr().err.split())
    assert not files(tmp_path)


def test_a_rerun_of_such_a_record(finished: Run, tmp_path: Path) -> None:
    folder, before = spoilt(finished), files(tmp_path)
    with pytest.raises(InputError, match=REFUSED):
        rerun(folder)
    assert files(tmp_path) == before


def test_going_on_with_such_a_run(finished: Run, tmp_path: Path) -> None:
    folder = spoilt(finished)
    (folder / "result.json").unlink()
    shutil.rmtree(folder / "state")
    with pytest.raises(InputError, match="recipe.objective: 'masked-patch' before, 'classify' now"):
        train("vitrail:fashion", recipe=Recipe(batch=8), name="run", out=tmp_path, **SHORT)
    with pytest.raises(InputError, match=REFUSED):
        train("vitrail:fashion", recipe=Recipe(batch=8, objective="masked-patch"), name="run", out=tmp_path, **SHORT)
    assert not (folder / "state").exists()


def test_a_job_of_that_kind(tmp_path: Path) -> None:
    job = tiny.job(tmp_path, 2)
    with pytest.raises(InputError, match=REFUSED):
        fit(replace(job, plan=replace(job.plan, recipe=replace(job.plan.recipe, objective="masked-patch"))))
    assert not (tmp_path / "state").exists()
