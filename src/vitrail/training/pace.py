"""Minutes that a training was given -> its end in steps: measured again while it trains, each move of it written down.

The end is looked at `LOOKS` times in the minutes, by time spent in training since it began, across stops. Where a run
would end too late or too early, by more than `SLACK` of the minutes and `SLACK_LEFT` of what is left of them, its end
moves to the last step that fits. What a step takes is half what it took since the last look, half what it was thought
to take before; a first trial is where that begins. Every move, and every end of an epoch,
is a row of `lengths.jsonl`, on disk before anything follows from it. A run that goes on from an earlier state takes the
rows that are there, and measures again where they end: so it repeats what it did, whatever the clock says now.
"""

from __future__ import annotations

import json
import time
from bisect import bisect_right
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple

from vitrail.reporting.html_page import counted
from vitrail.training.plan import Plan
from vitrail.training.record import Record

LENGTHS: Final = "lengths.jsonl"
LOOKS: Final = 40
SLACK: Final = 0.02  # of the minutes, and
SLACK_LEFT: Final = 0.1  # of the time that is left: speeds waver, and what is wrong early can be mended later

clock = time.monotonic_ns


class Speed(NamedTuple):
    """What a step and a validation cost on this machine."""

    step: float  # seconds
    validation: float


@dataclass
class TrainingPace:
    """How a training stands with the time it was given: plain values, a part of its state."""

    spent: int = 0  # nanoseconds in training, across stops
    looks: int = 0  # how often the end was looked at
    step_seconds: float = 0.0  # lately
    validation_seconds: float = 0.0  # the last one, with what else an end of an epoch asks for
    stepping: int = 0  # nanoseconds of the steps since the last look
    steps: int = 0  # how many these are
    lengths: list[list[int]] = field(default_factory=list)  # moves of the end: at step, to so many steps

    @property
    def speed(self) -> Speed:
        """What is expected of the steps to come."""
        return Speed(self.step_seconds, self.validation_seconds)


def steps_that_fit(seconds: float, speed: Speed, per_epoch: int, start: int = 0) -> int:
    """The last step that can be reached in so many seconds from `start` on, with the validations on the way.

    One comes at every end of an epoch and at the very end; that of `start` itself is still to come. Where there is no
    time for any step, `start` is the end.
    """
    ends = range(start, start + max(0, int(seconds / speed.step)) + 1)
    fitting = bisect_right(ends, seconds, key=lambda end: seconds_until(end, speed, per_epoch, start))
    return ends[max(fitting - 1, 0)]


def seconds_until(end: int, speed: Speed, per_epoch: int, start: int = 0) -> float:
    """How long it takes from one step to another, with the validations on the way."""
    validated = (start - 1) // per_epoch if start else 0
    return (end - start) * speed.step + speed.validation * (-(-end // per_epoch) - validated)


class Pacer:
    """Counts the time of a training, and decides where it ends: by the clock, or as it was written down."""

    def __init__(self, plan: Plan, folder: Path, *, is_fixed: bool) -> None:
        self.plan = plan
        self.budget = 0 if plan.minutes is None or is_fixed else int(plan.minutes * 60e9)
        self.record = Record(folder / LENGTHS)
        self.written: dict[tuple[int, int], int] = {}  # rollbacks and step -> the end that was decided on there
        self.furthest: dict[int, int] = {}  # rollbacks -> the last step that is written down
        self.before = 0

    def begin(self, pace: TrainingPace, speed: Speed | None) -> None:
        """From here on time counts. A `speed` is that of a new run: nothing that an older one left holds for it."""
        if speed is not None:
            pace.step_seconds, pace.validation_seconds = speed
            self.record.cut(0)
        for rollbacks, step, steps in read_lengths(self.record) if self.plan.minutes is not None else ():
            self.written[rollbacks, step] = steps
            self.furthest[rollbacks] = step
        self.before = clock()

    def end(self, pace: TrainingPace) -> int:
        """The steps that the training has, as far as is known now."""
        return pace.lengths[-1][1] if pace.lengths else self.plan.steps

    def move(self, pace: TrainingPace, step: int, rollbacks: int) -> int:
        """After a step: where the end is from here on."""
        end = self.end(pace)
        if not self.budget and not self.written:
            return end
        measured = self._look(pace, step) if self.budget else end
        if not self.budget or step <= self.furthest.get(rollbacks, -1):
            decided = self.written.get((rollbacks, step), end)
        else:
            decided = measured
            if decided != end or step % self.plan.per_epoch == 0 or step == decided:
                self.record.add(rollbacks=rollbacks, step=step, steps=decided)
                self.record.sync()
        return decided

    def validated(self, pace: TrainingPace) -> None:
        """After all that the end of an epoch asks for."""
        if self.budget:
            pace.validation_seconds = self._lap(pace) / 1e9

    def rolled_back(self, before: TrainingPace, pace: TrainingPace) -> TrainingPace:
        """The pace of an earlier state, to which a training went back: time that was spent stays spent."""
        if self.budget:
            self._lap(before)
        return replace(before, stepping=0, steps=0, lengths=pace.lengths)

    def _lap(self, pace: TrainingPace) -> int:
        """Nanoseconds since this was last asked, which are now counted."""
        now = clock()
        lap = now - self.before
        pace.spent += lap
        self.before = now
        return lap

    def _look(self, pace: TrainingPace, step: int) -> int:
        """The end by what the last steps took, where it is time to look; else the end as it is."""
        pace.stepping += self._lap(pace)
        pace.steps += 1
        end = self.end(pace)
        looks = pace.spent * LOOKS // self.budget
        if looks <= pace.looks or not pace.stepping:
            return end
        taken = pace.stepping / pace.steps / 1e9
        pace.step_seconds = (pace.step_seconds + taken) / 2 if pace.step_seconds else taken
        pace.looks, pace.stepping, pace.steps = looks, 0, 0
        left = (self.budget - pace.spent) / 1e9
        fitting = steps_that_fit(left, pace.speed, self.plan.per_epoch, step)
        off = seconds_until(end, pace.speed, self.plan.per_epoch, step) - left
        return fitting if abs(off) > SLACK * self.budget / 1e9 + SLACK_LEFT * max(left, 0.0) else end


def read_lengths(record: Record) -> list[tuple[int, int, int]]:
    """The rows of a record as (rollbacks, step, steps); half a line, as a power cut may leave it, is taken away."""
    text = record.path.read_bytes() if record.path.exists() else b""
    lines = text[: text.rfind(b"\n") + 1]
    if len(lines) < len(text):
        record.cut(len(lines))
    rows = []
    for line in lines.splitlines():
        with suppress(ValueError, KeyError, TypeError):
            row: Mapping[str, int] = json.loads(line)
            rows.append((int(row["rollbacks"]), int(row["step"]), int(row["steps"])))
    return rows


def pace_notes(plan: Plan, pace: TrainingPace) -> tuple[str, ...]:
    """What became of the steps that were planned for the minutes, in words; nothing where the end never moved."""
    if not pace.lengths:
        return ()
    moves = len(pace.lengths)
    return (
        f"{counted(plan.steps, 'step')} were planned for {plan.minutes:g} minutes; the machine's speed changed, and "
        f"the end moved {'once' if moves == 1 else f'{moves} times'}: to {counted(pace.lengths[-1][1], 'step')}",
    )
