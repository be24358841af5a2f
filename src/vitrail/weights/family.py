"""Family: one table of names with what its files leave unsaid; and the words the families share."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from vitrail.checkpoint import Checkpoint
from vitrail.checks import check_int, check_pair, short_repr
from vitrail.errors import CheckpointError
from vitrail.images import Preprocess
from vitrail.network.config import Positions, Resample, ViTConfig
from vitrail.weights.imagenet import imagenet1k
from vitrail.weights.name_tables import Table, weights_of
from vitrail.weights.preprocessing import evaluation
from vitrail.weights.reading.contents import WeightContents


@dataclass(frozen=True)
class Description:
    """What a family makes of a file before any value is read, or what it would write of a checkpoint."""

    config: ViTConfig
    preprocess: Preprocess
    reasons: Mapping[str, str] = field(default_factory=dict)  # why a setting that no tensor says has its value
    classes: tuple[str, ...] = ()  # empty: the file names none
    layout: str = ""  # which of the family's spellings, in the family's own words
    decoder: ViTConfig | None = None  # of masked pre-training
    extras: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # shapes of what is kept beside the network
    warnings: tuple[str, ...] = ()  # what to know before using what is written

    @classmethod
    def of(cls, checkpoint: Checkpoint, **more: Any) -> Description:
        """A checkpoint as it is, with what a family adds."""
        decoder = None if checkpoint.decoder is None else checkpoint.decoder.config
        kept = {"classes": checkpoint.classes, "decoder": decoder}
        return cls(checkpoint.model.config, checkpoint.preprocess, **kept | more)

    @classmethod
    def evaluated(
        cls, prepared_as: str, settings: Mapping[str, Any], reasons: Mapping[str, str], **more: Any
    ) -> Description:
        """A network with these settings, its images prepared as a family's own code does it, its classes by number."""
        config = ViTConfig(**settings)
        known = evaluation(prepared_as, config.image_size, config.channels)
        kept = {"classes": class_names(config.classes)}
        return cls(config, known.preprocess, {"preprocess": known.why, **reasons}, **kept | more)


@dataclass(frozen=True)
class Family:
    """A way to write vision transformers to disk. Every function is pure; none reads a tensor's values."""

    name: str  # as in --to NAME
    knows: Callable[[WeightContents], bool]  # from names and shapes, never from the name of the file
    describe: Callable[[WeightContents, Mapping[str, Any]], Description]  # overrides may decide what shapes leave open
    table: Callable[[Description], Table]
    outline: Callable[[Checkpoint], Description] = Description.of  # how it would carry a checkpoint
    sidecars: Callable[[Description], dict[str, Any]] = lambda description: {}  # JSON files beside the weights
    container: str = "pickle"  # what it writes: folder, pickle or npz
    weights: str = "model.safetensors"  # the file of weights in its folders
    wrapper: str = ""  # the name its pickles keep the weights under
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # what may be left out, as patterns of names


# ---- what shapes say, and what they leave open -------------------------------------------------------------------

PUBLISHED_HEADS: Final = {192: 3, 384: 6, 512: 8, 768: 12, 1024: 16, 1152: 16, 1280: 16, 1408: 16, 1536: 24, 1664: 16}
BLOCK_LAYERS: Final = ("norm1", "attention.qkv", "attention.query_norm", "mlp.down")  # whose shapes are asked
SWIGLU: Final = {"mlp": "swiglu", "activation": "silu"}


def sizes_of(
    contents: WeightContents,
    table: Table,
    override: Mapping[str, Any],
    published: Mapping[int, int] = PUBLISHED_HEADS,
) -> tuple[dict[str, Any], str]:
    """Settings of ViTConfig from the shapes of what a table names: patches, blocks, head; and why so many heads."""
    (patches,), (head,) = weights_of(table, "patches.projection"), weights_of(table, "head.classify")
    _, channels, *patch = shape_of(contents, patches, axes=4)
    settings, heads_why = block_sizes_of(contents, table, override, published)
    settings |= {"patch_size": check_pair("patch_size", patch), "channels": channels}
    settings["classes"] = rows_of(contents, head)
    return settings, heads_why


def block_sizes_of(
    contents: WeightContents,
    table: Table,
    override: Mapping[str, Any],
    published: Mapping[int, int] = PUBLISHED_HEADS,
) -> tuple[dict[str, Any], str]:
    """The same of the blocks alone: width, depth, heads and MLP; norms of the queries say how wide a head is."""
    weights = {layer: weights_of(table, f"encoder.blocks.{{i}}.{layer}") for layer in BLOCK_LAYERS}
    qkv, *apart = (name.replace("{i}", "0") for name in weights["attention.qkv"])
    inner, width = shape_of(contents, qkv, axes=2)
    inner = inner if apart else inner // 3
    norm = "".join(weights["attention.query_norm"]).replace("{i}", "0")
    if norm in contents.tensors:
        heads, why = max(inner // max(shape_of(contents, norm, axes=1)[0], 1), 1), "the norms of the queries say so"
    else:
        heads, why = heads_for(inner, override, published)
    settings: dict[str, Any] = {
        "width": width,
        "depth": depth_of(contents, weights["norm1"][0]),
        "heads": heads,
        "head_width": inner // heads if inner != width else 0,
        "mlp_width": shape_of(contents, weights["mlp.down"][0].replace("{i}", "0"), axes=2)[1],
    }
    return settings, why


def heads_for(
    inner: int, override: Mapping[str, Any], published: Mapping[int, int] = PUBLISHED_HEADS
) -> tuple[int, str]:
    """How many heads share the rows of q, which no fused tensor says, and why that many."""
    if "heads" in override:
        return check_int("heads", override["heads"]), "given"
    if inner in published:
        return published[inner], f"as the published network of width {inner}"
    if inner % 64 or not inner:
        raise CheckpointError(
            f"no tensor says how many heads share {inner} values, and heads of 64 do not divide them: "
            "give override={'heads': N}"
        )
    return inner // 64, "no tensor says it: heads of 64 values, as in most networks"


def positions_of(
    contents: WeightContents,
    name: str,
    slots: tuple[int, ...],
    patch: tuple[int, int],
    override: Mapping[str, Any],
    resample: Resample,
    kind: str = "learned",
    axes: int = 3,
) -> dict[str, Any]:
    """Positions as settings, and the image size that their table was made for; it has one of these numbers of slots."""
    size, count = grid_of(shape_of(contents, name, axes)[-2], slots, patch, override)
    return {"image_size": size, "positions": Positions(kind, prefix=count > 0, resample=resample)}


def grid_of(
    places: int, slots: tuple[int, ...], patch: tuple[int, int], override: Mapping[str, Any]
) -> tuple[tuple[int, int], int]:
    """(image size, slots) of a table of positions: the size that was given where it fits, else the first square."""
    if "image_size" in override and 0 not in patch:
        height, width = check_pair("image_size", override["image_size"])
        count = (height // patch[0]) * (width // patch[1])
        if places - count in slots:
            return (height, width), places - count
    for count in slots:
        side = math.isqrt(max(places - count, 0))
        if side and side * side == places - count:
            return (side * patch[0], side * patch[1]), count
    raise CheckpointError(
        f"{places} positions make no square grid with {' or '.join(map(str, slots))} prefix tokens: "
        "give override={'image_size': (H, W)}"
    )


def cell_of(settings: Mapping[str, Any]) -> tuple[int, int]:
    """Pixels that one patch stands for."""
    reduction = settings["stem"].reduction if "stem" in settings else 1
    rows, columns = settings["patch_size"]
    return rows * reduction, columns * reduction


def usual_size(patch: tuple[int, int], pixels: int, patches: int) -> tuple[int, int]:
    """The image size where nothing says it: so many pixels, or so many patches where those do not divide."""
    height, width = (pixels if pixels % side == 0 else patches * side for side in patch)
    return height, width


def shape_of(contents: WeightContents, name: str, axes: int | None = None) -> tuple[int, ...]:
    """The shape of a tensor that must be there."""
    if name not in contents.tensors:
        raise CheckpointError(f"{contents.source}: expected a tensor {name}, and there is none")
    shape = contents.tensors[name].shape
    if axes is not None and len(shape) != axes:
        raise CheckpointError(f"{contents.source}: expected {name} with {axes} axes, got {shape}")
    return shape


def rows_of(contents: WeightContents, name: str, axis: int = 0) -> int:
    """How many values a layer hands on, by the shape of its weight; 0 where it is not there."""
    return shape_of(contents, name, axes=2)[axis] if name in contents.tensors else 0


def square_patch(source: str, values: int, override: Mapping[str, Any], usual: Any = 3) -> dict[str, Any]:
    """Size and channels, as settings, of a square patch of so many values, which come as one row."""
    channels = check_int("channels", override.get("channels", usual))
    side = math.isqrt(values // channels)
    if side < 1 or side * side * channels != values:
        raise CheckpointError(
            f"{source}: {values} values make no square patch of {channels} channels: give override={{'channels': N}}"
        )
    return {"patch_size": (side, side), "channels": channels}


def depth_of(contents: WeightContents, pattern: str) -> int:
    """How many blocks there are: names with 0, 1, 2 ... in place of {i}, without a gap."""
    before, after = pattern.split("{i}")
    names = (name for name in contents.tensors if name.startswith(before) and name.endswith(after))
    numbers = {name[len(before) : len(name) - len(after)] for name in names}
    blocks = sorted(int(number) for number in numbers if number.isascii() and number.isdecimal())
    if blocks != list(range(len(blocks))) or not blocks:
        raise CheckpointError(f"{contents.source}: expected blocks numbered from 0 without a gap, got {blocks[:8]}")
    return len(blocks)


def class_names(count: int, given: Any = None) -> tuple[str, ...]:
    """Names for the outputs: those given, ImageNet-1k's for 1000 outputs, else none; twins get their number."""
    if isinstance(given, Mapping):
        given = [given.get(str(number), given.get(number)) for number in range(len(given))]
    if not given or not count:
        return imagenet1k() if count == 1000 else ()
    if not isinstance(given, list | tuple) or not all(isinstance(name, str) for name in given) or len(given) != count:
        raise CheckpointError(f"expected names for {count} outputs, as the head has, got {short_repr(given)}")
    if all(name == f"LABEL_{number}" for number, name in enumerate(given)):  # transformers' way to say nothing
        return imagenet1k() if count == 1000 else ()
    times = Counter(given)
    return tuple(name if times[name] == 1 else f"{name} ({number})" for number, name in enumerate(given))


# ---- what is written ---------------------------------------------------------------------------------------------


def refuse_any(family: str, reasons: Mapping[str, bool]) -> None:
    """Refuse a checkpoint for the first of these reasons that holds."""
    for what, holds in reasons.items():
        if holds:
            raise CheckpointError(f"{family} cannot carry {what}: choose another family")


def one_or_pair(size: tuple[int, int]) -> int | list[int]:
    """(height, width) for JSON: one number where both are the same."""
    return size[0] if size[0] == size[1] else list(size)
