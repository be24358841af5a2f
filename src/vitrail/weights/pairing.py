"""Their tensors against ours: every one paired by the family's table, shapes compared, and only then read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import reduce
from typing import Final, NamedTuple

import torch
from torch import Tensor

from vitrail.checkpoint.safetensors_io import all_finite, in_threads
from vitrail.checks import join_limited
from vitrail.errors import CheckpointError
from vitrail.network.config import ViTConfig
from vitrail.network.masked import MaskedDecoder
from vitrail.network.vit import ViT
from vitrail.weights.family import Description, Family
from vitrail.weights.name_tables import Derived, Link, derived, spell
from vitrail.weights.reading.contents import WeightContents

FLOATS: Final = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


class Pairing(NamedTuple):
    """Every tensor of ours with where it comes from, and those of theirs that only repeat the config."""

    links: list[Link]
    derived: list[Derived]


def expected(description: Description, model: ViT) -> dict[str, Tensor]:
    """Every tensor that a checkpoint of this description has, by our names, without memory."""
    ours = dict(model.state_dict())
    if description.decoder is not None:
        decoder = empty_decoder(description.decoder, description.config.width)
        ours |= {f"decoder.{name}": value for name, value in decoder.state_dict().items()}
    blank = next(iter(ours.values()))
    ours |= {f"extras.{name}": blank.new_empty(shape) for name, shape in description.extras.items()}
    return ours


def pair(family: Family, description: Description, ours: Mapping[str, Tensor], contents: WeightContents) -> Pairing:
    """All of ours against all of theirs; what does not come out even is one error that lists both sides."""
    table, theirs = family.table(description), contents.tensors
    links = spell(table, ours)
    repeated = [row for row in derived(table, description.config.depth) if row.theirs in theirs]
    sources = {name: link for link in links for name in link.ours}
    wrong: list[str] = []
    for name, value in ours.items():
        absent = [each for each in sources[name].theirs if each not in theirs] if name in sources else []
        if name not in sources or absent:
            whence = f" (theirs: {', '.join(absent)})" if absent else ""
            wrong.append(f"missing {name} {list(value.shape)}{whence}")
    used = {each for link in links for each in link.theirs} | {row.theirs for row in repeated}
    unused = [name for name in theirs if name not in used]
    for link in links:
        if all(each in theirs for each in link.theirs):
            wrong += _misfits(link, ours, contents, description.config)
    wrong += [f"not used {name} {list(theirs[name].shape)}" for name in unused]
    if wrong:
        total = len(theirs)
        share = f"{total - len(unused)} of {total} tensors used"
        raise CheckpointError(
            f"{contents.source}, read as {family.name}: {share}; "
            f"{join_limited(wrong, most=12)}{_hint(family, unused, used)}"
        )
    return Pairing(links, repeated)


def read(plan: Pairing, contents: WeightContents, config: ViTConfig) -> dict[str, Tensor]:
    """The values of every tensor of ours, read and brought into our shape by a few threads, all finite.

    Half precision stays as it is; a file of several kinds of float is read in the widest that holds them all.
    """
    kinds = {contents.tensors[name].dtype for link in plan.links for name in link.theirs}
    widest = reduce(torch.promote_types, [kind for kind in kinds if kind.is_floating_point])

    def take(link: Link) -> list[tuple[str, Tensor]]:
        values = link.codec.decode([contents.tensors[name].read() for name in link.theirs], config)
        taken = []
        for name, value in zip(link.ours, values, strict=True):
            if not all_finite(value):
                raise CheckpointError(f"{contents.source}: {', '.join(link.theirs)} hold NaN or infinite values")
            value = value.to(widest) if value.is_floating_point() else value
            alone = value.is_contiguous() and value.untyped_storage().nbytes() == value.nbytes
            taken.append((name, value if alone else value.clone(memory_format=torch.contiguous_format)))
        return taken

    tensors = dict(pair for taken in in_threads(take, plan.links) for pair in taken)
    for row in plan.derived:
        _verify(row, contents, config)
    return tensors


def empty_decoder(config: ViTConfig, width: int) -> MaskedDecoder:
    """MAE's decoder as described, without memory."""
    with torch.device("meta"):
        return MaskedDecoder(config, width)


def _misfits(link: Link, ours: Mapping[str, Tensor], contents: WeightContents, config: ViTConfig) -> list[str]:
    """What is wrong with the shapes and kinds of a link, tried without memory."""
    stored = [contents.tensors[name] for name in link.theirs]
    got = " + ".join(f"{name} {list(each.shape)}" for name, each in zip(link.theirs, stored, strict=True))
    try:
        decoded = link.codec.decode([torch.empty(s.shape, dtype=s.dtype, device="meta") for s in stored], config)
    except (RuntimeError, IndexError, ValueError, TypeError):
        decoded = ()
    wrong = []
    for number, name in enumerate(link.ours):
        if len(decoded) != len(link.ours) or decoded[number].shape != ours[name].shape:
            wrong.append(f"{name}: expected {list(ours[name].shape)}, got {got}")
        elif decoded[number].dtype not in (FLOATS if ours[name].is_floating_point() else (torch.int64,)):
            kind = "a float of 16, 32 or 64 bits" if ours[name].is_floating_point() else "int64"
            wrong.append(f"{name}: expected {kind}, got {decoded[number].dtype}")
    return wrong


def _hint(family: Family, unused: list[str], used: set[str]) -> str:
    """Which parts to leave out: those that hold tensors without use, and none with."""

    def holds(patterns: Sequence[str], names: Iterable[str]) -> bool:
        return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)

    parts = [part for part, each in family.parts.items() if holds(each, unused) and not holds(each, used)]
    if parts:
        return f": to load without them, leave_out={tuple(parts)!r}"
    return ": leave_out names what to load without" if unused else ""


def _verify(row: Derived, contents: WeightContents, config: ViTConfig) -> None:
    """A tensor that repeats the config must repeat it rightly."""
    stored, made = contents.tensors[row.theirs], row.make(config).double()
    if stored.shape == tuple(made.shape):
        largest = float(made.abs().max()) if made.numel() else 0.0
        if bool(((stored.read().double() - made).abs() <= row.close * largest).all()):
            return
    raise CheckpointError(
        f"{contents.source}: {row.theirs} is not what this network computes with ({row.why}); override the setting "
        "it stands for, or leave_out names it"
    )
