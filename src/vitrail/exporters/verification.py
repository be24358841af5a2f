"""An exported file and the network it was made from -> how far apart their answers are, part by part.

The embedding is compared with the network's own; the logits with those and, closely, with what the network's own head
makes of the file's embedding; the probabilities with those of the file's logits. So a head that is wrong is found
however coarse the precision is, and no number is held against logits that happen to be small.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
import torch

from vitrail.errors import CheckpointError
from vitrail.exporters.example_inputs import ExampleInputs, example
from vitrail.exporters.export_graph import Graph
from vitrail.exporters.export_info import Check, ExportInfo
from vitrail.exporters.input_stage import Entrance
from vitrail.images import Preprocess
from vitrail.quantisation.output_distance import (
    Norm,
    changed_answers,
    distance,
    from_class_mean,
    head_of,
    head_scale,
    largest,
    typical,
)
from vitrail.reporting.html_page import counted
from vitrail.types import Array

Run = Callable[[Array], Sequence[Array]]  # img -> logits, embedding, and probs where there is a head

TOLERANCE: Final = 1e-4  # of the largest value; float32 in another order of sums stays far below
ROUNDED: Final = 0.05  # of the typical value, in int8: what is at the edge of two bytes falls to either side
HALVED: Final = 0.08  # of the typical value, in bf16: three digits are kept of each value
LOOSELY: Final = 0.3  # where rounding decides which tokens are merged; and int8 however far it moves the answers
INDEPENDENT: Final = 1.5  # two that round apart from each other are √2 times as far apart as each is from the truth
HEAD_HALVED: Final = 0.03  # of what the head gives: one layer in bf16
CHANGED: Final = 0.02  # of the certainty of the answers to the user's own images
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


class Tolerance(NamedTuple):
    """How far a file of one precision may be from the network."""

    network: float  # embedding and logits, as a share of the network's own
    head: float  # logits and probabilities from what the file itself makes them of
    norm: Norm = typical
    rounds: bool = False  # int8: as far as rounding moves the answers, if that is further

    @property
    def scale(self) -> str:
        """What `network` is a share of, in words."""
        return "largest" if self.norm is largest else "typical"


def tolerance(contents: ExportInfo) -> Tolerance:
    """What a file of this precision is held to."""
    if contents.in_bf16:
        network = LOOSELY if contents.config["merge_per_block"] else HALVED
        return Tolerance(network, HEAD_HALVED, rounds=contents.in_int8)
    return Tolerance(ROUNDED, TOLERANCE, rounds=True) if contents.in_int8 else Tolerance(TOLERANCE, TOLERANCE, largest)


class OutputCheck(NamedTuple):
    """One comparison: what is compared with what, how far apart they are, and how far they may be."""

    what: str
    apart: float
    allowed: float
    scale: str  # what these are shares of


def compare(
    run: Run,
    network: Graph,
    inputs: ExampleInputs,
    wanted: Sequence[CheckCase],
    within: Tolerance,
    exact: Graph | None = None,
) -> list[Check]:
    """Every case through the exported file and the network itself; an answer not `within` it is an error.

    With `exact` the other two compute in int8, and this is the network without: two that round may be as far from each
    other as rounding moves the answers, and a half more, up to a limit. On images of the user the answers count, too.
    """
    checks: list[Check] = []
    answers: list[tuple[Array, Array]] = []
    for number, case in enumerate(wanted):
        img = inputs.batch(case.batch, case.size, number)
        theirs = [np.asarray(each) for each in run(img.numpy())]
        ours = _outputs(network, img)
        parts = _from_network(network, ours, theirs, within, None if exact is None else _outputs(exact, img))
        shares = [part.apart for part in parts]
        for part in (*parts, *_from_itself(network, theirs, within)):
            _refuse_beyond(part, f"{counted(case.batch, 'image')} of {case.size[0]}x{case.size[1]} ({inputs.words})")
        checks.append(Check(case.batch, *case.size, max(shares)))
        answers.append((ours[0], theirs[0]))
    if inputs.images is not None and network.has_head:
        own, given = (np.concatenate(logits) for logits in zip(*answers, strict=True))
        share = changed_answers(own, given, network.is_multi_label)
        _refuse_beyond(OutputCheck("answers", share, CHANGED, ""), f"{counted(len(own), 'image')} ({inputs.words})")
    return checks


def _outputs(network: Graph, img: torch.Tensor) -> list[Array]:
    with torch.inference_mode():
        return [each.numpy() for each in network(img)]


def _from_network(
    network: Graph, ours: list[Array], theirs: list[Array], within: Tolerance, unrounded: list[Array] | None
) -> list[OutputCheck]:
    """Embedding and logits of the file beside the network's own."""
    parts: list[OutputCheck] = []
    for number, name, least in ((1, "embeddings", 0.0), (0, "logits", head_scale(network.model.head, ours[1]))):
        softmax = name == "logits" and within.norm is typical and network.has_head and not network.is_multi_label

        def apart(a: Array, b: Array, least: float = least, softmax: bool = softmax) -> float:
            return distance(*((from_class_mean(a), from_class_mean(b)) if softmax else (a, b)), within.norm, least)

        allowed = within.network
        if unrounded is not None and within.rounds:  # beyond the limit, a file could say anything
            allowed = max(allowed, min(INDEPENDENT * apart(ours[number], unrounded[number]), LOOSELY))
        parts.append(OutputCheck(name, apart(ours[number], theirs[number]), allowed, within.scale))
    return parts


def _from_itself(network: Graph, theirs: list[Array], within: Tolerance) -> list[OutputCheck]:
    """Logits and probabilities of the file beside those that follow from what it gives before them."""
    parts: list[OutputCheck] = []
    expected = head_of(network.model.head, theirs[1])
    if expected is not None:
        scale = head_scale(network.model.head, theirs[1])
        apart = distance(expected, theirs[0], largest, scale)
        parts.append(OutputCheck("logits (given its own embeddings)", apart, within.head, "largest"))
    if network.has_head:
        with torch.inference_mode():
            probs = network.probabilities(torch.from_numpy(theirs[0])).numpy()
        parts.append(
            OutputCheck(
                "probs (given its own logits)", distance(probs, theirs[2], largest, 1.0), within.head, "largest"
            )
        )
    return parts


def _refuse_beyond(part: OutputCheck, where: str) -> None:
    if part.apart <= part.allowed:
        return
    if part.what == "answers":
        raise CheckpointError(
            f"not exported: on {where} the file gives other answers than the network where that is sure of its own: "
            f"{100 * part.apart:.3g} % of its certainty, and at most {100 * part.allowed:.3g} % is allowed"
        )
    raise CheckpointError(
        f"not exported: on {where} the file's {part.what} differ from the network's own by {100 * part.apart:.3g} % of "
        f"their {part.scale} value, and at most {100 * part.allowed:.3g} % is allowed"
    )


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
