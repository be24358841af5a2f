"""An exported file and the graph it was made from -> how far apart their answers are, at several batches and sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
import torch

from vitrail.errors import CheckpointError
from vitrail.exporters.export_graph import Graph, example
from vitrail.exporters.export_info import Check, ExportInfo
from vitrail.exporters.input_stage import Entrance
from vitrail.images import Preprocess
from vitrail.types import Array

Run = Callable[[Array], Sequence[Array]]  # img -> logits, embedding, and probs where there is a head

TOLERANCE: Final = 1e-4  # of the largest value; float32 in another order of sums stays far below
ROUNDED: Final = 0.05  # in int8: a value on the edge of two bytes falls to either side, and others follow
LOOSELY: Final = 0.3  # where rounding decides which tokens of random pixels are merged
HALVED: Final = 0.1  # in bf16: three digits are kept of each value; the packed runtime is held to the same
_LARGE: Final = 20e6  # parameters; larger networks are checked with fewer images, so that it stays quick


class CheckCase(NamedTuple):
    """One pass to compare."""

    batch: int
    size: tuple[int, int]


def cases(parameters: int, size: tuple[int, int], step: tuple[int, int]) -> list[CheckCase]:
    """Three batch sizes; and where the size is free, in steps above 0, three sizes, one of them not square."""
    batches = (1, 3, 16) if parameters <= _LARGE else (1, 2, 3)
    found = [CheckCase(batch, size) for batch in batches]
    if all(step):
        (h, w), (p, q) = size, step
        found += [CheckCase(2, (h + 2 * p, w + 2 * q)), CheckCase(2, (max(h - p, p), w + q))]
    return found


def tolerance(contents: ExportInfo) -> float:
    """How far a file of this precision may be from the network, as a share of the largest value."""
    if contents.in_bf16:
        return LOOSELY if contents.config["merge_per_block"] else HALVED
    return ROUNDED if contents.in_int8 else TOLERANCE


def compare(
    run: Run,
    network: Graph,
    preprocess: Preprocess,
    wanted: Sequence[CheckCase],
    pixels: str,
    within: float,
    exact: Graph | None = None,
) -> list[Check]:
    """Every case through the exported file and the network itself; an answer not `within` it is an error.

    With `exact` the other two compute in int8, and this is the network without: two that round may each be as far from
    it as rounding moves the answers, to either side, up to a limit.
    """
    checks: list[Check] = []
    for number, case in enumerate(wanted):
        img = example(preprocess, batch=case.batch, size=case.size, pixels=pixels, seed=number)
        theirs = run(img.numpy())
        with torch.inference_mode():
            ours = [each.numpy() for each in network(img)]
            unrounded = ours if exact is None else [each.numpy() for each in exact(img)]
        names = network.outputs
        moved = max(difference(a, b) for a, b in zip(ours, unrounded, strict=True))
        allowed = max(within, min(2 * moved, LOOSELY))  # beyond that, a file could say anything
        apart = {name: difference(a, b) for name, a, b in zip(names, ours, theirs, strict=True)}
        name, worst = max(apart.items(), key=lambda each: each[1])
        if not worst <= allowed:
            h, w = case.size
            raise CheckpointError(
                f"not exported: {name} of {case.batch} images of {h}x{w} is {worst:.3g} away from the network's own "
                f"(as a share of the largest value), and at most {allowed:.3g} is allowed"
            )
        checks.append(Check(case.batch, *case.size, worst))
    return checks


def difference(ours: Array, theirs: Array) -> float:
    """The largest difference as a share of the largest value; infinite where shapes differ or a value is none."""
    if ours.shape != theirs.shape or not (np.isfinite(ours).all() and np.isfinite(theirs).all()):
        return float("inf")
    return float(np.abs(ours - theirs).max() / max(float(np.abs(ours).max()), 1e-12))


class PixelCheck(NamedTuple):
    """How far the graph's own way from bytes to pixels is from Preprocess's, in steps of 8 bits."""

    largest: float
    share: float  # of the pixels that differ by half a step or more


def compare_pixels(entrance: Entrance, preprocess: Preprocess) -> PixelCheck:
    """Images through both ways in; more than one step apart is an error."""
    steps: list[Array] = []
    plain = preprocess if entrance.resize else replace(preprocess, resize="squash", crop=1.0)
    h, w = preprocess.size
    sizes = [(h, w)]
    if entrance.resize:
        sizes = [(h + 37, 2 * w + 11), (3 * h // 2, w), (max(h // 2, 1), w // 2 + 3)]
    for number, size in enumerate(sizes):
        img = example(preprocess, batch=1, size=size, pixels="bytes", seed=number)
        image = img[0].numpy() if preprocess.channels == 3 else img[0, :, :, 0].numpy()
        ours = plain(image)
        theirs = entrance(img)[0].numpy()
        steps.append(np.abs(ours - theirs) * 255 * np.reshape(preprocess.std, (-1, 1, 1)))
    flat = np.concatenate([each.ravel() for each in steps])
    check = PixelCheck(float(flat.max()), float((flat >= 0.5).mean()))
    if not check.largest <= 1.01:
        raise CheckpointError(
            f"not exported: pixels made inside the graph differ from Preprocess's by up to {check.largest:.3g} steps "
            f"of 8 bits, {100 * check.share:.2g} % of them by half a step or more"
        )
    return check
