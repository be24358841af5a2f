"""Google's npz files as vit_jax writes them: the original ViT, AugReg, the hybrids; and the rows big_vision shares.

Names are flax's: kernels lie with the outputs last, attention has an axis for the heads, images have channels last.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from vitrail.checkpoint import Checkpoint
from vitrail.checks import check_pair
from vitrail.errors import CheckpointError
from vitrail.network.config import Resample, ResNetStem, ViTConfig
from vitrail.weights.family import Description, Family, cell_of, depth_of, positions_of, rows_of, shape_of, square_patch
from vitrail.weights.name_tables import (
    KERNEL,
    QKV,
    SAME,
    TRANSPOSED,
    WITHOUT_BATCH,
    Codec,
    Row,
    Table,
    Tensors,
    renamed,
    reshaped,
    then,
)
from vitrail.weights.reading.contents import WeightContents

RESAMPLE: Final = Resample("bilinear", antialias=False, align_corners=True)  # scipy.ndimage.zoom of order 1
PREFIXES: Final = ("", "opt/target/", "params/", "params/img/", "img/")
INPUT: Final = "Transformer/posembed_input/pos_embedding"  # where vit_jax keeps the table
PARTS: Final = {
    "head": ("head/*", "*/head/*"),
    "pre_logits": ("pre_logits/*", "*/pre_logits/*"),
    "text": ("txt/*", "*/txt/*", "llm/*", "*/llm/*", "t", "b", "params/t", "params/b"),
    "optimizer": ("opt/[!t]*", "chrono/*"),
}
REASONS: Final = {"activation": "flax's gelu is the tanh form", "norm_eps": "flax's default"}


class FlaxSpelling(NamedTuple):
    """How a file spells its names: what differs between the generations of Google's code."""

    before: str = ""  # what stands before every name
    linen: bool = False  # layers are numbered each kind apart, as flax's linen does; before it, all in one count
    stacked: bool = False  # one array for all blocks, with the depth as its first axis
    positions: str = INPUT  # where the table is; "" where there is none
    pool: str = ""  # where the parts of a MAP head are, as far as MAPHead_0/; "" where they lie at the top
    flat: bool = False  # patches come flattened, and the table is a grid (NaFlex)

    def layout(self) -> str:
        return json.dumps(self)

    @classmethod
    def of(cls, description: Description) -> FlaxSpelling:
        return cls(*json.loads(description.layout))


def knows(contents: WeightContents) -> bool:
    spelling = spelling_of(contents)
    return spelling is not None and spelling.positions == INPUT


def describe(contents: WeightContents, override: Mapping[str, Any]) -> Description:
    """Config from shapes; what vit_jax computes without saying so in a tensor."""
    spelling = spelling_of(contents)
    if spelling is None or spelling.positions != INPUT:
        raise CheckpointError(f"{contents.source}: expected vit_jax's tensors embedding/kernel and {INPUT}")
    settings = sizes_of(contents, spelling, override)
    slots = (1,) if settings["cls_token"] else (0,)
    settings |= positions_of(contents, spelling.before + INPUT, slots, cell_of(settings), override, RESAMPLE)
    reasons = REASONS | {"resample": "vit_jax zooms linearly, ends on ends"}
    return Description.evaluated("google", settings, reasons, layout=spelling.layout())


def table(description: Description) -> Table:
    """The rows for a config in one spelling."""
    config, spelling = description.config, FlaxSpelling.of(description)
    stem = resnet_rows(config.stem) if isinstance(config.stem, ResNetStem) else ()
    rows = (*ends(spelling), *stem, *blocks(spelling, config.depth))
    return renamed(rows, lambda name: spelling.before + name)


def outline(checkpoint: Checkpoint) -> Description:
    """How vit_jax would carry a checkpoint: in the names of the published files."""
    config = checkpoint.model.config
    if config.cls_token and not config.slots:
        raise CheckpointError(
            "google: vit_jax adds a position to the cls token too, and this network has none for it (positions.prefix "
            "is False): choose another family, such as big_vision"
        )
    refuse_oblong("google", config)
    return Description.of(checkpoint, layout=FlaxSpelling().layout())


def refuse_oblong(family: str, config: ViTConfig) -> None:
    """A table says how many places it has, not how they lie: only a square can be told from their number."""
    rows, columns = config.grid
    if rows != columns and config.positions.kind != "none":
        raise CheckpointError(
            f"{family}: its table of positions stands for a square, and this network has a grid of {rows}x{columns}: "
            "choose another family"
        )


# ---- what names and shapes say -----------------------------------------------------------------------------------


def spelling_of(contents: WeightContents) -> FlaxSpelling | None:
    """How the names are spelled, or None where they are none of Google's."""
    names = contents.tensors
    for before in PREFIXES:
        block = f"{before}Transformer/encoderblock"
        stacked = f"{block}/LayerNorm_0/scale" in names
        if f"{before}embedding/kernel" not in names or not (stacked or f"{block}_0/LayerNorm_0/scale" in names):
            continue
        first = block if stacked else f"{block}_0"
        places = (INPUT, "pos_embedding", "Transformer/pos_embedding")
        return FlaxSpelling(
            before,
            linen=f"{first}/MlpBlock_3/Dense_0/kernel" not in names,
            stacked=stacked,
            positions=next((place for place in places if before + place in names), ""),
            pool="" if f"{before}probe" in names else "MAPHead_0/",
            flat=len(names[f"{before}embedding/kernel"].shape) == 2,
        )
    return None


def sizes_of(contents: WeightContents, spelling: FlaxSpelling, override: Mapping[str, Any]) -> dict[str, Any]:
    """What shapes say, as settings of ViTConfig: all but the positions and the native size."""
    tensors, before = contents.tensors, spelling.before
    block = f"{before}Transformer/encoderblock" + ("" if spelling.stacked else "_0")
    attention, _, mlp = _numbers(spelling)
    axis = int(spelling.stacked)  # the blocks' own
    width, heads, head_width = shape_of(
        contents, f"{block}/MultiHeadDotProductAttention_{attention}/query/kernel", 3 + axis
    )[axis:]
    if spelling.stacked:
        depth = shape_of(contents, f"{block}/LayerNorm_0/scale", axes=2)[0]
    else:
        depth = depth_of(contents, f"{before}Transformer/encoderblock_{{i}}/LayerNorm_0/scale")
    settings: dict[str, Any] = {
        "width": width,
        "depth": depth,
        "heads": heads,
        "head_width": 0 if heads * head_width == width else head_width,
        "mlp_width": shape_of(contents, f"{block}/MlpBlock_{mlp}/Dense_0/kernel", 2 + axis)[-1],
        "classes": rows_of(contents, f"{before}head/kernel", 1),
        "representation_width": rows_of(contents, f"{before}pre_logits/kernel", 1),
        "cls_token": f"{before}cls" in tensors,
        "pool": "cls" if f"{before}cls" in tensors else "mean",
        "activation": "gelu_tanh",
        "norm_eps": 1e-6,
    }
    if spelling.flat:
        settings |= square_patch(contents.source, shape_of(contents, f"{before}embedding/kernel", axes=2)[0], override)
    else:
        rows, columns, channels, _ = shape_of(contents, f"{before}embedding/kernel", axes=4)
        settings |= {"patch_size": check_pair("patch_size", (rows, columns)), "channels": channels}
    if f"{before}conv_root/kernel" in tensors:
        root = shape_of(contents, f"{before}conv_root/kernel", axes=4)
        settings["stem"] = ResNetStem(resnet_layers(contents, before), width_factor=root[3] // 64)
        settings["channels"] = root[2]
    return settings


def resnet_layers(contents: WeightContents, before: str) -> tuple[int, ...]:
    """How many units each stage of a hybrid's ResNet has; both are counted from 1."""
    layers: list[int] = []
    while f"{before}block{len(layers) + 1}/unit1/conv1/kernel" in contents.tensors:
        units = 1
        while f"{before}block{len(layers) + 1}/unit{units + 1}/conv1/kernel" in contents.tensors:
            units += 1
        layers.append(units)
    return tuple(layers)


def _numbers(spelling: FlaxSpelling) -> tuple[int, int, int]:
    """The numbers that a block's attention, its second norm and its MLP have."""
    return (0, 1, 0) if spelling.linen else (1, 2, 3)


# ---- how values move ---------------------------------------------------------------------------------------------


def for_each(codec: Codec) -> Codec:
    """The same for each of them."""
    return Codec(
        codec.name,
        lambda t, c: [codec.decode([one], c)[0] for one in t],
        lambda t, c: [codec.encode([one], c)[0] for one in t],
    )


def stacked(codec: Codec) -> Codec:
    """Blocks that lie in one array, one behind the other, brought apart."""

    def decode(tensors: Tensors, config: ViTConfig) -> Tensors:
        return [codec.decode(parts, config)[0] for parts in zip(*(one.unbind(0) for one in tensors), strict=True)]

    def encode(tensors: Tensors, config: ViTConfig) -> Tensors:
        parts = [codec.encode([one], config) for one in tensors]
        return [torch.stack(tuple(same)) for same in zip(*parts, strict=True)]

    return Codec(
        f"blocks brought apart, then {codec.name}" if codec is not SAME else "blocks brought apart", decode, encode
    )


def _from_heads(kernel: Tensor, config: ViTConfig) -> Tensor:  # (D, A, d) -> (A*d, D)
    return kernel.expand(-1, config.heads, config.per_head).flatten(1).t()  # expand: refuses other heads


def _to_heads(weight: Tensor, config: ViTConfig) -> Tensor:
    return weight.t().reshape(weight.shape[1], -1, config.per_head)


def _from_out(kernel: Tensor, config: ViTConfig) -> Tensor:  # (A, d, D) -> (D, A*d)
    return kernel.expand(config.heads, config.per_head, -1).flatten(0, 1).t()


def _to_out(weight: Tensor, config: ViTConfig) -> Tensor:
    return weight.t().reshape(-1, config.per_head, weight.shape[0])


HWIO: Final = reshaped(
    "outputs and inputs before the pixels", lambda t, c: t.permute(3, 2, 0, 1), lambda t, c: t.permute(2, 3, 1, 0)
)
PATCHES: Final = then(HWIO, KERNEL)
HEADS: Final = reshaped("heads laid end to end, transposed", _from_heads, _to_heads)
HEADS_BIAS: Final = reshaped("heads laid end to end", lambda t, c: t.flatten(), lambda t, c: t.reshape(-1, c.per_head))
OUT: Final = reshaped("heads laid end to end, transposed", _from_out, _to_out)
CHANNELS: Final = reshaped("as one row of channels", lambda t, c: t.flatten(), lambda t, c: t.reshape(1, 1, 1, -1))


# ---- rows --------------------------------------------------------------------------------------------------------


def dense(ours: str, theirs: str) -> Sequence[Row]:
    return Row(f"{ours}.weight", f"{theirs}/kernel", TRANSPOSED), Row(f"{ours}.bias", f"{theirs}/bias")


def norm(ours: str, theirs: str, codec: Codec | None = None) -> Sequence[Row]:
    return Row(f"{ours}.weight", f"{theirs}/scale", codec), Row(f"{ours}.bias", f"{theirs}/bias", codec)


def attention(ours: str, theirs: str) -> Sequence[Row]:
    """Attention with its heads on an axis of their own."""
    three = [f"{theirs}/{part}" for part in ("query", "key", "value")]
    return (
        Row(f"{ours}.qkv.weight", tuple(f"{name}/kernel" for name in three), then(for_each(HEADS), QKV)),
        Row(f"{ours}.qkv.bias", tuple(f"{name}/bias" for name in three), then(for_each(HEADS_BIAS), QKV)),
        Row(f"{ours}.out.weight", f"{theirs}/out/kernel", OUT),
        Row(f"{ours}.out.bias", f"{theirs}/out/bias"),
    )


def mlp(ours: str, theirs: str) -> Sequence[Row]:
    return *dense(f"{ours}.up", f"{theirs}/Dense_0"), *dense(f"{ours}.down", f"{theirs}/Dense_1")


def ends(spelling: FlaxSpelling) -> Sequence[Row]:
    """What stands before and after the blocks; without the table where there is none."""
    return (
        Row("patches.projection.weight", "embedding/kernel", PATCHES),
        Row("patches.projection.bias", "embedding/bias"),
        Row("tokens.cls", "cls", WITHOUT_BATCH),
        *norm("norm", "Transformer/encoder_norm"),
        *dense("head.representation", "pre_logits"),
        *dense("head.classify", "head"),
        *([Row("tokens.tables.0.table", spelling.positions, WITHOUT_BATCH)] if spelling.positions else []),
    )


def blocks(spelling: FlaxSpelling, depth: int) -> Sequence[Row]:
    """Every block apart, or all of them in one array each."""
    first, second, third = _numbers(spelling)
    ours = "encoder.blocks.{i}"
    theirs = "Transformer/encoderblock" + ("" if spelling.stacked else "_{i}")
    rows = (
        *norm(f"{ours}.norm1", f"{theirs}/LayerNorm_0"),
        *attention(f"{ours}.attention", f"{theirs}/MultiHeadDotProductAttention_{first}"),
        *norm(f"{ours}.norm2", f"{theirs}/LayerNorm_{second}"),
        *mlp(f"{ours}.mlp", f"{theirs}/MlpBlock_{third}"),
    )
    if not spelling.stacked:
        return rows
    return [
        Row(tuple(str(row.ours).replace("{i}", str(i)) for i in range(depth)), row.theirs, stacked(row.codec or SAME))
        for row in rows
    ]


def resnet_rows(stem: ResNetStem) -> Sequence[Row]:
    """The ResNet of a hybrid; the published files keep its norms as (1, 1, 1, C), newer code as (C,)."""
    rows = [Row("stem.root.weight", "conv_root/kernel", HWIO)]
    rows += norm("stem.root_norm", "gn_root", CHANNELS)
    for stage, count in enumerate(stem.layers):
        for unit in range(count):
            ours, theirs = f"stem.stages.{stage}.{unit}.", f"block{stage + 1}/unit{unit + 1}/"
            for number in "123":
                rows.append(Row(f"{ours}conv{number}.weight", f"{theirs}conv{number}/kernel", HWIO))
                rows += norm(f"{ours}norm{number}", f"{theirs}gn{number}", CHANNELS)
            rows.append(Row(f"{ours}shortcut.weight", f"{theirs}conv_proj/kernel", HWIO))
            rows += norm(f"{ours}shortcut_norm", f"{theirs}gn_proj", CHANNELS)
    return rows


FAMILY: Final = Family("google", knows, describe, table, outline, container="npz", parts=PARTS)
