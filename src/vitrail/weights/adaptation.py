"""A trained network for other classes or other channels: what was learned stays, the rest starts fresh.

| channels | the first kernel                                | the same tokens as before                        |
|----------|-------------------------------------------------|--------------------------------------------------|
| n -> 1   | summed over its channels                        | where all n channels were the one that is left   |
| n -> m   | its channels in turn, scaled by n / m (timm's)  | where m / n is whole, of the n channels in turn  |

A ResNet stem standardises its filters, which undoes any scale and moves a sum: there the new kernel is a start for
training and no more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from vitrail.checkpoint import Checkpoint, Provenance
from vitrail.checkpoint.devices import device_of
from vitrail.checks import check_int, check_type, short_repr
from vitrail.errors import CheckpointError, InputError
from vitrail.images import Preprocess
from vitrail.images.bands import MOST_BANDS
from vitrail.network.config import ConvStem, ResNetStem, ViTConfig
from vitrail.network.surgery import rebuild, with_head
from vitrail.network.vit import ViT

LUMINANCE: Final = (0.299, 0.587, 0.114)  # how a colour image becomes grey: Pillow's L, and Preprocess(channels=1)
HEADS: Final = ("head.classify.", "head.distil.")


# ---- other classes -----------------------------------------------------------------------------------------------


def with_classes(checkpoint: Checkpoint, names: Sequence[str]) -> Checkpoint:
    """The same network with a head for these classes: those it already knows by name keep their weights.

    A name counts as known when it is the same, or the same but for capitals and space around it and no other name is.
    The others start as the config's initialisation says. What was fitted or measured for the old classes is dropped.
    """
    check_type("checkpoint", checkpoint, Checkpoint, error=InputError)
    names = _checked(names)
    sources = _sources(_own_names(checkpoint), names)
    model = with_head(checkpoint.model, len(names), keep_representation=True)
    state, old = model.state_dict(), checkpoint.model.state_dict()
    for name in [each for each in state if each.startswith(HEADS) and each in old]:
        for place, source in sources.items():
            state[name][place] = old[name][source]  # one row of weights, or one bias; in place
    note = f"{len(sources)} of {len(names)} classes kept their weights, the others start fresh"
    return replace(
        checkpoint,
        model=model,
        classes=names,
        provenance=_noted(checkpoint.provenance, note),
        temperature=None,
        thresholds=None,
        reject=None,
        ood=None,
    )


def _checked(names: Sequence[str]) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Sequence) or not names:
        raise InputError(f"names: expected a list of class names, got {short_repr(names)}")
    for name in names:
        if not isinstance(name, str) or not name.strip():
            raise InputError(f"names: expected text for every class, got {short_repr(name)}")
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise InputError(f"names: every class once, got twice: {', '.join(map(short_repr, twice[:5]))}")
    return tuple(names)


def _own_names(checkpoint: Checkpoint) -> tuple[str, ...]:
    return checkpoint.classes if checkpoint.model.config.classes else ()


def _sources(old: tuple[str, ...], new: tuple[str, ...]) -> dict[int, int]:
    """Which old row each new class takes over, by their places."""
    unnamed = old == tuple(str(number) for number in range(len(old)))
    if unnamed and new != old:
        return {}  # numbers that stand for missing names: class "3" is no digit 3
    exact = {place: old.index(name) for place, name in enumerate(new) if name in old}
    rest_old = _by_key({place: name for place, name in enumerate(old) if place not in exact.values()})
    rest_new = _by_key({place: name for place, name in enumerate(new) if place not in exact})
    loose = {
        places[0]: rest_old[key][0]
        for key, places in rest_new.items()
        if len(places) == 1 and len(rest_old.get(key, ())) == 1
    }
    return exact | loose


def _by_key(names: dict[int, str]) -> dict[str, list[int]]:
    """Places by name, capitals and space around it ignored."""
    found: dict[str, list[int]] = {}
    for place, name in names.items():
        found.setdefault(name.strip().casefold(), []).append(place)
    return found


# ---- other channels ----------------------------------------------------------------------------------------------


def adapt_channels(model: ViT, channels: int) -> ViT:
    """The same network for another number of channels; the table above says what its first layer becomes."""
    check_type("model", model, ViT, error=InputError)
    channels = check_int("channels", channels, error=InputError)
    old = model.config.channels
    if channels == old:
        return _changed(model, model.config, {})
    mix = torch.ones(old, 1, dtype=torch.float64) if channels == 1 else _in_turn(old, channels)
    return _mixed(model, mix, torch.zeros(old, dtype=torch.float64))


def _in_turn(old: int, new: int) -> Tensor:
    """Each new channel stands for one of the old, in turn, all of them together as strong as before: (old, new)."""
    mix = torch.zeros(old, new, dtype=torch.float64)
    for place in range(new):
        mix[place % old, place] = old / new
    return mix


def with_channels(checkpoint: Checkpoint, channels: int) -> Checkpoint:
    """The same network for another number of channels, with its preprocessing.

    To 1: what the network says of channels that are all alike, the new one says of a single channel. Mean and std of
    each go into the first layer. From 1 to 3: the first layer weighs the colours as grey images do. In both the
    answers stay the same, and it is refused where the first layer cannot say the same.
    To any other number: `adapt_channels`, mean and std in turn as well. That is a start for training, so what was
    fitted is dropped.
    """
    check_type("checkpoint", checkpoint, Checkpoint, error=InputError)
    channels = check_int("channels", channels, most=MOST_BANDS, error=InputError)
    old = checkpoint.preprocess
    if channels == old.channels:
        return checkpoint
    if channels != 1 and (old.channels, channels) != (1, 3):
        return _started(checkpoint, channels)
    new = _pixels(old, channels)
    mix = torch.tensor([LUMINANCE] if channels == 3 else [[1.0]] * old.channels, dtype=torch.float64)  # (old, new)
    # value = std' * pixel' + mean' of the new pixels, and pixel = (value - mean) / std of the old ones
    mean, std = (torch.tensor(each, dtype=torch.float64) for each in (old.mean, old.std))
    shift = (new.mean[0] - mean) / std
    mix = mix * (new.std[0] / std)[:, None]
    _refuse_inexact(checkpoint, mix, shift)
    return _renewed(checkpoint, _mixed(checkpoint.model, mix, shift), new, "")


def _started(checkpoint: Checkpoint, channels: int) -> Checkpoint:
    """A start for training on other channels, each prepared as the old one whose place in the kernel it takes."""
    old = checkpoint.preprocess
    if old.order != "RGB":
        raise CheckpointError(f"order={old.order!r} has no meaning for {channels} channels: use adapt_channels")
    mean, std = ([each[place % old.channels] for place in range(channels)] for each in (old.mean, old.std))
    new = Preprocess.from_dict(old.to_dict() | {"channels": channels, "mean": mean, "std": std})
    checkpoint = replace(checkpoint, temperature=None, thresholds=None, reject=None, ood=None)
    return _renewed(checkpoint, adapt_channels(checkpoint.model, channels), new, ", to be trained further")


def _renewed(checkpoint: Checkpoint, model: ViT, preprocess: Preprocess, what: str) -> Checkpoint:
    """The checkpoint with a network for other channels, which its provenance tells."""
    old, channels = checkpoint.preprocess.channels, preprocess.channels
    note = f"made for {channels} channel{'s' * (channels > 1)} instead of {old}{what}"
    if checkpoint.decoder is not None:
        note += "; the decoder, which predicts the old channels, is gone"
    provenance = _noted(checkpoint.provenance, note)
    kept = checkpoint.ood  # answers are the same, and so is what they are made from
    return replace(checkpoint, model=model, preprocess=preprocess, provenance=provenance, decoder=None, ood=kept)


def _pixels(old: Preprocess, channels: int) -> Preprocess:
    """The preprocessing for the other number of channels; the mean of several numbers where they differ."""
    mean, std = (each[0] if len(set(each)) == 1 else sum(each) / len(each) for each in (old.mean, old.std))
    changes = {"channels": channels, "mean": mean, "std": std, "order": "RGB"}
    return Preprocess.from_dict(old.to_dict() | changes)


def _refuse_inexact(checkpoint: Checkpoint, mix: Tensor, shift: Tensor) -> None:
    """What a first layer that is not linear in the pixels, or sees a border of its own colour, cannot say."""
    config, moved = checkpoint.model.config, bool(shift.any())
    reason = ""
    if isinstance(config.stem, ResNetStem):
        reason = "a ResNet stem standardises its filters, so other channels change its answers"
    elif isinstance(config.stem, ConvStem) and moved:
        reason = "early convolutions pad with zeros, which would stand for another colour: the channels' means differ"
    elif config.patch_norms and (mix.shape[1] != 1 or moved or len(mix.unique()) > 1):
        reason = (
            "patch_norms see all pixels of a patch at once: only grey, from channels with one mean and std, is the same"
        )
    elif checkpoint.preprocess.resize == "pad" and moved:
        reason = "the bars of resize='pad' would have another colour: the channels' means differ"
    if reason:
        raise CheckpointError(f"{reason}; adapt_channels gives a network to train further")


def _mixed(model: ViT, mix: Tensor, shift: Tensor) -> ViT:
    """The network whose first layer receives `old = mix @ new + shift`, channel by channel: mix (old, new)."""
    state = {name: value.cpu() for name, value in model.state_dict().items()}  # not every device has doubles
    config = replace(model.config, channels=mix.shape[1])
    if config.stem is not None:
        name = "stem.0.weight" if isinstance(config.stem, ConvStem) else "stem.root.weight"
        return _changed(model, config, {name: _mix(state[name], mix)})
    kernel = model.patches.kernel.detach().cpu().double()  # (D, old, P, P)
    constant = torch.zeros_like(kernel[:, 0, 0, 0])  # (D,)
    changes: dict[str, Tensor] = {}
    if model.patches.norm_before is not None:
        names = ("patches.norm_before.weight", "patches.norm_before.bias")
        scale, offset = (state[name].reshape(kernel.shape[1:]) for name in names)  # (old, P, P)
        if mix.shape[1] == 1:  # what the norm multiplies and adds goes into the projection
            constant = constant + (kernel * offset).sum(dim=(1, 2, 3))
            kernel = kernel * scale
            scale, offset = torch.ones_like(scale[:1]), torch.zeros_like(offset[:1])
        turn = torch.arange(mix.shape[1]) % scale.shape[0]
        changes = {name: value[turn].flatten() for name, value in zip(names, (scale, offset), strict=True)}
    constant = constant + kernel.sum(dim=(2, 3)) @ shift
    weight = state["patches.projection.weight"]
    changes["patches.projection.weight"] = _mix(kernel, mix).flatten(1).to(weight.dtype)
    if bool(constant.any()):
        config = replace(config, patch_bias=True)
        bias = state.get("patches.projection.bias", torch.zeros_like(weight[:, 0]))
        changes["patches.projection.bias"] = (bias.double() + constant).to(weight.dtype)
    return _changed(model, config, changes)


def _mix(kernel: Tensor, mix: Tensor) -> Tensor:
    """A kernel (D, old, h, w) for the new channels (D, new, h, w), in double precision and back."""
    return torch.einsum("dohw,on->dnhw", kernel.double(), mix).to(kernel.dtype)


# ---- small parts -------------------------------------------------------------------------------------------------


def _changed(model: ViT, config: ViTConfig, changes: dict[str, Tensor]) -> ViT:
    """A network of its own with the other's tensors, but for the changed ones."""
    device = device_of(model)
    state = {name: value.detach().to(device).clone() for name, value in (model.state_dict() | changes).items()}
    return rebuild(model, config, state)


def _noted(provenance: Provenance, note: str) -> Provenance:
    """With one more note, and without what was measured on the network as it was."""
    notes = f"{provenance.notes}; {note}" if provenance.notes else note
    return replace(provenance, notes=notes, metrics={})
