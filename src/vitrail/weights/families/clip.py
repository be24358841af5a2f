"""CLIP's names: the vision tower of OpenAI's CLIP and of open_clip, with or without its text tower beside it.

No tensor says which activation a tower computes, how it pools and how many heads it has; open_clip_config.json does.
open_clip's towers of timm (visual.trunk) are read through timm's table, and written by nobody: open_clip builds them
from timm's own list alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from vitrail.checkpoint import Checkpoint
from vitrail.checks import check_choice, check_int, check_number, check_pair, short_repr
from vitrail.errors import CheckpointError, VitrailError
from vitrail.images import Preprocess
from vitrail.network.config import Resample, ViTConfig
from vitrail.weights.families import timm
from vitrail.weights.family import (
    Description,
    Family,
    one_or_pair,
    positions_of,
    rows_of,
    shape_of,
    sizes_of,
)
from vitrail.weights.name_tables import KERNEL, ROW, TRANSPOSED, Row, Table, renamed
from vitrail.weights.preprocessing import evaluation
from vitrail.weights.reading.contents import WeightContents

RESAMPLE: Final = Resample()  # bicubic with antialias, by size
CONFIG: Final = "open_clip_config.json"
FOLDER: Final = f"the folder's {CONFIG}"
VISUAL: Final = "visual."
TRUNK: Final = "trunk."
BLOCK: Final = "transformer.resblocks.{i}."
FIRST: Final = "transformer.resblocks.0."
EPS: Final = 1e-5
POOLS: Final = {"tok": "cls", "avg": "mean", "none": "none"}
TIMM_POOLS: Final = {"token": "cls", "avg": "mean", "map": "map"}
MODES: Final = {"shortest": "crop", "squash": "squash"}
INTERPOLATIONS: Final = {"bicubic": "bicubic", "bilinear": "bilinear", "random": "bicubic"}  # random while training
OTHERS: Final = {  # what else open_clip may build into a tower, by the names it leaves
    "attn_pool.query": "attentional pooling (CoCa)",
    "attn_pool_contrastive.query": "attentional pooling (CoCa)",
    "attnpool.positional_embedding": "a ResNet, which is no vision transformer",
    FIRST + "attn.logit_scale": "scaled cosine attention",
    FIRST + "attn.head_scale": "scaled heads",
    FIRST + "attn.ln_inner.weight": "a norm inside attention",
    FIRST + "ln_attn.weight": "a norm behind attention",
    FIRST + "mlp.ln.weight": "a norm inside the MLP",
    "head.pool.": "a pool of open_clip's own behind timm's network",
    "head.mlp.": "an MLP as projection behind timm's network",
}

ROWS: Table = (
    Row("patches.projection.weight", "conv1.weight", KERNEL),
    Row("tokens.cls", "class_embedding", ROW),
    Row("tokens.tables.0.table", "positional_embedding"),
    Row("embedding_norm", "ln_pre"),
    Row("encoder.blocks.{i}.norm1", BLOCK + "ln_1"),
    Row("encoder.blocks.{i}.norm2", BLOCK + "ln_2"),
    Row("encoder.blocks.{i}.attention.qkv.weight", BLOCK + "attn.in_proj_weight"),
    Row("encoder.blocks.{i}.attention.qkv.bias", BLOCK + "attn.in_proj_bias"),
    Row("encoder.blocks.{i}.attention.query_norm", BLOCK + "attn.ln_q"),
    Row("encoder.blocks.{i}.attention.key_norm", BLOCK + "attn.ln_k"),
    Row("encoder.blocks.{i}.attention.out", BLOCK + "attn.out_proj"),
    Row("encoder.blocks.{i}.scale1.gamma", BLOCK + "ls_1.gamma"),
    Row("encoder.blocks.{i}.scale2.gamma", BLOCK + "ls_2.gamma"),
    Row("encoder.blocks.{i}.mlp.up", BLOCK + "mlp.c_fc"),
    Row("encoder.blocks.{i}.mlp.down", BLOCK + "mlp.c_proj"),
    Row("norm", "ln_post"),
    Row("head.classify.weight", "proj", TRANSPOSED),
)


def knows(contents: WeightContents) -> bool:
    """A tower of either kind; a ResNet of CLIP's too, so that it can be refused by name."""
    before, names = _before(contents), contents.tensors
    if f"{before}conv1.weight" in names:
        marks = (f"{before}{FIRST}attn.in_proj_weight", f"{before}attnpool.positional_embedding")
        return any(mark in names for mark in marks)
    return f"{before}{TRUNK}patch_embed.proj.weight" in names


def describe(contents: WeightContents, override: Mapping[str, Any]) -> Description:
    """Config from shapes, and from open_clip's config where it lies beside the weights."""
    before, tensors = _before(contents), contents.tensors
    for mark, what in OTHERS.items():
        if any(name.startswith(before + mark) for name in tensors):
            raise CheckpointError(f"{contents.source}: a CLIP tower with {what}, which is not read here")
    if f"{before}conv1.weight" not in tensors:
        return _describe_trunk(contents, before, override)
    model_config, vision = _read_config(contents)
    settings, heads_why = _sizes(contents, before, vision, override)
    table, patch, first = f"{before}positional_embedding", settings["patch_size"], before + FIRST
    told = {"image_size": check_pair("image_size", vision["image_size"])} if "image_size" in vision else {}
    told |= override
    settings |= positions_of(contents, table, (1,), patch, told, RESAMPLE, axes=2)
    _refuse_contradictions(contents, vision, settings | {"layers": settings["depth"]}, override)
    activation, activation_why = _activation(contents, model_config, vision, override)
    after = check_choice("final_ln_after_pool", vision.get("final_ln_after_pool", False), (True, False))
    settings |= {
        "classes": rows_of(contents, f"{before}proj", 1),
        "patch_bias": False,
        "activation": activation,
        "qk_norm": f"{first}attn.ln_q.weight" in tensors,
        "layer_scale": 1e-5 if f"{first}ls_1.gamma" in tensors else None,
        "norm_eps": _eps(vision),
        "embedding_norm": f"{before}ln_pre.weight" in tensors,
        "final_norm": "pooled" if after else "tokens",
        "pool": POOLS[check_choice("pool_type", vision.get("pool_type", "tok"), POOLS)],
        "head_bias": False,
        "patch_dropout": vision.get("patch_dropout", 0.0),
    }
    config = ViTConfig(**settings)
    preprocess, known = _pixels(contents, config, override)
    reasons = {
        "heads": heads_why,
        "activation": activation_why,
        "norm_eps": FOLDER if vision.get("norm_kwargs") else "CLIP's own",
        "pool": FOLDER if model_config else "as OpenAI's towers; no tensor says it",
        "resample": "open_clip's own, for other sizes",
        "preprocess": known,
        "classes": "the values of an image's embedding",
    }
    return Description(config, preprocess, reasons, layout=before)


def table(description: Description) -> Table:
    """The rows behind the prefix that the layout names, in CLIP's spelling or in timm's."""
    before, trunk, spelling = description.layout.partition(TRUNK)
    if not trunk:
        return renamed(ROWS, lambda name: before + name)
    rows = timm.table(replace(description, layout=spelling.removesuffix("+proj")))
    projected = spelling.endswith("+proj")
    inside = [row for row in rows if not (projected and isinstance(row, Row) and row.ours == "head.classify")]
    projection = [Row("head.classify", f"{before}head.proj")] if projected else []
    return (*renamed(inside, lambda name: before + TRUNK + name), *projection)


def outline(checkpoint: Checkpoint) -> Description:
    """How open_clip would carry a checkpoint: as the tower of a whole model, under visual."""
    config = checkpoint.model.config
    if config.channels != 3:
        raise CheckpointError(f"clip cannot carry {config.channels} channels: open_clip's tower takes 3")
    if not config.slots:
        raise CheckpointError("clip cannot carry a network without a cls token that has a position")
    return Description.of(checkpoint, classes=(), layout=VISUAL)


def sidecars(description: Description) -> dict[str, Any]:
    """open_clip_config.json, its vision part: a text tower to go with it must be added by whoever has one."""
    config = description.config
    vision: dict[str, Any] = {
        "image_size": one_or_pair(config.image_size),
        "layers": config.depth,
        "width": config.width,
        "head_width": config.per_head,
        "patch_size": one_or_pair(config.patch_size),
        "mlp_ratio": _ratio(config),
        "pool_type": {pool: name for name, pool in POOLS.items()}.get(config.pool, "tok"),
        "final_ln_after_pool": config.final_norm == "pooled",
        "no_ln_pre": not config.embedding_norm,
        "qk_norm": config.qk_norm,
        "ls_init_value": config.layer_scale,
        "patch_dropout": config.patch_dropout,
    }
    if config.norm_eps != EPS:
        vision["norm_kwargs"] = {"eps": config.norm_eps}
    if config.activation == "gelu_tanh":
        vision["act_kwargs"] = {"approximate": "tanh"}
    model = {
        "embed_dim": config.classes or config.width,
        "quick_gelu": config.activation == "quick_gelu",
        "vision_cfg": vision,
    }
    return {CONFIG: {"model_cfg": model, **_preprocess_cfg(description.preprocess)}}


# ---- a tower of timm's -------------------------------------------------------------------------------------------


def _describe_trunk(contents: WeightContents, before: str, override: Mapping[str, Any]) -> Description:
    """timm's own description of the trunk, with open_clip's projection behind it."""
    _, vision = _read_config(contents)
    start = before + TRUNK
    inside = {name[len(start) :]: value for name, value in contents.tensors.items() if name.startswith(start)}
    about = {"config.json": {"architecture": str(vision["timm_model_name"])}} if "timm_model_name" in vision else {}
    trunk = timm.describe(replace(contents, tensors=inside, sidecars=about), override)
    config, reasons = trunk.config, dict(trunk.reasons)
    projection = f"{before}head.proj"
    projected = f"{projection}.weight" in contents.tensors
    if projected:
        bias = f"{projection}.bias" in contents.tensors
        config = replace(config, classes=rows_of(contents, f"{projection}.weight"), head_bias=bias)
    pool = vision.get("timm_pool", "avg") if vision else override.get("pool")
    if pool is None and config.pool == "cls":
        raise CheckpointError(
            f"{contents.source}: a tower of timm's, and no tensor says whether open_clip takes its cls token or the "
            "mean of its patches: give override={'pool': 'cls'} or {'pool': 'mean'}"
        )
    if vision and pool:
        config = replace(config, pool=TIMM_POOLS[check_choice("timm_pool", pool, TIMM_POOLS)])
        reasons["pool"] = FOLDER
    preprocess, reasons["preprocess"] = _pixels(contents, config, override)
    reasons["classes"] = "the values of an image's embedding"
    layout = f"{start}{trunk.layout}{'+proj' if projected else ''}"
    return Description(config, preprocess, reasons, layout=layout)


# ---- small parts -------------------------------------------------------------------------------------------------


def _before(contents: WeightContents) -> str:
    """What stands before the tower's names: nothing where the file is the tower alone."""
    return VISUAL if any(name.startswith(VISUAL) for name in contents.tensors) else ""


def _read_config(contents: WeightContents) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """model_cfg and its vision_cfg, both empty where there is no open_clip_config.json."""
    if CONFIG not in contents.sidecars:
        return {}, {}
    model = _mapping("model_cfg", contents.sidecars[CONFIG].get("model_cfg"))
    return model, _mapping("vision_cfg", model.get("vision_cfg"))


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise CheckpointError(f"{CONFIG}: expected {name} as an object, got {short_repr(value)}")
    return value


def _refuse_contradictions(
    contents: WeightContents, vision: Mapping[str, Any], sizes: Mapping[str, Any], override: Mapping[str, Any]
) -> None:
    """Sizes that the config says and the tensors do not have."""
    for name in ("width", "layers", "patch_size", "image_size"):
        value = sizes[name]
        if name not in vision or name in override:
            continue
        given = check_pair(name, vision[name]) if isinstance(value, tuple) else vision[name]
        if given != value:
            raise CheckpointError(
                f"{contents.source}: {CONFIG} says {name} {short_repr(given)}, the tensors say {value}: "
                "they do not belong together"
            )


def _sizes(
    contents: WeightContents, before: str, vision: Mapping[str, Any], override: Mapping[str, Any]
) -> tuple[dict[str, Any], str]:
    """What the shapes say, and why there are so many heads, which share the width; a config says how wide they are."""
    told, why = dict(override), ""
    if vision and "heads" not in override:
        each = check_int("head_width", vision.get("head_width", 64))
        width = shape_of(contents, f"{before}conv1.weight", axes=4)[0]
        told["heads"], why = max(width // each, 1), f"heads of {each}, by the folder's {CONFIG}"
    settings, heads_why = sizes_of(contents, renamed(ROWS, lambda name: before + name), told)
    return settings | {"head_width": 0}, why if why and heads_why == "given" else heads_why


def _activation(
    contents: WeightContents, model_config: Mapping[str, Any], vision: Mapping[str, Any], override: Mapping[str, Any]
) -> tuple[str, str]:
    if "activation" in override:
        return str(override["activation"]), "given"
    if not model_config:
        raise CheckpointError(
            f"{contents.source}: a CLIP tower, and no tensor says whether it computes quick_gelu (OpenAI, DFN, "
            f"MetaCLIP) or gelu (LAION, DataComp): give override={{'activation': 'quick_gelu'}} or 'gelu', or load a "
            f"folder with {CONFIG}"
        )
    arguments = _mapping("act_kwargs", vision.get("act_kwargs") or {})
    if check_choice("quick_gelu", model_config.get("quick_gelu", False), (True, False)) and not arguments:
        return "quick_gelu", FOLDER
    if any(name != "approximate" for name in arguments) or model_config.get("quick_gelu"):
        raise CheckpointError(
            f"{contents.source}: {CONFIG} gives its activation {short_repr(arguments)}: not understood"
        )
    form = check_choice("approximate", arguments.get("approximate", "none"), ("none", "tanh"))
    return "gelu_tanh" if form == "tanh" else "gelu", FOLDER


def _eps(vision: Mapping[str, Any]) -> float:
    arguments = _mapping("norm_kwargs", vision.get("norm_kwargs") or {})
    if any(name != "eps" for name in arguments):
        raise CheckpointError(f"{CONFIG} gives its norms {short_repr(arguments)}: expected eps alone")
    return check_number("eps", arguments.get("eps", EPS), 0.0, 1.0)


def _pixels(contents: WeightContents, config: ViTConfig, override: Mapping[str, Any]) -> tuple[Preprocess, str]:
    """The folder's preprocessing, or CLIP's own; open_clip always prepares for the size of the network."""
    known = evaluation("clip", config.image_size, config.channels)
    if CONFIG not in contents.sidecars or config.channels != 3:
        return known
    asked = _mapping("preprocess_cfg", contents.sidecars[CONFIG].get("preprocess_cfg") or {})
    given = {name: value for name, value in asked.items() if value is not None}
    mode = given.get("resize_mode", "shortest")
    if mode == "longest" and "resize" not in override:
        raise CheckpointError(
            f"{contents.source}: {CONFIG} puts black bars around images (resize_mode 'longest'), which is not done "
            "here: give override={'resize': ...}"
        )
    resize = MODES[check_choice("resize_mode", mode, MODES)] if mode != "longest" else "pad"
    interpolation = INTERPOLATIONS[check_choice("interpolation", given.get("interpolation", "bicubic"), INTERPOLATIONS)]
    if resize == "crop" and config.image_size[0] != config.image_size[1]:
        interpolation = "bicubic"  # open_clip covers a frame that is not square by a resize of its own
    values = known.preprocess.to_dict() | {"resize": resize, "interpolation": interpolation}
    values |= {name: given[name] for name in ("mean", "std") if name in given}
    try:
        return Preprocess.from_dict(values), FOLDER
    except VitrailError as error:
        raise CheckpointError(f"{contents.source}: {CONFIG}, preprocess_cfg: {error}") from None


def _preprocess_cfg(preprocess: Preprocess) -> dict[str, Any]:
    """What open_clip is to do to an image; what it cannot do stays behind, and the report says so."""
    steps = preprocess.resize in MODES.values() and preprocess.interpolation in INTERPOLATIONS.values()
    usual = preprocess.crop == 1.0 and preprocess.antialias and preprocess.order == "RGB" and preprocess.range == 255
    if not steps or not usual:
        return {}
    plain = {
        "size": one_or_pair(preprocess.size),
        "mode": "RGB",
        "mean": list(preprocess.mean),
        "std": list(preprocess.std),
        "interpolation": preprocess.interpolation,
        "resize_mode": {resize: mode for mode, resize in MODES.items()}[preprocess.resize],
    }
    return {"preprocess_cfg": plain}


def _ratio(config: ViTConfig) -> float:
    """mlp_width as a share of the width, such that open_clip, which rounds down, gets it back."""
    ratio = config.mlp_width / config.width
    return ratio if int(config.width * ratio) == config.mlp_width else math.nextafter(ratio, math.inf)


TEXT: Final = (
    *("transformer.*", "token_embedding.*", "positional_embedding", "ln_final.*", "text_projection"),
    *("text_projection.*", "logit_scale", "logit_bias", "attn_mask", "text.*", "text_decoder.*"),
    *("input_resolution", "context_length", "vocab_size"),  # numbers that OpenAI's files keep as tensors
)

FAMILY: Final = Family(
    "clip",
    knows,
    describe,
    table,
    outline,
    sidecars,
    container="folder",
    weights="open_clip_model.safetensors",
    parts={"text": TEXT, "projection": ("visual.proj", "proj", "visual.head.proj.*", "head.proj.*")},
)
