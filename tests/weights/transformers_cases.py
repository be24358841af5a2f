"""Classes of transformers at a small size, built with random weights, saved, and with another config.json."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from network import renames

SMALL: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 8,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
}
FLAT: dict[str, Any] = {name: value for name, value in SMALL.items() if name != "image_size"} | {"num_patches": 16}
DECODER: dict[str, Any] = {
    "decoder_hidden_size": 32,
    "decoder_num_hidden_layers": 1,
    "decoder_num_attention_heads": 2,
    "decoder_intermediate_size": 64,
}
TEXT: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "vocab_size": 50,
    "max_position_embeddings": 8,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
BOTH: dict[str, Any] = {"vision_config": SMALL, "text_config": TEXT}


@dataclass(frozen=True)
class Case:
    """A class of transformers, and which of its outputs our network gives."""

    model: str
    config: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    output: str = "last_hidden_state"
    leave_out: tuple[str, ...] = ()
    back: str = ""  # the class that loads what we write; "": the same
    same: bool = True  # whether the tensors come back with the same bits
    arguments: Mapping[str, Any] = field(default_factory=dict)  # of the class, beside its config


LOGITS, POOLED, EMBEDDED = "logits", "pooler_output", "image_embeds"
CASES: dict[str, Case] = {
    "ViT": Case("ViTModel", "ViTConfig", SMALL, POOLED),
    "ViT, narrow pooler": Case("ViTModel", "ViTConfig", {**SMALL, "pooler_output_size": 24}, POOLED),
    "ViT without pooler": Case("ViTModel", "ViTConfig", SMALL, arguments={"add_pooling_layer": False}),
    "ViT, classes": Case("ViTForImageClassification", "ViTConfig", {**SMALL, "num_labels": 5}, LOGITS),
    "ViT, no qkv bias": Case("ViTForImageClassification", "ViTConfig", {**SMALL, "qkv_bias": False}, LOGITS),
    "ViT, wide heads": Case("ViTForImageClassification", "ViTConfig", {**SMALL, "head_dim": 64}, LOGITS),
    "DeiT": Case("DeiTModel", "DeiTConfig", SMALL, POOLED, same=False),
    "DeiT without pooler": Case("DeiTModel", "DeiTConfig", SMALL, arguments={"add_pooling_layer": False}),
    "DeiT, classes": Case("DeiTForImageClassification", "DeiTConfig", {**SMALL, "num_labels": 5}, LOGITS, same=False),
    "DeiT, both heads": Case("DeiTForImageClassificationWithTeacher", "DeiTConfig", {**SMALL, "num_labels": 5}, LOGITS),
    "MSN": Case("ViTMSNModel", "ViTMSNConfig", SMALL, back="ViTModel"),
    "MSN, classes": Case(
        "ViTMSNForImageClassification", "ViTMSNConfig", SMALL, LOGITS, back="ViTForImageClassification"
    ),
    "MAE's encoder": Case("ViTMAEModel", "ViTMAEConfig", {**SMALL, "mask_ratio": 0.0}, back="ViTModel"),
    "I-JEPA": Case("IJepaModel", "IJepaConfig", SMALL),
    "I-JEPA, classes": Case("IJepaForImageClassification", "IJepaConfig", {**SMALL, "num_labels": 5}, LOGITS),
    "DINOv2": Case("Dinov2Model", "Dinov2Config", SMALL),
    "DINOv2, gated": Case("Dinov2Model", "Dinov2Config", {**SMALL, "use_swiglu_ffn": True}, POOLED),
    "DINOv2, no mask token": Case("Dinov2Model", "Dinov2Config", {**SMALL, "use_mask_token": False}),
    "DINOv2, classes": Case("Dinov2ForImageClassification", "Dinov2Config", {**SMALL, "num_labels": 5}, LOGITS),
    "DINOv2, registers": Case("Dinov2WithRegistersModel", "Dinov2WithRegistersConfig", SMALL),
    "DINOv2, registers, classes": Case(
        "Dinov2WithRegistersForImageClassification", "Dinov2WithRegistersConfig", {**SMALL, "num_labels": 5}, LOGITS
    ),
    "DINOv3": Case("DINOv3ViTModel", "DINOv3ViTConfig", {**SMALL, "num_register_tokens": 4}),
    "DINOv3, no registers": Case("DINOv3ViTModel", "DINOv3ViTConfig", {**SMALL, "rope_theta": 50.0}),
    "DINOv3, gated": Case("DINOv3ViTModel", "DINOv3ViTConfig", {**SMALL, "use_gated_mlp": True, "hidden_act": "silu"}),
    "DINOv3, all biases": Case("DINOv3ViTModel", "DINOv3ViTConfig", {**SMALL, "key_bias": True}, POOLED),
    "DINOv3, no biases": Case("DINOv3ViTModel", "DINOv3ViTConfig", {**SMALL, "query_bias": False, "value_bias": False}),
    "CLIP": Case("CLIPVisionModel", "CLIPVisionConfig", SMALL, POOLED),
    "CLIP, gelu": Case("CLIPVisionModel", "CLIPVisionConfig", {**SMALL, "hidden_act": "gelu"}, POOLED),
    "CLIP, projected": Case(
        "CLIPVisionModelWithProjection", "CLIPVisionConfig", {**SMALL, "projection_dim": 16}, EMBEDDED
    ),
    "SigLIP": Case("SiglipVisionModel", "SiglipVisionConfig", SMALL, POOLED),
    "SigLIP without its pool": Case("SiglipVisionModel", "SiglipVisionConfig", {**SMALL, "vision_use_head": False}),
    "SigLIP, classes": Case(
        "SiglipForImageClassification",
        "SiglipConfig",
        {**BOTH, "num_labels": 5},
        LOGITS,
        leave_out=("pool",),
        back="IJepaForImageClassification",
        same=False,
    ),
    "SigLIP 2": Case("Siglip2VisionModel", "Siglip2VisionConfig", FLAT, POOLED),
    "SigLIP 2 without its pool": Case("Siglip2VisionModel", "Siglip2VisionConfig", {**FLAT, "vision_use_head": False}),
}


def build(transformers: ModuleType, case: Case) -> Any:
    """A small model with random weights everywhere."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    config = getattr(transformers, case.config)(**case.settings)
    model = getattr(transformers, case.model)(config, **case.arguments).eval()
    renames.randomise(model)
    return model


def saved(model: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder


def edited(folder: Path, out: Path, **changes: Any) -> Path:
    """The same folder with another config.json; None takes an entry out."""
    shutil.copytree(folder, out)
    plain = json.loads((folder / "config.json").read_text()) | changes
    plain = {name: value for name, value in plain.items() if value is not None}
    (out / "config.json").write_text(json.dumps(plain))
    return out
