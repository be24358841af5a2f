"""The rules of the linter: a network, a recipe and what is known of the images -> a complaint, or none.

Each rule says what happens, who has seen it, and what to do. An error is known to fail, a warning to cost accuracy
or hours; advice may or may not matter here. `repository #n` is a thread of that repository on GitHub.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Final, NamedTuple

import torch

from vitrail.errors import ConfigError
from vitrail.network.config import ConvStem, ViTConfig
from vitrail.training.recipe import Recipe
from vitrail.training.schedule import warmup_steps


class Complaint(NamedTuple):
    """What a rule has to say."""

    level: str  # error, warning or advice
    message: str


@dataclass(frozen=True)
class LintCase:
    """What is to be trained, how and on what, with the numbers that rules ask for."""

    config: ViTConfig
    recipe: Recipe
    images: int
    classes: int
    size: tuple[int, int]
    pretrained: bool
    names: tuple[str, ...]
    sizes: tuple[tuple[int, int], ...]
    device: str

    @property
    def steps(self) -> int:
        return math.ceil(self.recipe.epochs * max(1, self.images // self.recipe.batch))

    @property
    def adaptive(self) -> bool:
        """Steps whose length does not depend on the gradient's: the rate is what a weight moves by."""
        return self.recipe.optimiser != "sgd"

    @property
    def scratch(self) -> bool:
        return not self.pretrained

    @property
    def plain(self) -> bool:
        """Every epoch shows the very same images."""
        augment = self.recipe.augment
        changing = (augment.crop, augment.shift, augment.flip, augment.rand_ops, augment.erase)
        return not any(changing) and not self.mixing

    @property
    def mixing(self) -> bool:
        return bool(self.recipe.augment.mixup or self.recipe.augment.cutmix)


# ---- the network ---------------------------------------------------------------------------------------------------


def _patches(case: LintCase) -> Complaint | None:
    (height, width), cell = case.size, case.config.cell
    try:
        h, w = case.config.grid_for(case.size)
    except ConfigError as error:
        return Complaint("error", str(error))
    if h * w >= 16:
        return None
    fitting = max(1, min(height, width) // 8)
    return Complaint(
        "warning",
        f"patches of {cell[0]}x{cell[1]} cut images of {height}x{width} into {h * w}, too few to tell apart what is "
        f"where: CIFAR-10 in patches of 16 ended at 50 % (vit-pytorch #12); take patches of {fitting}, or show the "
        "images larger",
    )


def _head_width(case: LintCase) -> Complaint | None:
    narrow = case.config.per_head
    if case.pretrained or narrow >= 24:
        return None
    return Complaint(
        "warning",
        f"heads of {narrow} values are too narrow to compare tokens by, and learn badly (16 in vit-pytorch #45): "
        f"take {max(1, case.config.width // 32)} heads in a width of {case.config.width}, for 32 values each or more",
    )


def _depth(case: LintCase) -> Complaint | None:
    if case.pretrained or case.config.depth <= 12 or case.images >= 50_000:
        return None
    return Complaint(
        "warning",
        f"{case.config.depth} blocks from scratch on {case.images:,} images learn them by heart (L/16 is worse than "
        "B/16 even on the 1.3 million of ImageNet, paper, table 5): take 12 blocks or fewer, or pretrained weights",
    )


def _dropout(case: LintCase) -> Complaint | None:
    dropout = case.config.dropout if case.recipe.dropout is None else case.recipe.dropout
    if dropout <= 0.3 or case.images >= 100_000:
        return None
    return Complaint(
        "warning",
        f"dropout {dropout:g} leaves too little of each token to learn from on {case.images:,} images: 0.1 is the "
        "most that the paper and its followers use; for small sets rely on augmentation and drop_path",
    )


def _batch_norm(case: LintCase) -> Complaint | None:
    part = case.recipe.batch // case.recipe.pieces
    if part >= 8 or not (case.config.norm == "batch" or isinstance(case.config.stem, ConvStem)):
        return None
    return Complaint(
        "warning",
        f"batch norm sees {part} images at a time, too few for its mean and deviation, and predicts otherwise than "
        "it trained: take batches (and pieces of them) of 8 or more, or a network without batch norm",
    )


# ---- the data ------------------------------------------------------------------------------------------------------


def _few_images(case: LintCase) -> Complaint | None:
    if case.pretrained or case.images >= 50_000:
        return None
    return Complaint(
        "advice",
        f"{case.images:,} images are few for a network from scratch (CIFAR-100: 30.7 % from scratch, 92 % from "
        "ImageNet-21k weights): start from a pretrained checkpoint, with --from, if there is one for such images",
    )


def _few_per_class(case: LintCase) -> Complaint | None:
    if case.images >= 10 * case.classes:
        return None
    remedy = "train the head alone (recipe 'probe')" if case.pretrained else "start from a pretrained checkpoint"
    return Complaint(
        "advice",
        f"{case.images:,} images of {case.classes:,} classes are fewer than 10 a class, and a whole network learns "
        f"them by heart: {remedy}",
    )


def _upscaled(case: LintCase) -> Complaint | None:
    if not case.sizes:
        return None
    own = median(min(each) for each in case.sizes)
    times = min(case.size) / own
    if times <= 2:
        return None
    told = f"images of {own:g} pixels are blown up {times:.1f} times: {times**2:.0f} times the work for no more detail"
    if case.pretrained:
        return Complaint(
            "advice", f"{told}; a network may want the size it was pretrained at, but try a smaller one too"
        )
    return Complaint("warning", f"{told}; take a size of about {round(own)} with small patches")


def _mirrored(case: LintCase) -> Complaint | None:
    if not case.recipe.augment.flip or not case.names:
        return None
    words = {word for name in case.names for word in re.split(r"[^a-z]+", name.lower())}
    sides = sorted(words & {"left", "right", "clockwise", "counterclockwise", "anticlockwise"})
    signs = all(re.fullmatch(r"[0-9a-z]", name.strip().lower()) for name in case.names)
    if not sides and not signs:
        return None
    what = f"class names say {' and '.join(sides)}" if sides else "classes look like digits or letters"
    return Complaint(
        "advice",
        f"{what}, and half of the images are mirrored with their label kept: set flip=False, unless a mirrored "
        "image is still of its class",
    )


# ---- the rate ------------------------------------------------------------------------------------------------------


def _rate(case: LintCase) -> Complaint | None:
    recipe = case.recipe
    if not case.adaptive or recipe.lr < 1e-2 or recipe.tune == "head":
        return None
    return Complaint(
        "warning" if recipe.optimiser == "muon" else "error",
        f"lr {recipe.lr:g} with {recipe.optimiser} moves every weight by about {recipe.lr:g} a step: the network soon "
        "says one class for every image (vit-pytorch #34); take 1e-3 from scratch, 1e-4 from pretrained weights",
    )


def _rate_batch(case: LintCase) -> Complaint | None:
    recipe = case.recipe
    usual = 1e-3 * math.sqrt(recipe.batch / 64)
    if not case.adaptive or case.pretrained or recipe.lr >= 1e-2 or recipe.lr <= 3 * usual:
        return None
    return Complaint(
        "warning",
        f"lr {recipe.lr:g} is {recipe.lr / usual:.1f} times what batches of {recipe.batch} usually bear, about "
        f"{usual:.1g} (1e-3 at 64, and as the square root of the batch): training may diverge; lower lr, or raise "
        "batch",
    )


def _rate_finetune(case: LintCase) -> Complaint | None:
    recipe = case.recipe
    middle = recipe.lr * recipe.layer_decay ** (case.config.depth / 2)
    if case.scratch or not case.adaptive or recipe.tune == "head" or recipe.lr >= 1e-2 or middle <= 1e-3:
        return None
    return Complaint(
        "warning",
        f"lr {recipe.lr:g} with {recipe.optimiser} overwrites what the network was pretrained for: DINOv2's users "
        "report 40 % after full fine-tuning where the probe had 75 % (dinov2 #276); take 1e-4 to 5e-4 with "
        "layer_decay 0.75, or train the head alone",
    )


def _rate_sgd(case: LintCase) -> Complaint | None:
    recipe = case.recipe
    if case.adaptive or recipe.lr >= 1e-3:
        return None
    return Complaint(
        "warning",
        f"lr {recipe.lr:g} is a rate for adamw: sgd moves by the rate times the gradient, and would hardly move at "
        "all; the paper fine-tunes with sgd at 1e-3 to 6e-2",
    )


def _sgd_scratch(case: LintCase) -> Complaint | None:
    if case.adaptive or case.pretrained or case.config.stem is not None:
        return None
    return Complaint(
        "warning",
        "a plain ViT from scratch learns badly with sgd: DeiT-B reaches 74.5 % with it, 81.8 % with adamw (deit #68); "
        "take adamw, or a stem of convolutions",
    )


def _rate_mean_pool(case: LintCase) -> Complaint | None:
    recipe = case.recipe
    head = recipe.lr * recipe.head_lr
    if case.pretrained or case.config.pool != "mean" or not case.adaptive or recipe.batch < 1024 or head < 8e-4:
        return None
    return Complaint(
        "advice",
        f"the mean of the patches may want a lower rate than {head:g}: at 8e-4 it was poor in the paper, at 3e-4 as "
        "good as the cls token at 8e-4 (figure 9); try lr 3e-4, or head_lr 0.375",
    )


def _warmup(case: LintCase) -> Complaint | None:
    recipe = case.recipe
    if recipe.warmup > 0 or not case.adaptive or case.pretrained or recipe.lr < 1e-3:
        return None
    return Complaint(
        "warning",
        f"no warm-up at lr {recipe.lr:g}: the first steps, taken before the optimiser knows the gradients' size, can "
        "spoil a transformer for good; set warmup=0.05, or a lower lr",
    )


def _warmup_length(case: LintCase) -> Complaint | None:
    warm = warmup_steps(case.recipe, case.steps)
    if 2 * warm <= case.steps:
        return None
    return Complaint(
        "warning",
        f"{warm:,} steps of warm-up in a training of {case.steps:,}: the full rate comes late or never; set "
        "warmup=0.05, a share of the whole",
    )


def _layer_decay(case: LintCase) -> Complaint | None:
    decay, depth = case.recipe.layer_decay, case.config.depth
    if case.pretrained or decay == 1:
        return None
    return Complaint(
        "warning",
        f"layer_decay {decay:g} protects what early blocks have learned, and here they have learned nothing: block 0 "
        f"would move {decay**-depth:.3g} times slower than the head; set layer_decay=1 from scratch",
    )


# ---- the steps -----------------------------------------------------------------------------------------------------


def _weight_decay(case: LintCase) -> Complaint | None:
    recipe = case.recipe
    if recipe.optimiser == "adam" and recipe.weight_decay > 1e-3:
        return Complaint(
            "warning",
            f"adam adds weight_decay {recipe.weight_decay:g} to the gradient and then evens both out: with adam in "
            "place of adamw a ViT stood at 6.3 % after 100 epochs (pytorch-image-models #252); take adamw, or 0",
        )
    if not case.adaptive or recipe.weight_decay <= 0.5:
        return None
    return Complaint(
        "warning",
        f"weight_decay {recipe.weight_decay:g} pulls weights to zero faster than most data can hold them up: the most "
        "in the paper is 0.3, with 4096 images a step; take 0.05 to 0.3",
    )


def _random_start(case: LintCase) -> Complaint | None:
    if case.pretrained or case.recipe.tune != "head":
        return None
    return Complaint(
        "error",
        "tune='head' trains the head alone, and the network under it has random weights: start from a checkpoint, "
        "with --from, or set tune='all'",
    )


def _batch(case: LintCase) -> Complaint | None:
    if case.recipe.batch <= case.images:
        return None
    return Complaint(
        "warning",
        f"a batch of {case.recipe.batch:,} is more than all {case.images:,} images: every epoch is one step on the "
        f"same batch; set batch={2 ** max(0, int(math.log2(max(1, case.images // 8))))} or so",
    )


def _steps(case: LintCase) -> Complaint | None:
    if case.steps >= 100 or case.recipe.tune == "head":
        return None
    return Complaint(
        "warning",
        f"{case.steps} steps in all are too few to learn much: set a smaller batch (now {case.recipe.batch}) or more "
        f"epochs (now {case.recipe.epochs:g}), for some hundreds of steps at least",
    )


def _mixing(case: LintCase) -> Complaint | None:
    least = 5 if case.pretrained else 20
    if not case.mixing or case.recipe.epochs >= least:
        return None
    return Complaint(
        "warning",
        f"mixup and cutmix slow learning down and pay off over many epochs (DeiT: 300), not {case.recipe.epochs:g}: "
        f"leave them out, or train {least} epochs or more",
    )


def _by_heart(case: LintCase) -> Complaint | None:
    most, few = (50, 10_000) if case.pretrained else (30, 100_000)
    if not case.plain or case.recipe.epochs < most or case.images > few:
        return None
    return Complaint(
        "warning",
        f"{case.recipe.epochs:g} times the very same {case.images:,} images will be learned by heart: CIFAR-100 in "
        "50 epochs ended at 98.5 % of the training images and 30.7 % of the others; augment them (crop, shift, flip, "
        "rand_ops), or train for fewer epochs",
    )


def _average(case: LintCase) -> Complaint | None:
    span = 1 / (1 - case.recipe.ema)
    if case.recipe.ema == 0 or span <= case.steps / 5:
        return None
    return Complaint(
        "advice",
        f"ema {case.recipe.ema:g} averages over {span:,.0f} steps, and there are {case.steps:,}: it is never reached, "
        f"the average spans the last ninth of the training instead; {1 - 10 / max(case.steps, 20):.6g} would span a "
        "tenth of it",
    )


def _bf16(case: LintCase) -> Complaint | None:
    if case.recipe.precision != "bf16" or has_bf16(case.device):
        return None
    return Complaint(
        "warning",
        f"this {case.device} has no units for bf16: it is emulated, less exact and several times slower than fp32; "
        "set precision='fp32'",
    )


def has_bf16(device: str) -> bool:
    """Whether a device multiplies bfloat16 in hardware."""
    if device.startswith("cuda"):
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    if device.startswith("cpu") and hasattr(torch.cpu, "get_capabilities"):
        return any(bool(able) for name, able in torch.cpu.get_capabilities().items() if "bf16" in name)
    return True  # it cannot be told


RULES: Final[dict[str, Callable[[LintCase], Complaint | None]]] = {
    "patches": _patches,
    "head-width": _head_width,
    "depth": _depth,
    "dropout": _dropout,
    "batch-norm": _batch_norm,
    "few-images": _few_images,
    "few-per-class": _few_per_class,
    "upscaled": _upscaled,
    "mirrored": _mirrored,
    "rate": _rate,
    "rate-batch": _rate_batch,
    "rate-finetune": _rate_finetune,
    "rate-sgd": _rate_sgd,
    "sgd-scratch": _sgd_scratch,
    "rate-mean-pool": _rate_mean_pool,
    "warmup": _warmup,
    "warmup-length": _warmup_length,
    "layer-decay": _layer_decay,
    "weight-decay": _weight_decay,
    "random-start": _random_start,
    "batch": _batch,
    "steps": _steps,
    "mixing": _mixing,
    "by-heart": _by_heart,
    "average": _average,
    "bf16": _bf16,
}
