"""Job: a plan with the images, the network and the folder it is carried out with; and where it stands, Progress."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from vitrail.data.cache import Views
from vitrail.network.vit import ViT
from vitrail.training.mixed_precision import FIRST_SCALE
from vitrail.training.pace import Speed, TrainingPace
from vitrail.training.plan import Plan
from vitrail.training.processes import ALONE, Processes
from vitrail.types import Array


class Part(NamedTuple):
    """The images of a split, as the network sees them, and their classes: (n,), or (n, K) for several labels."""

    views: Views
    targets: Array


@dataclass(frozen=True)
class Callbacks:
    """Who hears what while it trains; by default nobody."""

    log: Callable[[str], None] = lambda text: None
    step: Callable[[int, int, float], None] = lambda step, steps, loss: None
    epoch: Callable[[dict[str, Any]], None] = lambda row: None
    images: Callable[[int, int], None] = lambda done, total: None  # read before the first step


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
    callbacks: Callbacks = field(default_factory=Callbacks)
    processes: Processes = ALONE  # that train it together
    speed: Speed | None = None  # as it was measured for the minutes of a new run
    fixed: bool = False  # whether the steps of the plan stay, with the moves of the end that the folder has a record of
    run_id: str = ""  # of the run alone: a state of another is none of its own

    @property
    def is_sharded(self) -> bool:
        """Whether each process holds a part of the network; one alone holds all of it."""
        return self.plan.shard and self.processes.world > 1

    @property
    def identity(self) -> str:
        """By which a state is known as one of this run: of its number and its plan."""
        return hashlib.sha256(json.dumps([self.run_id, self.plan.to_dict()]).encode()).hexdigest()


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
    pieces: int = 0  # in which a batch goes through: more than the recipe's where memory asked for it; 0: the recipe's
    scale: float = FIRST_SCALE  # of the loss in fp16 …
    scale_steps: int = 0  # … and good steps since it last changed
    pace: TrainingPace = field(default_factory=TrainingPace)  # where minutes were given
