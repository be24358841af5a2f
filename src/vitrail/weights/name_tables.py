"""The tables of a family: which of their tensors make which of ours, and how; read from left to right and back.

A row pairs names of ours with names of theirs. `{i}` stands for the number of a block; a name that is no tensor's own
stands for a layer, whose weight and bias go together. A row for a tensor that our network lacks is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import methodcaller
from typing import Final, NamedTuple, TypeAlias

import torch
from torch import Tensor

from vitrail.network.config import ViTConfig

Tensors: TypeAlias = Sequence[Tensor]
Names: TypeAlias = str | tuple[str, ...]

BLOCK: Final = re.compile(r"\bblocks\.(\d+)\.")


@dataclass(frozen=True)
class Codec:
    """How some of their tensors make some of ours, and back: values are moved, so that no bit is lost.

    Two rows add, where positions of tokens without a slot here go into the tokens: the sum is what is written back.
    """

    name: str  # as the report says it
    decode: Callable[[Tensors, ViTConfig], Tensors]  # theirs -> ours
    encode: Callable[[Tensors, ViTConfig], Tensors]  # ours -> theirs


class Row(NamedTuple):
    """One line of a table."""

    ours: Names
    theirs: Names
    codec: Codec | None = None  # None: the same values in the same shape


class Derived(NamedTuple):
    """A tensor of theirs that says nothing new: checked against what the config makes of it, and made anew."""

    theirs: str
    make: Callable[[ViTConfig], Tensor]
    why: str
    close: float = 0.0  # how far values may lie apart: 0 means equal bits


Table: TypeAlias = Sequence[Row | Derived]


class Link(NamedTuple):
    """A row spelled out: tensor names on both sides."""

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    codec: Codec


# ---- how values move ---------------------------------------------------------------------------------------------


def reshaped(
    name: str, decode: Callable[[Tensor, ViTConfig], Tensor], encode: Callable[[Tensor, ViTConfig], Tensor]
) -> Codec:
    """One of theirs is one of ours, in another shape or order."""
    return Codec(name, lambda t, c: [decode(t[0], c)], lambda t, c: [encode(t[0], c)])


def stack(*shares: int, name: str = "") -> Codec:
    """Several of theirs, laid end to end along the rows, are one of ours; shares are their relative lengths."""

    def encode(tensors: Tensors, config: ViTConfig) -> Tensors:
        unit = tensors[0].shape[0] // sum(shares)
        return list(torch.split(tensors[0], [share * unit for share in shares]))

    return Codec(name or "laid end to end", lambda t, c: [torch.cat(tuple(t))], encode)


def then(first: Codec, second: Codec) -> Codec:
    """Two steps on the way to ours; the way back takes them in the other order."""
    return Codec(
        f"{first.name}, then {second.name}",
        lambda t, c: second.decode(first.decode(t, c), c),
        lambda t, c: first.encode(second.encode(t, c), c),
    )


SAME = Codec("same", lambda t, c: t, lambda t, c: t)
QKV = stack(1, 1, 1, name="q, k and v laid end to end")
GATED = stack(1, 1, name="gate and value laid end to end")
WITHOUT_BATCH = reshaped("without the batch axis", lambda t, c: _first(t), lambda t, c: t[None])
ROW = reshaped("as one row", lambda t, c: t[None], lambda t, c: _first(t))
TRANSPOSED = reshaped("transposed", lambda t, c: t.t(), lambda t, c: t.t())


def _first(tensor: Tensor) -> Tensor:
    """What an axis of length one holds; any other length does not fit."""
    return tensor.squeeze(0).expand(tensor.shape[1:])


def kernel_shape(config: ViTConfig) -> tuple[int, int, int]:
    """Channels, rows and columns of one patch."""
    return config.stem.channels if config.stem else config.channels, *config.patch_size


def _to_convolution(weight: Tensor, config: ViTConfig) -> Tensor:
    return weight.reshape(weight.shape[0], *kernel_shape(config))


def _from_channels_last(weight: Tensor, config: ViTConfig) -> Tensor:
    channels, rows, columns = kernel_shape(config)
    return weight.reshape(-1, rows, columns, channels).permute(0, 3, 1, 2).flatten(1)


def _to_channels_last(weight: Tensor, config: ViTConfig) -> Tensor:
    return _to_convolution(weight, config).permute(0, 2, 3, 1).flatten(1)


KERNEL = reshaped("convolution kernel flattened", lambda t, c: _to_convolution(t, c).flatten(1), _to_convolution)
CHANNELS_LAST = reshaped("channels moved before the pixels", _from_channels_last, _to_channels_last)


def _without_register_slots(tensors: Tensors, config: ViTConfig) -> Tensors:
    """Registers may have places of their own; added to the registers they say the same, and zeros say nothing."""
    registers, table = tensors
    named = config.slots
    places = table[0]
    if places.device.type != "meta" and bool(places[named : named + config.registers].any()):
        registers = registers + places[None, named : named + config.registers]
    return [registers[0], torch.cat((places[:named], places[named + config.registers :]))]


def _with_register_slots(tensors: Tensors, config: ViTConfig) -> Tensors:
    registers, table = tensors
    zeros = torch.zeros_like(registers)
    return [registers[None], torch.cat((table[: config.slots], zeros, table[config.slots :]))[None]]


REGISTER_SLOTS = Codec("places of registers added to them", _without_register_slots, _with_register_slots)


# ---- spelling a table out ----------------------------------------------------------------------------------------


def names_of(names: Names) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names


def renamed(table: Table, theirs: Callable[[str], str], ours: Callable[[str], str] = str) -> list[Row | Derived]:
    """The same rows with other names."""
    rows: list[Row | Derived] = []
    for row in table:
        if isinstance(row, Derived):
            rows.append(row._replace(theirs=theirs(row.theirs)))
        else:
            rows.append(Row(tuple(map(ours, names_of(row.ours))), tuple(map(theirs, names_of(row.theirs))), row.codec))
    return rows


def numbered(table: Table, depth: int) -> list[Row | Derived]:
    """The rows with the numbers of the blocks filled in: once for each block where there is one to fill in."""
    rows: list[Row | Derived] = []
    for row in table:
        names = (row.theirs,) if isinstance(row, Derived) else names_of(row.ours) + names_of(row.theirs)
        for number in range(depth if any("{i}" in name for name in names) else 1):
            fill = methodcaller("replace", "{i}", str(number))
            rows += renamed([row], fill, fill)
    return rows


def weights_of(table: Table, layer: str) -> tuple[str, ...]:
    """What the weight of a layer of ours is called there; nothing where the table has no row for it."""
    for row in table:
        if isinstance(row, Row) and names_of(row.ours) in ((layer,), (f"{layer}.weight",)):
            leaf = ".weight" if names_of(row.ours) == (layer,) else ""
            return tuple(name + leaf for name in names_of(row.theirs))
    return ()


def spell(table: Table, tensors: Iterable[str]) -> list[Link]:
    """Every row with names of tensors, for those that our network has."""
    known = set(tensors)
    depth = 1 + max((int(found[1]) for name in known if (found := BLOCK.search(name))), default=0)
    links: list[Link] = []
    for row in numbered(table, depth):
        if isinstance(row, Derived):
            continue
        ours, theirs = names_of(row.ours), names_of(row.theirs)
        for leaf in ("",) if ours[0] in known else (".weight", ".bias"):
            here = tuple(name + leaf for name in ours)
            if all(name in known for name in here):
                links.append(Link(here, tuple(name + leaf for name in theirs), row.codec or SAME))
    return links


def derived(table: Table, depth: int) -> list[Derived]:
    """The rows for tensors that follow from the config, with the numbers of the blocks filled in."""
    return [row for row in numbered(table, depth) if isinstance(row, Derived)]


def to_theirs(table: Table, ours: Mapping[str, Tensor], config: ViTConfig) -> tuple[dict[str, Tensor], list[str]]:
    """Their tensors from ours, and the names of ours that the table has no place for."""
    given: dict[str, Tensor] = {}
    placed: set[str] = set()
    for link in spell(table, ours):
        values = link.codec.encode([ours[name] for name in link.ours], config)
        given.update((name, value.contiguous()) for name, value in zip(link.theirs, values, strict=True))
        placed.update(link.ours)
    for row in derived(table, config.depth):
        given[row.theirs] = row.make(config)
    return given, [name for name in ours if name not in placed]
