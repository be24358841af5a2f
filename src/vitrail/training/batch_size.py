"""`batch="auto"`: a network, its recipe and a device -> how many images a step can take, found before the run.

On an accelerator steps are tried, each with twice as many images, until memory ends. A CPU shares its memory with
everybody and may swap rather than refuse: there what a step keeps is counted, and may take half of what is free.
"""

from __future__ import annotations

import copy
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitrail.data.loader import Batch
from vitrail.network.vit import ViT
from vitrail.training import plain_attention
from vitrail.training.backpropagation import BatchPass, gradients
from vitrail.training.memory import free_cached, is_out_of_memory
from vitrail.training.optimisers import build_optimiser
from vitrail.training.plan import Plan
from vitrail.training.weight_average import WeightAverage

SHARE: Final = 0.5  # of the memory that is free: what a step may take of it on a CPU
STEPS: Final = 8  # of an epoch, at least: of fewer a network learns little, however large they are
WAITING: Final = 4  # batches of pixels that are prepared while one is learned from


class BatchChoice(NamedTuple):
    """How many images a step takes, and what is told of it."""

    batch: int
    note: str


def fitting_batch(model: ViT, plan: Plan, images: int, device: torch.device) -> BatchChoice:
    """The largest power of two that fits on a device, of at most an eighth of the training images."""
    most = _power_of_two(max(1, images // STEPS))
    if device.type == "cpu":
        batch, why = _counted(model, plan, most)
    else:
        batch, why = _tried(model, plan, most, device)
    if batch == most:
        why = f"memory would hold more, and an epoch has {images // batch} steps so"
    usual = f"the learning rate stays the recipe's, {plan.recipe.lr:g} for batches of {plan.recipe.batch}"
    return BatchChoice(batch, f"batches of {batch} images: {why}; {usual}: --lr sets another")


def _tried(model: ViT, plan: Plan, most: int, device: torch.device) -> tuple[int, str]:
    """Steps on the device, of twice as many images each, until memory ends."""
    fits = 0
    while fits < most:
        wanted = max(1, 2 * fits)
        if not _fits(model, plan, wanted, device):
            return max(1, fits), f"{wanted} do not fit on {device.type}"
        fits = wanted
    return fits, ""


def _fits(model: ViT, plan: Plan, count: int, device: torch.device) -> bool:
    """Whether a whole step does: forward, backward, optimiser, average."""
    try:
        trial = copy.deepcopy(model).to(device).train()
        trial.encoder.checkpointing = plan.recipe.checkpointing
        plain_attention.install(trial)
        optimiser = build_optimiser(trial, plan.recipe)
        average = WeightAverage(trial, plan.recipe.ema) if plan.recipe.ema else None
        batches = [_blank(trial, plan, count, device) for _ in range(2)]  # one is on its way while one is learned from
        gradients(trial, batches[0], plan, None, BatchPass(trial, plan.recipe.pieces))
        optimiser.step(0.0)
        if average is not None:
            average.update(trial, 0)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return False
    finally:
        trial = optimiser = average = batches = None  # type: ignore[assignment]
        free_cached(device)
    return True


def _counted(model: ViT, plan: Plan, most: int) -> tuple[int, str]:
    """By what a step keeps for its way back, which grows with the images, and what it keeps anyhow."""
    free = free_memory()
    if not free:
        return min(plan.recipe.batch, most), "the recipe's, since this system does not say how much memory is free"
    two, four = (kept_bytes(model, plan, count, plan.recipe.checkpointing) for count in (2, 4))
    per_image = (four - two) // 2
    if plan.recipe.checkpointing:  # a block at a time is computed again: what it keeps, its gradients, what is between
        usual = (kept_bytes(model, plan, 4) - kept_bytes(model, plan, 2)) // 2
        per_image = min(usual, per_image + 4 * usual // model.config.depth)
    pixels = 4 * model.config.channels * plan.preprocess.size[0] * plan.preprocess.size[1]
    weights = 4 * sum(value.numel() for value in model.parameters())
    anyhow = weights * (3 + bool(plan.recipe.ema))  # gradients, two moments, the average
    room = SHARE * free - anyhow - max(0, two - 2 * per_image)
    images = int(room / (per_image / plan.recipe.pieces + WAITING * pixels))
    batch = min(most, _power_of_two(max(1, images)))
    need = anyhow + batch * (per_image / plan.recipe.pieces + WAITING * pixels)
    return batch, f"a step takes about {need / 1e9:.2g} GB, and may take half of the {free / 1e9:.2g} GB that are free"


def kept_bytes(model: ViT, plan: Plan, count: int, checkpointing: bool = False) -> int:
    """What a forward pass of `count` images keeps for the way back, besides the weights; the model stays as it is."""
    trial = copy.deepcopy(model).train()
    trial.encoder.checkpointing = checkpointing
    plain_attention.install(trial)
    own = {value.untyped_storage().data_ptr() for value in trial.parameters()}
    kept: dict[int, Tensor] = {}  # by storage: held, so that no other takes its place

    def keep(value: Tensor) -> Tensor:
        if value.untyped_storage().data_ptr() not in own:
            kept[value.untyped_storage().data_ptr()] = value
        return value

    recipe = replace(plan.recipe, pieces=1, clip=0.0)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        gradients(trial, _blank(trial, plan, count, torch.device("cpu")), replace(plan, recipe=recipe), None)
    return sum(value.untyped_storage().nbytes() for value in kept.values())


def _blank(model: ViT, plan: Plan, count: int, device: torch.device) -> Batch:
    """A batch of nothing in particular."""
    pixels = torch.zeros(count, model.config.channels, *plan.preprocess.size, device=device)
    targets = torch.full((count, len(plan.classes)), 1 / len(plan.classes), device=device)
    return Batch(np.arange(count), pixels, targets)


def _power_of_two(number: int) -> int:
    """The largest that is not above a number."""
    return 1 << (number.bit_length() - 1)


def free_memory(root: Path = Path("/")) -> int:
    """Bytes of memory that are free, within the limit of a container; 0 where the system does not say."""
    free = 0
    with suppress(OSError, KeyError, ValueError):
        lines = (root / "proc/meminfo").read_text("utf-8").splitlines()
        free = 1024 * int(dict(line.split(":", 1) for line in lines)["MemAvailable"].split()[0])
    with suppress(OSError, ValueError):
        group = root / "sys/fs/cgroup"
        left = int((group / "memory.max").read_text("utf-8")) - int((group / "memory.current").read_text("utf-8"))
        free = min(free, max(left, 1)) if free else max(left, 1)
    return free
