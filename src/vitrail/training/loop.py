"""The loop: batches in, a trained network out; exact, whatever stops it and however often.

Every random choice is a function of the seed, the epoch and the row of an image, and the rest of what a step needs
lies in the state. So a run that was killed and went on ends with the same bits as one that never stopped.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vitrail.checkpoint import Checkpoint, Provenance, save
from vitrail.checkpoint.safetensors_io import all_finite
from vitrail.data.cache import Views, normalise
from vitrail.data.counter_rng import key
from vitrail.data.loader import Batch, Planned, balanced_order, batches, epoch_order, turns
from vitrail.errors import InputError, StoppedError
from vitrail.evaluation.metrics import mean_average_precision, top_k
from vitrail.network.surgery import eval_mode
from vitrail.network.vit import ViT
from vitrail.training import state as saving
from vitrail.training.optimisers import Optimiser, build
from vitrail.training.plain_attention import plain_kernels
from vitrail.training.plan import Plan
from vitrail.training.random_state import random_states, randomness, set_random_states
from vitrail.training.recipe import Recipe
from vitrail.training.record import Record
from vitrail.training.schedule import factor
from vitrail.training.signals import Stop
from vitrail.training.state import State, clean, forget_later, read_epoch, read_newest, write_state
from vitrail.training.weight_average import Average

Array = np.ndarray[Any, Any]

MOST_ROLLBACKS: Final = 5
ANCHOR_STEPS: Final = 200  # a state that a rollback can go to, at the first end of an epoch after so many steps
LOGGED_STEPS: Final = 200  # rows of steps in the log of a run, about


class Part(NamedTuple):
    """The images of a split, as the network sees them, and their classes: (n,), or (n, K) for several labels."""

    views: Views
    targets: Array


@dataclass
class Progress:
    """Where a run stands: all that is not a tensor. Plain values, since they go into the state as JSON."""

    step: int = 0
    rollbacks: int = 0
    epoch_end: bool = True  # whether a rollback may go here
    rate: float = 1.0  # what rollbacks have left of the learning rate
    loss: float = 0.0  # summed over the images of this epoch so far
    images: int = 0
    best: list[float] | None = None  # validation score and loss of the best epoch
    best_epoch: int = 0
    waited: int = 0  # epochs since then
    log: int = 0  # bytes of the log
    pending: list[dict[str, Any]] = field(default_factory=list)  # rows that come behind them, and may not be there yet
    finished: bool = False


@dataclass(frozen=True)
class Watch:
    """Who is told what while it trains; by default nobody."""

    tell: Callable[[str], None] = lambda text: None
    step: Callable[[int, int, float], None] = lambda step, steps, loss: None
    epoch: Callable[[dict[str, Any]], None] = lambda row: None


@dataclass(frozen=True)
class Job:
    """Everything a training works on."""

    plan: Plan
    model: ViT
    train: Part
    val: Part | None
    folder: Path
    threads: int = 1  # that prepare batches; the result does not depend on it
    save_seconds: float = 60.0  # the longest time between two states ...
    save_share: float = 0.02  # ... unless saving would take more than this share of the time
    watch: Watch = field(default_factory=Watch)


class _DivergedError(Exception):
    """The loss or the gradient is no longer a number."""


def fit(job: Job) -> Progress:
    """Train until the plan is fulfilled, from the newest state if there is one."""
    with randomness(job.plan.seed), plain_kernels(job.model):
        return _Loop(job).run()


class _Loop:
    """One training under way: the network, its optimiser and average, and where it stands."""

    def __init__(self, job: Job) -> None:
        self.job, self.plan, self.recipe = job, job.plan, job.plan.recipe
        self.model = job.model.train()
        self.model.encoder.checkpointing = self.recipe.checkpointing
        self.optimiser: Optimiser = build(self.model, self.recipe)
        self.average = Average(self.model, self.recipe.ema) if self.recipe.ema else None
        self.log = Record(job.folder / "metrics.jsonl")
        self.times = Record(job.folder / "times.jsonl")
        self.states = job.folder / "state"
        self.at = Progress()
        self.weights = class_weights(job.train.targets, self.plan) if self.recipe.balance == "weights" else None
        self.every = max(1, self.plan.steps // LOGGED_STEPS)
        self.anchor_epochs = math.ceil(ANCHOR_STEPS / self.plan.per_epoch)
        self.interval, self.saved, self.pause = 1.0, time.monotonic(), 0.0
        self.seconds = {"data": 0.0, "compute": 0.0}

    def run(self) -> Progress:
        with Stop() as stop, memory_named(self.recipe):
            self.start()
            while not self.at.finished:
                try:
                    self.steps(stop)
                except _DivergedError as error:
                    self.roll_back(str(error))
        return self.at

    def start(self) -> None:
        """From the newest state, or from the first step; where nothing is to be learned, the start is the result."""
        clean(self.states)
        state = read_newest(self.states, self.job.watch.tell)
        if state is not None:
            self.restore(state)
            self.job.watch.tell(f"going on from step {self.at.step} of {self.plan.steps}")
            return
        self.log.cut(0)
        self.at.finished = self.plan.steps == 0
        self.save()

    def steps(self, stop: Stop) -> None:
        """Step after step until the end; the one place where a network learns."""
        with closing(self.batches()) as feed:
            waiting = time.perf_counter()
            for batch in feed:
                working = time.perf_counter()
                self.learn(batch)
                done = time.perf_counter()
                self.seconds["data"] += working - waiting
                self.seconds["compute"] += done - working
                self.at.epoch_end = False
                if self.at.step % self.plan.per_epoch == 0 or self.at.step == self.plan.steps:
                    self.end_epoch()
                self.at.finished = self.at.finished or self.at.step == self.plan.steps
                if self.at.finished or self.at.epoch_end or stop.number or self.is_time():
                    self.save()
                if stop.number and not self.at.finished:
                    raise StoppedError(
                        f"stopped at step {self.at.step} of {self.plan.steps}; "
                        "everything is saved, and the same command goes on",
                        stop.number,
                    )
                if self.at.finished:
                    return
                waiting = time.perf_counter()

    def learn(self, batch: Batch) -> None:
        """One step: forward, backward, clip, update."""
        step = self.at.step
        # For dropout and drop path. torch.manual_seed would also note the call for every absent device, each time.
        torch.default_generator.manual_seed(key(self.plan.seed, "step", step))
        count = len(batch.rows)
        loss, norm = gradients(self.model, batch, self.plan, self.weights)
        if not math.isfinite(loss) or not math.isfinite(norm):
            raise _DivergedError(f"at step {step} the loss is {loss:.4g} and the gradient's norm {norm:.4g}")
        share = self.at.rate * factor(self.recipe, step, self.plan.steps, self.plan.per_epoch)
        self.optimiser.step(share)
        self.optimiser.zero()
        if self.average is not None:
            self.average.update(self.model, step)
        self.at.step += 1
        self.at.loss += loss * count
        self.at.images += count
        if self.at.step % self.every == 0:
            self.log.add(event="step", step=self.at.step, loss=loss, lr=self.recipe.lr * share)
        self.job.watch.step(self.at.step, self.plan.steps, loss)

    def batches(self) -> Generator[Batch, None, None]:
        """What is left of the run, from the step where it stands."""
        return batches(
            self.job.train.views,
            self.job.train.targets,
            self.planned(self.at.step),
            preprocess=self.plan.preprocess,
            how=self.recipe.augment,
            seed=self.plan.seed,
            classes=len(self.plan.classes),
            smoothing=self.recipe.smoothing,
            threads=self.job.threads,
        )

    def planned(self, start: int) -> Iterator[Planned]:
        """The rows of every batch from a step on: a function of the plan alone."""
        count, size = len(self.job.train.targets), self.recipe.batch
        for epoch in itertools.count(start // self.plan.per_epoch):
            first = epoch * self.plan.per_epoch
            if self.recipe.balance == "sampling":
                rows = balanced_order(self.job.train.targets, self.plan.seed, epoch, count)
            else:
                rows = epoch_order(self.plan.seed, epoch, count)
            again = turns(rows)
            for place in range(max(start - first, 0), self.plan.per_epoch):
                if first + place >= self.plan.steps:
                    return
                part = slice(place * size, (place + 1) * size)
                yield Planned(epoch, first + place, rows[part], again[part])

    def end_epoch(self) -> None:
        """Validate, keep the best, and see whether it is enough."""
        epoch = math.ceil(self.at.step / self.plan.per_epoch)
        row: dict[str, Any] = {"event": "epoch", "epoch": epoch, "step": self.at.step}
        row["loss"] = self.at.loss / self.at.images
        if self.job.val is not None:
            scores = validate(self.current(), self.job.val, self.plan)
            if not math.isfinite(scores.loss):
                raise _DivergedError(f"after step {self.at.step} the loss on validation is {scores.loss}")
            row |= {"val_loss": scores.loss, "val_score": scores.score}
            better = self.at.best is None or (scores.score, -scores.loss) > (self.at.best[0], -self.at.best[1])
            row["best"] = better
            self.at.waited = 0 if better else self.at.waited + 1
            if better:
                self.at.best, self.at.best_epoch = [scores.score, scores.loss], epoch
                self.write("best", {"val_score": scores.score, "val_loss": scores.loss, "epoch": epoch})
            self.at.finished = 0 < self.recipe.patience <= self.at.waited
        self.at.loss, self.at.images = 0.0, 0
        self.at.epoch_end = epoch % self.anchor_epochs == 0
        self.log.add(**row)
        seconds = self.seconds
        self.times.add(
            epoch=epoch, data_seconds=round(seconds["data"], 4), compute_seconds=round(seconds["compute"], 4)
        )
        self.seconds = {"data": 0.0, "compute": 0.0}
        self.job.watch.epoch(row | {"seconds": seconds})

    def current(self) -> ViT:
        """The network as it would be used now: the average of the weights, where one is kept."""
        return self.model if self.average is None else self.average.model()

    def write(self, name: str, metrics: dict[str, float]) -> None:
        """The network as a checkpoint of its own."""
        plan = self.plan
        about = Provenance(source=plan.data, run=self.job.folder.name, metrics=metrics, notes=plan.origin)
        model = self.current()
        with eval_mode(model):
            made = Checkpoint(model, plan.preprocess, plan.classes, about, task=plan.task)
            saving.reached(f"before-{name}")
            save(made, self.job.folder / f"{name}.safetensors")
            saving.reached(f"after-{name}")

    # ---- states ------------------------------------------------------------------------------------------------

    def is_time(self) -> bool:
        """States are written often at first, then less and less, and never for more than their share of the time."""
        since = time.monotonic() - self.saved
        return since >= max(min(self.interval, self.job.save_seconds), self.pause / self.job.save_share)

    def save(self) -> None:
        """Everything that the rest of the run depends on; what holds NaN is never written over what is good."""
        started = time.monotonic()
        for name, value in self.tensors().items():
            if not all_finite(value):
                raise _DivergedError(f"after step {self.at.step} the {name.replace('.', ' ', 1)} is no longer a number")
        if self.at.finished:
            self.write("last", {} if self.at.best is None else {"best_val_score": self.at.best[0]})
        self.log.sync()
        self.at.log = self.log.size
        self.write_state()
        self.saved, self.interval = time.monotonic(), self.interval * 2
        self.pause = self.saved - started

    def tensors(self) -> dict[str, Tensor]:
        """Everything that steps have changed: of the network, the optimiser and the average."""
        found = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        found |= {f"optimiser.{name}": value for name, value in self.optimiser.state_tensors().items()}
        if self.average is not None:
            found |= {f"average.{name}": value for name, value in self.average.tensors().items()}
        return found

    def write_state(self) -> None:
        """The state as it stands now."""
        tensors = self.tensors() | {"random.torch": torch.get_rng_state()}
        facts = asdict(self.at) | {"random": random_states()}
        write_state(self.states, State(tensors, facts))

    def restore(self, state: State) -> None:
        """Stand where the state stood; the rows logged since then come again."""
        self.stand(state)
        self.settle_log()

    def stand(self, state: State) -> None:
        """Everything but the log as it was."""
        facts = dict(state.facts)
        self.restore_tensors(state)
        set_random_states(facts.pop("random"))
        torch.set_rng_state(state.tensors["random.torch"])
        self.at = Progress(**facts)

    def settle_log(self) -> None:
        """The log as the state knows it; doing it twice changes nothing."""
        self.log.cut(self.at.log)
        for row in self.at.pending:
            self.log.add(**row)
        self.at.pending = []

    def restore_tensors(self, state: State) -> None:
        parts: dict[str, dict[str, Tensor]] = {"model": {}, "optimiser": {}, "average": {}, "random": {}}
        for name, value in state.tensors.items():
            part, _, rest = name.partition(".")
            parts[part][rest] = value
        self.model.load_state_dict(parts["model"])
        self.optimiser.load_state_tensors(parts["optimiser"])
        if self.average is not None:
            self.average.load(parts["average"])

    def roll_back(self, why: str) -> None:
        """Back to the end of an earlier epoch, with half the learning rate; the best so far stays the best."""
        if self.at.rollbacks >= MOST_ROLLBACKS:
            raise InputError(f"{why}; {MOST_ROLLBACKS} times it went back and on with half the rate: lower --lr")
        state = read_epoch(self.states, self.job.watch.tell)
        if state is None:
            raise InputError(f"{why}, and there is no earlier state to go back to: lower --lr")
        before = self.at
        self.stand(state)
        self.optimiser.zero()
        rate = before.rate / 2
        self.at = replace(
            self.at,
            rollbacks=before.rollbacks + 1,
            rate=rate,
            best=before.best,
            best_epoch=before.best_epoch,
            epoch_end=True,
            pending=[*self.at.pending, {"event": "rollback", "step": self.at.step, "rate": rate, "why": why}],
        )
        self.write_state()  # the log is touched when the state is safe, and those that know a longer log are gone
        forget_later(self.states, self.at.rollbacks, self.at.step)
        self.settle_log()
        self.job.watch.tell(f"{why}: back to step {self.at.step}, and on with {self.at.rate:g} of the learning rate")


def gradients(model: ViT, batch: Batch, plan: Plan, weights: Tensor | None) -> tuple[float, float]:
    """Forward and backward, piece by piece, and the gradients clipped; the mean loss, and their norm before."""
    recipe, count = plan.recipe, len(batch.rows)
    pieces = min(recipe.pieces, count)
    total = 0.0
    for pixels, targets in zip(batch.pixels.tensor_split(pieces), batch.targets.tensor_split(pieces), strict=True):
        with torch.autocast("cpu", torch.bfloat16) if recipe.precision == "bf16" else nullcontext():
            logits = model(pixels)
        loss = loss_of(logits.float(), targets, plan.task, weights)
        (loss * (len(pixels) / count)).backward()
        total += float(loss.detach()) * len(pixels)
    trained = [each for each in model.parameters() if each.grad is not None]
    return total / count, float(torch.nn.utils.clip_grad_norm_(trained, recipe.clip or math.inf))


@contextmanager
def memory_named(recipe: Recipe) -> Iterator[None]:
    """Running out of memory as an error that says what to do."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise InputError(
            f"not enough memory for a step of {recipe.batch} images in {recipe.pieces} pieces; "
            "what is saved stays: take more pieces or checkpointing, or a smaller --batch or --size"
        ) from error


def is_out_of_memory(error: BaseException) -> bool:
    """torch has no kind of its own for this on the CPU."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "t allocate memory" in str(error)


class Scores(NamedTuple):
    """How good a network is on the validation images."""

    score: float  # share of right answers; for several labels mean average precision
    loss: float


def validate(model: ViT, part: Part, plan: Plan, batch: int = 128) -> Scores:
    """Score and loss, by the very pixels that predict would see."""
    logits = logits_of(model, part, plan, batch)
    if plan.task == "multi-label":
        targets = torch.from_numpy(part.targets)
        loss = float(F.binary_cross_entropy_with_logits(torch.from_numpy(logits), targets))
        return Scores(mean_average_precision(logits, part.targets), loss)
    loss = float(F.cross_entropy(torch.from_numpy(logits), torch.from_numpy(part.targets)))
    return Scores(top_k(logits, part.targets, 1), loss)


def logits_of(model: ViT, part: Part, plan: Plan, batch: int = 128) -> Array:
    """Logits (n, K) of every image, in order."""
    rows = np.arange(len(part.targets))
    with eval_mode(model), torch.inference_mode():
        found = [
            model(normalise(part.views.get(rows[start : start + batch]), plan.preprocess)).float()
            for start in range(0, len(rows), batch)
        ]
    return torch.cat(found).numpy()


def loss_of(logits: Tensor, targets: Tensor, task: str, weights: Tensor | None) -> Tensor:
    """Cross entropy to shares of classes (B, K); for several labels each by itself."""
    if task == "multi-label":
        return F.binary_cross_entropy_with_logits(logits, targets, pos_weight=weights)
    return F.cross_entropy(logits, targets, weight=weights)


def class_weights(targets: Array, plan: Plan) -> Tensor:
    """So that each class counts alike: n / (K * its images); for several labels absent / present, 1/20 to 20."""
    if plan.task == "multi-label":
        present = targets.sum(axis=0)
        return torch.from_numpy(np.clip((len(targets) - present) / np.maximum(present, 1), 0.05, 20).astype(np.float32))
    counts = np.bincount(targets, minlength=len(plan.classes))
    return torch.from_numpy((len(targets) / (len(counts) * np.maximum(counts, 1))).astype(np.float32))
