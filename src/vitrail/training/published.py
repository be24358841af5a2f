"""Named recipes: what papers and repositories did, number for number, and our own defaults; a dict one can read.

The paper says Adam, with a weight decay of up to 0.3: it acts apart from the gradient, as in AdamW (DeiT's table 9
lists it so), hence adamw here. Vectors and tokens have no weight decay in any of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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
    objective: str = "classify"  # what is learned
    sweep: tuple[float, ...] = ()  # learning rates that were tried, where the best on held-out images was taken
    note: str = ""  # what it is from, and what it reached there
    rows: tuple[str, ...] = ()

    def network(self, classes: int) -> ViTConfig | None:
        """The network it was made for, with a head for so many classes; None: any."""
        if not self.model:
            return None
        size = {"image_size": self.size} if self.size else {}
        return preset(self.model, **size, **self.changes, classes=classes)


INCEPTION = Augment(crop=(0.05, 1.0), flip=True)  # random distorted crop and flip, as Google trains
HEAVY = Augment(crop=(0.08, 1.0), flip=True, rand_ops=2, rand_magnitude=9.0, erase=0.25, mixup=0.8, cutmix=1.0)


# ---- the paper (arXiv 2010.11929) ----------------------------------------------------------------------------------


def pretrained(
    model: str,
    epochs: float,
    lr: float,
    note: str,
    *,
    weight_decay: float = 0.1,
    dropout: float = 0.0,
    schedule: str = "linear",
    clip: float = 0.0,
    changes: Mapping[str, Any] | None = None,
    rows: tuple[str, ...] = (),
) -> Preset:
    """A line of the paper's table 3; all with batches of 4096, 10,000 steps of warm-up, and 224 pixels."""
    recipe = Recipe(
        epochs=epochs,
        batch=4096,
        optimiser="adamw",
        lr=lr,
        weight_decay=weight_decay,
        beta2=0.999,
        clip=clip,
        schedule=schedule,
        warmup=10_000,
        augment=INCEPTION,
        dropout=dropout,
    )
    return Preset(recipe=recipe, model=model, changes=changes or {}, size=224, note=note, rows=rows)


def on_jft(model: str, epochs: float, lr: float, reached: str, changes: Mapping[str, Any] | None = None) -> Preset:
    note = f"Paper, table 3, JFT-300M. Fine-tuned at 384 pixels: {reached} % on ImageNet."
    return pretrained(model, epochs, lr, note, changes=changes)


def on_i21k(model: str, epochs: float, reached: str) -> Preset:
    note = f"Paper, table 3, ImageNet-21k. Fine-tuned at 384 pixels: {reached} % on ImageNet."
    return pretrained(model, epochs, 1e-3, note, weight_decay=0.03, dropout=0.1)


def finetuned(
    steps: int,
    sweep: tuple[float, ...],
    note: str,
    *,
    lr: float = 0.03,
    warmup: float = 500,
    pieces: int = 1,
    ema: float = 0.0,
    model: str = "",
    size: int = 384,
    rows: tuple[str, ...] = ("001.10", "001.11", "001.12"),
) -> Preset:
    """A line of the paper's table 4: SGD with momentum, batches of 512, cosine, no weight decay, a head of zeros.

    The paper does not say how long the warm-up is; Google's code has 500 steps, and 100 of 500.
    """
    recipe = Recipe(
        batch=512,
        pieces=pieces,
        optimiser="sgd",
        lr=lr,
        weight_decay=0.0,
        momentum=0.9,
        clip=1.0,
        ema=ema,
        schedule="cosine",
        warmup=warmup,
        augment=INCEPTION,
        head_start="zeros",
    )
    return Preset(recipe=recipe, model=model, size=size, steps=steps, sweep=sweep, note=note, rows=rows)


R50_L16 = {"stem": ResNetStem((3, 4, 9)), "patch_size": (1, 1)}
IMAGENET_RATES = (0.003, 0.01, 0.03, 0.06)
SMALL_SET_RATES = (0.001, 0.003, 0.01, 0.03)

PAPER: dict[str, Preset] = {
    "paper-pretrain-b16-jft": on_jft("vit-b16", 7, 8e-4, "84.15"),
    "paper-pretrain-b32-jft": on_jft("vit-b32", 7, 8e-4, "80.73"),
    "paper-pretrain-l32-jft": on_jft("vit-l32", 7, 6e-4, "84.37"),
    "paper-pretrain-l16-jft": on_jft("vit-l16", 7, 4e-4, "up to 87.12 (table 5, 7 or 14 epochs)"),
    "paper-pretrain-l16-jft-long": on_jft("vit-l16", 14, 4e-4, "up to 87.12 (table 5, 7 or 14 epochs)"),
    "paper-pretrain-h14-jft": on_jft("vit-h14", 14, 3e-4, "88.04"),
    "paper-pretrain-r50-b16-jft": on_jft("r50-vit-b16", 7, 8e-4, "85.58"),
    "paper-pretrain-r50-b32-jft": on_jft("r50-vit-b32", 7, 8e-4, "84.90"),
    "paper-pretrain-r50-l32-jft": on_jft("r50-vit-l32", 7, 2e-4, "85.68"),
    "paper-pretrain-r50-l16-jft": on_jft("vit-l16", 7, 4e-4, "86.60", R50_L16),
    "paper-pretrain-r50-l16-jft-long": on_jft("vit-l16", 14, 4e-4, "87.12", R50_L16),
    "paper-pretrain-b16-i21k": on_i21k("vit-b16", 90, "83.97"),
    "paper-pretrain-b32-i21k": on_i21k("vit-b32", 90, "81.28"),
    "paper-pretrain-l16-i21k": on_i21k("vit-l16", 30, "85.15 (table 5, 30 or 90 epochs)"),
    "paper-pretrain-l16-i21k-long": on_i21k("vit-l16", 90, "85.15 (table 5, 30 or 90 epochs)"),
    "paper-pretrain-l32-i21k": on_i21k("vit-l32", 30, "80.99 (table 5, 30 or 90 epochs)"),
    "paper-pretrain-l32-i21k-long": on_i21k("vit-l32", 90, "80.99 (table 5, 30 or 90 epochs)"),
    "paper-pretrain-imagenet": pretrained(
        "vit-b16",
        300,
        3e-3,
        "Paper, table 3, any ViT on ImageNet. At 384 pixels B/16 77.91, B/32 73.38, L/16 76.53, L/32 71.16 %.",
        weight_decay=0.3,
        dropout=0.1,
        schedule="cosine",
        clip=1.0,
    ),
    "paper-pretrain-masked-patch": Preset(
        recipe=Recipe(
            batch=4096,
            lr=2e-4,
            weight_decay=0.0,
            clip=0.0,
            schedule="cosine",
            warmup=10_000,
            augment=INCEPTION,
        ),
        model="vit-b16",
        size=224,
        steps=1_000_000,
        objective="masked-patch",
        note=(
            "Paper, appendix B.1.2, masked patches on JFT-300M; fine-tuned 79.9 % on ImageNet, 2 more than from "
            "scratch. Most of it after 100,000 steps. No weight decay is stated."
        ),
        rows=("P.6",),
    ),
    "paper-finetune-imagenet": finetuned(20_000, IMAGENET_RATES, "Paper, table 4. Results in table 5."),
    "paper-finetune-imagenet-l16-512": finetuned(
        20_000,
        IMAGENET_RATES,
        "Paper, table 2, with averaged weights: 87.76 % on ImageNet from JFT-300M, 85.30 from ImageNet-21k.",
        ema=0.9999,
        model="vit-l16",
        size=512,
        rows=("P.11",),
    ),
    "paper-finetune-imagenet-h14-518": finetuned(
        20_000,
        IMAGENET_RATES,
        "Paper, table 2, with averaged weights: 88.55 % on ImageNet from JFT-300M.",
        ema=0.9999,
        model="vit-h14",
        size=518,
        rows=("P.11",),
    ),
    "paper-finetune-cifar": finetuned(
        10_000,
        SMALL_SET_RATES,
        "Paper, table 4, CIFAR-10 and CIFAR-100. From ImageNet-21k, L/16: 99.15 and 93.25 %.",
    ),
    "paper-finetune-pets-flowers": finetuned(
        500,
        SMALL_SET_RATES,
        "Paper, table 4, Oxford Pets and Flowers. From ImageNet-21k, L/16: 94.67 and 99.61 %.",
        warmup=100,
    ),
    "paper-finetune-vtab": finetuned(
        2_500, (0.01,), "Paper, table 4, the 19 tasks of VTAB. From ImageNet-21k, L/16: mean 72.72 %.", lr=0.01
    ),
}


# ---- repositories --------------------------------------------------------------------------------------------------


def qucy(limit: int = 0) -> Preset:
    """Qucy/ViT-VisionTransformer on CIFAR-100; `limit` for a quick try on so many images."""
    recipe = Recipe(
        epochs=50,
        batch=64,
        patience=3,
        optimiser="adam",
        lr=1e-5,
        weight_decay=0.0,
        clip=0.0,
        schedule="constant",
        warmup=0,
        dropout=0.1,
    )
    quick = f" Here on {limit:,} images of each split at most: to see that it runs." if limit else ""
    return Preset(
        recipe=recipe,
        model="vit-b16",
        changes={"patch_size": (4, 4), "depth": 6},
        size=32,
        limit=limit,
        note=(
            "Qucy/ViT-VisionTransformer, from scratch: 98.5 % of the training images, 30.7 % of the others. It stops "
            f"on the training loss there, on the validation score here.{quick}"
        ),
        rows=("002.08",),
    )


def eva6(schedule: str, rate: str) -> Preset:
    """vivek-a81/EVA6, cats and dogs; StepLR(1, 0.7) is defined there."""
    recipe = Recipe(
        epochs=50,
        batch=64,
        optimiser="adam",
        lr=3e-5,
        weight_decay=0.0,
        clip=0.0,
        schedule=schedule,
        warmup=0,
        step_epochs=1,
        step_factor=0.7,
        augment=Augment(crop=(0.08, 1.0), flip=True),
    )
    return Preset(
        recipe=recipe,
        model="vit-b32",
        changes={"width": 128, "depth": 12, "heads": 8, "mlp_width": 512},
        size=224,
        note=(
            "vivek-a81/EVA6, from scratch on 20,000 images: 71.63 % of them, 71.00 % of the others. "
            f"{rate} Its Linformer attends to more places than there are tokens: plain here."
        ),
        rows=("EVA.1",),
    )


REPOSITORIES: dict[str, Preset] = {
    "google-finetune-cifar": finetuned(
        10_000,
        (),
        "google-research/vision_transformer, CIFAR-10 and CIFAR-100. From ImageNet-21k, B/16: 99.02 and 92.06 %.",
        pieces=8,
    ),
    "google-finetune-cifar10-b16": finetuned(
        10_000,
        (),
        "google-research/vision_transformer, which has another rate for B/16 on CIFAR-10: 99.02 %.",
        lr=0.01,
        pieces=8,
        model="vit-b16",
    ),
    "google-finetune-imagenet": finetuned(
        20_000, (), "google-research/vision_transformer, ImageNet. From ImageNet-21k, B/16: 84.53 %.", pieces=8
    ),
    "google-finetune-augreg": finetuned(
        500,
        (),
        "google-research/vision_transformer, configs/augreg.py: any small set, from an AugReg checkpoint.",
        warmup=100,
        pieces=8,
    ),
    "jeonsworld-cifar": Preset(
        recipe=Recipe(
            batch=512,
            optimiser="sgd",
            lr=3e-2,
            weight_decay=0.0,
            momentum=0.9,
            clip=1.0,
            schedule="cosine",
            warmup=500,
            augment=Augment(crop=(0.05, 1.0)),
            dropout=0.1,
            head_start="zeros",
        ),
        model="vit-b16",
        size=224,
        steps=10_000,
        note="jeonsworld/ViT-pytorch. From ImageNet-21k, B/16 at 224: CIFAR-10 99.08, CIFAR-100 92.3 %.",
        rows=("001.10", "001.11", "001.12", "001.13"),
    ),
    "qucy-cifar100": qucy(),
    "qucy-cifar100-quick": qucy(limit=1000),
    "learnopencv-imagenet": Preset(
        recipe=Recipe(
            epochs=300,
            batch=128,
            optimiser="adamw",
            lr=1e-4,
            weight_decay=0.05,
            clip=0.0,
            schedule="restarts",
            warmup=0,
            restart_epochs=10,
            restart_factor=2,
            augment=Augment(crop=(0.08, 1.0), flip=True),
            dropout=0.1,
        ),
        model="vit-b16",
        changes={"qkv_bias": "none"},
        size=224,
        note="spmallick/learnopencv, Vision_Transformer_PyTorch; no result is published.",
        rows=("003.16",),
    ),
    "eva6-cats-dogs": eva6("constant", "Its stepped schedule is never stepped, so the rate is constant here."),
    "eva6-cats-dogs-step": eva6("step", "With the stepped schedule that is defined there, and never stepped."),
    "deit-imagenet": Preset(
        recipe=Recipe(
            epochs=300,
            batch=1024,
            optimiser="adamw",
            lr=5e-4 * 1024 / 512,
            weight_decay=0.05,
            clip=0.0,
            ema=0.99996,
            schedule="cosine",
            warmup=5 / 300,
            final=1e-5 / 1e-3,
            smoothing=0.1,
            augment=HEAVY,
            dropout=0.0,
            drop_path=0.1,
        ),
        model="deit-b16",
        size=224,
        note=(
            "facebookresearch/deit without a teacher: Ti 72.2, S 79.9, B 81.8 % on ImageNet. There every image also "
            "comes three times a batch (repeated augmentation)."
        ),
    ),
}


def mae_finetuned(model: str, epochs: float, lr: float, decay: float, drop_path: float, reached: str) -> Preset:
    """facebookresearch/mae, FINETUNE.md: batches of 1024, and the base rate scaled by 1024 / 256."""
    recipe = Recipe(
        epochs=epochs,
        batch=1024,
        optimiser="adamw",
        lr=lr * 1024 / 256,
        weight_decay=0.05,
        clip=0.0,
        schedule="cosine",
        warmup=5 / epochs,
        final=1e-6 / (lr * 1024 / 256),
        layer_decay=decay,
        smoothing=0.1,
        augment=HEAVY,
        drop_path=drop_path,
        head_start="zeros",  # normal numbers of deviation 2e-5 there
    )
    return Preset(
        recipe=recipe,
        model=model,
        changes={"pool": "mean", "final_norm": "pooled"},
        size=224,
        note=f"facebookresearch/mae, FINETUNE.md: {reached} % on ImageNet.",
    )


MAE: dict[str, Preset] = {
    "mae-finetune-b16": mae_finetuned("mae-b16", 100, 5e-4, 0.65, 0.1, "83.66"),
    "mae-finetune-l16": mae_finetuned("mae-l16", 50, 1e-3, 0.75, 0.2, "85.95"),
    "mae-finetune-h14": mae_finetuned("mae-h14", 50, 1e-3, 0.75, 0.3, "86.93"),
}


# ---- our own -------------------------------------------------------------------------------------------------------

OURS: dict[str, Preset] = {
    "scratch": Preset(
        recipe=Recipe(
            epochs=20,
            batch=64,
            optimiser="muon",
            lr=3e-3,
            weight_decay=0.05,
            beta2=0.99,
            augment=Augment(shift=1),
        ),
        note="From scratch on small images: learns fast rather than long.",
    ),
    "finetune": Preset(
        recipe=Recipe(
            epochs=8,
            batch=32,
            lr=3e-4,
            weight_decay=0.05,
            warmup=0.1,
            layer_decay=0.75,
            smoothing=0.1,
            augment=Augment(crop=(0.5, 1.0)),
        ),
        note="A pretrained network on a few hundred images or more.",
    ),
    "probe": Preset(
        recipe=Recipe(epochs=0, tune="head"),
        note="The head of a pretrained network alone, fitted to its features.",
    ),
}

RECIPES: dict[str, Preset] = {**OURS, **PAPER, **REPOSITORIES, **MAE}
