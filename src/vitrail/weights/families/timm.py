"""timm's names: ViT, DeiT, DeiT-III, DINOv2, CLIP, SigLIP, MAE, the hybrids, and DINOv3 as timm's EVA.

A bare file leaves activation, norm eps and preprocessing open; a folder with timm's config.json says the architecture.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from vitrail.checkpoint import Checkpoint
from vitrail.errors import CheckpointError
from vitrail.network.config import Positions, Resample, ResNetStem, Rotary, ViTConfig
from vitrail.weights.families.block_names import ATTENTION, ENDS, PLAIN_MLP, SCALES, TABLE
from vitrail.weights.families.timm_config import FOLDER, HYBRIDS, POOLS, TimmConfig, read_config, refuse, sidecars
from vitrail.weights.families.timm_pixels import from_timm
from vitrail.weights.family import (
    PUBLISHED_HEADS,
    SWIGLU,
    Description,
    Family,
    cell_of,
    class_names,
    depth_of,
    positions_of,
    shape_of,
    sizes_of,
    usual_size,
)
from vitrail.weights.name_tables import GATED, REGISTER_SLOTS, WITHOUT_BATCH, Row, Table, stack
from vitrail.weights.preprocessing import timm_default
from vitrail.weights.reading.contents import WeightContents

RESAMPLE: Final = Resample()  # bicubic with antialias, by size
STEM: Final = "patch_embed.backbone."
PLACED: Final = "vit, registers in the table"

BLOCKS: Table = (
    *ATTENTION,
    Row("encoder.blocks.{i}.attention.query_norm", "blocks.{i}.attn.q_norm"),
    Row("encoder.blocks.{i}.attention.key_norm", "blocks.{i}.attn.k_norm"),
)
GATED_MLP: Table = (
    Row("encoder.blocks.{i}.mlp.up", ("blocks.{i}.mlp.fc1_g", "blocks.{i}.mlp.fc1_x"), GATED),
    Row("encoder.blocks.{i}.mlp.down", "blocks.{i}.mlp.fc2"),
)
POOL: Table = (
    Row("pool.probe", "attn_pool.latent"),
    Row("pool.attention.qkv", ("attn_pool.q", "attn_pool.kv"), stack(1, 2, name="q and kv laid end to end")),
    Row("pool.attention.out", "attn_pool.proj"),
    Row("pool.norm", "attn_pool.norm"),
    Row("pool.mlp.up", "attn_pool.mlp.fc1"),
    Row("pool.mlp.down", "attn_pool.mlp.fc2"),
)
EVA: Table = (
    Row("encoder.blocks.{i}.attention.query_bias", "blocks.{i}.attn.q_bias"),
    Row("encoder.blocks.{i}.attention.value_bias", "blocks.{i}.attn.v_bias"),
    Row("encoder.blocks.{i}.scale1.gamma", "blocks.{i}.gamma_1"),
    Row("encoder.blocks.{i}.scale2.gamma", "blocks.{i}.gamma_2"),
)


def knows(contents: WeightContents) -> bool:
    names = contents.tensors
    return "patch_embed.proj.weight" in names and "blocks.0.attn.qkv.weight" in names and "mask_token" not in names


def describe(contents: WeightContents, override: Mapping[str, Any]) -> Description:
    """Config from shapes, and from timm's config.json where there is one."""
    tensors, given = contents.tensors, read_config(contents, override)
    eva = "blocks.0.gamma_1" in tensors
    _refuse_others(contents)
    heads = {} if given.heads is None else {"heads": given.heads}
    rows = (*ENDS, *BLOCKS, *PLAIN_MLP)
    settings, heads_why = sizes_of(contents, rows, heads | dict(override), _published(contents, eva))
    reasons = {"heads": FOLDER if heads and "heads" not in override else heads_why}
    settings |= {
        "patch_bias": "patch_embed.proj.bias" in tensors,
        "cls_token": "cls_token" in tensors,
        "distillation_token": "dist_token" in tensors,
        "registers": shape_of(contents, "reg_token", axes=3)[1] if "reg_token" in tensors else 0,
        "embedding_norm": "norm_pre.weight" in tensors,
        "qkv_bias": "all" if "blocks.0.attn.qkv.bias" in tensors else "none",
        "qk_norm": "blocks.0.attn.q_norm.weight" in tensors,
        "layer_scale": 1e-5 if "blocks.0.ls1.gamma" in tensors or eva else None,
        "head_bias": "head.bias" in tensors or "head.weight" not in tensors,
        "initialisation": "timm",
    }
    if _gated(contents, settings["mlp_width"]):
        settings |= SWIGLU
    settings["pool"], settings["final_norm"], reasons["pool"] = _pool(contents, settings, given, override)
    if any(name.startswith(STEM) for name in tensors):
        layers = resnet_layers(contents, STEM)
        settings["stem"] = ResNetStem(layers, norm_eps=1e-5, weight_eps=1e-8, standardise="variance")
        settings["channels"] = shape_of(contents, f"{root_of(layers, STEM)}conv.weight", axes=4)[1]
    layout = "eva" if eva else "vit"
    if eva:
        settings |= {
            "image_size": usual_size(settings["patch_size"], 256, 16),  # as it was published: there is no table
            "positions": Positions("none"),
            "rotary": Rotary("dinov3", theta=100.0),
            "qkv_bias": "no-key" if "blocks.0.attn.q_bias" in tensors else "none",
        }
    else:
        settings |= _positions(contents, settings, given, override)
        layout = PLACED if settings["registers"] and settings["positions"].prefix else "vit"
    clip = "_clip_" in given.architecture if given.architecture else settings["embedding_norm"]
    settings["norm_eps"] = 1e-5 if clip or eva else 1e-6
    reasons["norm_eps"] = "as timm's CLIP towers" if clip else "as timm's DINOv3" if eva else "timm's default"
    reasons["resample"] = "timm's own, for other sizes"
    if "activation" not in settings:
        settings["activation"], reasons["activation"] = _activation(contents, settings, given, override)
    config = ViTConfig(**settings)
    if "mean" in given.pixels:
        preprocess, reasons["preprocess"] = from_timm(given.pixels, config.image_size), FOLDER
    else:
        preprocess, reasons["preprocess"] = timm_default(config)
    return Description(config, preprocess, reasons, class_names(config.classes, given.labels), layout)


def table(description: Description) -> Table:
    """The rows for a config in one of three spellings: vit, the same with places for registers, and eva (rotary)."""
    config, eva = description.config, description.layout == "eva"
    placed = Row(("tokens.registers", "tokens.tables.0.table"), ("reg_token", "pos_embed"), REGISTER_SLOTS)
    apart = (Row("tokens.registers", "reg_token", WITHOUT_BATCH), *TABLE)
    return (
        *ENDS,
        Row("embedding_norm", "norm_pre"),
        Row("head.distil", "head_dist"),
        Row("tokens.distillation", "dist_token", WITHOUT_BATCH),
        Row("norm", "fc_norm" if config.final_norm == "pooled" else "norm"),
        *((placed,) if description.layout == PLACED else apart),
        *(resnet_rows(STEM, config.stem) if isinstance(config.stem, ResNetStem) else ()),
        *BLOCKS,
        *(GATED_MLP if eva and config.mlp == "swiglu" else PLAIN_MLP),
        *(EVA if eva else SCALES),
        *POOL,
    )


def outline(checkpoint: Checkpoint) -> Description:
    """How timm would carry a checkpoint."""
    config = checkpoint.model.config
    refuse("timm", config)
    if isinstance(config.stem, ResNetStem) and config.stem.layers not in HYBRIDS:
        known = ", ".join(map(str, HYBRIDS))
        raise CheckpointError(f"timm cannot carry a ResNet of {config.stem.layers}: it has {known}")
    placed = config.registers and config.slots and config.positions.kind == "learned"
    layout = "eva" if config.rotary else PLACED if placed else "vit"
    return Description.of(checkpoint, layout=layout)


# ---- small parts -------------------------------------------------------------------------------------------------


def _gated(contents: WeightContents, narrow: int) -> bool:
    """Whether the MLPs are gated, in two layers going up or in one that is twice as wide."""
    if "blocks.0.mlp.fc1_g.weight" in contents.tensors:
        return True
    return shape_of(contents, "blocks.0.mlp.fc1.weight", axes=2)[0] == 2 * narrow


def _pool(
    contents: WeightContents, settings: Mapping[str, Any], given: TimmConfig, override: Mapping[str, Any]
) -> tuple[str, str, str]:
    """Pool, where the final norm stands, and why: names tell of some pools, config.json of others, else as usual."""
    names = contents.tensors
    final = "pooled" if "fc_norm.weight" in names else "tokens" if "norm.weight" in names else "none"
    if "attn_pool.latent" in names:
        return "map", final, "the tensors say so"
    if "dist_token" in names:
        return "cls+distillation", final, "the tensors say so"
    mean = final == "pooled" or "blocks.0.gamma_1" in names or not settings["cls_token"]
    usual = "avg" if mean else "token"
    pool = str(given.arguments.get("global_pool", usual))
    if pool not in POOLS:
        raise CheckpointError(f"{contents.source}: timm's global_pool {pool!r} is none of {list(POOLS)}")
    if given.pool and given.pool != pool and "global_pool" not in given.arguments and "pool" not in override:
        raise CheckpointError(
            f"{contents.source}: config.json says global_pool {given.pool!r}, and timm would load it with {pool!r}: "
            "give override={'pool': ...}"
        )
    return POOLS[pool], final, FOLDER if "global_pool" in given.arguments else "timm's default for these names"


def _positions(
    contents: WeightContents, settings: Mapping[str, Any], given: TimmConfig, override: Mapping[str, Any]
) -> dict[str, Any]:
    """From the table; with registers it may have places for them and cls, or for patches only."""
    named = int(settings["cls_token"]) + int(settings["distillation_token"])
    registers = settings["registers"]
    patch = cell_of(settings)
    slots = (0, named + registers) if registers else (0, named) if named == 1 else (named,)
    size = given.size(patch)
    told = {"image_size": size} if size is not None and "image_size" not in override else override
    return positions_of(contents, "pos_embed", slots, patch, told, RESAMPLE)


def _published(contents: WeightContents, eva: bool) -> Mapping[int, int]:
    """Heads by width; DINOv3 and SigLIP's giant have others than networks of that width usually have."""
    if eva:
        return PUBLISHED_HEADS | {1280: 20, 4096: 32}
    patch = shape_of(contents, "patch_embed.proj.weight", axes=4)[2]
    giant = "cls_token" not in contents.tensors and patch == 16
    return PUBLISHED_HEADS | {1536: 16} if giant else PUBLISHED_HEADS


def _refuse_others(contents: WeightContents) -> None:
    """Networks of timm that have these names and compute something else."""
    names = contents.tensors
    eva, placed, biased = ("blocks.0.gamma_1" in names, "pos_embed" in names, "blocks.0.attn.qkv.bias" in names)
    prefixed = "cls_token" in names or "reg_token" in names
    others = {
        "gamma_1 beside these names is one of timm's EVA or rope networks, which no tensor tells apart, or an official "
        "DeiT-III out of its wrapping: for that give override={'family': 'deit'}": (
            eva and (placed or biased or not {"reg_token", "cls_token"} <= {*names})
        ),
        "q_bias beside these names is one of timm's EVA: not known here": not eva and "blocks.0.attn.q_bias" in names,
        "no pos_embed and no mark of rotary positions: no timm network known here": not eva and not placed,
        "a Perception Encoder of timm's, which is no network known here": (
            "norm_pre.weight" in names and "attn_pool.latent" in names
        ),
        "these names are also those of timm's rpn networks, whose norms stand behind the branches: no tensor tells "
        "them apart": not (prefixed or biased or contents.sidecars) and "blocks.0.ls1.gamma" in names,
    }
    other = next((what for what, holds in others.items() if holds), "")
    if other:
        raise CheckpointError(f"{contents.source}: {other}")


def _activation(
    contents: WeightContents, settings: Mapping[str, Any], given: TimmConfig, override: Mapping[str, Any]
) -> tuple[str, str]:
    """What the MLPs compute, and how that is known; a bare CLIP tower must be told."""
    if "activation" in override:
        return str(override["activation"]), "given"
    if given.activation is not None:
        return given.activation, FOLDER if given.arguments.get("act_layer") else f"as timm's {given.architecture}"
    if settings["embedding_norm"]:
        raise CheckpointError(
            f"{contents.source}: a CLIP tower in timm's names, and no tensor says whether it computes gelu (LAION, "
            "DataComp) or quick_gelu (OpenAI, DFN, MetaCLIP): give override={'activation': ...}"
        )
    if not settings["cls_token"] and _tanh(settings):
        return "gelu_tanh", "as timm's SigLIP of this size"
    return "gelu", "timm's default"


def _tanh(settings: Mapping[str, Any]) -> bool:
    """The SigLIP towers to which timm gives the tanh form of GELU: B/32, so400m/16, giant-opt, and L/16 at 512."""
    width, patch = settings["width"], settings["patch_size"][0]
    large = (width, patch) == (1024, 16) and settings["image_size"] == (512, 512)
    return (width, patch) in ((768, 32), (1152, 16), (1536, 16)) or large


# ---- the ResNet of the hybrids -------------------------------------------------------------------------------------


def resnet_rows(before: str, stem: ResNetStem) -> Table:
    """The ResNetV2 of the hybrids in timm's names, which stand behind `before`."""
    root = root_of(stem.layers, before)
    rows = [Row("stem.root", f"{root}conv"), Row("stem.root_norm", f"{root}norm")]
    for stage, count in enumerate(stem.layers):
        for unit in range(count):
            ours, theirs = f"stem.stages.{stage}.{unit}.", f"{before}stages.{stage}.blocks.{unit}."
            rows += [Row(ours + each, theirs + each) for each in ("conv1", "norm1", "conv2", "norm2", "conv3", "norm3")]
            rows += [Row(ours + "shortcut", theirs + "downsample.conv")]
            rows += [Row(ours + "shortcut_norm", theirs + "downsample.norm")]
    return tuple(rows)


def root_of(layers: tuple[int, ...], before: str) -> str:
    """Where the first convolution stands: a ResNetV2 without stages is nothing but its root."""
    return f"{before}stem." if layers else before


def resnet_layers(contents: WeightContents, before: str) -> tuple[int, ...]:
    """How many units each stage of a ResNetV2 has."""
    layers: list[int] = []
    while f"{before}stages.{len(layers)}.blocks.0.conv1.weight" in contents.tensors:
        layers.append(depth_of(contents, f"{before}stages.{len(layers)}.blocks.{{i}}.conv1.weight"))
    return tuple(layers)


FAMILY: Final = Family(
    "timm",
    knows,
    describe,
    table,
    outline,
    sidecars,
    container="folder",
    parts={"head": ("head.*", "head_dist.*"), "pre_logits": ("pre_logits.*",), "norm": ("norm.*", "fc_norm.*")},
)
