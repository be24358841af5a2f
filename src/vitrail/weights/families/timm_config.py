"""timm's config.json: the architecture and all in which a network differs from it; read with care, and written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

from vitrail.checks import check_pair
from vitrail.errors import CheckpointError
from vitrail.network.config import ResNetStem, ViTConfig
from vitrail.weights.families.timm_pixels import to_timm
from vitrail.weights.family import Description, refuse_any
from vitrail.weights.reading.contents import WeightContents

FOLDER: Final = "the folder's config.json"
POOLS: Final = {"token": "cls", "avg": "mean", "map": "map", "": "none"}
HYBRIDS: Final = {(3, 4, 9): "vit_base_r50_s16_224", (2, 2, 2, 2): "vit_small_r26_s32_224", (): "vit_tiny_r_s16_p8_224"}
HEADS: Final = {  # of architectures whose heads are not what their width makes one expect
    "vit_base_patch16_gap_224": 16,
    "vit_giantopt_patch16_siglip": 16,
    "vit_huge_plus_patch16_dinov3": 20,
    "vit_7b_patch16_dinov3": 32,
    "test_vit": 2,
    "test_vit2": 2,
    "test_vit3": 3,
}
ACTIVATIONS: Final = {name: name for name in ("gelu", "gelu_tanh", "quick_gelu", "relu", "silu")} | {"swish": "silu"}
TANH: Final = re.compile(  # the SigLIP towers to which timm gives the tanh form of GELU
    "patch32_siglip|giantopt_patch16_siglip|so400m_patch16_siglip|large_patch16_siglip_(gap_)?512|naflexvit_.*siglip"
)
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
READ: Final = (  # arguments that tensors say too, or that are read here
    *("img_size", "patch_size", "in_chans", "num_classes", "embed_dim", "depth", "num_heads", "mlp_ratio", "qkv_bias"),
    *("qk_norm", "init_values", "class_token", "no_embed_class", "reg_tokens", "num_reg_tokens", "pre_norm"),
    *("final_norm", "fc_norm", "global_pool", "act_layer", "pos_embed", "pos_embed_grid_size"),
)
NO_MATTER: Final = (  # arguments that leave a network at rest as it is
    *("dynamic_img_size", "strict_img_size", "drop_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate"),
    *("attn_drop_rate", "drop_path_rate", "weight_init", "fix_init"),
)


class TimmConfig(NamedTuple):
    """What a folder's config.json says; empty where there is none."""

    architecture: str = ""
    arguments: Mapping[str, Any] = {}
    pool: str = ""  # of the network that was saved
    labels: Any = None
    pixels: Mapping[str, Any] = {}  # timm's pretrained config

    @property
    def heads(self) -> int | None:
        """How many heads the folder tells of."""
        if "num_heads" in self.arguments or not self.architecture:
            return self.arguments.get("num_heads")
        known = [heads for name, heads in HEADS.items() if self.architecture.startswith(name)]
        return known[-1] if known else None

    @property
    def activation(self) -> str | None:
        """What the MLPs compute, where the folder tells of it."""
        given = self.arguments.get("act_layer")
        if given:
            if not isinstance(given, str) or given not in ACTIVATIONS:
                raise CheckpointError(f"timm's act_layer {given!r:.80} is none of {', '.join(ACTIVATIONS)}")
            return ACTIVATIONS[given]
        if not self.architecture:
            return None
        if "quickgelu" in self.architecture:
            return "quick_gelu"
        return "gelu_tanh" if TANH.search(self.architecture) else "gelu"

    def size(self, patch: tuple[int, int]) -> tuple[int, int] | None:
        """The image size in whole patches: timm passes over what is left at the edges."""
        shape = self.pixels.get("input_size")
        given = self.arguments.get("img_size") or (shape[1:] if isinstance(shape, list) and len(shape) == 3 else None)
        if given is None or 0 in patch:
            return None
        height, width = check_pair("img_size", given)
        return max(height // patch[0], 1) * patch[0], max(width // patch[1], 1) * patch[1]


def read_config(contents: WeightContents, override: Mapping[str, Any]) -> TimmConfig:
    """What config.json says of the network; what it says and is not known here is refused."""
    plain = contents.sidecars.get("config.json", {})
    arguments, pixels = _mapping(plain.get("model_args")), _mapping(plain.get("pretrained_cfg"))
    architecture = str(plain.get("architecture", ""))
    other = next((word for word in OTHERS if word in architecture), "")
    if other:
        raise CheckpointError(f"{contents.source}: timm's {architecture} ({OTHERS[other]}) is no network known here")
    strange = [name for name, value in arguments.items() if value and name not in (*READ, *NO_MATTER)]
    if arguments.get("pos_embed") not in (None, "learn", "learned", "none"):
        strange.append("pos_embed")
    if strange:
        told = ", ".join(f"{name}={arguments[name]!r:.40}" for name in strange)
        raise CheckpointError(f"{contents.source}: model_args in config.json that are not known here: {told}")
    if "embed_dim" in arguments and "num_heads" not in arguments and "heads" not in override:
        raise CheckpointError(
            f"{contents.source}: config.json changes embed_dim and does not say num_heads: give override={{'heads': N}}"
        )
    labels = plain.get("label_names") or pixels.get("label_names")
    return TimmConfig(architecture, arguments, str(plain.get("global_pool", "")), labels, pixels)


def sidecars(description: Description) -> dict[str, Any]:
    """timm's config.json: the nearest architecture that timm has, and all in which this network differs."""
    config = description.config
    arguments: dict[str, Any] = {
        "img_size": list(config.image_size),
        "patch_size": list(config.patch_size),
        "in_chans": config.channels,
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
            "no_embed_class": config.prefix > 0 and not config.slots,
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


def refuse(name: str, config: ViTConfig) -> None:
    """What our reading would bring back, and timm's own classes could not be."""
    flexible = name == "timm-naflex"
    alone = config.pool == "cls+distillation" and config.final_norm == "tokens" and not config.registers
    reasons = {
        "a head without a bias": config.classes > 0 and not config.head_bias,
        "heads that do not make up the width": config.per_head * config.heads != config.width,
        "this bias of the patches: only networks with a norm before the encoder do without": (
            config.patch_bias == config.embedding_norm
        ),
        "a distillation token beside registers, or under another pool or norm": config.distillation_token and not alone,
        "a gated MLP": flexible and config.mlp == "swiglu",
        "a norm behind attention pooling": flexible and (config.pool, config.final_norm) == ("map", "pooled"),
    }
    refuse_any(name, reasons)


def _architecture(config: ViTConfig) -> str:
    """The architecture of timm whose fixed parts are those of the config."""
    if config.rotary is not None and config.mlp == "swiglu":
        return "vit_small_plus_patch16_dinov3"
    if config.rotary is not None:
        return f"vit_small_patch16_dinov3{'_qkvb' if config.qkv_bias == 'no-key' else ''}"
    if isinstance(config.stem, ResNetStem):
        return HYBRIDS[config.stem.layers]
    if config.distillation_token:
        return "deit_base_distilled_patch16_224"
    if config.mlp == "swiglu":
        return "vit_giant_patch14_dinov2"
    return "vit_base_patch16_clip_224" if config.norm_eps == 1e-5 else "vit_base_patch16_224"


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
