"""Recipe: everything a training does but the network and the data, in one frozen, validated description."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Annotated, Any, Final

from vitrail.checks import check_fields, check_int
from vitrail.data.augmentation import Augment
from vitrail.errors import ConfigError, InputError
from vitrail.settings import Count, Flag, Number, Share, between, one_of, settle

OPTIMISERS: Final = ("adamw", "adam", "muon", "sgd")
SCHEDULES: Final = ("cosine", "linear", "constant", "restarts", "step")
BALANCES: Final = ("none", "weights", "sampling")
PRECISIONS: Final = ("fp32", "tf32", "bf16", "fp16")
OBJECTIVES: Final = ("classify", "masked-patch")
TRAINABLE: Final = ("classify",)  # the others are described by recipes, and cannot be trained yet

Rate = Annotated[float, between(0.0, 1e3)]
Amount = Annotated[float, between(0.0, 1e9)]
Period = Annotated[float, between(1e-3, 1e6)]  # in epochs
Fraction = Annotated[float, between(0.0, 1.0)]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a network is trained; vary one with `dataclasses.replace`."""

    objective: Annotated[str, one_of(*OBJECTIVES)] = "classify"  # what is learned
    # length
    epochs: Annotated[float, between(0.0, 1e6)] = 30.0  # 0: nothing is learned; a checkpoint gets its linear probe
    batch: Count = 64  # images a step
    pieces: Count = 1  # passes in which a batch goes through the network; the step is the same, the memory less
    patience: Number = 0  # epochs without a better validation score before it stops; 0: never
    # step
    optimiser: Annotated[str, one_of(*OPTIMISERS)] = "adamw"  # muon: matrices of the blocks by Muon, all else by AdamW
    lr: Rate = 1e-3
    weight_decay: Rate = 0.05  # of matrices; vectors (biases, norms) and tokens have none
    momentum: Share = 0.9  # of sgd
    beta2: Share = 0.999  # of adam and adamw
    clip: Amount = 1.0  # largest norm of the gradient; 0: no limit
    ema: Share = 0.0  # share of the old average kept at each step; 0: no average
    # learning rate, set at every step; restarts: cosine again and again; step: a factor every so many epochs
    schedule: Annotated[str, one_of(*SCHEDULES)] = "cosine"
    warmup: Amount = 0.05  # under 1: a share of all steps; else a number of steps
    final: Fraction = 0.0  # learning rate at the end, as a share of lr
    restart_epochs: Period = 10.0  # length of the first period of restarts
    restart_factor: Annotated[int, partial(check_int, most=1024)] = 2  # how much longer each next one is
    step_epochs: Period = 1.0  # of the schedule "step": epochs between two cuts of the rate
    step_factor: Fraction = 0.7  # what each cut leaves of it
    layer_decay: Fraction = 1.0  # learning rate of each block, as a share of the block's after it
    head_lr: Annotated[float, between(0.0, 1e4)] = 1.0  # learning rate of the head, as a multiple of lr
    # loss
    smoothing: Share = 0.0  # of labels
    balance: Annotated[str, one_of(*BALANCES)] = "none"  # rare classes: weights in the loss, or drawn more often
    # images
    augment: Augment = field(default_factory=Augment)
    # network
    tune: Annotated[str, one_of("all", "head")] = "all"  # or the head alone
    head_start: Annotated[str, one_of("probe", "zeros")] = "probe"  # of a checkpoint's head; zeros as in the paper
    dropout: Share | None = None  # None: as the network says
    drop_path: Share | None = None
    precision: Annotated[str, one_of(*PRECISIONS)] = "fp32"  # of products; weights are fp32 in all of them
    compile: Flag = False  # the forward pass by torch.compile
    checkpointing: Flag = False  # recompute blocks in the backward pass: less memory, more time

    def __post_init__(self) -> None:
        settle(self)
        if self.pieces > self.batch:
            raise ConfigError(f"pieces: a batch of {self.batch} cannot pass in {self.pieces} pieces")
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
