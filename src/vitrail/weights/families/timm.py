"""timm's names: ViT, DeiT, DeiT-III, DINOv2, CLIP, SigLIP, MAE, the hybrids, and DINOv3 as timm's EVA.

A bare file leaves activation, norm eps and preprocessing open; a folder with timm's config.json says the architecture.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import torch

from vitrail.checkpoint import Checkpoint
from vitrail.errors import CheckpointError
from vitrail.network.config import Positions, Resample, ResNetStem, Rotary, ViTConfig
from vitrail.weights.families.plain import (
    BLOCKS,
    ENDS,
    MLP,
    SCALES,
    mlp_of,
    resnet_layers,
    resnet_rows,
    root_of,
    sizes_of,
)
from vitrail.weights.families.timm_pixels import from_timm, to_timm
from vitrail.weights.family import Description, Family, class_names, grid_of, shape_of
from vitrail.weights.preprocessing import timm_default
from vitrail.weights.reading.contents import Contents
from vitrail.weights.tables import GATED, WITHOUT_BATCH, Derived, How, Row, Table, Tensors, stack

RESAMPLE: Final = Resample()  # bicubic with antialias, by size
STEM: Final = "patch_embed.backbone."
HYBRIDS: Final = {(3, 4, 9): "vit_base_r50_s16_224", (2, 2, 2, 2): "vit_small_r26_s32_224", (): "vit_tiny_r_s16_p8_224"}
FOLDER: Final = "the folder's config.json"
POOLS: Final = {"token": "cls", "avg": "mean", "map": "map", "": "none"}
OTHERS: Final = {  # words in the names of timm's architectures whose tensors look like these
    "_rpn": "norms behind the branches",
    "relpos": "relative positions",
    "eva": "EVA",
    "vit_pe_": "Perception Encoder",
    "_rope": "rotary positions",
    "_xp": "norms without bias",
    "_mci": "MobileCLIP's stem",
    "lingbot": "LingBot",
    "beit": "BEiT",
}

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


def _without_register_slots(tensors: Tensors, config: ViTConfig) -> Tensors:
    """timm may give registers places of their own; added to the registers they say the same, and zeros say nothing."""
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


REGISTER_SLOTS: Final = How("places of registers added to them", _without_register_slots, _with_register_slots)


def knows(contents: Contents) -> bool:
    names = contents.tensors
    return "patch_embed.proj.weight" in names and "blocks.0.attn.qkv.weight" in names and "mask_token" not in names


def describe(contents: Contents, override: Mapping[str, Any]) -> Description:
    """Config from shapes, and from timm's config.json where there is one."""
    tensors, sidecar = contents.tensors, contents.sidecars.get("config.json", {})
    architecture, given = str(sidecar.get("architecture", "")), _mapping(sidecar.get("model_args"))
    eva = "blocks.0.gamma_1" in tensors
    _refuse_others(contents, architecture)
    sizes = sizes_of(contents, _heads_of(given) | dict(override))
    settings, reasons = sizes.settings, {"heads": sizes.heads_why}
    if "num_heads" in given and "heads" not in override:
        reasons["heads"] = FOLDER
    settings["registers"] = shape_of(contents, "reg_token", axes=3)[1] if "reg_token" in tensors else 0
    settings["distillation_token"] = "dist_token" in tensors
    settings["embedding_norm"] = "norm_pre.weight" in tensors
    settings["layer_scale"] = 1e-5 if "blocks.0.ls1.gamma" in tensors or "blocks.0.gamma_1" in tensors else None
    settings |= _mlp(contents)
    settings |= _pool(contents, settings, given, eva)
    if any(name.startswith(STEM) for name in tensors):
        layers = resnet_layers(contents, STEM)
        settings["stem"] = ResNetStem(layers, norm_eps=1e-5, weight_eps=1e-8, standardise="variance")
        settings["channels"] = shape_of(contents, f"{root_of(layers, STEM)}conv.weight", axes=4)[1]
        reasons["stem"] = "timm's form of weight standardisation"
    settings |= _rotary(contents) if eva else _table(contents, settings, override)
    clip = "_clip_" in architecture if architecture else settings["embedding_norm"]
    settings["norm_eps"] = 1e-5 if clip or eva else 1e-6
    reasons["norm_eps"] = "as timm's CLIP towers" if clip else "as timm's DINOv3" if eva else "timm's default"
    reasons["resample"] = "timm's own, for other sizes"
    if not {"fc_norm.weight", "attn_pool.latent", "dist_token"} & tensors.keys():
        reasons["pool"] = FOLDER if "global_pool" in given else "timm's default for these names"
    if "activation" not in settings:
        settings["activation"], reasons["activation"] = _activation(contents, settings, architecture, given, override)
    config = ViTConfig(**settings)
    known = timm_default(config)
    if "mean" in _mapping(sidecar.get("pretrained_cfg")):
        preprocess = from_timm(sidecar["pretrained_cfg"], config.image_size)
        reasons["preprocess"] = FOLDER
    else:
        preprocess, reasons["preprocess"] = known
    return Description(
        config,
        preprocess,
        reasons,
        class_names(
            config.classes, sidecar.get("label_names") or _mapping(sidecar.get("pretrained_cfg")).get("label_names")
        ),
        layout="eva" if eva else "vit",
    )


def table(description: Description) -> Table:
    """The rows for a config in one of two spellings: vit, and eva for rotary positions."""
    config = description.config
    ends: list[Row | Derived] = [*ENDS, Row("embedding_norm", "norm_pre"), Row("head.distil", "head_dist")]
    ends.append(Row("tokens.distillation", "dist_token", WITHOUT_BATCH))
    ends.append(Row("norm", "fc_norm" if config.final_norm == "pooled" else "norm"))
    if config.registers and config.slots and config.positions.kind != "none":
        ends.append(Row(("tokens.registers", "tokens.tables.0.table"), ("reg_token", "pos_embed"), REGISTER_SLOTS))
    else:
        ends.append(Row("tokens.registers", "reg_token", WITHOUT_BATCH))
        ends.append(Row("tokens.tables.0.table", "pos_embed", WITHOUT_BATCH))
    stem = resnet_rows(STEM, config.stem) if isinstance(config.stem, ResNetStem) else ()
    mlp: Table = MLP
    if description.layout == "eva" and config.mlp == "swiglu":
        mlp = (Row("encoder.blocks.{i}.mlp.up", ("blocks.{i}.mlp.fc1_g", "blocks.{i}.mlp.fc1_x"), GATED),)
    return (*ends, *stem, *BLOCKS, *mlp, *(EVA if description.layout == "eva" else SCALES), *POOL)


def outline(checkpoint: Checkpoint) -> Description:
    """How timm would carry a checkpoint."""
    config = checkpoint.model.config
    if isinstance(config.stem, ResNetStem) and config.stem.layers not in HYBRIDS:
        raise CheckpointError(
            f"timm cannot carry a ResNet of {config.stem.layers}: it has {', '.join(map(str, HYBRIDS))}"
        )
    return Description(
        config, checkpoint.preprocess, classes=checkpoint.classes, layout="eva" if config.rotary else "vit"
    )


def sidecars(description: Description) -> dict[str, Any]:
    """timm's config.json: the nearest architecture that timm has, and all in which this network differs."""
    config = description.config
    arguments: dict[str, Any] = {
        "img_size": list(config.image_size),
        "patch_size": list(config.patch_size),
        "embed_dim": config.width,
        "depth": config.depth,
        "num_heads": config.heads,
        "mlp_ratio": config.mlp_width * (2 if config.mlp == "swiglu" and not config.rotary else 1) / config.width,
        "qkv_bias": config.qkv_bias != "none",
        "init_values": None if config.layer_scale is None else 1e-5,
        "class_token": config.cls_token,
        "global_pool": next((name for name, pool in POOLS.items() if pool == config.pool), "token"),
    }
    if config.rotary is None:
        arguments |= {
            "qk_norm": config.qk_norm,
            "no_embed_class": not config.positions.prefix and config.cls_token,
            "reg_tokens": config.registers,
            "pre_norm": config.embedding_norm,
            "final_norm": config.final_norm != "none",
            "fc_norm": config.final_norm == "pooled",
        }
        if config.mlp == "plain":
            arguments["act_layer"] = config.activation
    else:
        arguments |= {"num_reg_tokens": config.registers}
    if config.positions.kind == "none" and config.rotary is None:
        arguments["pos_embed"] = "none"
    if isinstance(config.stem, ResNetStem):
        del arguments["patch_size"]  # each hybrid of timm has its own
    pretrained: dict[str, Any] = {"num_classes": config.classes}
    with suppress(CheckpointError):  # what timm's transform cannot do stays behind, and the report says so
        pretrained |= to_timm(description.preprocess)
    if description.classes and config.classes:
        pretrained["label_names"] = list(description.classes)
    return {
        "config.json": {
            "architecture": _architecture(config),
            "num_classes": config.classes,
            "num_features": config.width,
            "model_args": arguments,
            "pretrained_cfg": pretrained,
        }
    }


# ---- small parts -------------------------------------------------------------------------------------------------


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _heads_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"heads": arguments["num_heads"]} if "num_heads" in arguments else {}


def _mlp(contents: Contents) -> dict[str, Any]:
    if "blocks.0.mlp.fc1_g.weight" in contents.tensors:
        return {
            "mlp_width": shape_of(contents, "blocks.0.mlp.fc1_g.weight", 2)[0],
            "mlp": "swiglu",
            "activation": "silu",
        }
    return mlp_of(contents, "blocks.0.mlp.fc1.weight", "blocks.0.mlp.fc2.weight")


def _pool(contents: Contents, settings: Mapping[str, Any], arguments: Mapping[str, Any], eva: bool) -> dict[str, Any]:
    """Which pool the names speak of: attention pooling, two tokens, a norm behind the pool; else config.json, timm."""
    names = contents.tensors
    final = "pooled" if "fc_norm.weight" in names else "tokens" if "norm.weight" in names else "none"
    if "attn_pool.latent" in names:
        return {"pool": "map", "final_norm": final}
    if "dist_token" in names:
        return {"pool": "cls+distillation", "final_norm": final}
    mean = final == "pooled" or eva or not settings["cls_token"]
    given = str(arguments.get("global_pool", "avg" if mean else "token"))
    if given not in POOLS:
        raise CheckpointError(f"{contents.source}: timm's global_pool {given!r} is none of {', '.join(POOLS)}")
    return {"pool": POOLS[given], "final_norm": final}


def _table(contents: Contents, settings: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """Positions and image size from the table; with registers it may have places for them, for cls alone, or none."""
    if "pos_embed" not in contents.tensors:
        raise CheckpointError(
            f"{contents.source}: no pos_embed and no mark of rotary positions: no timm network known here"
        )
    named = int(settings["cls_token"]) + int(settings["distillation_token"])
    registers = settings["registers"]
    reduction = settings["stem"].reduction if "stem" in settings else 1
    patch = tuple(side * reduction for side in settings["patch_size"])
    places = shape_of(contents, "pos_embed", axes=3)[1]
    slots = (0, named + registers) if registers else (0, named) if named == 1 else (named,)
    size, count = grid_of(places, slots, patch, override)
    return {"image_size": size, "positions": Positions(prefix=count > 0, resample=RESAMPLE)}


def _rotary(contents: Contents) -> dict[str, Any]:
    """DINOv3 as timm has it: no table at all; the native size is the one it was published for."""
    bias = "no-key" if "blocks.0.attn.q_bias" in contents.tensors else "none"
    patch = shape_of(contents, "patch_embed.proj.weight", axes=4)[2]
    return {
        "image_size": 256 if 256 % patch == 0 else 16 * patch,
        "positions": Positions("none"),
        "rotary": Rotary("dinov3", theta=100.0),
        "qkv_bias": bias,
    }


def _refuse_others(contents: Contents, architecture: str) -> None:
    """Networks of timm that have these names and compute something else."""
    names = contents.tensors
    other = next((word for word in OTHERS if word in architecture), "")
    if other:
        raise CheckpointError(f"{contents.source}: timm's {architecture} ({OTHERS[other]}) is no network known here")
    if "blocks.0.gamma_1" in names:
        bias = "blocks.0.attn.qkv.bias" in names
        if "pos_embed" in names or bias or "reg_token" not in names:
            raise CheckpointError(
                f"{contents.source}: gamma_1 beside these names is one of timm's EVA or rope networks, which no tensor "
                "tells apart, or an official DeiT-III out of its wrapping: for that give override={'family': 'deit'}"
            )
    if "norm_pre.weight" in names and "attn_pool.latent" in names:
        raise CheckpointError(f"{contents.source}: a Perception Encoder of timm's, which is no network known here")


def _activation(
    contents: Contents,
    settings: Mapping[str, Any],
    architecture: str,
    arguments: Mapping[str, Any],
    override: Mapping[str, Any],
) -> tuple[str, str]:
    """What the MLPs compute, and how that is known; a bare CLIP tower must be told."""
    if "activation" in override:
        return str(override["activation"]), "given"
    if "act_layer" in arguments:
        return str(arguments["act_layer"]), FOLDER
    if architecture:
        tanh = not settings["cls_token"] and _tanh(settings)
        kind = "quick_gelu" if "quickgelu" in architecture else "gelu_tanh" if tanh else "gelu"
        return kind, f"as timm's {architecture}"
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


def _architecture(config: ViTConfig) -> str:
    """The architecture of timm whose fixed parts are those of the config."""
    if config.rotary is not None:
        return (
            "vit_small_plus_patch16_dinov3"
            if config.mlp == "swiglu"
            else "vit_small_patch16_dinov3_qkvb"
            if config.qkv_bias == "no-key"
            else "vit_small_patch16_dinov3"
        )
    if isinstance(config.stem, ResNetStem):
        return HYBRIDS[config.stem.layers]
    if config.distillation_token:
        return "deit_base_distilled_patch16_224"
    if config.mlp == "swiglu":
        return "vit_giant_patch14_dinov2"
    return "vit_base_patch16_clip_224" if config.norm_eps == 1e-5 else "vit_base_patch16_224"


TIMM: Final = Family(
    name="timm",
    knows=knows,
    describe=describe,
    table=table,
    outline=outline,
    sidecars=sidecars,
    container="folder",
    parts={"head": ("head.*", "head_dist.*"), "pre_logits": ("pre_logits.*",), "norm": ("norm.*", "fc_norm.*")},
)
