"""Schedules: exact values at the start, at the end of the warm-up and at the finish, beside other people's."""

from __future__ import annotations

import math
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest
import torch

from vitrail.errors import InputError
from vitrail.training.recipe import Recipe
from vitrail.training.schedule import lr_factor, position_on_schedule, warmup_steps

W, T = 10, 100  # steps of warm-up, of all


def at(step: int, steps: int = T, per_epoch: float = 10.0, **settings: Any) -> float:
    return lr_factor(Recipe(**{"warmup": W, **settings}), step, steps, per_epoch)


@pytest.mark.row("001.12")
@pytest.mark.parametrize(
    "schedule, warmup, values",
    [
        ("constant", 0, (1.0, 1.0, 1.0, 1.0)),
        ("constant", W, (0.1, 1.0, 1.0, 1.0)),
        ("linear", W, (0.1, 1.0, 0.5, 0.0)),
        ("cosine", W, (0.1, 1.0, 0.5, 0.0)),
    ],
)
def test_the_four_schedules_at_start_warm_middle_and_end(schedule: str, warmup: int, values: tuple[float, ...]) -> None:
    found = [at(step, schedule=schedule, warmup=warmup) for step in (0, W, (W + T) // 2, T)]
    assert found == pytest.approx(values, abs=1e-15)


@pytest.mark.row("001.12")
@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_equal_to_transformers_but_for_the_shifted_warm_up(transformers: ModuleType, schedule: str) -> None:
    """Theirs does nothing in its first step; ours is one step ahead while it warms up, and equal from then on."""
    name = {"constant": "constant_with_warmup", "linear": "linear", "cosine": "cosine"}[schedule]
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = transformers.get_scheduler(name, optimiser, num_warmup_steps=W, num_training_steps=T)
    theirs = []
    for _ in range(T + 1):
        theirs.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        scheduler.step()
    ours = [at(step, schedule=schedule) for step in range(T + 1)]
    assert theirs[0] == 0.0
    assert ours[: W - 1] == pytest.approx(theirs[1:W], abs=1e-15)
    assert ours[W - 1] == 1.0
    assert ours[W:] == pytest.approx(theirs[W:], abs=1e-15)


@pytest.mark.row("P.14")
@pytest.mark.parametrize("step", [500, 501, 4000, 9999, 10_000])
def test_a_linear_schedule_ends_above_zero_as_in_googles_code(step: int) -> None:
    lr, end, warm, total = 0.03, 1e-5, 500, 10_000
    theirs = end + (lr - end) * (1 - (step - warm) / (total - warm))
    ours = lr * at(step, total, schedule="linear", warmup=warm, lr=lr, final=end / lr)
    assert ours == pytest.approx(theirs, rel=1e-12)


def test_the_final_share_is_where_cosine_and_linear_end() -> None:
    for schedule in ("cosine", "linear"):
        assert at(T, schedule=schedule, final=0.1) == pytest.approx(0.1)
        assert at(W, schedule=schedule, final=0.1) == 1.0
        assert at((W + T) // 2, schedule=schedule, final=0.1) == pytest.approx(0.55)
    assert at(T, schedule="constant", final=0.1) == 1.0


@pytest.mark.row("003.16")
@pytest.mark.parametrize("first, growth", [(10, 2), (7, 1), (3, 3)])
def test_restarts_are_torchs_stepped_by_the_fraction_of_an_epoch(first: int, growth: int) -> None:
    per_epoch, epochs = 8, 75  # eighths of an epoch are exact, so both see a restart at the same step
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimiser, first, growth, eta_min=0.05)
    optimiser.step()
    recipe = Recipe(schedule="restarts", warmup=0, restart_epochs=first, restart_factor=growth, final=0.05)
    theirs, ours = [], []
    for step in range(per_epoch * epochs):
        scheduler.step(step / per_epoch)
        theirs.append(optimiser.param_groups[0]["lr"])
        ours.append(lr_factor(recipe, step, per_epoch * epochs, per_epoch))
    assert ours == pytest.approx(theirs, abs=1e-12)
    assert ours.count(1.0) == {2: 4, 1: 11, 3: 4}[growth]  # at 0, 10, 30, 70; every 7; at 0, 3, 12, 39


def test_restarts_begin_after_the_warm_up() -> None:
    settings = {"schedule": "restarts", "restart_epochs": 2.0, "restart_factor": 2}
    assert [at(step, **settings) for step in (0, W - 1, W, W + 20, W + 60)] == [0.1, 1.0, 1.0, 1.0, 1.0]
    assert at(W + 10, **settings) == pytest.approx(0.5)
    assert at(W + 19, **settings) == pytest.approx((1 + math.cos(math.pi * 0.95)) / 2)


def test_a_period_that_a_logarithm_would_round_away() -> None:
    """log(243) / log(3) is under 5: torch's formula ends a period there instead of starting the next."""
    recipe = Recipe(schedule="restarts", warmup=0, restart_epochs=2, restart_factor=3)
    assert lr_factor(recipe, 242, 1000, 1.0) == 1.0  # 2 + 6 + 18 + 54 + 162


def test_warm_up_is_a_share_or_a_number_of_steps() -> None:
    assert warmup_steps(Recipe(warmup=0.05), 1000) == 50
    assert warmup_steps(Recipe(warmup=0.0), 1000) == 0
    assert warmup_steps(Recipe(warmup=1), 1000) == 1
    assert warmup_steps(Recipe(warmup=500), 1000) == 500
    assert at(0, warmup=0) == 1.0


def test_a_warm_up_longer_than_the_run_rises_to_its_end() -> None:
    values = [at(step, steps=5, warmup=10) for step in range(5)]
    assert values == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    assert at(10, steps=10, warmup=10) == 1.0  # nothing is left to fall


def test_every_step_has_a_rate_and_none_is_above_one() -> None:
    for schedule in ("cosine", "linear", "constant", "restarts"):
        values = [at(step, schedule=schedule) for step in range(T)]
        assert all(0 < value <= 1 for value in values)
        if schedule in ("cosine", "linear"):
            assert all(later < earlier for earlier, later in pairwise(values[W:]))


@pytest.mark.parametrize("step, steps, per_epoch", [(-1, 10, 1.0), (0, 0, 1.0), (0, 10, 0.0)])
def test_impossible_steps_are_refused(step: int, steps: int, per_epoch: float) -> None:
    with pytest.raises(InputError, match=f"got step {step} of {steps}, {per_epoch} an epoch"):
        lr_factor(Recipe(), step, steps, per_epoch)


# ---- an end that moves -------------------------------------------------------------------------------------------


def test_an_end_that_moves_is_a_schedule_walked_at_another_pace() -> None:
    """By hand: at step 40 of 100 the end moves to 70, at 55 to 115."""
    moves = [[40, 70], [55, 115]]
    assert [position_on_schedule(step, 100, moves) for step in (0, 39, 40)] == [0, 39, 40]
    assert position_on_schedule(50, 100, moves) == pytest.approx(40 + 10 * 60 / 30)  # two a step
    assert position_on_schedule(55, 100, moves) == pytest.approx(70)
    assert position_on_schedule(85, 100, moves) == pytest.approx(70 + 30 * 30 / 60)  # a half a step
    assert position_on_schedule(115, 100, moves) == pytest.approx(100)
    assert position_on_schedule(7, 100, []) == 7


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
@pytest.mark.parametrize("moved, end", [(4, 60), (40, 300), (99, 104), (40, 41), (2, 500)])
def test_the_rate_goes_on_smoothly_and_reaches_its_end(schedule: str, moved: int, end: int) -> None:
    def factor(step: int, moves: list[list[int]]) -> float:
        return lr_factor(Recipe(warmup=0.1, schedule=schedule, final=0.01), step, 100, 10.0, moves)

    found = [factor(step, [[moved, end]]) for step in range(end + 1)]
    assert found[: moved + 1] == [factor(step, []) for step in range(moved + 1)]  # what is done is done
    assert found[-1] == pytest.approx(0.01)
    assert max(found) <= 1.0
    pace = max((100 - moved) / (end - moved), 1.0)
    most = (
        1.001 * pace * max(abs(after - before) for before, after in pairwise(factor(step, []) for step in range(101)))
    )
    assert all(
        abs(after - before) <= most for before, after in pairwise(found)
    )  # no jump that the pace does not explain
    assert found[max(moved, 10) :] == sorted(found[max(moved, 10) :], reverse=True) or moved < 10


@pytest.mark.parametrize("schedule", ["restarts", "step"])
def test_schedules_that_count_epochs_go_on_as_they_were(schedule: str) -> None:
    recipe = Recipe(warmup=5, schedule=schedule, restart_epochs=2, step_epochs=3)
    for step in range(200):
        assert lr_factor(recipe, step, 100, 10.0, [[40, 200]]) == lr_factor(recipe, step, 100, 10.0)


def test_a_constant_rate_stays_constant() -> None:
    recipe = Recipe(warmup=0.1, schedule="constant")
    assert [lr_factor(recipe, step, 100, 10.0, [[40, 200]]) for step in (40, 41, 199)] == [1.0] * 3
