"""Minutes are kept whatever the machine does: by a planted clock, that steps and validations put forward."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from training import tiny
from vitrail.checkpoint.safetensors_io import bytes_of
from vitrail.training import backpropagation, loop, pace
from vitrail.training import state as saving
from vitrail.training.job import Callbacks, Job, Progress
from vitrail.training.loop import fit
from vitrail.training.pace import LENGTHS, Speed, seconds_until, steps_that_fit
from vitrail.training.record import Record

SECOND = 1_000_000_000
EVERY_STEP = {"save_seconds": 0.0, "save_share": 1e9}
NEVER = {"save_seconds": 1e9, "save_share": 1e-9}  # but where something asks for it


class Killed(BaseException):
    """What ends a training at once, in the middle of anything."""


class Clock:
    """A machine whose steps take as many seconds as `cost` says of each; it may be told to kill after one."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 0
        self.cost: Callable[[int], float] = lambda step: 1.0
        self.validation = 0.0
        self.kill_after = -1
        learn, validate = loop._Loop.learn, loop.validate

        def timed_learn(training: Any, batch: Any) -> None:
            step = training.progress.step
            learn(training, batch)
            self.now += int(self.cost(step) * SECOND)
            if step == self.kill_after:
                self.kill_after = -1
                raise Killed

        def timed_validate(*given: Any, **named: Any) -> Any:
            self.now += int(self.validation * SECOND)
            return validate(*given, **named)

        patch.setattr(loop._Loop, "learn", timed_learn)
        patch.setattr(loop, "validate", timed_validate)
        patch.setattr(pace, "clock", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def timed(folder: Path, seconds: float, **changes: Any) -> Job:
    """A training that is given so many seconds, on a machine that was measured to take one a step."""
    speed = Speed(1.0, 0.0)
    job = tiny.job(folder, steps_that_fit(seconds, speed, 6), **{"speed": speed, **changes})
    return replace(job, plan=replace(job.plan, minutes=seconds / 60))


def slower(at: int, times: float) -> Callable[[int], float]:
    return lambda step: 1.0 if step < at else times


def left_by(folder: Path) -> dict[str, Any]:
    """Everything of a training that must not depend on when it was disturbed."""
    state = saving.read_newest(folder / "state", print)
    assert state is not None
    tensors = {name: bytes(bytes_of(value)) for name, value in state.tensors.items()}
    files = {name: (folder / name).read_bytes() for name in ("metrics.jsonl", "best.safetensors", "last.safetensors")}
    return {"tensors": tensors, "lengths": state.facts["pace"]["lengths"]} | files


# ---- how many steps fit ------------------------------------------------------------------------------------------


def test_steps_that_fit_count_every_validation_on_the_way() -> None:
    assert steps_that_fit(60.0, Speed(0.5, 0.0), 10) == 120
    assert steps_that_fit(60.0, Speed(0.5, 5.0), 10) == 60  # 30 s of steps, six validations
    assert steps_that_fit(59.9, Speed(0.5, 5.0), 10) == 59  # the last epoch is validated too, however short it is
    assert steps_that_fit(9.0, Speed(1.0, 5.0), 10) == 4
    assert steps_that_fit(9.0, Speed(1.0, 20.0), 10) == 0


@pytest.mark.parametrize("start", [1, 9, 10, 11, 37])
@pytest.mark.parametrize("seconds", [-3.0, 0.0, 4.0, 33.0, 100.0])
def test_from_any_step_on_the_last_that_fits_is_found(start: int, seconds: float) -> None:
    """Beside a walk step by step; the validation of the start itself is still to come."""
    speed = Speed(1.5, 4.0)
    end, spent = start, 0.0
    while True:
        spent += 1.5 + (4.0 if end % 10 == 0 else 0.0)  # the next step, and the validation before it
        if spent + 4.0 > seconds:  # every end is validated
            break
        end += 1
    assert steps_that_fit(seconds, speed, 10, start) == end
    assert seconds_until(end, speed, 10, start) <= max(seconds, 4.0) < seconds_until(end + 1, speed, 10, start)


# ---- the end moves -----------------------------------------------------------------------------------------------


def test_a_machine_as_fast_as_it_was_measured_keeps_the_plan(clock: Clock, tmp_path: Path) -> None:
    clock.cost = lambda step: (1.1, 0.9)[step % 2]
    progress = fit(timed(tmp_path, 40))
    assert (progress.step, progress.pace.lengths) == (40, [])
    assert clock.now == pytest.approx(40 * SECOND)
    assert progress.pace.spent == clock.now
    plain = tmp_path / "plain" / tmp_path.name
    fit(tiny.job(plain, 40))
    assert left_by(plain) == left_by(tmp_path)  # not a bit is changed by having looked
    assert not (plain / LENGTHS).exists()


@pytest.mark.parametrize("at", [1, 20, 36, 39])
@pytest.mark.parametrize("times", [3.0, 1 / 3, 10.0])
def test_a_machine_that_slows_down_or_frees_up_ends_in_time(
    clock: Clock, tmp_path: Path, at: int, times: float
) -> None:
    clock.cost = slower(at, times)
    told: list[str] = []
    progress = fit(timed(tmp_path, 40, callbacks=Callbacks(log=told.append)))
    assert abs(clock.now / SECOND - 40) <= max(4, times)  # a tenth; or the one step that was under way
    if times > 1 and at < 38:
        assert progress.step < 40
        assert progress.step == pytest.approx(at + (40 - at) / times, abs=4)
    if times < 1 and at < 36:
        assert progress.step > 40
        assert progress.step == pytest.approx(at + (40 - at) / times, rel=0.1)
    moves = progress.pace.lengths
    assert progress.step == (moves[-1][1] if moves else 40)
    assert len([text for text in told if "fit the time, not" in text]) == len(moves)
    rows = [row for row in Record(tmp_path / "metrics.jsonl").rows() if row["event"] == "length"]
    assert [[row["step"], row["steps"]] for row in rows] == moves


def test_validations_that_become_slow_are_counted(clock: Clock, tmp_path: Path) -> None:
    """Planned without them, they take as long as the steps: half the steps are left."""
    clock.validation = 6.0
    progress = fit(timed(tmp_path, 60))
    assert progress.step in (27, 28, 29, 30)
    assert clock.now / SECOND == pytest.approx(60, abs=6)


def test_one_slow_burst_costs_what_it_takes_and_no_more(clock: Clock, tmp_path: Path) -> None:
    clock.cost = lambda step: 10.0 if step == 20 else 1.0
    progress = fit(timed(tmp_path, 60))
    assert 48 <= progress.step <= 52
    assert clock.now / SECOND == pytest.approx(60, abs=3)


def test_a_run_of_fixed_steps_stays_as_it_was(clock: Clock, tmp_path: Path) -> None:
    clock.cost = slower(5, 100.0)
    assert fit(timed(tmp_path, 12, speed=None, fixed=True)).step == 12
    assert not (tmp_path / LENGTHS).exists()


# ---- stops and kills ---------------------------------------------------------------------------------------------


def undisturbed(clock: Clock, folder: Path, seconds: float) -> dict[str, Any]:
    fit(timed(folder, seconds, **NEVER))
    return left_by(folder)


def go_on(folder: Path, seconds: float, **saves: Any) -> Progress:
    """The same command after a kill: nothing is measured before it."""
    return fit(timed(folder, seconds, speed=None, **saves))


@pytest.mark.parametrize("saves", [NEVER, EVERY_STEP])
def test_a_kill_after_every_step_changes_no_bit(clock: Clock, tmp_path: Path, saves: dict[str, float]) -> None:
    """With the same times of the steps: time counts on over the stop, and what a kill undid counts once."""
    clock.cost = slower(7, 3.0)
    clock.validation = 0.5
    expected = undisturbed(clock, tmp_path / "whole" / "run", 18)
    assert expected["lengths"]
    steps = saving.read_newest(tmp_path / "whole" / "run" / "state", print)
    assert steps is not None
    for step in range(0, steps.facts["step"], 2 if saves is EVERY_STEP else 1):
        folder = tmp_path / f"{step}" / "run"
        clock.kill_after = step
        with pytest.raises(Killed):
            fit(timed(folder, 18, **saves))
        clock.now += 1000 * SECOND  # that it lay still
        go_on(folder, 18, **saves)
        assert left_by(folder) == expected, step


def test_a_kill_at_every_point_of_a_save_changes_no_bit(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.cost = slower(4, 3.0)
    expected = undisturbed(clock, tmp_path / "whole" / "run", 10)
    assert expected["lengths"]
    for turn in itertools.count(step=8):
        left, folder = [Killed()] * (turn + 1), tmp_path / f"{turn}" / "run"

        def reached(point: str, left: list[Killed] = left) -> None:
            killed = left.pop()
            if not left:
                raise killed

        monkeypatch.setattr(saving, "reached", reached)
        try:
            fit(timed(folder, 10, **EVERY_STEP))
        except Killed:
            monkeypatch.setattr(saving, "reached", lambda point: None)
            state = saving.has_state(folder / "state")
            fit(timed(folder, 10, **EVERY_STEP)) if not state else go_on(folder, 10)
            assert left_by(folder) == expected, turn
        else:
            assert turn > 40
            break


@pytest.mark.parametrize("killed", [4, 6, 7, 10, 14, 17])
def test_what_was_decided_is_repeated_whatever_the_clock_says_now(clock: Clock, tmp_path: Path, killed: int) -> None:
    """Its last state is that of the start: a machine of another speed repeats all up to the last row of the record."""
    clock.cost, folder = slower(7, 2.0), tmp_path / "first" / "run"
    clock.kill_after = killed
    with pytest.raises(Killed):
        fit(timed(folder, 30, **NEVER))
    written = (folder / LENGTHS).read_text() if (folder / LENGTHS).exists() else ""
    best = (folder / "best.safetensors").exists()
    assert best == (killed >= 6)
    clock.cost = lambda step: 5.0 if step % 3 else 0.125
    go_on(folder, 30, **NEVER)
    found = left_by(folder)
    record = (folder / LENGTHS).read_text()
    assert record.startswith(written)
    last = json.loads(written.splitlines()[-1])["step"] if written else 0
    assert last >= killed // 6 * 6  # since the end of an epoch may have left its best
    decided = [json.loads(line) for line in written.splitlines()]
    moves = [[row["step"], row["steps"]] for row in decided]
    assert [each for each in found["lengths"] if each[0] <= last] == [
        each for before, each in zip([[0, 30], *moves], moves, strict=False) if each[1] != before[1]
    ]
    again = tmp_path / "again" / "run"
    again.mkdir(parents=True)
    (again / LENGTHS).write_text(record)
    fit(timed(again, 30, speed=None, fixed=True, **NEVER))
    assert left_by(again) == found  # as a run that was never stopped, with the same decisions


def test_a_torn_row_of_the_record_is_taken_away(clock: Clock, tmp_path: Path) -> None:
    clock.cost = slower(7, 3.0)
    expected = undisturbed(clock, tmp_path / "whole" / "run", 18)
    clock.kill_after = 9
    with pytest.raises(Killed):
        fit(timed(tmp_path / "torn" / "run", 18, **NEVER))
    with open(tmp_path / "torn" / "run" / LENGTHS, "a") as file:
        file.write('{"rollbacks": 0, "st')
    go_on(tmp_path / "torn" / "run", 18)
    assert left_by(tmp_path / "torn" / "run") == expected
    assert (tmp_path / "torn" / "run" / LENGTHS).read_bytes() == (tmp_path / "whole" / "run" / LENGTHS).read_bytes()


def test_a_new_run_begins_a_new_record(clock: Clock, tmp_path: Path) -> None:
    """Where a run was killed before its first state, nothing that it left holds."""
    (tmp_path / LENGTHS).write_text('{"rollbacks": 0, "step": 3, "steps": 5}\n')
    assert fit(timed(tmp_path, 12)).step == 12


def test_time_stays_spent_when_a_run_goes_back(clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At step 40 the loss is no number, once: the way back is paid for with steps at the end."""
    gradients, spoiled = backpropagation.gradients, []

    def diverging(*given: Any) -> tuple[float, float]:
        loss, norm = gradients(*given)
        if clock.now == 40 * SECOND and not spoiled:
            spoiled.append(True)
            return float("nan"), norm
        return loss, norm

    monkeypatch.setattr(backpropagation, "gradients", diverging)
    monkeypatch.setattr(loop, "ANCHOR_STEPS", 12)
    progress = fit(timed(tmp_path, 60))
    assert progress.rollbacks == 1
    assert clock.now / SECOND == pytest.approx(60, abs=2)
    assert progress.step == pytest.approx(36 + 20, abs=2)
