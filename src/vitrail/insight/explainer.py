"""explain: a checkpoint and an image -> Explanation, a map that carries its own proof."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import cast

import torch
from torch import Tensor

from vitrail.checkpoint import Checkpoint
from vitrail.checks import check_choice, check_int, check_number, check_type
from vitrail.errors import InputError
from vitrail.images import Source
from vitrail.inference import Named, Runtime, predict
from vitrail.inference.image_inputs import OneImage, as_image
from vitrail.inference.recognisers import as_runtime
from vitrail.insight.activations import Answer, asked, traced_hidden
from vitrail.insight.attribution import Attribution, Method
from vitrail.insight.explanation import Explanation
from vitrail.insight.map_scores import Candidate, score_maps
from vitrail.insight.methods import named
from vitrail.insight.sanity import outlying, shuffled
from vitrail.insight.targets import Likeness, Target, aim_at
from vitrail.network.merging import unmerge
from vitrail.network.vit import ViT
from vitrail.types import Array, Device

PIECES = 14  # that a side is cut into where the network's own grid is not known


def explain(
    checkpoint: Runtime | str | os.PathLike[str],
    image: OneImage,
    method: str | Method = "relevance",
    target: Target = None,
    *,
    check: bool = True,
    seed: int = 0,
    device: Device | None = None,
) -> Explanation:
    """Where on an image the answer comes from, for the class that the network names, or for another target.

    The map is checked: by deletion and insertion beside random orders, and against the map of shuffled weights. What
    fails is said in `.warnings`. A runtime that is not a checkpoint, such as an exported file, can be asked by
    occlusion alone.

    - checkpoint: a Checkpoint, the path of one, or a run's folder; an exported file, for occlusion alone.
    - image: a path, PIL image, array, 8-bit tensor (C, H, W), bytes or open file.
    - method: its name, such as "relevance", "rollout", "grad-cam" or "best", or a Method with settings of its own.
    - target: a class by name or number; None: the one that the network names.
    - check: measure whether the map is faithful; False: it is not, and done sooner.
    - seed: what the random orders of the check follow from.
    - device: where to compute, such as "auto", "cpu", "cuda:1" or "mps"; None: where it lies, of a path "auto".
    """
    checkpoint = as_runtime(checkpoint, device)
    given = as_image(image, checkpoint.preprocess)
    image = given if not isinstance(given, Named) else cast(Source, given.image)
    pixels = torch.from_numpy(checkpoint.preprocess(image))[None]
    if isinstance(checkpoint, Checkpoint):
        model = checkpoint.model
        pixels = pixels.to(next(model.parameters()))
        [explanation] = explain_pixels(
            model,
            pixels,
            method,
            target,
            check=check,
            seed=seed,
            classes=checkpoint.classes,
            task=checkpoint.task,
            temperature=checkpoint.temperature,
        )
    else:
        explanation = _from_outside(checkpoint, pixels[0], named(method), target, check, seed)
    full = checkpoint.preprocess.full_image(image)
    box = checkpoint.preprocess.box(full.height, full.width)
    return replace(explanation, image=full, box=box, remark=_remark(checkpoint, image))


def _remark(runtime: Runtime, image: Source) -> str:
    """How an answer is marked; nothing where no answer is ever marked."""
    if not runtime.classes or (runtime.ood is None and runtime.reject is None):
        return ""
    return predict(runtime, [image], top=1)[0].remark


def explain_pixels(
    model: ViT,
    pixels: Tensor,
    method: str | Method = "relevance",
    target: Target = None,
    *,
    check: bool = True,
    seed: int = 0,
    classes: Sequence[str] = (),
    task: str = "single-label",
    temperature: float | None = None,
) -> list[Explanation]:
    """The same for a batch of pixels (B, C, H, W): one explanation an image."""
    check_type("model", model, ViT, error=InputError)
    method = named(method)
    model.grid_of(pixels)
    if not len(pixels):
        raise InputError("expected at least one image, got none")
    if model.config.pool == "none":
        raise InputError("this network has no pool, so it has no one answer to explain: trace shows its attention")
    _check(model.config.classes, target, classes, task, temperature, seed)
    answers = asked(model, pixels)
    aims = [aim_at(target, each, classes, task, temperature) for each in answers.logits]
    methods = method.candidates()
    attributions = [each.attribute(model, pixels, aims) for each in methods]
    without: list[list[Attribution]] = []
    if check:
        other = shuffled(model, seed)
        without = [each.quicker().attribute(other, pixels, aims) for each in methods]
    outliers = _outliers(model, pixels) if check and any(each.reads_tokens for each in methods) else None
    explanations = []
    for row, aim in enumerate(aims):
        candidates = [
            Candidate(
                each,
                attributions[number][row],
                without[number][row].map if check else None,
                outliers[row] if outliers is not None and each.reads_tokens else None,
            )
            for number, each in enumerate(methods)
        ]
        value = float(aim.level(answers.logits[row : row + 1], answers.embedding[row : row + 1]))
        explanations.append(score_maps(partial(asked, model), pixels[row], candidates, aim, value, check, seed))
    return explanations


def _check(count: int, target: Target, classes: Sequence[str], task: str, temperature: float | None, seed: int) -> None:
    """Refuse what cannot be meant, before any work."""
    check_int("seed", seed, 0, 2**62, error=InputError)
    check_choice("task", task, ("single-label", "multi-label"))
    if temperature is not None:
        check_number("temperature", temperature, 1e-6, 1e6)
    if classes and len(classes) != count:
        raise InputError(f"classes: expected {count} names, as the network has classes, got {len(classes)}")
    if not count and not (isinstance(target, Likeness) or callable(target)):
        raise InputError("this network has no classes to explain: pass target=Likeness(embedding), or a function")


def _outliers(model: ViT, pixels: Tensor) -> Array:
    """Patches (B, h, w) with outlying tokens, after any block of the second half."""
    record, layouts = traced_hidden(model, pixels)
    half = len(layouts) // 2
    late = [
        outlying(unmerge(each[:, layout.prefix :], layout))
        for each, layout in zip(record.hidden[half:], layouts[half:], strict=True)
    ]
    outliers: Array = torch.stack(late).any(dim=0).reshape(-1, *model.grid_of(pixels)).cpu().numpy()
    return outliers


def _from_outside(
    runtime: Runtime, pixels: Tensor, method: Method, target: Target, check: bool, seed: int
) -> Explanation:
    """By answers alone, of a runtime whose inside is not at hand."""
    if method.needs_network:
        raise InputError(
            f"method {method.name!r} needs the network's inside, and this runtime ({type(runtime).__name__}) gives "
            "answers alone: load the checkpoint that it was made from, or use the method occlusion (--method occlusion)"
        )

    def ask(batch: Tensor) -> Answer:
        logits, embedding = runtime.run(batch.numpy())
        return Answer(torch.from_numpy(logits), torch.from_numpy(embedding))

    _check(len(runtime.classes), target, runtime.classes, runtime.task, runtime.temperature, seed)
    answer = ask(pixels[None])
    aim = aim_at(target, answer.logits[0], runtime.classes, runtime.task, runtime.temperature)
    grid = (_pieces(pixels.shape[1]), _pieces(pixels.shape[2]))
    candidate = Candidate(method, method.attribute_answers(ask, pixels, grid, aim))
    return score_maps(ask, pixels, [candidate], aim, float(aim.level(*answer)), check, seed)


def _pieces(side: int) -> int:
    """How many equal pieces a side of so many pixels is cut into: the number nearest to the usual that divides it."""
    return min((each for each in range(1, side + 1) if side % each == 0), key=lambda each: abs(each - PIECES))
