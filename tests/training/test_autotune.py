"""Steps are timed, rates tried and one batch learned by heart, with the network as the run would have it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from training import tiny
from training.quick import QUICK
from vitrail.data.augmentation import Augment
from vitrail.errors import InputError
from vitrail.network.vit import ViT
from vitrail.training import Recipe, autotune
from vitrail.training.autotune import LossAtRate, measure_speed, overfits, steps_for, suggested
from vitrail.training.pace import Speed


@pytest.mark.parametrize("wanted", [False, True])
def test_trials_recompute_blocks_as_the_run_would(tmp_path: Path, wanted: bool) -> None:
    job = tiny.job(tmp_path, 1, replace(QUICK, checkpointing=wanted))
    assert autotune._Trial(job).model.encoder.checkpointing is wanted
    assert not job.model.encoder.checkpointing  # a trial leaves the network itself alone


def test_steps_that_fit_count_the_validation() -> None:
    assert steps_for(1.0, Speed(step=0.5, validation=0.0), 10) == 120
    assert steps_for(1.0, Speed(step=0.5, validation=5.0), 10) == 60  # half a second a step more
    with pytest.raises(InputError, match="not enough for one step of 90.0 s"):
        steps_for(1.0, Speed(step=90.0, validation=0.0), 10)


def test_a_step_is_timed_by_the_median_without_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock of its own: each step takes as long as it is told, and the run's network stays as it was."""
    now, took = [0.0], iter([50.0, 1.0, 2.0, 9.0, 2.0])
    learn = autotune._Trial.learn

    def slow(*arguments: Any) -> float:
        now[0] += next(took)
        return learn(*arguments)

    monkeypatch.setattr(autotune, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(autotune._Trial, "learn", slow)
    monkeypatch.setattr(autotune, "TRIAL_SECONDS", 63.5)
    job = tiny.job(tmp_path, 1)
    before = {name: value.clone() for name, value in job.model.state_dict().items()}
    assert measure_speed(job) == Speed(step=2.0, validation=0.0)
    assert next(took, None) is None  # five steps: until the time is over
    assert all(torch.equal(value, before[name]) for name, value in job.model.state_dict().items())


@pytest.mark.parametrize("lr, learns", [(3e-3, True), (1e-9, False)])
def test_one_batch_is_learned_by_heart_or_not(tmp_path: Path, lr: float, learns: bool) -> None:
    config = replace(tiny.CONFIG, dropout=0.0, drop_path=0.0)
    torch.manual_seed(2)
    job = tiny.job(tmp_path, 1, Recipe(batch=16, lr=lr, smoothing=0.3, augment=Augment(mixup=1.0)), model=ViT(config))
    assert overfits(job) is learns


def test_the_rate_suggested_is_where_the_loss_falls_fastest() -> None:
    losses = [3.0, 3.0, 2.9, 2.8, 2.0, 1.2, 1.1, 1.0, 1.4, 2.5]
    tried = [LossAtRate(10.0 ** (place - 6), loss) for place, loss in enumerate(losses)]
    assert suggested(tried) == 1e-2  # in the middle of 2.8, 2.0, 1.2
    with pytest.raises(InputError, match="not a number from the first steps on"):
        suggested(tried[:2])


def test_no_rate_suits_a_network_of_nothing() -> None:
    with pytest.raises(InputError, match="not a number from the first step on"):
        suggested([])
