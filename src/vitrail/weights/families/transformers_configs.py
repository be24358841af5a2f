"""transformers' config.json, both ways: what each model type takes for granted, and what a file says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from vitrail.checks import check_choice, check_int, check_number, check_pair, short_repr
from vitrail.errors import CheckpointError, ConfigError
from vitrail.network.config import Resample, Rotary, ViTConfig
from vitrail.weights.family import one_or_pair

PLAIN: Final = Resample(antialias=False)  # bicubic, by size
FILE: Final = "the folder's config.json"
GRANTED: Final = "what its model type takes for granted"


@dataclass(frozen=True)
class ModelType:
    """A model type: how it spells its tensors, and what its config class takes for granted."""

    style: str  # of the names outside the blocks
    spellings: tuple[str, ...]  # of the blocks; the first is that of version 4, which is written
    tower: str  # before the names of the network where a head stands beside it
    classes: str  # how the names of its classes begin
    norm_eps: float
    heads: int = 12
    activation: str = "gelu"
    resample: Resample = PLAIN
    cls_token: bool = True
    free_heads: bool = True  # whether head_dim is honoured
    processor: str = "ViTImageProcessor"


_VIT: Final = ("vit", ("vit-4", "vit-5"))
_DINOV2: Final = ("vit", ("dinov2-4", "dinov2-5"))
_CLIP: Final = ("clip", ("clip",))
_TANH: Final[dict[str, Any]] = {"activation": "gelu_tanh", "cls_token": False, "free_heads": False}
MODEL_TYPES: Final[Mapping[str, ModelType]] = {  # eps and heads as in transformers/models/*/configuration_*
    "vit": ModelType(*_VIT, "vit.", "ViT", 1e-12),
    "deit": ModelType(*_VIT, "deit.", "DeiT", 1e-12, processor="DeiTImageProcessor"),
    "vit_msn": ModelType(*_VIT, "vit.", "ViTMSN", 1e-6),
    "vit_mae": ModelType(*_VIT, "vit.", "ViTMAE", 1e-12),
    "ijepa": ModelType(*_VIT, "ijepa.", "IJepa", 1e-12, cls_token=False),
    "dinov2": ModelType(*_DINOV2, "dinov2.", "Dinov2", 1e-6, processor="BitImageProcessor"),
    "dinov2_with_registers": ModelType(
        *(*_DINOV2, "dinov2_with_registers.", "Dinov2WithRegisters", 1e-6),
        resample=Resample(),
        processor="BitImageProcessor",
    ),
    "dinov3_vit": ModelType(
        *("dinov3", ("dinov3",), "", "DINOv3ViT", 1e-5),
        heads=6,
        free_heads=False,
        processor="DINOv3ViTImageProcessor",
    ),
    "clip_vision_model": ModelType(
        *(*_CLIP, "vision_model.", "CLIPVision", 1e-5),
        activation="quick_gelu",
        free_heads=False,
        processor="CLIPImageProcessor",
    ),
    "siglip_vision_model": ModelType(
        *_CLIP, "vision_model.", "SiglipVision", 1e-6, processor="SiglipImageProcessor", **_TANH
    ),
    "siglip2_vision_model": ModelType(
        *_CLIP, "vision_model.", "Siglip2Vision", 1e-6, resample=Resample("bilinear"), **_TANH
    ),
}
WHOLE: Final = {name: f"{name}_vision_model" for name in ("clip", "siglip", "siglip2")}  # with a text tower
ACTIVATIONS: Final = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
NAMES: Final = {"gelu_tanh": "gelu_pytorch_tanh"}  # ours that transformers calls otherwise


class ConfigFile(NamedTuple):
    """What a config.json says of the network that sees; all of it may be of any type."""

    model_type: str  # "": it does not say
    values: Mapping[str, Any]
    labels: Any
    exists: bool


def read_config(sidecars: Mapping[str, Any]) -> ConfigFile:
    """The part of a config.json that speaks of the vision network; a model type not known here is refused."""
    plain = sidecars.get("config.json")
    if not isinstance(plain, Mapping) or plain.get("model_type") is None:
        return ConfigFile("", {}, None, False)
    named = plain["model_type"]
    known = [*MODEL_TYPES, *WHOLE]
    if named not in known:
        raise CheckpointError(
            f"config.json has model_type {short_repr(named)}, which is not known here; known are {', '.join(known)}"
        )
    values: Any = plain
    if named in WHOLE:
        values = plain.get("vision_config", {})
        if not isinstance(values, Mapping):
            raise CheckpointError(f"config.json: expected vision_config as an object, got {short_repr(values)}")
    return ConfigFile(WHOLE.get(str(named), str(named)), values, plain.get("id2label"), True)


def ask(values: Mapping[str, Any], name: str, default: Any) -> Any:
    """What a config says of a name; null is as good as nothing."""
    value = values.get(name)
    return default if value is None else value


def agree(values: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Sizes that a config says must be those that the tensors have."""
    for name, value in expected.items():
        if values.get(name) is None:
            continue
        if isinstance(value, bool):
            given: Any = check_choice(name, values[name], (True, False))
        else:
            given = check_pair(name, values[name]) if isinstance(value, tuple) else check_int(name, values[name], 0)
        if given != value:
            raise ConfigError(f"config.json says {name}={given}, the tensors say {value}: they do not belong together")


def labels_agree(labels: Any, classes: int) -> None:
    """As many names as outputs, where there are names."""
    if classes and isinstance(labels, Mapping) and len(labels) != classes:
        raise ConfigError(f"config.json names {len(labels)} classes in id2label, and the head has {classes} outputs")


def activation_of(file: ConfigFile, kind: ModelType, gated: bool) -> tuple[str, str]:
    """Our name of the activation, and why it is that one."""
    if gated and (kind.style == "vit" or not file.exists):  # DINOv2's gated MLP does not ask for hidden_act
        return "silu", "gated MLPs have no other"
    if file.values.get("hidden_act") is None:
        return kind.activation, GRANTED
    return ACTIVATIONS[check_choice("hidden_act", file.values["hidden_act"], ACTIVATIONS)], FILE


def rotary_of(values: Mapping[str, Any]) -> Rotary:
    """DINOv3's rotary positions; what moves them in training may be null, which means not at all."""
    return Rotary(
        "dinov3",
        theta=ask(values, "rope_theta", 100.0),
        shift=ask(values, "pos_embed_shift", 0.0),
        jitter=ask(values, "pos_embed_jitter", 1.0),
        rescale=ask(values, "pos_embed_rescale", 1.0 if "pos_embed_rescale" in values else 2.0),
    )


def training_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """What acts in training only."""
    return {
        "dropout": ask(values, "hidden_dropout_prob", 0.0),
        "attention_dropout": ask(values, "attention_probs_dropout_prob", ask(values, "attention_dropout", 0.0)),
        "drop_path": ask(values, "drop_path_rate", 0.0),
    }


def mlp_of_ratio(width: int, ratio: float, gated: bool) -> int:
    """DINOv2's MLP: the width times a ratio; of a gated one two thirds, up to the next multiple of 8."""
    hidden = int(width * ratio)
    return (int(hidden * 2 / 3) + 7) // 8 * 8 if gated else hidden


def ratio_agrees(values: Mapping[str, Any], config: ViTConfig) -> None:
    """DINOv2's mlp_ratio must be that of the tensors."""
    if values.get("mlp_ratio") is None:
        return
    ratio = check_number("mlp_ratio", values["mlp_ratio"], 0.0, 1024.0)
    wide = mlp_of_ratio(config.width, ratio, config.mlp == "swiglu")
    if wide != config.mlp_width:
        raise ConfigError(
            f"config.json says mlp_ratio={ratio:g}, an MLP {wide} wide, the tensors say {config.mlp_width}"
        )


# ---- writing -----------------------------------------------------------------------------------------------------


def tensor_settings(name: str, config: ViTConfig) -> dict[str, Any]:
    """What a config.json of a model type says and its tensors say too."""
    gated, style = config.mlp == "swiglu", MODEL_TYPES[name].style
    settings: dict[str, Any] = {
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_channels": config.channels,
        "patch_size": config.patch_size,
    }
    if name == "siglip2_vision_model":
        settings["num_patches"] = config.grid[0] * config.grid[1]
    else:
        settings["image_size"] = config.image_size
    if name.startswith("dinov2"):  # which has a ratio of the width instead
        settings["use_swiglu_ffn"] = gated
    else:
        settings["intermediate_size"] = config.mlp_width
    if name in ("dinov2_with_registers", "dinov3_vit"):
        settings["num_register_tokens"] = config.registers
    if style == "vit":
        settings["qkv_bias"] = config.qkv_bias == "all"
    if style == "dinov3":
        settings |= {"use_gated_mlp": gated, "key_bias": config.qkv_bias == "all"}
        settings |= dict.fromkeys(("query_bias", "value_bias"), config.qkv_bias != "none")
    if config.representation_width:
        settings["pooler_output_size"] = config.representation_width
    return settings


def decoder_settings(decoder: ViTConfig) -> dict[str, Any]:
    """The same of MAE's decoder; its heads no tensor says."""
    return {
        "decoder_hidden_size": decoder.width,
        "decoder_num_hidden_layers": decoder.depth,
        "decoder_num_attention_heads": decoder.heads,
        "decoder_intermediate_size": decoder.mlp_width,
    }


def write_config(name: str, config: ViTConfig, decoder: ViTConfig | None, labels: tuple[str, ...]) -> dict[str, Any]:
    """A config.json of a model type, with which transformers builds the same network."""
    kind = MODEL_TYPES[name]
    settings = tensor_settings(name, config)
    plain: dict[str, Any] = {
        "architectures": [architecture(name, config, decoder)],
        "model_type": name,
        "num_attention_heads": config.heads,
        "hidden_act": NAMES.get(config.activation, config.activation),
        "layer_norm_eps": config.norm_eps,
        **{key: one_or_pair(value) if isinstance(value, tuple) else value for key, value in settings.items()},
        **{"vit": _of_vit, "dinov3": _of_dinov3, "clip": _of_clip}[kind.style](name, config),
    }
    if config.head_width and kind.free_heads:
        plain["head_dim"] = config.head_width
    if decoder is not None:
        plain |= decoder_settings(decoder)
    if labels and kind.style != "clip":  # CLIP's outputs are an embedding
        plain["id2label"] = {str(number): label for number, label in enumerate(labels)}
        plain["label2id"] = {label: number for number, label in enumerate(labels)}
    return plain


def architecture(name: str, config: ViTConfig, decoder: ViTConfig | None) -> str:
    """The class that a folder is for."""
    if decoder is not None:
        return "ViTMAEForPreTraining"
    if config.pool == "cls+distillation" and config.classes:
        return "DeiTForImageClassificationWithTeacher"
    headed = "ModelWithProjection" if name == "clip_vision_model" else "ForImageClassification"
    return MODEL_TYPES[name].classes + (headed if config.classes else "Model")


def _of_vit(name: str, config: ViTConfig) -> dict[str, Any]:
    plain = {"hidden_dropout_prob": config.dropout, "attention_probs_dropout_prob": config.attention_dropout}
    if not name.startswith("dinov2"):
        return plain
    gated = config.mlp == "swiglu"
    ratio = next((r for r in range(1, 65) if mlp_of_ratio(config.width, r, gated) == config.mlp_width), None)
    if ratio is None:
        raise CheckpointError(
            f"{name} cannot carry an MLP {config.mlp_width} wide: expected a whole multiple of the width {config.width}"
            f"{', of which two thirds' * gated}"
        )
    return plain | {"mlp_ratio": ratio, "layerscale_value": config.layer_scale, "drop_path_rate": config.drop_path}


def _of_dinov3(name: str, config: ViTConfig) -> dict[str, Any]:
    rotary = config.rotary or Rotary("dinov3")
    return {
        "rope_theta": rotary.theta,
        "pos_embed_shift": rotary.shift or None,
        "pos_embed_jitter": None if rotary.jitter == 1.0 else rotary.jitter,
        "pos_embed_rescale": None if rotary.rescale == 1.0 else rotary.rescale,
        "layerscale_value": config.layer_scale,
        "drop_path_rate": config.drop_path,
        "attention_dropout": config.attention_dropout,
    }


def _of_clip(name: str, config: ViTConfig) -> dict[str, Any]:
    plain: dict[str, Any] = {"attention_dropout": config.attention_dropout}
    if name == "clip_vision_model":
        return plain | ({"projection_dim": config.classes} if config.classes else {})
    return plain if config.pool == "map" else plain | {"vision_use_head": False}
