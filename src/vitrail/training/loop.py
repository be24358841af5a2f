"""The loop: batches in, a trained network out; exact, whatever stops it and however often.

Every random choice is a function of the seed, the epoch and the row of an image, and the rest of what a step needs
lies in the state. So a run that was killed and went on ends with the same bits as one that never stopped.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import asdict, replace
from typing import Any, Final

import torch
from torch import Tensor

from vitrail.checkpoint import Checkpoint, Provenance, save
from vitrail.checkpoint.devices import device_of, seed_device
from vitrail.checkpoint.safetensors_io import all_finite
from vitrail.data.counter_rng import key
from vitrail.data.loader import Batch, BatchRows, balanced_order, epoch_order, repeats
from vitrail.errors import InputError, StoppedError
from vitrail.network.surgery import eval_mode
from vitrail.network.vit import ViT
from vitrail.reporting.html_page import counted
from vitrail.training import state as saving
from vitrail.training.backpropagation import BatchPass, backward, clipped, fitting_gradients, share_gradients
from vitrail.training.batch_feed import is_shared, job_batches, own_rows
from vitrail.training.compilation import compiler_named, training_forward
from vitrail.training.job import Job, Progress
from vitrail.training.losses import class_weights
from vitrail.training.memory import memory_named, pieces_note, restore, saved_statistics
from vitrail.training.mixed_precision import LossScale, float32_products
from vitrail.training.optimisers import Optimiser, build_optimiser
from vitrail.training.pace import Pacer, Speed, TrainingPace
from vitrail.training.plain_attention import plain_kernels
from vitrail.training.random_state import random_states, seeded, set_random_states
from vitrail.training.recipe import check_objective
from vitrail.training.record import NoRecord, Record
from vitrail.training.schedule import lr_factor
from vitrail.training.sharded_training import ShardedTraining, read_any_state
from vitrail.training.signals import Stop
from vitrail.training.state import FindState, State, clean, find_epoch, find_newest, forget_later, write_state
from vitrail.training.validation import validate
from vitrail.training.virtual_workers import SharedGradients, Wishes
from vitrail.training.weight_average import WeightAverage

MOST_ROLLBACKS: Final = 5
ANCHOR_STEPS: Final = 200  # a state that a rollback can go to, at the first end of an epoch after so many steps
LOGGED_STEPS: Final = 200  # rows of steps in the log of a run, about


class _DivergedError(Exception):
    """The loss or the gradient is no longer a number."""


def fit(job: Job) -> Progress:
    """Train until the plan is fulfilled, from the newest state if there is one."""
    check_objective(job.plan.recipe)
    exact = float32_products(job.plan.recipe.precision, device_of(job.model))
    with seeded(job.plan.seed), plain_kernels(job.model), exact:
        return _Loop(job).run()


class _Loop:
    """One training under way: the network, its optimiser and average, and where it stands."""

    def __init__(self, job: Job) -> None:
        self.job, self.plan, self.recipe = job, job.plan, job.plan.recipe
        self.processes = job.processes
        self.model = job.model.train()
        self.processes.copy_first(self.model.state_dict())  # from here on all that is computed is the same everywhere
        self.model.encoder.checkpointing = self.recipe.checkpointing
        self.sharding = ShardedTraining(job) if job.is_sharded else None
        self.forward = training_forward(self.model, self.recipe.compile)
        shared_by = self.processes if job.is_sharded else None
        self.optimiser: Optimiser = build_optimiser(self.model, self.recipe, shared_by)
        self.average = WeightAverage(self.model, self.recipe.ema, shared_by) if self.recipe.ema else None
        record = Record if self.processes.is_first else NoRecord
        self.metrics = record(job.folder / "metrics.jsonl")
        self.times = record(job.folder / "times.jsonl")
        self.pacer = Pacer(self.plan, job.folder, is_fixed=job.fixed or not self.processes.is_first)
        self.states = job.folder / "state"
        self.progress = Progress(pieces=self.recipe.pieces)
        self.device = device_of(job.model)
        balanced = self.recipe.balance == "weights"
        self.weights = class_weights(job.train.targets, self.plan).to(self.device) if balanced else None
        self.every = max(1, self.plan.steps // LOGGED_STEPS)
        self.anchor_epochs = math.ceil(ANCHOR_STEPS / self.plan.per_epoch)
        self.interval, self.saved, self.pause = 1.0, time.monotonic(), 0.0
        self.seconds = {"data": 0.0, "compute": 0.0}
        self.stop = Stop()
        self.wishes: Wishes | None = None  # of all processes, at the last step

    def run(self) -> Progress:
        with self.stop, memory_named(self.recipe), compiler_named():
            self.start()
            while not self.progress.finished:
                try:
                    self.steps()
                except _DivergedError as error:
                    self.roll_back(str(error))
        return self.progress

    @property
    def end(self) -> int:
        """The steps that the training has: those of the plan, or what minutes have made of them since."""
        return self.pacer.end(self.progress.pace)

    def start(self) -> None:
        """From the newest state, or from the first step; where nothing is to be learned, the start is the result."""
        if self.processes.is_first:
            clean(self.job.folder)
            clean(self.states)
        state = self.first_state(find_newest)
        if state is not None:
            self.stand(state)
            self.begin_pace()
            self.settle_log()
            self.job.callbacks.log(f"going on from step {self.progress.step} of {self.end}")
            return
        self.metrics.cut(0)
        self.begin_pace(self.job.speed)
        self.progress.finished = self.plan.steps == 0
        self.save()

    def steps(self) -> None:
        """Step after step until the end; the one place where a network learns."""
        with closing(job_batches(self.job, self.batch_rows(self.progress.step))) as feed:
            waiting = time.perf_counter()
            for batch in feed:
                working = time.perf_counter()
                self.learn(batch)
                done = time.perf_counter()
                self.seconds["data"] += working - waiting
                self.seconds["compute"] += done - working
                self.progress.epoch_end = False
                self.keep_pace()
                if self.progress.step % self.plan.per_epoch == 0 or self.progress.step == self.end:
                    self.end_epoch()
                    self.pacer.validated(self.progress.pace)
                self.progress.finished = self.progress.finished or self.progress.step == self.end
                if self.wishes is None or self.processes.world == 1:  # what others want came with the gradients
                    wishes = Wishes(self.stop.number, self.is_time())
                else:
                    wishes = self.wishes
                if self.progress.finished or self.progress.epoch_end or wishes.stop or wishes.save:
                    self.save()
                if wishes.stop and not self.progress.finished:
                    self.processes.barrier()  # nobody leaves before everything is saved
                    raise StoppedError(
                        f"stopped at step {self.progress.step} of {self.end}; "
                        "everything is saved, and the same command goes on",
                        wishes.stop,
                    )
                if self.progress.finished:
                    return
                waiting = time.perf_counter()

    def learn(self, batch: Batch) -> None:
        """One step: forward, backward, clip, update."""
        step = self.progress.step
        count = min(self.recipe.batch, len(self.job.train.targets))
        scale = LossScale(self.progress.scale, self.progress.scale_steps) if self.recipe.precision == "fp16" else None
        loss, norm = self.gradients(batch, step, 1.0 if scale is None else scale.factor)
        overflow = scale is not None and math.isfinite(loss) and not math.isfinite(norm) and not scale.is_least
        if not overflow and (not math.isfinite(loss) or not math.isfinite(norm)):
            raise _DivergedError(f"at step {step} the loss is {loss:.4g} and the gradient's norm {norm:.4g}")
        lengths = self.progress.pace.lengths
        share = self.progress.rate * lr_factor(self.recipe, step, self.plan.steps, self.plan.per_epoch, lengths)
        if not overflow:
            self.optimiser.step(share)
            if self.average is not None:
                self.average.update(self.model, step)
        self.optimiser.zero()
        if scale is not None:
            self.progress.scale, self.progress.scale_steps = scale.after(overflow=overflow)
        self.progress.step += 1
        self.progress.loss += loss * count
        self.progress.images += count
        if scale is not None and self.progress.scale != scale.factor:
            self.metrics.add(event="loss scale", step=self.progress.step, scale=self.progress.scale)
        if self.progress.step % self.every == 0:
            self.metrics.add(event="step", step=self.progress.step, loss=loss, lr=self.recipe.lr * share)
        self.job.callbacks.step(self.progress.step, self.end, loss)

    def begin_pace(self, speed: Speed | None = None) -> None:
        """From here on time counts, for the first of the processes."""
        if self.processes.is_first:
            self.pacer.begin(self.progress.pace, speed)

    def keep_pace(self) -> None:
        """After a step, where minutes were given: the end may move, and the schedule with it."""
        pace, step = self.progress.pace, self.progress.step
        before, end = self.end, self.pacer.move(pace, step, self.progress.rollbacks)
        if self.plan.minutes is not None:
            end = self.processes.broadcast(end)
        if end == before:
            return
        pace.lengths.append([step, end])
        self.metrics.add(event="length", step=step, steps=end)
        now = f"a step takes {1000 * pace.step_seconds:.3g} ms now: " if pace.step_seconds else ""
        self.job.callbacks.log(f"step {step}: {now}{counted(end, 'step')} fit the time, not {before}")

    def gradients(self, batch: Batch, step: int, scale: float) -> tuple[float, float]:
        """Into the network, clipped; in more pieces from here on where memory ends. The loss, and their norm before."""
        seed = key(self.plan.seed, "step", step)
        while True:
            before = saved_statistics(self.model)
            way = BatchPass(self.forward, self.progress.pieces, scale)
            if self.sharding is not None:
                loss, norm, self.wishes = self.part_gradients(batch, step, way)
                seed_device(self.device, seed)
                return loss, norm
            if is_shared(self.job):
                loss, norm, self.wishes = share_gradients(
                    self.model, batch, self.job, self.weights, step, way, self.wish
                )
                pieces = self.wishes.pieces
                seed_device(self.device, seed)  # generators stand alike in every state
            else:
                loss, norm, pieces = fitting_gradients(self.model, batch, self.plan, self.weights, seed, way)
            if pieces <= way.pieces:
                return loss, norm
            restore(before)  # once more, by all alike: the state that knows the pieces is the one before this step
            self.optimiser.zero()
            self.take_more_pieces(pieces)

    def part_gradients(self, batch: Batch, step: int, way: BatchPass) -> SharedGradients:
        """The sum over all processes, of which each has its part of the network's."""
        assert self.sharding is not None
        count = min(self.recipe.batch, len(self.job.train.targets))

        def learn(pieces: int) -> float:
            seed_device(self.device, key(self.plan.seed, f"step of worker {self.processes.rank}", step))
            split = way._replace(pieces=pieces)
            return backward(self.model, batch, self.plan, self.weights, split, count)

        shared = self.sharding.gradients(batch, count, way.pieces, learn, lambda: self.wish(way.pieces))
        return shared._replace(norm=clipped(self.model, self.recipe, way.scale, self.processes))

    def wish(self, pieces: int) -> Wishes:
        """What this process wants done after the step, and in how many pieces its part of the batch would fit."""
        return Wishes(self.stop.number, self.processes.is_first and self.is_time(), pieces)

    def take_more_pieces(self, pieces: int) -> None:
        """From now on, and in a run that goes on from here: told once, and written down before the step counts."""
        self.progress.pieces = pieces
        self.metrics.add(event="pieces", step=self.progress.step, pieces=pieces)
        self.job.callbacks.log(pieces_note(self.model, self.recipe.batch, pieces))
        self.save()

    def batch_rows(self, start: int) -> Iterator[BatchRows]:
        """The rows of every batch from a step on: a function of the plan alone."""
        count, size = len(self.job.train.targets), self.recipe.batch
        for epoch in itertools.count(start // self.plan.per_epoch):
            first = epoch * self.plan.per_epoch
            if self.recipe.balance == "sampling":
                rows = balanced_order(self.job.train.targets, self.plan.seed, epoch, count)
            else:
                rows = epoch_order(self.plan.seed, epoch, count)
            seen_before = repeats(rows)
            for number in range(max(start - first, 0), self.plan.per_epoch):
                if first + number >= self.end:
                    return
                part = slice(number * size, (number + 1) * size)
                yield own_rows(self.job, BatchRows(epoch, first + number, rows[part], seen_before[part]))

    def end_epoch(self) -> None:
        """Validate, keep the best, and see whether it is enough."""
        epoch = math.ceil(self.progress.step / self.plan.per_epoch)
        row: dict[str, Any] = {"event": "epoch", "epoch": epoch, "step": self.progress.step}
        row["loss"] = self.progress.loss / self.progress.images
        if self.job.val is not None:
            with self.judged() as model:
                scores = validate(model, self.job.val, self.plan, self.processes, is_sharded=self.job.is_sharded)
            if not math.isfinite(scores.loss):
                raise _DivergedError(f"after step {self.progress.step} the loss on validation is {scores.loss}")
            row |= {"val_loss": scores.loss, "val_score": scores.score}
            best = self.progress.best
            better = best is None or (scores.score, -scores.loss) > (best[0], -best[1])
            row["best"] = better
            self.progress.waited = 0 if better else self.progress.waited + 1
            if better:
                self.progress.best, self.progress.best_epoch = [scores.score, scores.loss], epoch
                self.write("best", {"val_score": scores.score, "val_loss": scores.loss, "epoch": epoch})
            self.progress.finished = 0 < self.recipe.patience <= self.progress.waited
        self.progress.loss, self.progress.images = 0.0, 0
        self.progress.epoch_end = epoch % self.anchor_epochs == 0
        self.metrics.add(**row)
        seconds = self.seconds
        self.times.add(
            epoch=epoch, data_seconds=round(seconds["data"], 4), compute_seconds=round(seconds["compute"], 4)
        )
        self.seconds = {"data": 0.0, "compute": 0.0}
        self.job.callbacks.epoch(row | {"seconds": seconds})

    def judged(self) -> AbstractContextManager[ViT]:
        """Inside, the network as it would be used now: the average of the weights, where one is kept."""
        return nullcontext(self.model) if self.average is None else self.average.applied_to(self.model)

    def write(self, name: str, metrics: dict[str, float]) -> None:
        """The network as a checkpoint of its own."""
        if self.sharding is None and not self.processes.is_first:
            return
        plan, path = self.plan, self.job.folder / f"{name}.safetensors"
        about = Provenance(source=plan.data, run=self.job.folder.name, metrics=metrics, notes=plan.origin)
        with self.judged() as model, eval_mode(model):
            checkpoint = Checkpoint(model, plan.preprocess, plan.classes, about, task=plan.task)
            saving.reached(f"before-{name}")
            if self.sharding is None:
                save(checkpoint, path)
            else:
                self.sharding.save(checkpoint, path)
            saving.reached(f"after-{name}")

    # ---- states ------------------------------------------------------------------------------------------------

    def is_time(self) -> bool:
        """States are written often at first, then less and less, and never for more than their share of the time."""
        since = time.monotonic() - self.saved
        return since >= max(min(self.interval, self.job.save_seconds), self.pause / self.job.save_share)

    def save(self) -> None:
        """Everything that the rest of the run depends on; what holds NaN is never written over what is good."""
        started = time.monotonic()
        infinite = [name for name, value in self.tensors().items() if not all_finite(self.processes.own_values(value))]
        if self.sharding is not None:
            infinite = [name for names in self.processes.collect(infinite[:1]) for name in names]
        for name in infinite:
            raise _DivergedError(
                f"after step {self.progress.step} the {name.replace('.', ' ', 1)} is no longer a number"
            )
        if self.progress.finished:
            self.write("last", {} if self.progress.best is None else {"best_val_score": self.progress.best[0]})
        self.metrics.sync()
        self.progress.log = self.metrics.size
        self.write_state()
        self.saved, self.interval = time.monotonic(), self.interval * 2
        self.pause = self.saved - started

    def tensors(self) -> dict[str, Tensor]:
        """Everything that steps have changed: of the network, the optimiser and the average."""
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        tensors |= {f"optimiser.{name}": value for name, value in self.optimiser.state_tensors().items()}
        if self.average is not None:
            tensors |= {f"average.{name}": value for name, value in self.average.tensors().items()}
        return tensors

    def write_state(self) -> None:
        """The state as it stands now."""
        if self.sharding is None and not self.processes.is_first:
            return
        tensors = self.tensors() | {"random.torch": torch.get_rng_state()}
        facts = asdict(self.progress) | {"random": random_states()}
        if self.sharding is None:
            write_state(self.states, State(tensors, facts))
        else:
            self.sharding.write_state(self.states, State(tensors, facts))

    def first_state(self, find: FindState) -> State | None:
        """What the first process finds and reads, for all; of a sharded network, to each its part."""
        if self.sharding is not None:
            return self.sharding.read_state(self.states, find)
        state = None
        if self.processes.is_first:
            state = find(self.states, self.job.callbacks.log, lambda path: read_any_state(path, self.job.identity))
        facts = self.processes.broadcast(None if state is None else dict(state.facts))
        if facts is None:
            return None
        return State(self.processes.broadcast_tensors({} if state is None else state.tensors), facts)

    def stand(self, state: State) -> None:
        """Everything but the log as it was."""
        facts = dict(state.facts)
        parts: dict[str, dict[str, Tensor]] = {"model": {}, "optimiser": {}, "average": {}, "random": {}}
        for name, value in state.tensors.items():
            part, _, rest = name.partition(".")
            parts[part][rest] = value
        self.model.load_state_dict(parts["model"])
        self.optimiser.load_state_tensors(parts["optimiser"])
        if self.average is not None:
            self.average.load(parts["average"])
        set_random_states(facts.pop("random"))
        torch.set_rng_state(parts["random"]["torch"])
        pace = TrainingPace(**facts.pop("pace", {}))
        self.progress = Progress(**facts, pace=pace)
        self.progress.pieces = self.progress.pieces or self.recipe.pieces

    def settle_log(self) -> None:
        """The log as the state knows it: rows after it come again. Doing it twice changes nothing."""
        self.metrics.cut(self.progress.log)
        for row in self.progress.pending:
            self.metrics.add(**row)
        self.progress.pending = []

    def roll_back(self, why: str) -> None:
        """Back to the end of an earlier epoch, with half the learning rate; the best so far stays the best."""
        if self.progress.rollbacks >= MOST_ROLLBACKS:
            raise InputError(f"{why}; {MOST_ROLLBACKS} times it went back and on with half the rate: lower --lr")
        state = self.first_state(find_epoch)
        if state is None:
            raise InputError(f"{why}, and there is no earlier state to go back to: lower --lr")
        before = self.progress
        self.stand(state)
        self.optimiser.zero()
        rate = before.rate / 2
        self.progress = replace(
            self.progress,
            rollbacks=before.rollbacks + 1,
            rate=rate,
            pieces=before.pieces,
            best=before.best,
            best_epoch=before.best_epoch,
            epoch_end=True,
            pace=self.pacer.rolled_back(before.pace, self.progress.pace),
            pending=[
                *self.progress.pending,
                {"event": "rollback", "step": self.progress.step, "rate": rate, "why": why},
            ],
        )
        self.write_state()  # the log is touched when the state is safe, and those that know a longer log are gone
        if self.processes.is_first:
            forget_later(self.states, self.progress.rollbacks, self.progress.step)
        self.settle_log()
        self.job.callbacks.log(
            f"{why}: back to step {self.progress.step}, and on with {self.progress.rate:g} of the learning rate"
        )
