"""Plan: everything that a run's result depends on besides the images; two equal plans give the same bits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from vitrail.checks import short_repr
from vitrail.images import Preprocess
from vitrail.images.model_info import EARLIER_TASKS
from vitrail.network.config import ViTConfig
from vitrail.training.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is trained, how, and for how long."""

    data: str  # as the user named it
    classes: tuple[str, ...]
    task: str
    model: ViTConfig
    preprocess: Preprocess
    recipe: Recipe
    steps: int
    per_epoch: int  # steps of one epoch
    seed: int
    threads: int  # of torch: sums of another number of threads round differently
    origin: str = ""  # of the weights it starts from, with their hash; empty: from scratch
    minutes: float | None = None  # what `steps` was measured for
    versions: Mapping[str, str]
    device: str = "cpu"  # and its name: another rounds differently
    virtual_workers: int = 0  # whose gradients are added in a fixed order, for any number of processes; 0: none
    shard: bool = False  # each process holds a part of the network and of the optimiser, where there are several
    processes: int = 1  # that train it together; 1 where virtual workers make their number no matter

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `from_dict` gives the same plan back."""
        plain = {each.name: getattr(self, each.name) for each in fields(self)}
        for name in ("model", "preprocess", "recipe"):
            plain[name] = plain[name].to_dict()
        return plain | {"classes": list(self.classes), "versions": dict(self.versions)}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Plan:
        """The plan that `to_dict` wrote."""
        values = dict(plain)
        values["model"] = ViTConfig.from_dict(values["model"])
        values["preprocess"] = Preprocess.from_dict(values["preprocess"])
        values["recipe"] = Recipe.from_dict(values["recipe"])
        values["task"] = EARLIER_TASKS.get(values["task"], values["task"])
        return cls(**values | {"classes": tuple(values["classes"])})


def plan_differences(old: Mapping[str, Any], new: Mapping[str, Any], name: str = "") -> list[str]:
    """Where two plans, as plain values, differ: one line each, nested settings by their full names."""
    differences: list[str] = []
    for part in dict.fromkeys((*old, *new)):
        full = f"{name}.{part}" if name else str(part)
        before, after = old.get(part), new.get(part)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            differences += plan_differences(before, after, full)
        elif _plain(before) != _plain(after):
            differences.append(f"{full}: {short_repr(before)} before, {short_repr(after)} now")
    return differences


def _plain(value: Any) -> Any:
    """Lists and tuples are one in JSON."""
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
