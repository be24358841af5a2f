"""The loop: the same bits whatever the threads, and whatever goes wrong on the way."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import vitrail
from training import tiny
from training.test_backpropagation import PLAIN, plain_batch
from vitrail.data.augmentation import Augment
from vitrail.errors import InputError
from vitrail.network.vit import ViT
from vitrail.training import backpropagation, loop
from vitrail.training import state as saving
from vitrail.training.job import Callbacks, Job, Part
from vitrail.training.loop import fit
from vitrail.training.losses import class_weights, loss_of
from vitrail.training.recipe import Recipe
from vitrail.training.record import Record
from vitrail.training.signals import SIGNALS, Stop
from vitrail.training.state import read_newest
from vitrail.training.validation import Scores, logits_of


def log_of(folder: Path) -> bytes:
    return (folder / "metrics.jsonl").read_bytes()


def weights_of(folder: Path, name: str = "last") -> dict[str, Tensor]:
    return vitrail.load(folder / f"{name}.safetensors").model.state_dict()


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def rows(folder: Path, event: str) -> list[Any]:
    return [row for row in Record(folder / "metrics.jsonl").rows() if row["event"] == event]


# ---- the same bits -----------------------------------------------------------------------------------------------


@pytest.mark.fault("T23", "T13")
def test_the_same_seed_gives_the_same_bits_for_any_number_of_loader_threads(tmp_path: Path) -> None:
    for threads in (0, 1, 2):
        fit(tiny.job(tmp_path / str(threads), 20, threads=threads))
    fit(tiny.job(tmp_path / "again", 20))
    for name in ("1", "2", "again"):
        assert log_of(tmp_path / name) == log_of(tmp_path / "0")
        assert equal(weights_of(tmp_path / name), weights_of(tmp_path / "0"))
    job = tiny.job(tmp_path / "other", 20)
    fit(replace(job, plan=replace(job.plan, seed=4)))
    assert log_of(tmp_path / "other") != log_of(tmp_path / "0")


def test_a_training_leaves_the_generators_of_the_process_as_they_were(tmp_path: Path) -> None:
    import random

    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    expected = [random.random(), float(np.random.rand()), float(torch.rand(()))]
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    job = tiny.job(tmp_path, 2)
    torch.manual_seed(1)
    fit(job)
    assert [random.random(), float(np.random.rand()), float(torch.rand(()))] == expected


def stopped_at(job: Job, step: int) -> Job:
    """The same job, which stops itself with a signal after a step."""

    def stop(done: int, steps: int, loss: float) -> None:
        if done == step:
            os.kill(os.getpid(), signal.SIGTERM)

    return replace(job, callbacks=Callbacks(step=stop))


@pytest.mark.fault("T3")
@pytest.mark.parametrize("step", [1, 5, 6, 13])
def test_a_signal_saves_at_that_step_and_the_rest_is_the_same(tmp_path: Path, step: int) -> None:
    whole, parted = tmp_path / "a" / "run", tmp_path / "b" / "run"
    fit(tiny.job(whole, 20))
    with pytest.raises(vitrail.VitrailError, match=f"stopped at step {step} of 20; everything is saved") as error:
        fit(stopped_at(tiny.job(parted, 20), step))
    assert getattr(error.value, "number", 0) == signal.SIGTERM
    state = read_newest(parted / "state", lambda text: pytest.fail(text))
    assert state is not None
    assert state.facts["step"] == step
    told: list[str] = []
    fit(tiny.job(parted, 20, callbacks=Callbacks(log=told.append)))
    assert told == [f"going on from step {step} of 20"]
    assert log_of(parted) == log_of(whole)
    for name in ("best.safetensors", "last.safetensors"):
        assert (parted / name).read_bytes() == (whole / name).read_bytes()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_signal_saves_at_that_step_without_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop._Loop, "is_time", lambda self: False)
    with pytest.raises(vitrail.VitrailError, match="stopped at step 4"):
        fit(stopped_at(tiny.job(tmp_path, 20, PLAIN), 4))
    state = read_newest(tmp_path / "state", lambda text: pytest.fail(text))
    assert state is not None
    assert state.facts["step"] == 4


def test_the_first_signal_is_the_one_that_is_told() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with Stop() as stop:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
    assert stop.number == signal.SIGINT
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_saving_takes_no_more_than_its_share_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that goes on by a second with every step, and by three with every state."""
    now, saved = [0.0], []

    def written(folder: Path, state: Any) -> None:
        now[0] += 3
        saved.append(state.facts["step"])

    def tick(step: int, steps: int, loss: float) -> None:
        now[0] += 1

    monkeypatch.setattr(loop, "write_state", written)
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: now[0], perf_counter=lambda: now[0]))
    fit(tiny.job(tmp_path, 70, PLAIN, save_seconds=1.0, save_share=0.1, callbacks=Callbacks(step=tick)))
    assert saved == [0, 30, 60, 70]


@pytest.mark.fault("T4")
def test_a_second_signal_while_saving_harms_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vitrail.training import state as saving

    whole, parted = tmp_path / "a" / "run", tmp_path / "b" / "run"
    fit(tiny.job(whole, 12))
    sent: list[str] = []

    def again(point: str) -> None:
        if (parted / "state").exists() and any("s000000000" in path.name for path in (parted / "state").glob("r*")):
            sent.append(point)
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(saving, "reached", lambda point: None)
    job = stopped_at(tiny.job(parted, 12, save_seconds=1e9), 5)
    monkeypatch.setattr(saving, "reached", again)
    with pytest.raises(vitrail.VitrailError, match="stopped at step [15] of 12"):
        fit(job)
    assert {"mid-write", "synced"} <= set(sent)
    monkeypatch.setattr(saving, "reached", lambda point: None)
    fit(tiny.job(parted, 12))
    assert log_of(parted) == log_of(whole)


def test_a_batch_in_pieces_is_the_same_step(tmp_path: Path) -> None:
    recipe = replace(PLAIN, batch=16, optimiser="sgd", lr=0.1, augment=Augment(flip=True, shift=1))
    config = replace(tiny.CONFIG, stem=None, dropout=0.0, drop_path=0.0)  # batch norm and dropout see the pieces
    found = []
    for pieces in (1, 4):
        torch.manual_seed(5)
        job = tiny.job(tmp_path / str(pieces), 6, replace(recipe, pieces=pieces), model=ViT(config))
        fit(replace(job, plan=replace(job.plan, model=config)))
        found.append(weights_of(tmp_path / str(pieces)))
    gaps = [float((found[0][name] - found[1][name]).abs().max()) for name in found[0]]
    assert max(gaps) < 2e-6
    losses = [[row["loss"] for row in rows(tmp_path / name, "step")] for name in ("1", "4")]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


def test_the_loss_sees_smoothed_labels(tmp_path: Path) -> None:
    batch = plain_batch(tiny.job(tmp_path, 6, replace(PLAIN, smoothing=0.3)))
    assert batch.targets.unique().tolist() == pytest.approx([0.1, 0.8])
    assert torch.equal(batch.targets.argmax(1), plain_batch(tiny.job(tmp_path, 6, PLAIN)).targets.argmax(1))


def test_every_step_drops_other_values_whatever_came_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    true = backpropagation.gradients

    def watched(*arguments: Any) -> tuple[float, float]:
        seeds.append(torch.initial_seed())
        return true(*arguments)

    monkeypatch.setattr(backpropagation, "gradients", watched)
    for number, seed in enumerate((3, 3, 4)):
        job = tiny.job(tmp_path / str(number), 6)
        fit(replace(job, plan=replace(job.plan, seed=seed)))
    assert seeds[:6] == seeds[6:12]
    assert len(set(seeds[6:])) == 12


def test_checkpointing_and_bf16_train_too(tmp_path: Path) -> None:
    recipe = replace(PLAIN, lr=3e-3)
    for name, changed in {
        "plain": recipe,
        "checkpointing": replace(recipe, checkpointing=True),
        "bf16": replace(recipe, precision="bf16"),
    }.items():
        torch.manual_seed(5)
        config = replace(tiny.CONFIG, dropout=0.0, drop_path=0.0)
        fit(tiny.job(tmp_path / name, 12, changed, model=ViT(config)))
    assert equal(weights_of(tmp_path / "checkpointing"), weights_of(tmp_path / "plain"))
    losses = [[row["loss"] for row in rows(tmp_path / name, "step")] for name in ("plain", "bf16")]
    assert losses[1] == pytest.approx(losses[0], rel=0.05)
    assert losses[1] != losses[0]


# ---- learning ----------------------------------------------------------------------------------------------------


@pytest.mark.row("001.11", "002.08")
def test_it_learns_and_keeps_the_best_by_validation(tmp_path: Path) -> None:
    job = tiny.job(tmp_path, 240, Recipe(batch=8, lr=3e-3))
    progress = fit(job)
    epochs = rows(tmp_path, "epoch")
    assert len(epochs) == 40
    assert epochs[-1]["loss"] < 0.5 * epochs[0]["loss"]
    scores = [(row["val_score"], -row["val_loss"]) for row in epochs]
    best = max(range(40), key=scores.__getitem__)
    assert progress.best_epoch == epochs[best]["epoch"]
    assert progress.best == [scores[best][0], -scores[best][1]]
    assert [row["best"] for row in epochs] == [scores[n] > max(scores[:n], default=(-1, 0)) for n in range(40)]
    assert job.val is not None
    kept = vitrail.load(tmp_path / "best.safetensors")
    right = (logits_of(kept.model, job.val, job.plan).argmax(1) == job.val.targets).mean()
    assert right == progress.best[0] > 0.7
    assert kept.provenance.metrics["val_score"] == progress.best[0]


@pytest.mark.row("002.08")
def test_patience_stops_early(tmp_path: Path) -> None:
    recipe = replace(PLAIN, lr=1e-12, patience=3)
    progress = fit(tiny.job(tmp_path, 600, recipe))
    assert progress.finished
    assert progress.step < 600
    assert progress.waited == 3
    assert len(rows(tmp_path, "epoch")) == progress.best_epoch + 3


def scored(monkeypatch: pytest.MonkeyPatch, *scores: tuple[float, float]) -> None:
    """Validations that find these scores and losses, one after the other."""
    left = iter(scores)
    monkeypatch.setattr(loop, "validate", lambda *arguments, **more: Scores(*next(left)))


def test_of_two_equal_scores_the_lower_loss_is_the_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scored(monkeypatch, (0.5, 2.0), (0.5, 1.0), (0.5, 1.5), (0.4, 0.1))
    progress = fit(tiny.job(tmp_path, 24, PLAIN))
    assert (progress.best, progress.best_epoch, progress.waited) == ([0.5, 1.0], 2, 2)
    assert [row["best"] for row in rows(tmp_path, "epoch")] == [True, True, False, False]


def test_a_rollback_keeps_the_best_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "ANCHOR_STEPS", 12)  # it goes back to the end of the second epoch
    scored(monkeypatch, (0.1, 1.0), (0.2, 1.0), (0.9, 1.0), (0.3, 1.0), (0.4, 1.0))
    poisoned(monkeypatch, lambda call: call == 21)
    progress = fit(tiny.job(tmp_path, 24, PLAIN))
    assert (progress.rollbacks, progress.best, progress.best_epoch) == (1, [0.9, 1.0], 3)
    assert vitrail.load(tmp_path / "best.safetensors").provenance.metrics["val_score"] == 0.9


def test_validation_neither_drops_values_nor_learns(tmp_path: Path) -> None:
    job = tiny.job(tmp_path, 6)
    assert job.val is not None
    model = job.model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = [loop.validate(model, job.val, job.plan) for _ in range(2)]
    assert model.training
    assert equal(model.state_dict(), before)
    assert found == [loop.validate(model.eval(), job.val, job.plan)] * 2


def test_validation_sees_the_pixels_that_predict_sees(tmp_path: Path) -> None:
    job = tiny.job(tmp_path, 6)
    fit(job)
    assert job.val is not None
    kept = vitrail.load(tmp_path / "last.safetensors")
    ours = logits_of(kept.model, job.val, job.plan)
    theirs = kept.run(kept.preprocess.batch(list(job.val.views.dataset.images)))[0]
    assert np.array_equal(ours, theirs)


@pytest.mark.row("P.11")
def test_the_average_is_what_is_judged_and_kept(tmp_path: Path) -> None:
    recipe = replace(PLAIN, ema=0.9, lr=3e-3)
    job = tiny.job(tmp_path, 12, recipe)
    fit(job)
    kept = weights_of(tmp_path)
    raw = job.model.state_dict()
    assert not torch.equal(kept["head.classify.weight"], raw["head.classify.weight"])
    state = read_newest(tmp_path / "state", lambda text: pytest.fail(text))
    assert state is not None
    assert torch.equal(state.tensors["model.head.classify.weight"], raw["head.classify.weight"])


def test_several_labels(tmp_path: Path) -> None:
    job = tiny.job(tmp_path, 60, replace(PLAIN, lr=5e-3, balance="weights"))
    marks = [np.eye(3, dtype=np.float32)[part.targets] for part in (job.train, job.val) if part is not None]
    for each in marks:
        each[:, 2] = np.maximum(each[:, 2], each[:, 0])  # class 2 wherever class 0 is
    assert job.val is not None
    parts = [Part(job.train.views, marks[0]), Part(job.val.views, marks[1])]
    fit(replace(job, plan=replace(job.plan, task="multi-label"), train=parts[0], val=parts[1]))
    epochs = rows(tmp_path, "epoch")
    assert epochs[-1]["loss"] < 0.8 * epochs[0]["loss"]
    assert 0.5 < epochs[-1]["val_score"] <= 1
    assert vitrail.load(tmp_path / "last.safetensors").task == "multi-label"


def test_losses_and_weights_of_classes(tmp_path: Path) -> None:
    torch.manual_seed(1)
    logits, labels = torch.randn(6, 3), torch.tensor([0, 0, 0, 0, 1, 2])
    shares = F.one_hot(labels, 3).float()
    assert float(loss_of(logits, shares, "single-label", None)) == pytest.approx(float(F.cross_entropy(logits, labels)))
    plan = tiny.job(tmp_path, 1).plan
    weights = class_weights(labels.numpy(), plan)
    assert weights.tolist() == pytest.approx([0.5, 2.0, 2.0])
    expected = (F.cross_entropy(logits, labels, reduction="none") * weights[labels]).mean()
    assert float(loss_of(logits, shares, "single-label", weights)) == pytest.approx(float(expected))
    several = class_weights(
        np.array([[1, 0, 1], [1, 0, 0], [1, 0, 0], [1, 1, 0]], np.float32), replace(plan, task="multi-label")
    )
    assert several.tolist() == pytest.approx([0.05, 3.0, 3.0])


def test_balanced_sampling_shows_rare_classes_as_often(tmp_path: Path) -> None:
    job = tiny.job(tmp_path, 6, replace(PLAIN, balance="sampling"))
    few = np.flatnonzero(job.train.targets != 2).tolist() + np.flatnonzero(job.train.targets == 2)[:2].tolist()
    dataset = job.train.views.dataset.select(few)
    part = Part(type(job.train.views)(dataset, job.plan.preprocess), dataset.targets())
    made = replace(job, train=part, plan=replace(job.plan, per_epoch=len(few) // 8))
    seen = np.concatenate([part.targets[each.rows] for each in loop._Loop(made).batch_rows(0)])
    counts = np.bincount(seen, minlength=3) / len(seen)
    assert counts == pytest.approx([1 / 3] * 3, abs=0.08)


# ---- what goes wrong ---------------------------------------------------------------------------------------------


def poisoned(monkeypatch: pytest.MonkeyPatch, bad: Any) -> None:
    """Losses that are no number at the calls that `bad` names."""
    calls = 0
    true = backpropagation.loss_of

    def loss(*arguments: Any) -> Tensor:
        nonlocal calls
        calls += 1
        return true(*arguments) * (math.nan if bad(calls) else 1.0)

    monkeypatch.setattr(backpropagation, "loss_of", loss)


@pytest.mark.fault("T15")
def test_nan_goes_back_to_an_epoch_and_on_with_half_the_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "ANCHOR_STEPS", 6)
    poisoned(monkeypatch, lambda call: call == 16)
    told: list[str] = []
    job = tiny.job(tmp_path, 24, PLAIN, callbacks=Callbacks(log=told.append))
    progress = fit(job)
    assert (progress.rollbacks, progress.rate, progress.step) == (1, 0.5, 24)
    assert len(told) == 1
    assert "at step 15 the loss is nan" in told[0]
    assert "back to step 12, and on with 0.5 of the learning rate" in told[0]
    [back] = rows(tmp_path, "rollback")
    assert (back["step"], back["rate"]) == (12, 0.5)
    steps = rows(tmp_path, "step")
    assert [row["step"] for row in steps] == list(range(1, 25))  # every step once: those undone are gone from the log
    factors = [row["lr"] / (job.plan.recipe.lr * loop.lr_factor(PLAIN, row["step"] - 1, 24, 6)) for row in steps]
    assert factors == pytest.approx([1.0] * 12 + [0.5] * 12)
    assert all(bool(each.isfinite().all()) for each in weights_of(tmp_path).values())


@pytest.mark.fault("T15")
def test_nan_again_and_again_gives_up_and_keeps_the_good_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    poisoned(monkeypatch, lambda call: call > 8)
    with pytest.raises(
        InputError, match="the loss is nan .* 5 times it went back and on with half the rate: lower --lr"
    ):
        fit(tiny.job(tmp_path, 24, PLAIN))
    state = read_newest(tmp_path / "state", lambda text: pytest.fail(text))
    assert state is not None
    assert all(bool(each.isfinite().all()) for name, each in state.tensors.items() if each.is_floating_point())


@pytest.mark.parametrize("where", ["model", "running", "optimiser", "average"])
def test_what_is_no_number_is_never_written_into_a_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr(loop, "ANCHOR_STEPS", 6)
    learn = loop._Loop.learn
    spoilt: list[int] = []

    def spoiling(self: Any, batch: Any) -> None:
        learn(self, batch)
        if self.progress.step == 9 and not spoilt:  # after the step, so that its loss and gradient were numbers
            spoilt.append(self.progress.step)
            tensors = {
                "model": self.model.head.classify.weight.data,
                "running": self.model.state_dict()["stem.1.running_var"],
                "optimiser": next(iter(self.optimiser.state_tensors().values())),
                "average": self.average.tensors()["head.classify.weight"],
            }
            tensors[where].fill_(math.nan)

    monkeypatch.setattr(loop._Loop, "learn", spoiling)
    monkeypatch.setattr(loop._Loop, "is_time", lambda self: True)
    written: list[bool] = []
    true = loop.write_state

    def write(folder: Path, state: Any) -> int:
        numbers = [each for each in state.tensors.values() if each.is_floating_point()]
        written.append(all(bool(each.isfinite().all()) for each in numbers))
        return true(folder, state)

    monkeypatch.setattr(loop, "write_state", write)
    progress = fit(tiny.job(tmp_path, 18))
    assert spoilt == [9]
    assert all(written)
    assert (progress.rollbacks, progress.step) == (1, 18)
    assert "after step 9" in rows(tmp_path, "rollback")[0]["why"]
    assert all(bool(each.isfinite().all()) for each in weights_of(tmp_path).values())


def test_a_kill_between_a_rollback_and_the_next_save_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "ANCHOR_STEPS", 6)
    true = loop._Loop.learn

    def learn(self: Any, batch: Any) -> None:
        if self.progress.step == 15 and self.progress.rollbacks == 0:
            raise loop._DivergedError("at step 15 the loss is nan")
        true(self, batch)

    monkeypatch.setattr(loop._Loop, "learn", learn)
    whole, parted = tmp_path / "a" / "run", tmp_path / "b" / "run"
    fit(tiny.job(whole, 24, PLAIN))
    for step in (14, 13, 17):
        with pytest.raises(vitrail.VitrailError, match="stopped at step"):
            fit(stopped_at(tiny.job(parted, 24, PLAIN), step))
    fit(tiny.job(parted, 24, PLAIN))
    assert log_of(parted) == log_of(whole)
    assert (parted / "last.safetensors").read_bytes() == (whole / "last.safetensors").read_bytes()


class Killed(BaseException):
    """The process is gone."""


@pytest.mark.fault("T1", "T15")
@pytest.mark.parametrize("point", ["before-write", "written", "renamed", "verified", "forgetting", "cutting", "row"])
def test_a_kill_anywhere_in_a_rollback_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    monkeypatch.setattr(loop, "ANCHOR_STEPS", 6)
    learn = loop._Loop.learn
    dying = killed = False

    def diverging(self: Any, batch: Any) -> None:
        if self.progress.step == 15 and self.progress.rollbacks == 0:
            raise loop._DivergedError("at step 15 the loss is nan")
        learn(self, batch)

    def reached(name: str) -> None:
        if dying and name == point:
            raise Killed

    def watched(name: str, function: Any) -> Any:
        def called(*arguments: Any, **named: Any) -> Any:
            if named.get("event", "rollback") == "rollback":
                reached(name)
            return function(*arguments, **named)

        return called

    roll_back = loop._Loop.roll_back

    def rolling(self: Any, why: str) -> None:
        nonlocal dying, killed
        dying, killed = parted in self.states.parents and not killed, killed or parted in self.states.parents
        roll_back(self, why)
        dying = False

    monkeypatch.setattr(loop._Loop, "learn", diverging)
    monkeypatch.setattr(loop._Loop, "roll_back", rolling)
    monkeypatch.setattr(saving, "reached", reached)
    monkeypatch.setattr(loop, "forget_later", watched("forgetting", loop.forget_later))
    monkeypatch.setattr(Record, "cut", watched("cutting", Record.cut))
    monkeypatch.setattr(Record, "add", watched("row", Record.add))
    whole, parted = tmp_path / "a" / "run", tmp_path / "b" / "run"
    fit(tiny.job(whole, 24, PLAIN))
    job = tiny.job(parted, 24, PLAIN)
    with pytest.raises(Killed):
        fit(job)
    dying = False
    fit(tiny.job(parted, 24, PLAIN))
    assert log_of(parted) == log_of(whole)
    assert (parted / "last.safetensors").read_bytes() == (whole / "last.safetensors").read_bytes()
    assert len(rows(parted, "rollback")) == 1


def test_validation_that_is_no_number_goes_back_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    true, calls = loop.validate, 0

    def validate(*arguments: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        return Scores(1.0, math.nan) if calls == 3 else true(*arguments, **more)

    monkeypatch.setattr(loop, "validate", validate)
    monkeypatch.setattr(loop, "ANCHOR_STEPS", 6)
    progress = fit(tiny.job(tmp_path, 24, PLAIN))
    assert (progress.rollbacks, progress.step) == (1, 24)
    assert "on validation is nan" in rows(tmp_path, "rollback")[0]["why"]
    assert all(math.isfinite(row["val_loss"]) for row in rows(tmp_path, "epoch"))


def test_only_the_head_moves_and_a_stop_changes_no_bit(tmp_path: Path) -> None:
    recipe = replace(PLAIN, tune="head", clip=0.1)
    whole, parted = tmp_path / "a" / "run", tmp_path / "b" / "run"
    job = tiny.job(whole, 20, recipe)
    before = {name: each.clone() for name, each in job.model.state_dict().items()}
    fit(job)
    moved = {name for name, each in weights_of(whole).items() if not torch.equal(each, before[name])}
    assert {name for name in moved if "running" not in name and "batches" not in name} == {
        "head.classify.weight",
        "head.classify.bias",
    }
    assert all(each.grad is None for name, each in job.model.named_parameters() if not name.startswith("head."))
    with pytest.raises(vitrail.VitrailError, match="stopped at step 9"):
        fit(stopped_at(tiny.job(parted, 20, recipe), 9))
    fit(tiny.job(parted, 20, recipe))
    assert log_of(parted) == log_of(whole)
    assert equal(weights_of(parted), weights_of(whole))


@pytest.mark.fault("T18")
def test_running_out_of_memory_is_told_and_loses_nothing(tmp_path: Path) -> None:
    program = (
        "import resource, sys\nfrom pathlib import Path\nfrom dataclasses import replace\n"
        "import torch\nfrom training import tiny\nfrom vitrail.errors import VitrailError\n"
        "from vitrail.network.vit import ViT\nfrom vitrail.training.job import Callbacks\n"
        "from vitrail.training.loop import fit\n"
        "hog = []\n"
        "def limit(step, steps, loss):\n"
        "    if step == 2 and sys.argv[1] == 'limited':\n"
        "        used = int(Path('/proc/self/statm').read_text().split()[0]) * 4096\n"
        "        resource.setrlimit(resource.RLIMIT_AS, (used + 20_000_000,) * 2)\n"
        "        try:\n"
        "            while True: hog.append(torch.empty(2_500_000))  # what earlier steps have freed\n"
        "        except RuntimeError: pass\n"
        "        try:\n"
        "            while batch == 2: hog.append(torch.empty(100_000))  # and the gaps\n"
        "        except RuntimeError: pass\n"
        "batch, width = int(sys.argv[2]), 8192 if sys.argv[2] == '48' else 16384  # 25 MB a batch, or 1 MB an image\n"
        "recipe = replace(tiny.RECIPE, batch=batch, ema=0.0, optimiser='sgd')\n"
        "for folder in sys.argv[3:]:\n"
        "    torch.manual_seed(0)\n"
        "    wide = ViT(replace(tiny.CONFIG, mlp_width=width))\n"
        "    job = tiny.job(Path(folder), 4, recipe, model=wide, callbacks=Callbacks(step=limit), save_seconds=0)\n"
        "    try:\n        fit(job)\n"
        "    except VitrailError as error:\n        print(error)\n"
    )
    paths = [str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}

    def training(*arguments: str) -> str:
        command = [sys.executable, "-c", program, *arguments]
        run = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
        assert run.returncode == 0, run.stderr
        return run.stdout

    run, whole, parted = tmp_path / "run", tmp_path / "whole" / "run", tmp_path / "parted"
    assert training("limited", "2", str(run)).startswith("not enough memory for a step of 2 images in ")
    assert training("free", "2", str(run), str(whole)) == ""
    assert rows(run, "step") == rows(whole, "step")
    assert training("limited", "48", str(parted)) == ""  # in pieces it fits
    found = rows(parted, "pieces")  # again where what was freed lies in pieces itself; each number is told once
    pieces = [row["pieces"] for row in found]
    assert found[0]["step"] == 2
    assert pieces == sorted(set(pieces))
    assert 1 < pieces[0] <= pieces[-1] < 48


@pytest.mark.fault("T7", "T8")
def test_a_damaged_state_falls_back_and_ends_with_the_same_bits(tmp_path: Path) -> None:
    whole, parted = tmp_path / "a" / "run", tmp_path / "b" / "run"
    fit(tiny.job(whole, 20))
    with pytest.raises(vitrail.VitrailError, match="stopped at step 13"):
        fit(stopped_at(tiny.job(parted, 20), 13))
    newest = max((parted / "state").glob("r*.state"))
    raw = bytearray(newest.read_bytes())
    raw[len(raw) // 2] ^= 4
    newest.write_bytes(raw)
    told: list[str] = []
    fit(tiny.job(parted, 20, callbacks=Callbacks(log=told.append)))
    assert "its checksum is wrong: falling back to the state before it" in told[0]
    assert log_of(parted) == log_of(whole)
    assert (parted / "last.safetensors").read_bytes() == (whole / "last.safetensors").read_bytes()


def test_the_log_is_json_without_times(tmp_path: Path) -> None:
    fit(tiny.job(tmp_path, 12))
    found = [json.loads(line) for line in log_of(tmp_path).decode().splitlines()]
    assert {row["event"] for row in found} == {"step", "epoch"}
    assert not any("second" in name for row in found for name in row)
    times = [json.loads(line) for line in (tmp_path / "times.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in times] == [1, 2]
    assert all(row["data_seconds"] >= 0 and row["compute_seconds"] > 0 for row in times)
