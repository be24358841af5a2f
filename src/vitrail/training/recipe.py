"""Recipe: everything a training does but the network and the data, in one frozen, validated description."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from vitrail.checks import check_bools, check_choice, check_fields, check_int, check_number, check_type
from vitrail.data.augmentation import Augment
from vitrail.errors import ConfigError, InputError

OPTIMISERS: Final = ("adamw", "adam", "muon", "sgd")
SCHEDULES: Final = ("cosine", "linear", "constant", "restarts", "step")
BALANCES: Final = ("none", "weights", "sampling")
PRECISIONS: Final = ("fp32", "bf16")
TUNES: Final = ("all", "head")
HEAD_STARTS: Final = ("probe", "zeros")
OBJECTIVES: Final = ("classify", "masked-patch")
TRAINABLE: Final = ("classify",)  # the others are described by recipes, and cannot be trained yet


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a network is trained; vary one with `dataclasses.replace`."""

    objective: str = "classify"  # what is learned
    # length
    epochs: float = 30.0  # 0: nothing is learned; with a checkpoint to start from, its head is the linear probe's
    batch: int = 64  # images a step
    pieces: int = 1  # passes in which a batch goes through the network; the step is the same, the memory less
    patience: int = 0  # epochs without a better validation score before it stops; 0: never
    # step
    optimiser: str = "adamw"  # muon: matrices of the blocks by Muon, all else by AdamW
    lr: float = 1e-3
    weight_decay: float = 0.05  # of matrices; vectors (biases, norms) and tokens have none
    momentum: float = 0.9  # of sgd
    beta2: float = 0.999  # of adam and adamw
    clip: float = 1.0  # largest norm of the gradient; 0: no limit
    ema: float = 0.0  # share of the old average kept at each step; 0: no average
    # learning rate
    schedule: str = "cosine"  # per step; restarts: cosine again and again; step: a factor every so many epochs
    warmup: float = 0.05  # under 1: a share of all steps; else a number of steps
    final: float = 0.0  # learning rate at the end, as a share of lr
    restart_epochs: float = 10.0  # length of the first period of restarts
    restart_factor: int = 2  # how much longer each next one is
    step_epochs: float = 1.0  # of the schedule "step": epochs between two cuts of the rate
    step_factor: float = 0.7  # what each cut leaves of it
    layer_decay: float = 1.0  # learning rate of each block, as a share of the block's after it
    head_lr: float = 1.0  # learning rate of the head, as a multiple of lr
    # loss
    smoothing: float = 0.0  # of labels
    balance: str = "none"  # rare classes: weights in the loss, or drawn more often
    # images
    augment: Augment = field(default_factory=Augment)
    # network
    tune: str = "all"  # or the head alone
    head_start: str = "probe"  # with a checkpoint to start from: the linear probe, or zeros as in the paper
    dropout: float | None = None  # None: as the network says
    drop_path: float | None = None
    precision: str = "fp32"
    checkpointing: bool = False  # recompute blocks in the backward pass: less memory, more time

    def __post_init__(self) -> None:
        settle = object.__setattr__
        for name, (least, most) in _RANGES.items():
            settle(self, name, check_number(name, getattr(self, name), least, most))
        for name, (low, high) in _WHOLES.items():
            settle(self, name, check_int(name, getattr(self, name), low, high))
        for name in ("dropout", "drop_path"):
            if getattr(self, name) is not None:
                settle(self, name, check_number(name, getattr(self, name), 0.0, 1.0, below=True))
        for name, known in _CHOICES.items():
            check_choice(name, getattr(self, name), known)
        check_bools(self, "checkpointing")
        check_type("augment", self.augment, Augment)
        if self.pieces > self.batch:
            raise ConfigError(f"pieces: a batch of {self.batch} cannot pass in {self.pieces} pieces")
        if self.ema == 1.0 or self.momentum == 1.0 or self.beta2 == 1.0 or self.smoothing == 1.0:
            raise ConfigError("ema, momentum, beta2 and smoothing: expected under 1, or nothing is ever learned")
        if self.lr <= 0 or self.layer_decay <= 0 or self.step_factor <= 0:
            raise ConfigError("lr, layer_decay and step_factor: expected more than 0")
        if self.epochs == 0 and self.head_start == "zeros":
            raise ConfigError("epochs=0 with head_start='zeros' would leave a head of zeros: set head_start='probe'")

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `from_dict` gives the same recipe back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Recipe:
        """A recipe from plain values; unknown names are refused."""
        values = check_fields(cls, plain)
        if isinstance(values.get("augment"), Mapping):
            values["augment"] = Augment(**check_fields(Augment, values["augment"]))
        return cls(**values)


def check_objective(recipe: Recipe, name: str = "this recipe") -> None:
    """Refuse what cannot be trained, rather than train something else under its name."""
    if recipe.objective not in TRAINABLE:
        raise InputError(
            f"{name} learns by {recipe.objective}, which cannot be trained here yet: an ordinary classifier would "
            "come out of it under that name"
        )


_RANGES = {
    "epochs": (0.0, 1e6),
    "lr": (0.0, 1e3),
    "weight_decay": (0.0, 1e3),
    "momentum": (0.0, 1.0),
    "beta2": (0.0, 1.0),
    "clip": (0.0, 1e9),
    "ema": (0.0, 1.0),
    "warmup": (0.0, 1e9),
    "final": (0.0, 1.0),
    "restart_epochs": (1e-3, 1e6),
    "step_epochs": (1e-3, 1e6),
    "step_factor": (0.0, 1.0),
    "layer_decay": (0.0, 1.0),
    "head_lr": (0.0, 1e4),
    "smoothing": (0.0, 1.0),
}
_WHOLES = {"batch": (1, 1 << 20), "pieces": (1, 1 << 20), "patience": (0, 1 << 20), "restart_factor": (1, 1024)}
_CHOICES = {
    "objective": OBJECTIVES,
    "optimiser": OPTIMISERS,
    "schedule": SCHEDULES,
    "balance": BALANCES,
    "tune": TUNES,
    "head_start": HEAD_STARTS,
    "precision": PRECISIONS,
}
