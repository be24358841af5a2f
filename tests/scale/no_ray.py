"""A stand-in for Ray: what a large job asks of it, done in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np


class NoRay:
    """As much of Ray as is asked of it, in this process."""

    class exceptions:  # noqa: N801
        class RayError(Exception):
            pass

    def __init__(self, cpus: tuple[float, ...] = (2,), gpus: tuple[float, ...] = ()) -> None:
        self.cpus, self.gpus, self.asked = cpus, gpus, {}
        context = SimpleNamespace(copy=SimpleNamespace)
        current = SimpleNamespace(get_current=lambda: context, current=nullcontext)
        pool = SimpleNamespace(ActorPoolStrategy=lambda size: size)
        self.data = SimpleNamespace(DataContext=current, from_items=self.from_items, **vars(pool))

    def nodes(self) -> list[dict[str, Any]]:
        gpus = self.gpus or (0,) * len(self.cpus)
        pairs = zip(self.cpus, gpus, strict=True)
        alive = [{"Alive": True, "Resources": {"CPU": cpu} | ({"GPU": gpu} if gpu else {})} for cpu, gpu in pairs]
        return [*alive, {"Alive": False}]

    def from_items(self, items: list[dict[str, int]], override_num_blocks: int) -> Any:
        assert override_num_blocks == len(items)  # a shard is a piece of work of its own
        self.items = items
        return self

    def map_batches(self, worker: Any, *, fn_constructor_args: tuple[Any, ...], **options: Any) -> Any:
        self.worker, self.asked = worker(*fn_constructor_args), options
        return self

    def iter_rows(self) -> Iterator[dict[str, str]]:
        for item in reversed(self.items):
            for said in self.worker({"shard": np.array([item["shard"]])})["said"]:
                yield {"said": str(said)}
