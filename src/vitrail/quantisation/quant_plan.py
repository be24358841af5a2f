"""QuantPlan: which layers of a network are int8, each with the range of what it receives, and what all else is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from vitrail.checks import check_choice
from vitrail.errors import ConfigError
from vitrail.network.vit import ViT

PRECISIONS: Final = ("fp32", "bf16")
PARTS: Final = ("attention.qkv", "attention.out", "mlp.up", "mlp.down")  # of a block, in the order tokens meet them


class Range(NamedTuple):
    """The least and the largest value that a layer receives."""

    low: float
    high: float


@dataclass(frozen=True)
class QuantPlan:
    """The precision of every layer: int8 where a range is named, and one other for the rest. For any runtime."""

    precision: str = "fp32"  # of the rest
    int8: Mapping[str, Range] = field(default_factory=dict)  # by the layer's name in the network

    def __post_init__(self) -> None:
        check_choice("precision", self.precision, PRECISIONS)
        ranges = {}
        for name, (low, high) in self.int8.items():
            if not (np.isfinite(low) and np.isfinite(high) and low < high):
                raise ConfigError(f"int8: the range of {name} must rise from low to high, got {low} to {high}")
            ranges[str(name)] = Range(float(low), float(high))
        object.__setattr__(self, "int8", ranges)

    @property
    def name(self) -> str:
        """The precision that most of the work is done in."""
        return "int8" if self.int8 else self.precision

    def without(self, names: set[str]) -> QuantPlan:
        """The same with some layers left in the precision of the rest."""
        return QuantPlan(self.precision, {name: ends for name, ends in self.int8.items() if name not in names})

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"precision": self.precision, "int8": {name: list(ends) for name, ends in self.int8.items()}}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> QuantPlan:
        return cls(plain["precision"], {name: Range(*ends) for name, ends in plain["int8"].items()})


def quantisable(model: ViT) -> list[str]:
    """The layers that can be int8, in the order that tokens meet them."""
    return [f"encoder.blocks.{block}.{part}" for block in range(model.config.depth) for part in PARTS]
