"""Names people know -> ViTConfig: a dict one can read. Names are family, size, patch, and the image size if unusual."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

from vitrail.checks import check_fields
from vitrail.errors import ConfigError, nearest
from vitrail.network.config import ConvStem, Positions, Resample, ResNetStem, Rotary, ViTConfig
from vitrail.network.vit import ViT

# The sizes.
NANO = ViTConfig(width=96, depth=6, heads=3, mlp_width=384)
MICRO = ViTConfig(width=192, depth=9, heads=3, mlp_width=768)
MINI = ViTConfig(width=256, depth=8, heads=4, mlp_width=1024)
TI = ViTConfig(width=192, depth=12, heads=3, mlp_width=768)
S = ViTConfig(width=384, depth=12, heads=6, mlp_width=1536)
B = ViTConfig(width=768, depth=12, heads=12, mlp_width=3072)
L = ViTConfig(width=1024, depth=24, heads=16, mlp_width=4096)
H = ViTConfig(width=1280, depth=32, heads=16, mlp_width=5120, patch_size=(14, 14), dropout=0.1)
HPLUS = ViTConfig(width=1280, depth=32, heads=20, mlp_width=5120, mlp="swiglu", activation="silu")
G = ViTConfig(width=1536, depth=40, heads=24, mlp_width=4096, mlp="swiglu", activation="silu")
GIANT = ViTConfig(width=1408, depth=40, heads=16, mlp_width=6144, patch_size=(14, 14))
GIGANTIC = ViTConfig(width=1664, depth=48, heads=16, mlp_width=8192, patch_size=(14, 14))
SO400M = ViTConfig(width=1152, depth=27, heads=16, mlp_width=4304, patch_size=(14, 14))
M = ViTConfig(width=512, depth=12, heads=8, mlp_width=2048)

# What a family is beside its sizes: changes for `replace`. How each reads positions on another grid: docs/network.md.
Family = dict[str, Any]
BICUBIC = Resample(antialias=False)
# DeiT: timm's start, drop path, and where distilled a token with a head of its own
DEIT: Family = {"initialisation": "timm", "drop_path": 0.1, "positions": Positions(resample=BICUBIC)}
DISTILLED: Family = {**DEIT, "distillation_token": True, "pool": "cls+distillation"}
# DeiT-III: LayerScale, and no slot for the cls token in the positions
DEIT3: Family = {"layer_scale": 1e-6, "positions": Positions(prefix=False, resample=BICUBIC)}
DEIT3 |= {"initialisation": "timm", "dropout": 0.0}
# DINOv2 at 518 pixels, without a head; with registers the cls token's position is folded into the token
DINOV2: Family = {"patch_size": (14, 14), "image_size": (518, 518), "classes": 0, "layer_scale": 1.0}
DINOV2 |= {"initialisation": "dinov2", "positions": Positions(resample=Resample(antialias=False, offset=0.1))}
REGISTERS: Family = {**DINOV2, "registers": 4, "positions": Positions(prefix=False)}
# DINOv3: rotary positions only, four registers, no bias on keys
DINOV3: Family = {"classes": 0, "registers": 4, "positions": Positions("none")}
DINOV3 |= {"rotary": Rotary("dinov3", theta=100.0, rescale=2.0), "qkv_bias": "no-key", "layer_scale": 1e-5}
DINOV3 |= {"norm_eps": 1e-5, "initialisation": "dinov2"}
# CLIP's vision tower: a norm before the encoder, quick GELU; the logits are the joint embedding
CLIP: Family = {"head_bias": False, "patch_bias": False, "embedding_norm": True, "activation": "quick_gelu"}
CLIP |= {"norm_eps": 1e-5, "positions": Positions(resample=BICUBIC), "initialisation": "timm"}
# SigLIP's vision tower: no cls token, attention pooling, no head
SIGLIP: Family = {"classes": 0, "cls_token": False, "pool": "map", "activation": "gelu_tanh"}
SIGLIP |= {"positions": Positions(prefix=False, resample=BICUBIC)}
# MAE's encoder: fixed sine-cosine positions, no head
SINCOS = Positions("sincos-2d", resample=BICUBIC)
MAE: Family = {"classes": 0, "positions": SINCOS, "initialisation": "mae", "dropout": 0.0}
# for small images: small patches, heads of at least 32 values, mean pool
SMALL: Family = {"pool": "mean", "classes": 10, "initialisation": "timm"}
R50 = ResNetStem((3, 4, 9))  # the units of stage 4 stand in stage 3, so a cell is 16 pixels
R50_FULL = ResNetStem((3, 4, 6, 3))


PRESETS: dict[str, ViTConfig] = {
    # the paper and AugReg
    "vit-ti16": TI,
    "vit-ti16-384": replace(TI, image_size=(384, 384)),
    "vit-s16": S,
    "vit-s16-384": replace(S, image_size=(384, 384)),
    "vit-s32": replace(S, patch_size=(32, 32)),
    "vit-b8": replace(B, patch_size=(8, 8)),
    "vit-b16": B,
    "vit-b16-384": replace(B, image_size=(384, 384)),
    "vit-b32": replace(B, patch_size=(32, 32)),
    "vit-b32-384": replace(B, patch_size=(32, 32), image_size=(384, 384)),
    "vit-l14": replace(L, patch_size=(14, 14)),
    "vit-l16": replace(L, dropout=0.1),
    "vit-l16-384": replace(L, dropout=0.1, image_size=(384, 384)),
    "vit-l32": replace(L, patch_size=(32, 32)),
    "vit-l32-384": replace(L, patch_size=(32, 32), image_size=(384, 384)),
    "vit-h14": H,
    "vit-h14-518": replace(H, image_size=(518, 518)),
    "vit-giant14": GIANT,
    "vit-gigantic14": GIGANTIC,
    "vit-so400m14": SO400M,
    "vit-test16": ViTConfig(width=1, depth=1, heads=1, mlp_width=1, initialisation="timm"),
    # hybrids: patches cut from the feature map of a ResNetV2 instead of the image
    "r50-vit-b16": replace(B, stem=R50, dropout=0.1, patch_size=(1, 1)),
    "r50-vit-b16-384": replace(B, stem=R50, dropout=0.1, patch_size=(1, 1), image_size=(384, 384)),
    "r50-vit-b32": replace(B, stem=R50_FULL, patch_size=(1, 1)),
    "r50-vit-l32": replace(L, stem=R50_FULL, dropout=0.1, patch_size=(1, 1)),
    "r26-vit-s32": replace(S, stem=ResNetStem((2, 2, 2, 2)), patch_size=(1, 1)),
    "r-vit-ti16": replace(TI, stem=ResNetStem(()), patch_size=(8, 8)),
    # DeiT
    "deit-ti16": replace(TI, **DEIT),
    "deit-s16": replace(S, **DEIT),
    "deit-b16": replace(B, **DEIT),
    "deit-b16-384": replace(B, **DEIT, image_size=(384, 384)),
    "deit-ti16-distilled": replace(TI, **DISTILLED),
    "deit-s16-distilled": replace(S, **DISTILLED),
    "deit-b16-distilled": replace(B, **DISTILLED),
    "deit-b16-distilled-384": replace(B, **DISTILLED, image_size=(384, 384)),
    "deit3-s16": replace(S, **DEIT3, drop_path=0.05),
    "deit3-m16": replace(M, **DEIT3, drop_path=0.1),
    "deit3-b16": replace(B, **DEIT3, drop_path=0.2),
    "deit3-l16": replace(L, **DEIT3, drop_path=0.45),
    "deit3-h14": replace(H, **DEIT3, drop_path=0.6),
    # DINOv2 and DINOv3
    "dinov2-s14": replace(S, **DINOV2),
    "dinov2-b14": replace(B, **DINOV2),
    "dinov2-l14": replace(L, **DINOV2),
    "dinov2-g14": replace(G, **DINOV2),
    "dinov2-s14-registers": replace(S, **REGISTERS),
    "dinov2-b14-registers": replace(B, **REGISTERS),
    "dinov2-l14-registers": replace(L, **REGISTERS),
    "dinov2-g14-registers": replace(G, **REGISTERS),
    "dinov3-s16": replace(S, **DINOV3),
    "dinov3-splus16": replace(S, **DINOV3, mlp="swiglu", activation="silu"),
    "dinov3-b16": replace(B, **DINOV3),
    "dinov3-l16": replace(L, **DINOV3),
    "dinov3-hplus16": replace(HPLUS, **DINOV3),
    # image towers trained with text
    "clip-b32": replace(B, **CLIP, classes=512, patch_size=(32, 32)),
    "clip-b16": replace(B, **CLIP, classes=512),
    "clip-l14": replace(L, **CLIP, classes=768, patch_size=(14, 14)),
    "clip-l14-336": replace(L, **CLIP, classes=768, patch_size=(14, 14), image_size=(336, 336)),
    "siglip-b16": replace(B, **SIGLIP),
    "siglip-b16-384": replace(B, **SIGLIP, image_size=(384, 384)),
    "siglip-l16-256": replace(L, **SIGLIP, image_size=(256, 256)),
    "siglip-so400m14": replace(SO400M, **SIGLIP),
    "siglip-so400m14-384": replace(SO400M, **SIGLIP, image_size=(378, 378)),
    # MAE's encoder
    "mae-b16": replace(B, **MAE),
    "mae-l16": replace(L, **MAE),
    "mae-h14": replace(H, **MAE),
    # small images
    "vit-nano4-28": replace(NANO, **SMALL, patch_size=(4, 4), image_size=(28, 28)),
    "vit-micro4-32": replace(MICRO, **SMALL, patch_size=(4, 4), image_size=(32, 32)),
    "vit-micro4-32-conv": replace(MICRO, **SMALL, stem=ConvStem((48, 96)), patch_size=(1, 1), image_size=(32, 32)),
    "vit-mini8-64": replace(MINI, **SMALL, patch_size=(8, 8), image_size=(64, 64)),
}


def preset(name: str, **changes: Any) -> ViTConfig:
    """The config of a name, with changes: preset("vit-b16", classes=10)."""
    if not isinstance(name, str) or name not in PRESETS:
        raise ConfigError(f"no preset {name!r}: {nearest(str(name), PRESETS)} (`vitrail models` lists all)")
    changes = check_fields(ViTConfig, changes)
    return replace(PRESETS[name], **changes)


def create(name: str, **changes: Any) -> ViT:
    """A fresh network from a preset: create("vit-b16", classes=10).

    - name: of a preset: "vit-b16", "dinov2-s14" and so on; `vitrail models` lists them.
    - changes: any setting of ViTConfig, by its name, in place of the preset's.
    """
    return ViT(preset(name, **changes))


create.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # so that editors complete the settings
    [
        inspect.Parameter("name", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=str),
        *(each.replace(kind=each.KEYWORD_ONLY) for each in inspect.signature(ViTConfig).parameters.values()),
    ],
    return_annotation=ViT,
)
