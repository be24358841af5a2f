"""A network changed from outside: other heads, merging, sizes, channels, all through one `rebuild`; eval mode."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from vitrail.checks import check_type
from vitrail.errors import InputError
from vitrail.network.config import Resample, ViTConfig
from vitrail.network.positions import resample
from vitrail.network.vit import ViT


def build_empty(config: ViTConfig) -> ViT:
    """The network without its memory: shapes only, at once, however large."""
    with torch.device("meta"):
        return ViT(config)


def rebuild(model: ViT, config: ViTConfig, state: Mapping[str, Tensor] | None = None) -> ViT:
    """A network of another config with these tensors, the model's own by default; otherwise as the model is.

    The tensors are shared, not copied, and those that the config has no use for are left out.
    """
    tensors = model.state_dict() if state is None else state
    rebuilt = build_empty(config)
    rebuilt.load_state_dict({name: tensors[name] for name in rebuilt.state_dict() if name in tensors}, assign=True)
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    for name, parameter in rebuilt.named_parameters():  # what was frozen stays frozen
        parameter.requires_grad_(name not in frozen)
    modes = {name: module.training for name, module in model.named_modules()}
    for name, module in rebuilt.named_modules():  # a part that is new takes the mode of the whole
        module.training = modes.get(name, model.training)
    encoder = rebuilt.encoder
    encoder.mlp_chunk, encoder.checkpointing = model.encoder.mlp_chunk, model.encoder.checkpointing
    return rebuilt


def with_head(model: ViT, classes: int, keep_representation: bool = False) -> ViT:
    """The same network, copied, with a fresh head for other classes: from pre-training to fine-tuning.

    The representation layer goes with the old head, unless it is to be kept and only the last layer reset.
    """
    kept = model.config.representation_width if keep_representation else 0
    config = replace(model.config, classes=classes, representation_width=kept)
    fresh = ("head.classify.", "head.distil.") if keep_representation else ("head.",)
    start = ViT(config).to(next(model.parameters()))
    own = {name: value.clone() for name, value in model.state_dict().items() if not name.startswith(fresh)}
    rebuilt = rebuild(model, config, start.state_dict() | own)
    for name, parameter in rebuilt.named_parameters():
        if name.startswith(fresh):
            parameter.requires_grad_(True)
    return rebuilt


def with_merging(model: ViT, per_block: int, first: int = 0, by: str = "tokens", every: int = 1) -> ViT:
    """The same network, its weights shared, that merges so many tokens in every (second, …) block from `first` on.

    Merging learns nothing, so any network can do it that does not need the whole grid at every block; the config
    refuses the others. Those are joined that are most alike `by` the "tokens" themselves and little attended to by
    the cls token; or by "keys" alone.
    """
    check_type("model", model, ViT, error=InputError)
    every, by = (every, by) if per_block or first else (1, "keys")  # none: as where none ever did
    config = replace(model.config, merge_per_block=per_block, merge_from=first, merge_every=every, merge_by=by)
    return rebuild(model, config)


@contextmanager
def eval_mode(model: nn.Module, modules: Iterable[nn.Module] = ()) -> Iterator[None]:
    """Without dropout inside; every module is left in the mode it was in. Who asks often may keep the `modules`."""
    training = [module for module in modules or model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


def resize_kernel(weight: Tensor, patch_size: tuple[int, int], policy: Resample | None = None) -> Tensor:
    """A patch kernel (D, C, P, P) for another patch size, such that resized patches give the same tokens.

    The pseudo-inverse of the resize matrix, after FlexiViT (Beyer et al. 2022).
    """
    old = (weight.shape[2], weight.shape[3])
    if old == tuple(patch_size):
        return weight
    policy = replace(policy or Resample(), offset=0.0)  # that of a position table, which a kernel is not
    basis = torch.eye(old[0] * old[1], dtype=torch.float64)
    matrix = resample(basis, old, patch_size, policy).T  # old values x new values
    inverse = torch.linalg.pinv(matrix)  # new values x old values
    kernel: Tensor = weight.cpu().double().flatten(2) @ inverse.T  # (D, C, new values); not every device has doubles
    return kernel.reshape(*weight.shape[:2], *patch_size).to(weight)
