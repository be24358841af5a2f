"""transformers: ViT, DeiT, MAE, MSN, I-JEPA, DINOv2, DINOv3, and the towers that see of CLIP, SigLIP and SigLIP 2.

A folder's config.json says heads, activation and eps; whatever the shapes say too must agree with it. A bare file
takes what its model type takes for granted.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, NamedTuple

from vitrail.checkpoint import Checkpoint
from vitrail.checks import check_choice, check_int, check_number, check_pair
from vitrail.errors import CheckpointError, ConfigError
from vitrail.images import Preprocess
from vitrail.network.config import Positions, ViTConfig
from vitrail.weights.families import transformers_configs as configs
from vitrail.weights.families import transformers_names as names
from vitrail.weights.families.transformers_configs import FILE, GRANTED, MODEL_TYPES, ConfigFile, ModelType, ask
from vitrail.weights.families.transformers_names import SPELLINGS, STYLES, TransformersLayout
from vitrail.weights.families.transformers_pixels import from_transformers, to_transformers
from vitrail.weights.family import (
    SWIGLU,
    Description,
    Family,
    block_sizes_of,
    class_names,
    positions_of,
    refuse_any,
    rows_of,
    shape_of,
    square_patch,
    usual_size,
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

    @property
    def kind(self) -> ModelType:
        return MODEL_TYPES[self.layout.kind]

    def ask(self, name: str, default: Any) -> Any:
        return ask(self.config_file.values, name, default)

    def rows(self, layer: str) -> int:
        return rows_of(self.contents, f"{layer}.weight")


# ---- reading -----------------------------------------------------------------------------------------------------


def describe(contents: WeightContents, override: Mapping[str, Any]) -> Description:
    """Config from shapes, and from config.json where there is one."""
    config_file = configs.read_config(contents.sidecars)
    values = config_file.values
    if values.get("apply_layernorm") is False:
        raise CheckpointError(f"{contents.source}: a DINOv2 backbone without its final norm is no network known here")
    layout = names.find_layout(contents, config_file.model_type)
    file = _File(contents, layout, config_file, override)
    settings, heads_why = _sizes(file)
    settings["activation"], activation_why = _activation(file, settings["mlp"] == "swiglu")
    settings["norm_eps"] = check_number("layer_norm_eps", file.ask("layer_norm_eps", file.kind.norm_eps), 0.0, 1.0)
    settings |= configs.training_of(values) | _ends(file) | _positions(file, settings["patch_size"])
    config = ViTConfig(**settings)
    _compare(file, config)
    _expect_head(contents, config)
    if layout.kind.startswith("dinov2") and config.grid[0] != config.grid[1]:
        raise CheckpointError(
            f"{contents.source}: a DINOv2 for images of {config.image_size[0]}x{config.image_size[1]}, whose positions "
            "transformers reads as if they were a square: no network known here"
        )
    embeds = layout.kind == "clip_vision_model" and config.pool == "cls"  # its outputs are no classes
    configs.labels_agree(config_file.labels, 0 if embeds else config.classes)
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
        extras={"mask_token": (1, config.width)} if layout.tower + names.MASK in contents.tensors else {},
    )


def _expect_head(contents: WeightContents, config: ViTConfig) -> None:
    """A folder that says it classifies has a classifier, unless the user wants to do without."""
    classes = contents.sidecars.get("config.json", {}).get("architectures")
    named = classes if isinstance(classes, list) else []
    classifies = [name for name in named if "ForImageClassification" in str(name)]
    if classifies and not config.classes and not any("classifier" in name for name in contents.left):
        raise CheckpointError(f"{contents.source}: its config.json says {classifies[0]}, and no tensor is a classifier")


def _sizes(file: _File) -> tuple[dict[str, Any], str]:
    """What the shapes of patches and blocks say, and why there are so many heads."""
    contents, layout, spelling = file.contents, file.layout, SPELLINGS[file.layout.spelling]
    first = f"{layout.blocks}0."
    gated = bool(spelling.gated) and f"{first}{spelling.gated[0]}.weight" in contents.tensors
    biases = tuple(f"{first}{each}.bias" in contents.tensors for each in spelling.qkv)
    settings = {
        **_patches(file),
        "mlp": "plain",
        "qkv_bias": _qkv_bias(layout, biases),
        "patch_bias": layout.kind != "clip_vision_model",
        "embedding_norm": layout.kind == "clip_vision_model",
        "cls_token": file.kind.cls_token,
        "layer_scale": file.ask("layerscale_value", 1.0) if layout.kind.startswith("dino") else None,
        "initialisation": "hf",
        **(SWIGLU if gated else {}),
    }
    told, told_why = dict(file.override), ""
    if "heads" not in told and file.config_file.exists:
        heads = file.config_file.values.get("num_attention_heads")
        told["heads"] = file.kind.heads if heads is None else check_int("num_attention_heads", heads)
        told_why = GRANTED if heads is None else FILE
    rows = names.block_rows("encoder.", layout.blocks, layout, gated)
    blocks, heads_why = block_sizes_of(contents, rows, told)
    _check_heads(file, layout.blocks, blocks)
    return settings | blocks, told_why or heads_why


def _check_heads(file: _File, blocks: str, sizes: Mapping[str, Any]) -> None:
    """Not every model type can have heads whose width is not their share."""
    heads, width = sizes["heads"], sizes["width"]
    inner = shape_of(file.contents, f"{blocks}0.{SPELLINGS[file.layout.spelling].qkv[0]}.weight", axes=2)[0]
    if inner % heads or (inner != width and not file.kind.free_heads):
        raise ConfigError(f"{heads} heads cannot share queries of {inner} values in a network {width} wide")


def _patches(file: _File) -> dict[str, Any]:
    """Channels and size of a patch; SigLIP 2 has linear patches, whose channels no shape says."""
    weight = f"{file.layout.tower}{STYLES[file.kind.style].patches}.weight"
    if file.layout.kind != "siglip2_vision_model":
        _, channels, *patch = shape_of(file.contents, weight, axes=4)
        return {"channels": channels, "patch_size": check_pair("patch_size", patch)}
    _, values = shape_of(file.contents, weight, axes=2)
    return square_patch(file.contents.source, values, file.override, usual=file.ask("num_channels", 3))


def _qkv_bias(layout: TransformersLayout, there: tuple[bool, ...]) -> str:
    """Where only some of the biases are there that a model type has together, the others are missing."""
    if layout.kind == "dinov3_vit" and there == NO_KEY:
        return "no-key"
    return "all" if any(there) or layout.spelling == "clip" else "none"


def _activation(file: _File, gated: bool) -> tuple[str, str]:
    if "activation" in file.override:
        return str(file.override["activation"]), "given"
    if file.layout.kind == "clip_vision_model" and not file.config_file.exists:
        raise CheckpointError(
            f"{file.contents.source}: a CLIP tower without config.json, and no tensor says whether it computes "
            "quick_gelu (OpenAI, DFN, MetaCLIP) or gelu (LAION, DataComp): give override={'activation': ...}, or load "
            "the folder"
        )
    return configs.activation_of(file.config_file, file.kind, gated)


def _ends(file: _File) -> dict[str, Any]:
    """Prefix tokens, pool and head, as the class computes that has these tensors."""
    tensors, name, tower = file.contents.tensors, file.layout.kind, file.layout.tower
    classes = file.rows("classifier")
    if name == "clip_vision_model":
        if classes:  # the mean of patches that have not passed the last norm
            return {"pool": "mean", "classes": classes, "final_norm": "none"}
        return {"pool": "cls", "classes": file.rows("visual_projection"), "head_bias": False}
    if not file.kind.cls_token:
        return {"pool": _pool(file) if file.kind.style == "clip" and not classes else "mean", "classes": classes}
    if name.startswith("dino"):
        registers = tower + names.REGISTERS
        shape = tensors[registers].shape if registers in tensors else (1, 0, 0)
        if len(shape) != 3:  # (1, 0, D) where there are none
            raise ConfigError(f"expected {registers} with 3 axes, got {shape}")
        return {"pool": "cls+mean" if classes else "cls", "classes": classes, "registers": shape[1]}
    represented = file.rows(f"{tower}pooler.dense") if name in ("vit", "deit") and not classes else 0
    if represented:
        check_choice("pooler_act", file.ask("pooler_act", "tanh"), ("tanh",))
    plain = {"pool": "cls", "classes": classes, "representation_width": represented}
    if name != "deit":
        return plain
    if classes or represented:  # the distillation token stands by, and no head asks it
        return plain | {"registers": 1}
    return {"pool": "cls+distillation", "distillation_token": True, "classes": file.rows("cls_classifier")}


def _pool(file: _File) -> str:
    """SigLIP's attention pool where it is there, as config.json must say; else the mean, as its classifier takes it."""
    there = f"{file.layout.tower}head.probe" in file.contents.tensors
    usual = there or file.config_file.exists
    asked = check_choice("vision_use_head", file.ask("vision_use_head", usual), (True, False))
    if there != asked and "pool" not in file.override:
        got = "has no such tensors: give override={'pool': 'mean'}" if asked else "has its tensors: leave_out=('pool',)"
        raise ConfigError(f"config.json says vision_use_head={asked}, an attention pool, and the file {got}")
    return "map" if there else "mean"


def _positions(file: _File, patch: tuple[int, int]) -> dict[str, Any]:
    """Positions and image size: from the table of places, or rotary with the size of config.json."""
    values, layout, kind = file.config_file.values, file.layout, file.kind
    given = {}
    if layout.kind != "siglip2_vision_model" and values.get("image_size") is not None:  # whose config has no such entry
        given["image_size"] = check_pair("image_size", values["image_size"])
    if kind.style == "dinov3":
        usual = {"image_size": usual_size(patch, 224, 16)}
        return {**usual, **given, "positions": Positions("none"), "rotary": configs.rotary_of(values)}
    name, axes = layout.tower + STYLES[kind.style].places, 3 if kind.style == "vit" else 2
    slots = 2 if layout.kind == "deit" else int(kind.cls_token)
    fixed = "sincos-2d" if layout.kind == "vit_mae" else "learned"
    told = {**file.override, **given}
    return positions_of(file.contents, name, (slots,), patch, told, kind.resample, fixed, axes)


def _compare(file: _File, config: ViTConfig) -> None:
    """Whatever config.json and the tensors both say must be the same."""
    name, values = file.layout.kind, file.config_file.values
    expected = {
        "num_register_tokens": config.registers,
        "head_dim": config.per_head,
        "use_gated_mlp": config.mlp == "swiglu",
        "use_swiglu_ffn": config.mlp == "swiglu",
        "proj_bias": True,  # a network without is not known here
        "mlp_bias": True,
    }
    configs.agree(values, expected | configs.tensor_settings(name, config))
    if name.startswith("dinov2"):
        configs.ratio_agrees(values, config)


def _decoder(file: _File, encoder: ViTConfig) -> ViTConfig:
    """The decoder's own stack; its heads are not the encoder's, so no override speaks of them."""
    contents, layout = file.contents, file.layout
    heads = check_int("decoder_num_attention_heads", file.ask("decoder_num_attention_heads", 16))
    rows = names.block_rows("encoder.", layout.decoder, layout, gated=False)
    blocks, _ = block_sizes_of(contents, rows, {"heads": heads})
    _check_heads(file, layout.decoder, blocks)
    decoder = replace(
        encoder,
        **blocks,
        classes=encoder.patch_size[0] * encoder.patch_size[1] * encoder.channels,
        representation_width=0,
        pool="none",
        dropout=0.0,
        attention_dropout=0.0,
        drop_path=0.0,
    )
    configs.agree(file.config_file.values, configs.decoder_settings(decoder))
    return decoder


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
    decoder_blocks = "" if decoder is None else names.DECODERS[0]
    return Description.of(
        checkpoint,
        layout=str(TransformersLayout(name, kind.spellings[0], tower, tower + stem, decoder_blocks)),
        extras={"mask_token": (1, config.width)} if masked else {},
        warnings=(POOLER,) if name in ("vit", "deit") and not beside and not config.representation_width else (),
    )


def sidecars(description: Description) -> dict[str, Any]:
    """config.json, and preprocessor_config.json where an image processor can do the same."""
    name = TransformersLayout.of(description).kind
    plain = configs.write_config(name, description.config, description.decoder, description.classes)
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
    "transformers",
    names.knows,
    describe,
    names.table,
    outline,
    sidecars,
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
