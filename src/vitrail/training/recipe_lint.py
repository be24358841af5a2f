"""Lint: what is known to go wrong with a recipe, before it has cost a night.

Each rule says what happens, who has seen it, and what to do. An error is known to fail, a warning to cost accuracy
or hours; advice may or may not matter here. `repository #n` is a thread of that repository on GitHub.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import torch

from vitrail.checks import check_int, check_pair
from vitrail.errors import ConfigError, InputError
from vitrail.network.config import ConvStem, ViTConfig
from vitrail.reporting.html_page import counted
from vitrail.training.recipe import Recipe
from vitrail.training.schedule import warmup_steps


class Finding(NamedTuple):
    """Something to know before training."""

    level: str  # error, warning or advice
    name: str
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
    minutes: float | None = None
    device: str = "cpu"

    @property
    def steps(self) -> int:
        return math.ceil(self.recipe.epochs * max(1, self.images // self.recipe.batch))

    @property
    def adaptive(self) -> bool:
        """Steps whose length does not depend on the gradient's: the rate is what a weight moves by."""
        return self.recipe.optimiser != "sgd"


def lint(
    config: ViTConfig,
    recipe: Recipe,
    *,
    images: int,
    classes: int,
    size: int | tuple[int, int],
    pretrained: bool,
    names: Sequence[str] = (),
    sizes: Sequence[tuple[int, int]] = (),
    minutes: float | None = None,
    device: str = "cpu",
) -> list[Finding]:
    """What is known to go wrong, the worst first.

    `images`: images to train on; `size`: pixels (H, W) that the network sees; `names`: of the classes, and `sizes`:
    (H, W) of the images as they are, where known; `minutes`: what the steps were measured for; `device`: where it is
    trained, as a plan says it.
    """
    check_int("images", images, 1, 1 << 40, InputError)
    check_int("classes", classes, 0, error=InputError)
    case = LintCase(
        config,
        recipe,
        images,
        classes,
        check_pair("size", size),
        pretrained,
        tuple(names),
        tuple(sizes),
        minutes,
        device,
    )
    findings = [finding for rules in (_of_network, _of_data, _of_rate, _of_steps) for finding in rules(case)]
    return sorted(findings, key=lambda finding: ("error", "warning", "advice").index(finding.level))


def _of_network(case: LintCase) -> Iterator[Finding]:
    config, recipe, images = case.config, case.recipe, case.images
    (height, width), cell = case.size, config.cell
    try:
        h, w = config.grid_for(case.size)
    except ConfigError as error:
        yield Finding("error", "patches", str(error))
    else:
        if h * w < 16:
            yield Finding(
                "warning",
                "patches",
                f"patches of {cell[0]}x{cell[1]} cut images of {height}x{width} into {h * w}, too few to tell apart "
                "what is where: CIFAR-10 in patches of 16 ended at 50 % (vit-pytorch #12); take patches of "
                f"{max(1, min(height, width) // 8)}, or show the images larger",
            )
    if config.per_head < 24 and not case.pretrained:
        yield Finding(
            "warning",
            "head-width",
            f"heads of {config.per_head} values are too narrow to compare tokens by, and learn badly (16 in "
            f"vit-pytorch #45): take {max(1, config.width // 32)} heads in a width of {config.width}, for 32 values "
            "each or more",
        )
    if config.depth > 12 and images < 50_000 and not case.pretrained:
        yield Finding(
            "warning",
            "depth",
            f"{config.depth} blocks from scratch on {counted(images, 'image')} learn them by heart (L/16 is worse than "
            "B/16 even on the 1.3 million of ImageNet, paper, table 5): take 12 blocks or fewer, or pretrained weights",
        )
    dropout = config.dropout if recipe.dropout is None else recipe.dropout
    if dropout > 0.3 and images < 100_000:
        yield Finding(
            "warning",
            "dropout",
            f"dropout {dropout:g} leaves too little of each token to learn from on {counted(images, 'image')}: 0.1 is "
            "the most that the paper and its followers use; for small sets rely on augmentation and drop_path",
        )
    part = recipe.batch // recipe.pieces
    if part < 8 and (config.norm == "batch" or isinstance(config.stem, ConvStem)):
        yield Finding(
            "warning",
            "batch-norm",
            f"batch norm sees {part} images at a time, too few for its mean and deviation, and predicts otherwise than "
            "it trained: take batches (and pieces of them) of 8 or more, or a network without batch norm",
        )


def _of_data(case: LintCase) -> Iterator[Finding]:
    if case.images < 50_000 and not case.pretrained:
        yield Finding(
            "advice",
            "few-images",
            f"{counted(case.images, 'image')} to train from nothing: that is little (CIFAR-100: 30.7 %, and 92 % from "
            "ImageNet-21k weights): start from a pretrained network with --from NAME; `vitrail models --pretrained` "
            "lists some",
        )
    if case.images < 10 * case.classes:
        remedy = "train the head alone (--recipe probe)" if case.pretrained else "start from a pretrained checkpoint"
        yield Finding(
            "advice",
            "few-per-class",
            f"{counted(case.images, 'image')} for {counted(case.classes, 'class')}: fewer than 10 a class, which a "
            f"whole network learns by heart: {remedy}",
        )
    own = median(min(each) for each in case.sizes) if case.sizes else math.inf
    times = min(case.size) / own
    if times > 2:
        remedy = f"; take a size of about {round(own)} with small patches"
        if case.pretrained:
            remedy = "; a network may want the size it was pretrained at, but try a smaller one too"
        yield Finding(
            "advice" if case.pretrained else "warning",
            "upscaled",
            f"images of {own:g} pixels are blown up {times:.1f} times: {times**2:.0f} times the work for no more detail"
            f"{remedy}",
        )
    words = {word for name in case.names for word in re.split(r"[^a-z]+", name.lower())}
    sides = sorted(words & {"left", "right", "clockwise", "counterclockwise", "anticlockwise"})
    signs = case.names and all(re.fullmatch(r"[0-9a-z]", name.strip().lower()) for name in case.names)
    if case.recipe.augment.flip and (sides or signs):
        what = f"class names say {' and '.join(sides)}" if sides else "classes look like digits or letters"
        yield Finding(
            "advice",
            "mirrored",
            f"{what}, and half of the images are mirrored with their label kept: set flip=False, unless a mirrored "
            "image is still of its class",
        )


def _of_rate(case: LintCase) -> Iterator[Finding]:
    recipe, config, lr, scratch = case.recipe, case.config, case.recipe.lr, not case.pretrained
    if case.adaptive and lr >= 1e-2 and recipe.tune != "head":
        yield Finding(
            "warning" if recipe.optimiser == "muon" else "error",
            "rate",
            f"lr {lr:g} with {recipe.optimiser} moves every weight by about {lr:g} a step: the network soon says one "
            "class for every image (vit-pytorch #34); take 1e-3 from scratch, 1e-4 from pretrained weights",
        )
    usual = 1e-3 * math.sqrt(recipe.batch / 64)
    if case.adaptive and scratch and 3 * usual < lr < 1e-2:
        yield Finding(
            "warning",
            "rate-batch",
            f"lr {lr:g} is {lr / usual:.1f} times what batches of {recipe.batch} usually bear, about {usual:.1g} "
            "(1e-3 at 64, and as the square root of the batch): training may diverge; lower lr, or raise batch",
        )
    middle = lr * recipe.layer_decay ** (config.depth / 2)
    if case.adaptive and case.pretrained and recipe.tune != "head" and lr < 1e-2 and middle > 1e-3:
        yield Finding(
            "warning",
            "rate-finetune",
            f"lr {lr:g} with {recipe.optimiser} overwrites what the network was pretrained for: DINOv2's users "
            "report 40 % after full fine-tuning where the probe had 75 % (dinov2 #276); take 1e-4 to 5e-4 with "
            "layer_decay 0.75, or train the head alone",
        )
    if not case.adaptive and lr < 1e-3:
        yield Finding(
            "warning",
            "rate-sgd",
            f"lr {lr:g} is a rate for adamw: sgd moves by the rate times the gradient, and would hardly move at "
            "all; the paper fine-tunes with sgd at 1e-3 to 6e-2",
        )
    if not case.adaptive and scratch and config.stem is None:
        yield Finding(
            "warning",
            "sgd-scratch",
            "a plain ViT from scratch learns badly with sgd: DeiT-B reaches 74.5 % with it, 81.8 % with adamw (deit "
            "#68); take adamw, or a stem of convolutions",
        )
    head = lr * recipe.head_lr
    if case.adaptive and scratch and config.pool == "mean" and recipe.batch >= 1024 and head >= 8e-4:
        yield Finding(
            "advice",
            "rate-mean-pool",
            f"the mean of the patches may want a lower rate than {head:g}: at 8e-4 it was poor in the paper, at 3e-4 "
            "as good as the cls token at 8e-4 (figure 9); try lr 3e-4, or head_lr 0.375",
        )
    if case.adaptive and scratch and recipe.warmup == 0 and lr >= 1e-3:
        yield Finding(
            "warning",
            "warmup",
            f"no warm-up at lr {lr:g}: the first steps, taken before the optimiser knows the gradients' size, can "
            "spoil a transformer for good; set warmup=0.05, or a lower lr",
        )
    warm = warmup_steps(recipe, case.steps)
    if 2 * warm > case.steps:
        yield Finding(
            "warning",
            "warmup-length",
            f"{counted(warm, 'step')} of warm-up in a training of {case.steps:,}: the full rate comes late or never; "
            "set warmup=0.05, a share of the whole",
        )
    decay = recipe.layer_decay
    if scratch and decay != 1:
        yield Finding(
            "warning",
            "layer-decay",
            f"layer_decay {decay:g} protects what early blocks have learned, and here they have learned nothing: block "
            f"0 would move {decay**-config.depth:.3g} times slower than the head; set layer_decay=1 from scratch",
        )


def _of_steps(case: LintCase) -> Iterator[Finding]:
    recipe, images = case.recipe, case.images
    if recipe.optimiser == "adam" and recipe.weight_decay > 1e-3:
        yield Finding(
            "warning",
            "weight-decay",
            f"adam adds weight_decay {recipe.weight_decay:g} to the gradient and then evens both out: with adam in "
            "place of adamw a ViT stood at 6.3 % after 100 epochs (pytorch-image-models #252); take adamw, or 0",
        )
    elif case.adaptive and recipe.weight_decay > 0.5:
        yield Finding(
            "warning",
            "weight-decay",
            f"weight_decay {recipe.weight_decay:g} pulls weights to zero faster than most data can hold them up: the "
            "most in the paper is 0.3, with 4096 images a step; take 0.05 to 0.3",
        )
    if recipe.tune == "head" and not case.pretrained:
        yield Finding(
            "error",
            "random-start",
            "tune='head' trains the head alone, and the network under it has random weights: start from a checkpoint, "
            "with --from, or set tune='all'",
        )
    if recipe.batch > images:
        yield Finding(
            "warning",
            "batch",
            f"a batch of {recipe.batch:,} is more than all {counted(images, 'image')}: every epoch is one step on the "
            f"same batch; choose --batch {2 ** max(0, int(math.log2(max(1, images // 8))))} or so",
        )
    if case.steps < 100 and recipe.tune != "head" and recipe.epochs > 0:  # with 0, none were asked for
        epochs = f"--epochs, now {recipe.epochs:.3g}"
        length = epochs if case.minutes is None else f"--minutes, now {case.minutes:g}"
        yield Finding(
            "warning",
            "steps",
            f"{counted(case.steps, 'step')} in all {'is' if case.steps == 1 else 'are'} too few to learn much: set a "
            f"smaller --batch (now {recipe.batch}), or train longer ({length}), for some hundreds of steps at least",
        )
    augment, least = recipe.augment, 5 if case.pretrained else 20
    mixing = augment.mixup > 0 or augment.cutmix > 0
    if mixing and recipe.epochs < least:
        yield Finding(
            "warning",
            "mixing",
            f"mixup and cutmix slow learning down and pay off over many epochs (DeiT: 300), not {recipe.epochs:g}: "
            f"leave them out, or train {least} epochs or more",
        )
    most, few = (50, 10_000) if case.pretrained else (30, 100_000)
    if not augment.changes and not mixing and recipe.epochs >= most and images <= few:
        yield Finding(
            "warning",
            "by-heart",
            f"{recipe.epochs:g} times the very same {counted(images, 'image')} will be learned by heart: CIFAR-100 in "
            "50 epochs ended at 98.5 % of the training images and 30.7 % of the others; augment them (crop, shift, "
            "flip, rand_ops), or train for fewer epochs",
        )
    span = 1 / (1 - recipe.ema)
    if recipe.ema > 0 and span > case.steps / 5:
        yield Finding(
            "advice",
            "average",
            f"ema {recipe.ema:g} averages over {span:,.0f} steps, and there are {case.steps:,}: it is never reached, "
            "the average spans the last ninth of the training instead; "
            f"{1 - 10 / max(case.steps, 20):.6g} would span a tenth of it",
        )
    if recipe.precision in ("bf16", "fp16") and case.device == "cpu" and not has_units(recipe.precision):
        yield Finding(
            "warning",
            "half-precision",
            f"this cpu has no units for {recipe.precision}: it is emulated, less exact and several times slower than "
            "fp32; set precision='fp32'",
        )


def has_units(precision: str) -> bool:
    """Whether this processor multiplies bf16 or fp16 in hardware; where it cannot be told, it does."""
    if not hasattr(torch.cpu, "get_capabilities"):
        return True
    return any(bool(able) for name, able in torch.cpu.get_capabilities().items() if precision in name)
