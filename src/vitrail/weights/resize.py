"""with_size: the same network made for another image size, its table of positions resampled once and for all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vitrail.checkpoint import Checkpoint
from vitrail.checks import check_pair, check_type
from vitrail.errors import CheckpointError, InputError
from vitrail.images import Preprocess
from vitrail.network.surgery import rebuild


def with_size(checkpoint: Checkpoint, image_size: Any) -> Checkpoint:
    """A checkpoint whose native size is another; its own answers at that size are the same as before."""
    check_type("checkpoint", checkpoint, Checkpoint, error=InputError)
    size = check_pair("image_size", image_size)
    old = checkpoint.model.config
    preprocess = Preprocess.from_dict(checkpoint.preprocess.to_dict() | {"size": size})
    if size == old.image_size:
        return checkpoint.with_preprocess(preprocess)
    if old.positions.kind not in ("learned", "none") and not old.positions.kind.startswith("sincos"):
        kind = old.positions.kind
        raise CheckpointError(f"positions {kind!r} cannot be made for another size: keep {old.image_size}")
    config = replace(old, image_size=size)
    state = checkpoint.model.state_dict()
    for number, table in enumerate(checkpoint.model.tokens.tables):
        state[f"tokens.tables.{number}.table"] = table(config.grid).detach().contiguous()
    model = rebuild(checkpoint.model, config, state)
    return replace(checkpoint, model=model, preprocess=preprocess, ood=None)  # images of another size lie elsewhere
