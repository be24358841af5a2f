"""with_size: the same network made for another image size, its table of positions resampled once and for all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vitrail.checkpoint import Checkpoint
from vitrail.checks import instance, pair
from vitrail.errors import CheckpointError, InputError
from vitrail.images import Preprocess
from vitrail.network.vit import on_meta


def with_size(checkpoint: Checkpoint, image_size: Any) -> Checkpoint:
    """A checkpoint whose native size is another; its own answers at that size are the same as before."""
    instance("checkpoint", checkpoint, Checkpoint, error=InputError)
    size = pair("image_size", image_size)
    old = checkpoint.model.config
    preprocess = Preprocess.from_dict(checkpoint.preprocess.to_dict() | {"size": size})
    if size == old.image_size:
        return replace(checkpoint, preprocess=preprocess)
    if old.positions.kind not in ("learned", "none") and not old.positions.kind.startswith("sincos"):
        kind = old.positions.kind
        raise CheckpointError(f"positions {kind!r} cannot be made for another size: keep {old.image_size}")
    config = replace(old, image_size=size)
    state = checkpoint.model.state_dict()
    for number, table in enumerate(checkpoint.model.tokens.tables):
        state[f"tokens.tables.{number}.table"] = table(config.grid).detach().contiguous()
    model = on_meta(config)
    model.load_state_dict(state, assign=True)
    return replace(checkpoint, model=model.train(checkpoint.model.training), preprocess=preprocess)
