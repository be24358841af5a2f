"""Named recipes: what papers and repositories did, number for number, and our own defaults; one table one can read.

The paper says Adam, with a weight decay of up to 0.3: it acts apart from the gradient, as in AdamW (DeiT's table 9
lists it so), hence adamw here. Vectors and tokens have no weight decay in any of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from vitrail.data.augmentation import Augment
from vitrail.network.config import ResNetStem, ViTConfig
from vitrail.network.presets import preset
from vitrail.training.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A recipe with the network and the size it was made for."""

    recipe: Recipe
    model: str = ""  # the preset of its network; empty: any
    changes: Mapping[str, Any] = field(default_factory=dict)  # what its network has other than that preset
    size: int = 0  # of the images, in pixels; 0: any
    steps: int | None = None  # where its length was given in steps; then `epochs` counts for nothing
    limit: int = 0  # of the images of each split, for a quick try; 0: all
    sweep: tuple[float, ...] = ()  # learning rates that were tried, where the best on held-out images was taken
    note: str = ""  # what it is from, and what it reached there

    def network(self, classes: int) -> ViTConfig | None:
        """The network it was made for, with a head for so many classes; None: any."""
        if not self.model:
            return None
        size = {"image_size": self.size} if self.size else {}
        return preset(self.model, **size, **self.changes, classes=classes)


Settings = dict[str, Any]  # of a Recipe and of its Preset, by name

INCEPTION: Final = Augment(crop=(0.05, 1.0), flip=True)  # random distorted crop and flip, as Google trains
HEAVY: Final = Augment(crop=(0.08, 1.0), flip=True, rand_ops=2, rand_magnitude=9.0, erase=0.25, mixup=0.8, cutmix=1.0)
R50_L16: Final = {"stem": ResNetStem((3, 4, 9)), "patch_size": (1, 1)}
IMAGENET_RATES: Final = (0.003, 0.01, 0.03, 0.06)
SMALL_SET_RATES: Final = (0.001, 0.003, 0.01, 0.03)

# ---- bases: what the rows below have in common; {} in a note is what a row reached or is from ------------------------

# Table 3 of the paper (arXiv 2010.11929): batches of 4096, 10,000 steps of warm-up, 224 pixels.
PRETRAIN: Settings = {
    "batch": 4096,
    "lr": 1e-3,
    "weight_decay": 0.1,
    "clip": 0.0,
    "schedule": "linear",
    "warmup": 10_000,
    "augment": INCEPTION,
    "dropout": 0.0,
    "size": 224,
}
JFT = PRETRAIN | {"note": "Paper, table 3, JFT-300M. Fine-tuned at 384 pixels: {} % on ImageNet."}
I21K = PRETRAIN | {
    "weight_decay": 0.03,
    "dropout": 0.1,
    "note": "Paper, table 3, ImageNet-21k. Fine-tuned at 384 pixels: {} % on ImageNet.",
}
I21K_EITHER = I21K | {
    "note": "Paper, table 5, ImageNet-21k. Fine-tuned at 384 pixels: {} % on ImageNet, after 30 or 90 epochs: the "
    "paper does not say.",
}
# Table 4 of the paper: SGD with momentum, no weight decay, a head of zeros. The paper does not say how long the warm-up
# is; Google's code has 500 steps, and 100 of 500.
FINETUNE: Settings = {
    "batch": 512,
    "optimiser": "sgd",
    "momentum": 0.9,
    "lr": 0.03,
    "weight_decay": 0.0,
    "warmup": 500,
    "augment": INCEPTION,
    "head_start": "zeros",
    "size": 384,
}
AVERAGED = FINETUNE | {"steps": 20_000, "sweep": IMAGENET_RATES, "ema": 0.9999}
GOOGLE = FINETUNE | {"pieces": 8, "note": "google-research/vision_transformer{}"}
QUCY: Settings = {
    "epochs": 50,
    "batch": 64,
    "patience": 3,
    "optimiser": "adam",
    "lr": 1e-5,
    "weight_decay": 0.0,
    "clip": 0.0,
    "schedule": "constant",
    "warmup": 0,
    "dropout": 0.1,
    "size": 32,
    "model": "vit-b16",
    "changes": {"patch_size": (4, 4), "depth": 6},
    "note": "Qucy/ViT-VisionTransformer, from scratch: 98.5 % of the training images, 30.7 % of the others. It stops "
    "on the training loss there, on the validation score here.{}",
}
# Cats and dogs; StepLR(1, 0.7) is defined there.
EVA6: Settings = {
    "epochs": 50,
    "batch": 64,
    "optimiser": "adam",
    "lr": 3e-5,
    "weight_decay": 0.0,
    "clip": 0.0,
    "warmup": 0,
    "step_epochs": 1,
    "step_factor": 0.7,
    "augment": Augment(crop=(0.08, 1.0), flip=True),
    "size": 224,
    "model": "vit-b32",
    "changes": {"width": 128, "depth": 12, "heads": 8, "mlp_width": 512},
    "note": "vivek-a81/EVA6, from scratch on 20,000 images: 71.63 % of them, 71.00 % of the others. {} Its Linformer "
    "attends to more places than there are tokens: plain here.",
}
# FINETUNE.md of MAE: batches of 1024, the base rate times 1024 / 256. The head starts from normal numbers of deviation
# 2e-5 there.
MAE: Settings = {
    "batch": 1024,
    "clip": 0.0,
    "smoothing": 0.1,
    "augment": HEAVY,
    "head_start": "zeros",
    "size": 224,
    "changes": {"pool": "mean", "final_norm": "pooled"},
    "note": "facebookresearch/mae, FINETUNE.md: {} % on ImageNet.",
}


def _preset(base: Settings, reached: str, /, **differing: Any) -> Preset:
    """A row of the table: its base, what it reached or is from, and where it differs."""
    settings = base | differing
    settings["note"] = settings.get("note", "{}").format(reached)
    own = {each.name for each in fields(Recipe)}
    recipe = Recipe(**{name: value for name, value in settings.items() if name in own})
    return Preset(recipe=recipe, **{name: value for name, value in settings.items() if name not in own})


def _mae(reached: str, *, epochs: int, lr: float, **differing: Any) -> Preset:
    """A row on the base MAE: 5 epochs of warm-up, and down to a rate of 1e-6."""
    return _preset(MAE, reached, epochs=epochs, warmup=5 / epochs, lr=lr, final=1e-6 / lr, **differing)


# ---- the table ------------------------------------------------------------------------------------------------------

RECIPES: Final[dict[str, Preset]] = {
    # our own
    "scratch": _preset(
        {},
        "From scratch on small images: learns fast rather than long.",
        epochs=20,
        optimiser="muon",
        lr=3e-3,
        beta2=0.99,
        augment=Augment(shift=1),
    ),
    "finetune": _preset(
        {},
        "A pretrained network on a few hundred images or more.",
        epochs=8,
        batch=32,
        lr=3e-4,
        augment=Augment(crop=(0.5, 1.0)),
        warmup=0.1,
        layer_decay=0.75,
        smoothing=0.1,
    ),
    "probe": _preset({}, "The head of a pretrained network alone, fitted to its features.", epochs=0, tune="head"),
    # the paper
    "paper-pretrain-b16-jft": _preset(JFT, "84.15", model="vit-b16", epochs=7, lr=8e-4),
    "paper-pretrain-b32-jft": _preset(JFT, "80.73", model="vit-b32", epochs=7, lr=8e-4),
    "paper-pretrain-l32-jft": _preset(JFT, "84.37", model="vit-l32", epochs=7, lr=6e-4),
    "paper-pretrain-l16-jft": _preset(JFT, "at most 87.12", model="vit-l16", epochs=7, lr=4e-4),
    "paper-pretrain-l16-jft-long": _preset(JFT, "at most 87.12", model="vit-l16", epochs=14, lr=4e-4),
    "paper-pretrain-h14-jft": _preset(JFT, "88.04", model="vit-h14", epochs=14, lr=3e-4),
    "paper-pretrain-r50-b16-jft": _preset(JFT, "85.58", model="r50-vit-b16", epochs=7, lr=8e-4),
    "paper-pretrain-r50-b32-jft": _preset(JFT, "84.90", model="r50-vit-b32", epochs=7, lr=8e-4),
    "paper-pretrain-r50-l32-jft": _preset(JFT, "85.68", model="r50-vit-l32", epochs=7, lr=2e-4),
    "paper-pretrain-r50-l16-jft": _preset(JFT, "86.60", model="vit-l16", changes=R50_L16, epochs=7, lr=4e-4),
    "paper-pretrain-r50-l16-jft-long": _preset(JFT, "87.12", model="vit-l16", changes=R50_L16, epochs=14, lr=4e-4),
    "paper-pretrain-b16-i21k": _preset(I21K, "83.97", model="vit-b16", epochs=90),
    "paper-pretrain-b32-i21k": _preset(I21K, "81.28", model="vit-b32", epochs=90),
    "paper-pretrain-l16-i21k": _preset(I21K_EITHER, "85.15", model="vit-l16", epochs=30),
    "paper-pretrain-l16-i21k-long": _preset(I21K_EITHER, "85.15", model="vit-l16", epochs=90),
    "paper-pretrain-l32-i21k": _preset(I21K_EITHER, "80.99", model="vit-l32", epochs=30),
    "paper-pretrain-l32-i21k-long": _preset(I21K_EITHER, "80.99", model="vit-l32", epochs=90),
    "paper-pretrain-imagenet": _preset(
        PRETRAIN | {"note": "Paper, table 3, any ViT on ImageNet. At 384 pixels {} %."},
        "B/16 77.91, B/32 73.38, L/16 76.53, L/32 71.16",
        model="vit-b16",
        epochs=300,
        lr=3e-3,
        weight_decay=0.3,
        dropout=0.1,
        schedule="cosine",
        clip=1.0,
    ),
    "paper-pretrain-masked-patch": _preset(
        PRETRAIN | {"note": "Paper, appendix B.1.2, masked patches on JFT-300M; {} No weight decay is stated."},
        "fine-tuned 79.9 % on ImageNet, 2 more than from scratch. Most of it after 100,000 steps.",
        objective="masked-patch",
        model="vit-b16",
        steps=1_000_000,
        lr=2e-4,
        weight_decay=0.0,
        schedule="cosine",
        dropout=None,
    ),
    "paper-finetune-imagenet": _preset(
        FINETUNE, "Paper, table 4. Results in table 5.", steps=20_000, sweep=IMAGENET_RATES
    ),
    "paper-finetune-imagenet-l16-512": _preset(
        AVERAGED,
        "Paper, table 2, with averaged weights: 87.76 % on ImageNet from JFT-300M, 85.30 from ImageNet-21k.",
        model="vit-l16",
        size=512,
    ),
    "paper-finetune-imagenet-h14-518": _preset(
        AVERAGED, "Paper, table 2, with averaged weights: 88.55 % on ImageNet from JFT-300M.", model="vit-h14", size=518
    ),
    "paper-finetune-cifar": _preset(
        FINETUNE,
        "Paper, table 4, CIFAR-10 and CIFAR-100. From ImageNet-21k, L/16: 99.15 and 93.25 %.",
        steps=10_000,
        sweep=SMALL_SET_RATES,
    ),
    "paper-finetune-pets-flowers": _preset(
        FINETUNE,
        "Paper, table 4, Oxford Pets and Flowers. From ImageNet-21k, L/16: 94.67 and 99.61 %.",
        steps=500,
        sweep=SMALL_SET_RATES,
        warmup=100,
    ),
    "paper-finetune-vtab": _preset(
        FINETUNE,
        "Paper, table 4, the 19 tasks of VTAB. From ImageNet-21k, L/16: mean 72.72 %.",
        steps=2_500,
        sweep=(0.01,),
        lr=0.01,
    ),
    # repositories
    "google-finetune-cifar": _preset(
        GOOGLE, ", CIFAR-10 and CIFAR-100. From ImageNet-21k, B/16: 99.02 and 92.06 %.", steps=10_000
    ),
    "google-finetune-cifar10-b16": _preset(
        GOOGLE, ", which has another rate for B/16 on CIFAR-10: 99.02 %.", steps=10_000, lr=0.01, model="vit-b16"
    ),
    "google-finetune-imagenet": _preset(GOOGLE, ", ImageNet. From ImageNet-21k, B/16: 84.53 %.", steps=20_000),
    "google-finetune-augreg": _preset(
        GOOGLE, ", configs/augreg.py: any small set, from an AugReg checkpoint.", steps=500, warmup=100
    ),
    "jeonsworld-cifar": _preset(
        FINETUNE,
        "jeonsworld/ViT-pytorch. From ImageNet-21k, B/16 at 224: CIFAR-10 99.08, CIFAR-100 92.3 %.",
        model="vit-b16",
        size=224,
        steps=10_000,
        dropout=0.1,
        augment=Augment(crop=(0.05, 1.0)),
    ),
    "qucy-cifar100": _preset(QUCY, ""),
    "qucy-cifar100-quick": _preset(
        QUCY, " Here on 1,000 images of each split at most: to see that it runs.", limit=1000
    ),
    "learnopencv-imagenet": _preset(
        {},
        "spmallick/learnopencv, Vision_Transformer_PyTorch; no result is published.",
        epochs=300,
        batch=128,
        lr=1e-4,
        clip=0.0,
        schedule="restarts",
        warmup=0,
        restart_epochs=10,
        restart_factor=2,
        augment=Augment(crop=(0.08, 1.0), flip=True),
        dropout=0.1,
        model="vit-b16",
        changes={"qkv_bias": "none"},
        size=224,
    ),
    "eva6-cats-dogs": _preset(
        EVA6, "Its stepped schedule is never stepped, so the rate is constant here.", schedule="constant"
    ),
    "eva6-cats-dogs-step": _preset(
        EVA6, "With the stepped schedule that is defined there, and never stepped.", schedule="step"
    ),
    "deit-imagenet": _preset(
        {},
        "facebookresearch/deit without a teacher: Ti 72.2, S 79.9, B 81.8 % on ImageNet. There every image also comes "
        "three times a batch (repeated augmentation).",
        model="deit-b16",
        size=224,
        augment=HEAVY,
        epochs=300,
        batch=1024,
        lr=5e-4 * 1024 / 512,
        clip=0.0,
        ema=0.99996,
        warmup=5 / 300,
        final=1e-5 / 1e-3,
        smoothing=0.1,
        dropout=0.0,
        drop_path=0.1,
    ),
    "mae-finetune-b16": _mae("83.66", model="mae-b16", epochs=100, lr=2e-3, layer_decay=0.65, drop_path=0.1),
    "mae-finetune-l16": _mae("85.95", model="mae-l16", epochs=50, lr=4e-3, layer_decay=0.75, drop_path=0.2),
    "mae-finetune-h14": _mae("86.93", model="mae-h14", epochs=50, lr=4e-3, layer_decay=0.75, drop_path=0.3),
}
