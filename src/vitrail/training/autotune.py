"""Short trials before a long run: how fast it goes, whether one batch can be learned, and which rate suits."""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Generator
from dataclasses import replace
from typing import Final, NamedTuple

from vitrail.data.augmentation import Augment
from vitrail.data.counter_rng import key
from vitrail.data.loader import Batch, BatchRows, epoch_order
from vitrail.errors import InputError
from vitrail.training import plain_attention
from vitrail.training.backpropagation import BatchPass, fitting_gradients, share_gradients
from vitrail.training.batch_feed import is_shared, job_batches, own_rows
from vitrail.training.compilation import training_forward
from vitrail.training.job import Job
from vitrail.training.memory import memory_named
from vitrail.training.optimisers import build_optimiser
from vitrail.training.pace import Speed, steps_that_fit
from vitrail.training.validation import validate
from vitrail.training.virtual_workers import Wishes

TRIAL_SECONDS: Final = 3.0


def measure_speed(job: Job) -> Speed:
    """The time of a step, data included, on a copy of the network: the run itself is not touched."""
    trial = _Trial(job)
    taken: list[float] = []
    started = before = time.perf_counter()
    for batch in _feed(job, 10_000):
        trial.learn(batch, 1e-6)
        now = time.perf_counter()
        taken.append(now - before)
        before = now
        if job.processes.broadcast(len(taken) >= 3 and now - started > TRIAL_SECONDS):
            break
    warm = statistics.median(taken[1:] or taken)  # a neighbour's burst should not shorten the run
    validation = 0.0
    if job.val is not None:
        job.val.views.make_all()  # once a run, not once a validation
        before = time.perf_counter()
        validate(trial.model, job.val, job.plan, job.processes)
        validation = time.perf_counter() - before
    return Speed(warm, validation)


def steps_for(minutes: float, speed: Speed, per_epoch: int) -> int:
    """As many steps as fit, with the validation after every epoch."""
    steps = steps_that_fit(minutes * 60, speed, per_epoch)
    if steps < 1:
        seconds = speed.step + speed.validation
        raise InputError(f"{minutes:g} minutes are not enough for one step of {seconds:.1f} s: give more --minutes")
    return steps


def overfits(job: Job, steps: int = 40) -> bool:
    """Whether the network can learn one batch by heart: if not, something is wrong with it or with the labels."""
    crop = (1.0, 1.0) if job.plan.recipe.augment.crop is not None else None  # the views are larger for crops
    calm = replace(job.plan.recipe, augment=Augment(crop=crop, aspect=1.0), smoothing=0.0)
    trial = _Trial(replace(job, plan=replace(job.plan, recipe=calm)))
    batch = next(iter(_feed(trial.job, 1)))
    small = Batch(batch.rows[:16], batch.pixels[:16], batch.targets[:16])
    first = last = math.inf
    for step in range(steps):
        last = trial.learn(small, min(1.0, (step + 1) / 5))
        first = last if step == 0 else first
    return last < max(0.5 * first, 0.1)  # a head that starts from a probe may know them already


class LossAtRate(NamedTuple):
    """A learning rate, and the smoothed loss after a step with it."""

    lr: float
    loss: float


def find_rate(job: Job, least: float = 1e-6, most: float = 1.0, steps: int = 100) -> tuple[list[LossAtRate], float]:
    """Raise the rate step by step from least to most; the rate suggested is where the loss falls fastest."""
    trial = _Trial(replace(job, plan=replace(job.plan, recipe=replace(job.plan.recipe, lr=1.0))))
    tried: list[LossAtRate] = []
    smooth, lowest = 0.0, math.inf
    for step, batch in enumerate(_feed(job, steps)):
        lr = least * (most / least) ** (step / max(steps - 1, 1))
        loss = trial.learn(batch, lr)
        smooth = 0.9 * smooth + 0.1 * loss
        value = smooth / (1 - 0.9 ** (step + 1))
        if not math.isfinite(loss) or value > 2 * lowest + 1:
            break
        lowest = min(lowest, value)
        tried.append(LossAtRate(lr, value))
    return tried, suggested(tried)


def suggested(tried: list[LossAtRate]) -> float:
    """Where the smoothed loss falls fastest over the logarithm of the rate, before its lowest point."""
    if not tried:
        raise InputError("the loss is not a number from the first step on: look at the data with `vitrail audit`")
    bottom = min(range(len(tried)), key=lambda each: tried[each].loss)
    window = max(2, len(tried) // 10)
    falls = [
        (tried[each + window].loss - tried[each].loss, tried[each + window // 2].lr)
        for each in range(max(1, bottom - window + 1))
        if each + window < len(tried)
    ]
    if not falls:
        raise InputError("the loss is not a number from the first steps on: look at the data with `vitrail audit`")
    return min(falls)[1]


def _feed(job: Job, count: int) -> Generator[Batch, None, None]:
    """The first batches of the run, again and again if need be."""
    plan, size = job.plan, job.plan.recipe.batch
    rows = epoch_order(plan.seed, 0, len(job.train.targets))
    starts = (step % plan.per_epoch * size for step in range(count))
    parts = (BatchRows(0, step, rows[start : start + size]) for step, start in enumerate(starts))
    return job_batches(job, (own_rows(job, part) for part in parts))


class _Trial:
    """Steps on a copy of the network, as the run would train it: the run itself is not touched."""

    def __init__(self, job: Job) -> None:
        self.job, recipe = job, job.plan.recipe
        self.model = copy.deepcopy(job.model).train()
        self.model.encoder.checkpointing = recipe.checkpointing
        plain_attention.install(self.model)
        self.forward = training_forward(self.model, recipe.compile)
        self.optimiser = build_optimiser(self.model, recipe)
        self.pieces = recipe.pieces

    def learn(self, batch: Batch, share: float) -> float:
        """One step; its loss."""

        way = BatchPass(self.forward, self.pieces)
        seed = key(self.job.plan.seed, "trial")
        with memory_named(self.job.plan.recipe):
            if is_shared(self.job):
                shared = share_gradients(self.model, batch, self.job, None, 0, way, _wish)
                loss, pieces = shared.loss, shared.wishes.pieces
            else:
                loss, _, pieces = fitting_gradients(self.model, batch, self.job.plan, None, seed, way)
            self.optimiser.step(share)
        self.pieces = max(self.pieces, pieces)
        self.optimiser.zero()
        return loss


def _wish(pieces: int) -> Wishes:
    """Of a trial nothing is saved, and no signal stops it: only in how many pieces a batch fits."""
    return Wishes(0, False, pieces)
