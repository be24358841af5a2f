"""A plan says everything that the result depends on, and what is known against it before anything is trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import vitrail
from training import tiny
from training.starts import SMALL, images
from vitrail.checkpoint import content_hash
from vitrail.cores import Cores
from vitrail.errors import InputError
from vitrail.images import Preprocess
from vitrail.network.vit import ViT
from vitrail.training import Options, Recipe, planning
from vitrail.training.job import Callbacks
from vitrail.training.model_choice import ModelChoice
from vitrail.training.pace import Speed
from vitrail.training.planning import (
    check_learns,
    check_plan,
    check_sharding,
    make_plan,
    recipe_notes,
    thread_notes,
    with_measured_steps,
)
from vitrail.training.preparation import PreparedData
from vitrail.training.processes import Processes, using
from vitrail.training.published import Preset

DATA = images(48)  # of which 32 are to train on
PREPARED = PreparedData(DATA, (), (), ())


def choice(start: bool = False) -> ModelChoice:
    model = ViT(SMALL)
    checkpoint = vitrail.Checkpoint(model, Preprocess(32)) if start else None
    return ModelChoice(model, Preprocess(32), "weights.pt" if start else "", checkpoint)


def test_epochs_become_steps_and_steps_epochs() -> None:
    assert len(DATA.part("train")) == 32
    preset = Preset(recipe=Recipe(epochs=2.5, batch=8))
    plan = make_plan(PREPARED, choice(), preset, Options(seed=5, minutes=3))
    assert (plan.per_epoch, plan.steps, plan.recipe.epochs) == (4, 10, 2.5)
    assert (plan.data, plan.classes, plan.task, plan.model) == ("made", ("bright", "dark"), "single-label", SMALL)
    assert (plan.seed, plan.minutes, plan.threads, plan.origin) == (5, 3, torch.get_num_threads(), "")
    assert plan.versions == {"vitrail": vitrail.__version__, "torch": torch.__version__}
    given = make_plan(PREPARED, choice(), replace(preset, steps=6), Options())
    assert (given.steps, given.recipe.epochs) == (6, 1.5)
    large = make_plan(PREPARED, choice(), Preset(recipe=Recipe(epochs=3, batch=64)), Options())
    assert (large.per_epoch, large.steps) == (1, 3)  # a batch larger than the data is a step all the same


def test_weights_to_start_from_are_named_with_their_hash() -> None:
    start = choice(start=True)
    plan = make_plan(PREPARED, start, Preset(recipe=Recipe()), Options())
    digest = content_hash({}, start.model.state_dict())
    assert plan.origin == f"weights.pt ({digest[:23]})"
    assert len(digest) > 23


def test_what_a_recipe_changes_or_leaves_is_told() -> None:
    preset = Preset(recipe=Recipe(), changes={"depth": 5, "width": SMALL.width}, size=384)
    assert recipe_notes(preset, choice(), Options()) == []  # a fresh network is as the recipe says
    size, network = recipe_notes(preset, choice(start=True), Options())
    assert size == "images of 384x384, as the recipe says: --size gives another"
    assert network.endswith("where the recipe was made for another: depth 2")
    assert recipe_notes(preset, choice(start=True), Options(size=64)) == [network]


def test_more_threads_than_cores_are_told_and_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "usable_cores", lambda: Cores(64, 8, 1.5, "cpu.max"))
    torch.set_num_threads(2)
    assert thread_notes() == []
    torch.set_num_threads(3)
    (note,) = thread_notes()
    assert note.startswith("torch computes with 3 threads, and this process has cores for 2 (8 of 64, by the affinity")
    assert "torch.set_num_threads(2)" in note
    assert torch.get_num_threads() == 3


def test_what_is_known_to_fail_is_refused_unless_told_otherwise() -> None:
    preset = Preset(recipe=Recipe(epochs=1, batch=8, lr=0.5))
    plan = make_plan(PREPARED, choice(), preset, Options())
    with pytest.raises(InputError, match="this recipe is known to fail: .*0.5"):
        check_plan(plan, PREPARED, Options())
    said = check_plan(plan, PREPARED, Options(check=False))
    assert any(each.startswith("error: ") and "0.5" in each for each in said)


@pytest.mark.parametrize(
    "changes, flag",
    [
        ({"exact": True}, "--exact"),
        ({"minutes": 1.0}, "--minutes"),
        ({"batch": "auto"}, "--batch auto"),
        ({}, "--compile"),
    ],
)
def test_what_needs_a_whole_network_is_refused_of_one_in_parts(changes: dict[str, Any], flag: str) -> None:
    recipe = Recipe(compile=not changes)
    with pytest.raises(InputError, match=f"--shard leaves to each process a part of the network, and {flag} "):
        check_sharding(recipe, Options(shard=True, **changes))
    check_sharding(recipe, Options(shard=False, **changes))
    check_sharding(Recipe(), Options(shard=True, exact=False))


def test_a_network_in_parts_has_no_virtual_workers() -> None:
    """A small one would be trained exactly by several processes."""
    several = Processes()
    several.world = 2
    with using(several):
        preset = Preset(recipe=Recipe(batch=8))
        plans = [make_plan(PREPARED, choice(), preset, Options(shard=shard, device="cpu")) for shard in (False, True)]
    assert [(plan.virtual_workers, plan.shard, plan.processes) for plan in plans] == [(4, False, 1), (0, True, 2)]


def test_minutes_fix_the_steps_by_the_speed_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    job = tiny.job(tmp_path, 4, callbacks=Callbacks(log=said.append))
    assert with_measured_steps(job, Options()) is job
    assert with_measured_steps(job, Options(minutes=1, steps=4)) is job
    monkeypatch.setattr(planning, "measure_speed", lambda job: Speed(0.0, 0.0))
    monkeypatch.setattr(planning, "steps_for", lambda minutes, speed, per_epoch: int(7 * minutes * per_epoch))
    timed = with_measured_steps(job, Options(minutes=2))
    assert job.plan.per_epoch == 6
    assert (timed.plan.steps, timed.plan.recipe.epochs) == (84, 14.0)
    assert timed.plan == replace(job.plan, steps=84, recipe=replace(job.plan.recipe, epochs=14.0))
    assert timed.speed == Speed(0.0, 0.0)
    assert said == ["84 steps fit 2 minutes"]


def test_only_a_long_run_of_all_weights_is_tried_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "overfits", lambda job: False)
    check_learns(tiny.job(tmp_path, planning.LONG - 1))
    check_learns(tiny.job(tmp_path, planning.LONG, replace(tiny.RECIPE, tune="head")))
    with pytest.raises(InputError, match="cannot learn 16 images by heart in 40 steps"):
        check_learns(tiny.job(tmp_path, planning.LONG))
    monkeypatch.setattr(planning, "overfits", lambda job: True)
    check_learns(tiny.job(tmp_path, planning.LONG))
