"""Names people know -> ViTConfig: a dict one can read. Names are family, size, patch, and the image size if unusual."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vitrail.checks import check_fields
from vitrail.errors import ConfigError, nearest
from vitrail.network.config import ConvStem, Positions, Resample, ResNetStem, Rotary, ViTConfig

if TYPE_CHECKING:
    from vitrail.network.vit import ViT

# The sizes: width, depth, heads, MLP width.
TI = ViTConfig(width=192, depth=12, heads=3, mlp_width=768)
S = ViTConfig(width=384, depth=12, heads=6, mlp_width=1536)
B = ViTConfig(width=768, depth=12, heads=12, mlp_width=3072)
L = ViTConfig(width=1024, depth=24, heads=16, mlp_width=4096)
H = ViTConfig(width=1280, depth=32, heads=16, mlp_width=5120, patch_size=(14, 14), dropout=0.1)
GIANT = ViTConfig(width=1408, depth=40, heads=16, mlp_width=6144, patch_size=(14, 14))
GIGANTIC = ViTConfig(width=1664, depth=48, heads=16, mlp_width=8192, patch_size=(14, 14))
SO400M = ViTConfig(width=1152, depth=27, heads=16, mlp_width=4304, patch_size=(14, 14))

# How each family reads its positions on another grid (docs/network.md).
PLAIN_BICUBIC = Resample(antialias=False)
DINOV2_OFFSET = Resample(antialias=False, offset=0.1)


def sized(config: ViTConfig, patch: int | None = None, size: int | None = None, **changes: Any) -> ViTConfig:
    """A config with another patch and image size."""
    patch_size = (patch, patch) if patch else config.patch_size
    image_size = (size, size) if size else config.image_size
    return replace(config, patch_size=patch_size, image_size=image_size, **changes)


def hybrid(config: ViTConfig, layers: tuple[int, ...], patch: int = 1) -> ViTConfig:
    """Patches cut from the feature map of a ResNetV2 instead of the image."""
    return sized(config, patch, stem=ResNetStem(layers))


def deit(config: ViTConfig, size: int = 224, distilled: bool = False) -> ViTConfig:
    """DeiT: timm's start, drop path, and a distillation token with a head of its own where distilled."""
    pool = "cls+distillation" if distilled else "cls"
    positions = Positions(resample=PLAIN_BICUBIC)
    config = sized(config, size=size, initialisation="timm", drop_path=0.1, positions=positions)
    return replace(config, distillation_token=distilled, pool=pool)


def deit3(config: ViTConfig, drop_path: float) -> ViTConfig:
    """DeiT-III: LayerScale, and no slot for the cls token in the positions."""
    positions = Positions(prefix=False, resample=PLAIN_BICUBIC)
    return replace(
        config, layer_scale=1e-6, positions=positions, initialisation="timm", drop_path=drop_path, dropout=0.0
    )


def dinov2(config: ViTConfig, registers: int = 0) -> ViTConfig:
    """DINOv2 at 518 pixels, without a head; with registers the cls token's position is folded into the token."""
    positions = Positions(prefix=False) if registers else Positions(resample=DINOV2_OFFSET)
    config = sized(config, 14, 518, classes=0, layer_scale=1.0, initialisation="dinov2", registers=registers)
    return replace(config, positions=positions)


def dinov3(config: ViTConfig, **changes: Any) -> ViTConfig:
    """DINOv3: rotary positions only, four registers, no bias on keys."""
    rotary = Rotary("dinov3", theta=100.0, rescale=2.0)
    config = sized(config, 16, classes=0, registers=4, rotary=rotary, positions=Positions("none"))
    return replace(config, qkv_bias="no-key", layer_scale=1e-5, norm_eps=1e-5, initialisation="dinov2", **changes)


def clip(config: ViTConfig, patch: int, embedding: int, size: int = 224) -> ViTConfig:
    """CLIP's vision tower: a norm before the encoder, quick GELU; the logits are the joint embedding."""
    config = sized(config, patch, size, classes=embedding, head_bias=False, patch_bias=False, embedding_norm=True)
    positions = Positions(resample=PLAIN_BICUBIC)
    return replace(config, activation="quick_gelu", norm_eps=1e-5, positions=positions, initialisation="timm")


def siglip(config: ViTConfig, patch: int, size: int = 224) -> ViTConfig:
    """SigLIP's vision tower: no cls token, attention pooling, no head."""
    config = sized(config, patch, size, classes=0, cls_token=False, pool="map", activation="gelu_tanh")
    return replace(config, positions=Positions(prefix=False, resample=PLAIN_BICUBIC))


def mae(config: ViTConfig) -> ViTConfig:
    """MAE's encoder: fixed sine-cosine positions, no head."""
    positions = Positions("sincos-2d", resample=PLAIN_BICUBIC)
    return replace(config, classes=0, positions=positions, initialisation="mae", dropout=0.0)


def small(width: int, depth: int, heads: int, patch: int, size: int) -> ViTConfig:
    """For small images: small patches, heads of at least 32 values, mean pool."""
    config = ViTConfig(width=width, depth=depth, heads=heads, mlp_width=4 * width, pool="mean", classes=10)
    return sized(config, patch, size, initialisation="timm")


PRESETS: dict[str, ViTConfig] = {
    # the paper and AugReg
    "vit-ti16": TI,
    "vit-ti16-384": sized(TI, size=384),
    "vit-s16": S,
    "vit-s16-384": sized(S, size=384),
    "vit-s32": sized(S, 32),
    "vit-b8": sized(B, 8),
    "vit-b16": B,
    "vit-b16-384": sized(B, size=384),
    "vit-b32": sized(B, 32),
    "vit-b32-384": sized(B, 32, 384),
    "vit-l14": sized(L, 14),
    "vit-l16": replace(L, dropout=0.1),
    "vit-l16-384": sized(L, size=384, dropout=0.1),
    "vit-l32": sized(L, 32),
    "vit-l32-384": sized(L, 32, 384),
    "vit-h14": H,
    "vit-h14-518": sized(H, size=518),
    "vit-giant14": GIANT,
    "vit-gigantic14": GIGANTIC,
    "vit-so400m14": SO400M,
    "vit-test16": ViTConfig(width=1, depth=1, heads=1, mlp_width=1, initialisation="timm"),
    # hybrids
    "r50-vit-b16": hybrid(replace(B, dropout=0.1), (3, 4, 9)),
    "r50-vit-b16-384": sized(hybrid(replace(B, dropout=0.1), (3, 4, 9)), size=384),
    "r50-vit-b32": hybrid(B, (3, 4, 6, 3)),
    "r50-vit-l32": hybrid(replace(L, dropout=0.1), (3, 4, 6, 3)),
    "r26-vit-s32": hybrid(S, (2, 2, 2, 2)),
    "r-vit-ti16": hybrid(TI, (), patch=8),
    # DeiT
    "deit-ti16": deit(TI),
    "deit-s16": deit(S),
    "deit-b16": deit(B),
    "deit-b16-384": deit(B, 384),
    "deit-ti16-distilled": deit(TI, distilled=True),
    "deit-s16-distilled": deit(S, distilled=True),
    "deit-b16-distilled": deit(B, distilled=True),
    "deit-b16-distilled-384": deit(B, 384, distilled=True),
    "deit3-s16": deit3(S, 0.05),
    "deit3-m16": deit3(ViTConfig(width=512, depth=12, heads=8, mlp_width=2048), 0.1),
    "deit3-b16": deit3(B, 0.2),
    "deit3-l16": deit3(L, 0.45),
    "deit3-h14": deit3(H, 0.6),
    # DINOv2 and DINOv3
    "dinov2-s14": dinov2(S),
    "dinov2-b14": dinov2(B),
    "dinov2-l14": dinov2(L),
    "dinov2-g14": dinov2(ViTConfig(width=1536, depth=40, heads=24, mlp_width=4096, mlp="swiglu", activation="silu")),
    "dinov2-s14-registers": dinov2(S, registers=4),
    "dinov2-b14-registers": dinov2(B, registers=4),
    "dinov2-l14-registers": dinov2(L, registers=4),
    "dinov2-g14-registers": dinov2(
        ViTConfig(width=1536, depth=40, heads=24, mlp_width=4096, mlp="swiglu", activation="silu"),
        registers=4,
    ),
    "dinov3-s16": dinov3(S),
    "dinov3-splus16": dinov3(S, mlp="swiglu", activation="silu"),
    "dinov3-b16": dinov3(B),
    "dinov3-l16": dinov3(L),
    "dinov3-hplus16": dinov3(
        ViTConfig(width=1280, depth=32, heads=20, mlp_width=5120), mlp="swiglu", activation="silu"
    ),
    # image towers trained with text
    "clip-b32": clip(B, 32, 512),
    "clip-b16": clip(B, 16, 512),
    "clip-l14": clip(L, 14, 768),
    "clip-l14-336": clip(L, 14, 768, 336),
    "siglip-b16": siglip(B, 16),
    "siglip-b16-384": siglip(B, 16, 384),
    "siglip-l16-256": siglip(L, 16, 256),
    "siglip-so400m14": siglip(SO400M, 14),
    "siglip-so400m14-384": siglip(SO400M, 14, 378),
    # MAE's encoder
    "mae-b16": mae(B),
    "mae-l16": mae(L),
    "mae-h14": mae(H),
    # small images
    "vit-nano4-28": small(96, 6, 3, 4, 28),
    "vit-micro4-32": small(192, 9, 3, 4, 32),
    "vit-micro4-32-conv": replace(small(192, 9, 3, 1, 32), stem=ConvStem((48, 96))),
    "vit-mini8-64": small(256, 8, 4, 8, 64),
}


def preset(name: str, **changes: Any) -> ViTConfig:
    """The config of a name, with changes: preset("vit-b16", classes=10)."""
    if not isinstance(name, str) or name not in PRESETS:
        raise ConfigError(f"no preset {name!r}: {nearest(str(name), PRESETS)} (`vitrail models` lists all)")
    changes = check_fields(ViTConfig, changes)
    return replace(PRESETS[name], **changes)


def create(name: str, **changes: Any) -> ViT:
    """A fresh network from a preset: create("vit-b16", classes=10)."""
    from vitrail.network.vit import ViT

    return ViT(preset(name, **changes))
