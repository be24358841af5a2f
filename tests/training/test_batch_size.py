"""batch="auto": the largest batch that fits, by counting on a CPU and by trying elsewhere."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import vitrail
from training import tiny
from training.quick import NETWORK, QUICK, draw
from training.test_memory import ERRORS, holding
from vitrail.network.vit import ViT
from vitrail.training import Callbacks, batch_size, train
from vitrail.training.batch_size import fitting_batch, free_memory, kept_bytes
from vitrail.training.plan import Plan
from vitrail.training.reruns import rerun

CPU = torch.device("cpu")
LARGE = 100_000  # images, so that memory decides


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return tiny.job(tmp_path, 6, replace(tiny.RECIPE, batch=8, lr=2e-3)).plan


@pytest.fixture
def model() -> ViT:
    torch.manual_seed(0)
    return ViT(tiny.CONFIG)


def test_what_a_step_keeps_grows_with_its_images_and_nothing_moves(model: ViT, plan: Plan) -> None:
    before = {name: value.clone() for name, value in model.state_dict().items()}
    two, four, eight = (kept_bytes(model, plan, count) for count in (2, 4, 8))
    assert eight - four == pytest.approx(2 * (four - two), rel=0.01)
    tokens = 4 * 5 * tiny.CONFIG.width  # bytes of the tokens of an image: four patches and a cls token
    assert (four - two) // 2 > 2 * 8 * tokens  # two blocks keep more than eight such each
    assert kept_bytes(model, plan, 4, checkpointing=True) < 0.7 * four
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(each.grad is None for each in model.parameters())


@pytest.mark.parametrize("megabytes", [10, 100])
def test_on_a_cpu_a_step_takes_half_of_what_is_free(
    model: ViT, plan: Plan, megabytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_size, "free_memory", lambda: megabytes * 1_000_000)
    found = fitting_batch(model, plan, LARGE, CPU)
    each = (kept_bytes(model, plan, 4) - kept_bytes(model, plan, 2)) / 2
    assert found.batch * each < 0.5 * megabytes * 1e6 < 2 * found.batch * each * 1.5
    assert found.note.startswith(f"batches of {found.batch} images: a step takes about 0.0")
    assert found.note.endswith("the learning rate stays the recipe's, 0.002 for batches of 8: --lr sets another")
    parted = replace(plan, recipe=replace(plan.recipe, pieces=4))  # a piece at a time
    assert fitting_batch(model, parted, LARGE, CPU).batch > found.batch
    saved = replace(plan, recipe=replace(plan.recipe, checkpointing=True))
    assert fitting_batch(model, saved, LARGE, CPU).batch >= found.batch


def test_where_nothing_is_known_of_memory_the_recipe_stands(
    model: ViT, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_size, "free_memory", lambda: 0)
    batch, note = fitting_batch(model, plan, LARGE, CPU)
    assert batch == 8
    assert "the recipe's, since this system does not say how much memory is free" in note


def test_an_epoch_has_eight_steps_at_least(model: ViT, plan: Plan) -> None:
    for images, batch in {100: 8, 127: 8, 128: 16, 3: 1}.items():
        found = fitting_batch(model, plan, images, CPU)
        assert found.batch == batch
        assert f"memory would hold more, and an epoch has {images // batch} steps so" in found.note


def test_elsewhere_steps_are_tried_until_memory_ends(model: ViT, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {name: value.clone() for name, value in model.state_dict().items()}
    seen = holding(monkeypatch, 20, ERRORS["torch's own"])
    assert batch_size._tried(model, plan, 64, CPU) == (16, "32 do not fit on cpu")
    assert seen == [1, 2, 4, 8, 16, 32]
    assert batch_size._tried(model, plan, 8, CPU) == (8, "")
    monkeypatch.undo()
    holding(monkeypatch, 0, ERRORS["torch's own"])
    assert batch_size._tried(model, plan, 64, CPU) == (1, "1 do not fit on cpu")
    monkeypatch.undo()
    holding(monkeypatch, 0, lambda: RuntimeError("expected scalar type Half"))
    with pytest.raises(RuntimeError, match="Half"):
        batch_size._tried(model, plan, 64, CPU)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_free_memory_is_that_of_the_container(tmp_path: Path) -> None:
    assert free_memory(tmp_path) == 0
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal:   4000 kB\nMemAvailable:   3000 kB\n")
    assert free_memory(tmp_path) == 3_072_000
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text("1000\n")
    assert free_memory(tmp_path) == 3_072_000
    (group / "memory.max").write_text("2000000\n")
    assert free_memory(tmp_path) == 1_999_000


def test_a_run_goes_on_and_is_repeated_with_the_batch_it_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though other memory is free by then."""
    photos = draw(tmp_path / "photos", count=60)
    recipe = replace(QUICK, batch=4, epochs=1)
    given: dict[str, Any] = {"model": NETWORK, "recipe": recipe, "check": False, "report": False, "batch": "auto"}

    def stop(done: int, steps: int, loss: float) -> None:
        if done == 5:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(batch_size, "free_memory", lambda: 0)
    with pytest.raises(vitrail.VitrailError, match="stopped at step 5"):
        train(photos, out=tmp_path / "runs", name="one", callbacks=Callbacks(step=stop), **given)
    monkeypatch.setattr(batch_size, "free_memory", lambda: 10_000_000_000)
    run = train(photos, out=tmp_path / "runs", name="one", **given)
    assert (run.resumed, run.plan.recipe.batch) == (True, 4)
    again = rerun(run.folder)
    assert again.differences == ()
    assert again.run.plan.recipe.batch == 4
    assert train(photos, out=tmp_path / "runs", name="two", **given).plan.recipe.batch == 8  # of 126 images
