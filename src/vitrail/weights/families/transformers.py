"""transformers: ViT, DeiT, MAE, MSN, I-JEPA, DINOv2, DINOv3, and the towers that see of CLIP, SigLIP and SigLIP 2.

A folder's config.json says heads, activation and eps; whatever the shapes say too must agree with it. A bare file
takes what its model type takes for granted.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

from vitrail.checkpoint import Checkpoint
from vitrail.checks import check_choice, check_int, check_number, check_pair
from vitrail.errors import CheckpointError, ConfigError
from vitrail.images import Preprocess
from vitrail.network.config import Positions, ViTConfig
from vitrail.weights.families.transformers_configs import (
    FILE,
    GRANTED,
    MODEL_TYPES,
    ConfigFile,
    activation_of,
    agree,
    ask,
    labels_agree,
    ratio_agrees,
    read_config,
    rotary_of,
    training_of,
    write_config,
)
from vitrail.weights.families.transformers_names import (
    DECODERS,
    MASK,
    REGISTERS,
    SPELLINGS,
    STYLES,
    TransformersLayout,
    find_layout,
    knows,
    table,
)
from vitrail.weights.families.transformers_pixels import from_transformers, to_transformers
from vitrail.weights.family import (
    Description,
    Family,
    class_names,
    depth_of,
    grid_of,
    heads_for,
    refuse_any,
    rows_of,
    shape_of,
    square_side,
)
from vitrail.weights.preprocessing import transformers_default
from vitrail.weights.reading.contents import WeightContents

NO_KEY: Final = (True, False, True)  # whether q, k and v have a bias
POOLER: Final = (
    "pooler: there is none, and transformers' base class makes a random one: load it with add_pooling_layer=False, or "
    "read last_hidden_state only"
)


class _File(NamedTuple):
    """All that is known before a config is made."""

    contents: WeightContents
    layout: TransformersLayout
    config_file: ConfigFile
    override: Mapping[str, Any]

    def rows(self, layer: str) -> int:
        return rows_of(self.contents, f"{layer}.weight")


# ---- reading -----------------------------------------------------------------------------------------------------


def describe(contents: WeightContents, override: Mapping[str, Any]) -> Description:
    """Config from shapes, and from config.json where there is one."""
    config_file = read_config(contents.sidecars)
    if config_file.values.get("apply_layernorm") is False:
        raise CheckpointError(f"{contents.source}: a DINOv2 backbone without its final norm is no network known here")
    layout = find_layout(contents, config_file.model_type)
    file = _File(contents, layout, config_file, override)
    kind, values = MODEL_TYPES[layout.kind], config_file.values
    settings = _sizes(file)
    settings["heads"], heads_why = _heads(file)
    settings["head_width"] = _head_width(file, layout.blocks, settings["heads"], settings["width"])
    settings["activation"], activation_why = _activation(file, settings["mlp"] == "swiglu")
    settings["norm_eps"] = check_number("layer_norm_eps", ask(values, "layer_norm_eps", kind.norm_eps), 0.0, 1.0)
    settings |= training_of(values) | _ends(file) | _positions(file, settings["patch_size"])
    config = ViTConfig(**settings)
    _compare(file, config)
    _expect_head(contents, config)
    if layout.kind.startswith("dinov2") and config.grid[0] != config.grid[1]:
        raise CheckpointError(
            f"{contents.source}: a DINOv2 for images of {config.image_size[0]}x{config.image_size[1]}, whose positions "
            "transformers reads as if they were a square: no network known here"
        )
    embeds = layout.kind == "clip_vision_model" and config.pool == "cls"  # its outputs are no classes
    labels_agree(config_file.labels, 0 if embeds else config.classes)
    preprocess, preprocess_why = _preprocess(file, config)
    reasons = {
        "heads": heads_why,
        "activation": activation_why,
        "norm_eps": FILE if values.get("layer_norm_eps") is not None else GRANTED,
        "resample": "transformers' own, for other sizes",
        "rotary": FILE if config_file.exists else GRANTED,
        "pool": f"as transformers' {layout.kind} with these tensors",
        "preprocess": preprocess_why,
    }
    if embeds:
        reasons["classes"] = "the values of an image's embedding"
    return Description(
        config,
        preprocess,
        reasons,
        () if embeds else class_names(config.classes, config_file.labels),
        layout=str(layout),
        decoder=_decoder(file, config) if layout.decoder else None,
        extras={"mask_token": (1, config.width)} if layout.tower + MASK in contents.tensors else {},
    )


def _expect_head(contents: WeightContents, config: ViTConfig) -> None:
    """A folder that says it classifies has a classifier, unless the user wants to do without."""
    classes = contents.sidecars.get("config.json", {}).get("architectures") or []
    classifies = (
        [name for name in classes if "ForImageClassification" in str(name)] if isinstance(classes, list) else []
    )
    if classifies and not config.classes and not any("classifier" in name for name in contents.left):
        raise CheckpointError(f"{contents.source}: its config.json says {classifies[0]}, and no tensor is a classifier")


def _sizes(file: _File) -> dict[str, Any]:
    """What the shapes of patches and blocks say; parts that a model type always has, it must have."""
    contents, layout, spelling = file.contents, file.layout, SPELLINGS[file.layout.spelling]
    first = f"{layout.blocks}0."
    width, channels, patch = _patches(file)
    gated = bool(spelling.gated) and f"{first}{spelling.gated[0]}.weight" in contents.tensors
    down = spelling.gated_down if gated else spelling.down
    biases = tuple(f"{first}{each}.bias" in contents.tensors for each in spelling.qkv)
    return {
        "patch_size": patch,
        "channels": channels,
        "width": width,
        "depth": depth_of(contents, f"{layout.blocks}{{i}}.{spelling.norms[0]}.weight"),
        "mlp": "swiglu" if gated else "plain",
        "mlp_width": shape_of(contents, f"{first}{down}.weight", axes=2)[1],
        "qkv_bias": _qkv_bias(layout, biases),
        "patch_bias": layout.kind != "clip_vision_model",
        "embedding_norm": layout.kind == "clip_vision_model",
        "cls_token": MODEL_TYPES[layout.kind].cls_token,
        "layer_scale": ask(file.config_file.values, "layerscale_value", 1.0)
        if layout.kind.startswith("dino")
        else None,
        "initialisation": "hf",
    }


def _patches(file: _File) -> tuple[int, int, tuple[int, int]]:
    """Width, channels and size of a patch; SigLIP 2 has linear patches, whose channels no shape says."""
    weight = f"{file.layout.tower}{STYLES[MODEL_TYPES[file.layout.kind].style].patches}.weight"
    if file.layout.kind != "siglip2_vision_model":
        width, channels, *patch = shape_of(file.contents, weight, axes=4)
        return width, channels, check_pair("patch_size", patch)
    width, values = shape_of(file.contents, weight, axes=2)
    channels = check_int("num_channels", file.override.get("channels", ask(file.config_file.values, "num_channels", 3)))
    side = square_side(file.contents.source, values, channels)
    return width, channels, (side, side)


def _qkv_bias(layout: TransformersLayout, there: tuple[bool, ...]) -> str:
    """Where only some of the biases are there that a model type has together, the others are missing."""
    if layout.kind == "dinov3_vit" and there == NO_KEY:
        return "no-key"
    return "all" if any(there) or layout.spelling == "clip" else "none"


def _inner(file: _File, blocks: str) -> int:
    """Values of all queries of a token."""
    return shape_of(file.contents, f"{blocks}0.{SPELLINGS[file.layout.spelling].qkv[0]}.weight", axes=2)[0]


def _heads(file: _File) -> tuple[int, str]:
    if "heads" in file.override or not file.config_file.exists:
        return heads_for(_inner(file, file.layout.blocks), file.override)
    heads = file.config_file.values.get("num_attention_heads")
    if heads is None:
        return MODEL_TYPES[file.layout.kind].heads, GRANTED
    return check_int("num_attention_heads", heads), FILE


def _head_width(file: _File, blocks: str, heads: int, width: int) -> int:
    """The width of a head where it is not its share of the width, which not every model type can have."""
    inner = _inner(file, blocks)
    if inner % heads or (inner != width and not MODEL_TYPES[file.layout.kind].free_heads):
        raise ConfigError(f"{heads} heads cannot share queries of {inner} values in a network {width} wide")
    return inner // heads if inner != width else 0


def _activation(file: _File, gated: bool) -> tuple[str, str]:
    if "activation" in file.override:
        return str(file.override["activation"]), "given"
    if file.layout.kind == "clip_vision_model" and not file.config_file.exists:
        raise CheckpointError(
            f"{file.contents.source}: a CLIP tower without config.json, and no tensor says whether it computes "
            "quick_gelu (OpenAI, DFN, MetaCLIP) or gelu (LAION, DataComp): give override={'activation': ...}, or load "
            "the folder"
        )
    return activation_of(file.config_file, MODEL_TYPES[file.layout.kind], gated)


def _ends(file: _File) -> dict[str, Any]:
    """Prefix tokens, pool and head, as the class computes that has these tensors."""
    names, name, tower = file.contents.tensors, file.layout.kind, file.layout.tower
    classes = file.rows("classifier")
    if name == "clip_vision_model":
        if classes:  # the mean of patches that have not passed the last norm
            return {"pool": "mean", "classes": classes, "final_norm": "none"}
        return {"pool": "cls", "classes": file.rows("visual_projection"), "head_bias": False}
    if not MODEL_TYPES[name].cls_token:
        return {
            "pool": _pool(file) if MODEL_TYPES[name].style == "clip" and not classes else "mean",
            "classes": classes,
        }
    if name.startswith("dino"):
        shape = names[tower + REGISTERS].shape if tower + REGISTERS in names else (1, 0, 0)
        if len(shape) != 3:  # (1, 0, D) where there are none
            raise ConfigError(f"expected {tower}{REGISTERS} with 3 axes, got {shape}")
        return {"pool": "cls+mean" if classes else "cls", "classes": classes, "registers": shape[1]}
    represented = file.rows(f"{tower}pooler.dense") if name in ("vit", "deit") and not classes else 0
    if represented:
        check_choice("pooler_act", ask(file.config_file.values, "pooler_act", "tanh"), ("tanh",))
    plain = {"pool": "cls", "classes": classes, "representation_width": represented}
    if name != "deit":
        return plain
    if classes or represented:  # the distillation token stands by, and no head asks it
        return plain | {"registers": 1}
    return {"pool": "cls+distillation", "distillation_token": True, "classes": file.rows("cls_classifier")}


def _pool(file: _File) -> str:
    """SigLIP's attention pool where it is there, as config.json must say; else the mean, as its classifier takes it."""
    there = f"{file.layout.tower}head.probe" in file.contents.tensors
    asked = check_choice(
        "vision_use_head",
        ask(file.config_file.values, "vision_use_head", there or file.config_file.exists),
        (True, False),
    )
    if there != asked and "pool" not in file.override:
        got = "has no such tensors: give override={'pool': 'mean'}" if asked else "has its tensors: leave_out=('pool',)"
        raise ConfigError(f"config.json says vision_use_head={asked}, an attention pool, and the file {got}")
    return "map" if there else "mean"


def _positions(file: _File, patch: tuple[int, int]) -> dict[str, Any]:
    """Positions and image size: from the table of places, or rotary with the size of config.json."""
    values, layout, kind = file.config_file.values, file.layout, MODEL_TYPES[file.layout.kind]
    flat = layout.kind == "siglip2_vision_model"  # whose config has no such entry
    given = (
        {}
        if flat or values.get("image_size") is None
        else {"image_size": check_pair("image_size", values["image_size"])}
    )
    if kind.style == "dinov3":
        usual = (224, 224) if all(224 % side == 0 for side in patch) else (16 * patch[0], 16 * patch[1])
        return {
            "image_size": given.get("image_size", usual),
            "positions": Positions("none"),
            "rotary": rotary_of(values),
        }
    places = shape_of(file.contents, layout.tower + STYLES[kind.style].places, axes=3 if kind.style == "vit" else 2)[-2]
    slots = 2 if layout.kind == "deit" else int(kind.cls_token)
    size, _ = grid_of(places, (slots,), patch, {**file.override, **given})
    fixed = "sincos-2d" if layout.kind == "vit_mae" else "learned"
    return {"image_size": size, "positions": Positions(fixed, prefix=kind.cls_token, resample=kind.resample)}


def _compare(file: _File, config: ViTConfig) -> None:
    """Whatever config.json and the tensors both say must be the same."""
    name, values = file.layout.kind, file.config_file.values
    expected: dict[str, Any] = {
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_channels": config.channels,
        "patch_size": config.patch_size,
        "num_register_tokens": config.registers,
        "head_dim": config.per_head,
        "use_gated_mlp": config.mlp == "swiglu",
        "use_swiglu_ffn": config.mlp == "swiglu",
        "proj_bias": True,  # a network without is not known here
        "mlp_bias": True,
    }
    if name == "siglip2_vision_model":
        expected["num_patches"] = config.grid[0] * config.grid[1]
    else:
        expected["image_size"] = config.image_size
    if name.startswith("dinov2"):
        ratio_agrees(values, config)
    else:
        expected["intermediate_size"] = config.mlp_width
    if name == "dinov3_vit":
        expected |= {"key_bias": config.qkv_bias == "all"}
        expected |= dict.fromkeys(("query_bias", "value_bias"), config.qkv_bias != "none")
    elif MODEL_TYPES[name].style == "vit":
        expected["qkv_bias"] = config.qkv_bias == "all"
    if config.representation_width:
        expected["pooler_output_size"] = config.representation_width
    agree(values, expected)


def _decoder(file: _File, encoder: ViTConfig) -> ViTConfig:
    """The decoder's own stack; its heads are not the encoder's, so no override speaks of them."""
    contents, blocks, spelling = file.contents, file.layout.decoder, SPELLINGS[file.layout.spelling]
    width = shape_of(contents, "decoder.decoder_embed.weight", axes=2)[0]
    depth = depth_of(contents, f"{blocks}{{i}}.{spelling.norms[0]}.weight")
    wide = shape_of(contents, f"{blocks}0.{spelling.up}.weight", axes=2)[0]
    agree(
        file.config_file.values,
        {"decoder_hidden_size": width, "decoder_num_hidden_layers": depth, "decoder_intermediate_size": wide},
    )
    heads = check_int("decoder_num_attention_heads", ask(file.config_file.values, "decoder_num_attention_heads", 16))
    return ViTConfig(
        image_size=encoder.image_size,
        patch_size=encoder.patch_size,
        channels=encoder.channels,
        width=width,
        depth=depth,
        heads=heads,
        head_width=_head_width(file, blocks, heads, width),
        mlp_width=wide,
        classes=encoder.patch_size[0] * encoder.patch_size[1] * encoder.channels,
        positions=encoder.positions,
        activation=encoder.activation,
        qkv_bias=encoder.qkv_bias,
        norm_eps=encoder.norm_eps,
        pool="none",
        initialisation="hf",
    )


def _preprocess(file: _File, config: ViTConfig) -> tuple[Preprocess, str]:
    """What the folder's image processor does, or what its model type is most likely prepared with."""
    for beside in ("preprocessor_config.json", "processor_config.json"):
        plain = file.contents.sidecars.get(beside)
        if isinstance(plain, Mapping) and (beside.startswith("pre") or "image_processor" in plain):
            inner = plain.get("image_processor", plain)
            named = inner.get("image_processor_type") if isinstance(inner, Mapping) else ""
            if not str(named).startswith("Siglip2"):  # which has no frame that all images share
                return from_transformers(plain), f"the folder's {beside}"
    return transformers_default(file.layout.kind, config.image_size, config.channels)


# ---- writing -----------------------------------------------------------------------------------------------------


def outline(checkpoint: Checkpoint) -> Description:
    """How transformers would carry a checkpoint: by the model type whose fixed parts are those of its config."""
    config, decoder = checkpoint.model.config, checkpoint.decoder
    name = _model_type(checkpoint)
    _refuse(name, config)
    kind = MODEL_TYPES[name]
    beside = bool(config.classes) or decoder is not None or kind.style == "clip"
    tower = kind.tower if beside else ""
    stem = SPELLINGS[kind.spellings[0]].stems[0]
    masked = name in ("dinov2_with_registers", "dinov3_vit") or (name == "dinov2" and "mask_token" in checkpoint.extras)
    return Description.of(
        checkpoint,
        layout=str(TransformersLayout(name, kind.spellings[0], tower, tower + stem, DECODERS[0] if decoder else "")),
        decoder=None if decoder is None else decoder.config,
        extras={"mask_token": (1, config.width)} if masked else {},
        warnings=(POOLER,) if name in ("vit", "deit") and not beside and not config.representation_width else (),
    )


def sidecars(description: Description) -> dict[str, Any]:
    """config.json, and preprocessor_config.json where an image processor can do the same."""
    name = TransformersLayout.of(description).kind
    plain = write_config(name, description.config, description.decoder, description.classes)
    if name == "dinov2":
        plain["use_mask_token"] = bool(description.extras)
    files = {"config.json": plain}
    with suppress(CheckpointError):  # what no image processor can do stays behind, and the report says so
        files["preprocessor_config.json"] = to_transformers(description.preprocess, MODEL_TYPES[name].processor)
    return files


def _model_type(checkpoint: Checkpoint) -> str:
    config = checkpoint.model.config
    if checkpoint.decoder is not None:
        return "vit_mae"
    if config.rotary is not None:
        return "dinov3_vit"
    if config.embedding_norm:
        return "clip_vision_model"
    if config.layer_scale is not None:
        return "dinov2_with_registers" if config.registers else "dinov2"
    if config.cls_token:
        return "deit" if config.distillation_token or config.registers == 1 else "vit"
    if config.positions.resample == MODEL_TYPES["siglip2_vision_model"].resample:
        return "siglip2_vision_model"
    return "siglip_vision_model" if config.pool == "map" or _was_siglip(checkpoint) else "ijepa"


def _was_siglip(checkpoint: Checkpoint) -> bool:
    """Whether a network without a pool or head of its own was read in SigLIP's names."""
    name = f"{STYLES['clip'].patches}.weight"
    read = any(each.endswith(name) for row in checkpoint.provenance.mapping for each in row.theirs)
    return read and not checkpoint.model.config.classes


def _refuse(name: str, config: ViTConfig) -> None:
    """What our reading of the file would bring back, and transformers' would not; or what both would stumble over."""
    headed, clip = config.classes > 0, MODEL_TYPES[name].style == "clip"
    sides = len({*config.image_size}) + len({*config.patch_size})
    reasons = {
        "a layer between pool and classifier": headed and config.representation_width > 0,
        "a classifier": headed and (name == "dinov3_vit" or (clip and (config.pool != "cls" or config.head_bias))),
        "a classifier of the cls token alone": headed and name.startswith("dinov2") and config.pool == "cls",
        "attention and MLP side by side": config.parallel,
        "images or patches that are not square": sides > 2 and (clip or name == "vit_mae" or name.startswith("dinov2")),
        "a gated MLP": config.mlp == "swiglu" and not name.startswith("dino"),
    }
    refuse_any(f"transformers' {name}", reasons)


FAMILY: Final = Family(
    name="transformers",
    knows=knows,
    describe=describe,
    table=table,
    outline=outline,
    sidecars=sidecars,
    container="folder",
    parts={
        "text": ("text_model.*", "text_projection.*", "logit_scale", "logit_bias"),
        "head": ("classifier.*", "cls_classifier.*", "distillation_classifier.*", "visual_projection.*"),
        "pooler": ("pooler.*", "*.pooler.*"),
        "pool": ("head.*", "vision_model.head.*"),
        "norm": ("post_layernorm.*", "vision_model.post_layernorm.*"),
        "decoder": ("decoder.*",),
    },
)
