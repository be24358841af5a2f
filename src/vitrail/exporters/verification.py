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
INDEPENDENT: Final = 2.0  # times as far as rounding moves the answers: √2 for two that round apart, bf16 adds to it
CLIPPED: Final = 1.0  # the same on made-up images: they leave the ranges, and there both give the same bound
HEAD_HALVED: Final = 0.03  # of what the head gives: one layer in bf16
UNEVEN: Final = 3.0  # one image may be moved so many times as far by rounding as all of them are
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


class Answers(NamedTuple):
    """What the same images gave, each as logits, embedding and probabilities."""

    ours: list[Array]
    theirs: list[Array]
    unrounded: list[Array] | None  # where both round: of the network without


def compare(
    run: Run,
    network: Graph,
    inputs: ExampleInputs,
    wanted: Sequence[CheckCase],
    within: Tolerance,
    exact: Graph | None = None,
) -> list[Check]:
    """Every case through the exported file and the network itself; an answer not `within` it is an error.

    With `exact` the other two compute in int8, and this is the network without: on the user's images two that round
    may be twice as far from each other as rounding moves the answers, up to a limit. Rounding moves one image more than
    another: a file that rounds is judged by all of them together. The user's answers count, too.
    """
    batches: list[Answers] = []
    for number, case in enumerate(wanted):
        img = inputs.batch(case.batch, case.size, number)
        theirs = [np.asarray(each) for each in run(img.numpy())]
        batches.append(Answers(_outputs(network, img), theirs, None if exact is None else _outputs(exact, img)))
        _refuse_beyond(_shapes(batches[-1], within), _where(case, inputs))
    together, uneven = _together(batches), 1.0
    times = INDEPENDENT if inputs.images is not None else CLIPPED
    everything = f"{counted(len(together.ours[0]), 'image')} ({inputs.words})"
    if within.norm is typical:
        _refuse_beyond(_from_network(network, together, together, within, times), everything)
        uneven = UNEVEN
    checks: list[Check] = []
    for case, answers in zip(wanted, batches, strict=True):
        parts = _from_network(network, answers, together, within, times)
        alone = [part._replace(allowed=uneven * part.allowed) for part in parts]
        _refuse_beyond([*alone, *_from_itself(network, answers.theirs, within)], _where(case, inputs))
        checks.append(Check(case.batch, *case.size, max(part.apart for part in parts)))
    if inputs.images is not None and network.has_head:
        share = changed_answers(together.ours[0], together.theirs[0], network.is_multi_label)
        _refuse_beyond([OutputCheck("answers", share, CHANGED, "")], everything)
    return checks


def _where(case: CheckCase, inputs: ExampleInputs) -> str:
    return f"{counted(case.batch, 'image')} of {case.size[0]}x{case.size[1]} ({inputs.words})"


def _outputs(network: Graph, img: torch.Tensor) -> list[Array]:
    with torch.inference_mode():
        return [each.numpy() for each in network(img)]


def _shapes(answers: Answers, within: Tolerance) -> list[OutputCheck]:
    """Outputs of another shape are infinitely far away."""
    names = ("logits", "embeddings", "probs")
    return [
        OutputCheck(name, float("inf"), within.network, within.scale)
        for name, ours, theirs in zip(names, answers.ours, answers.theirs, strict=False)
        if ours.shape != theirs.shape
    ]


def _together(batches: Sequence[Answers]) -> Answers:
    """All batches as one."""

    def joined(outputs: Sequence[list[Array]]) -> list[Array]:
        return [np.concatenate(each) for each in zip(*outputs, strict=True)]

    unrounded = [each.unrounded for each in batches if each.unrounded is not None]
    return Answers(
        joined([each.ours for each in batches]),
        joined([each.theirs for each in batches]),
        joined(unrounded) if unrounded else None,
    )


def _from_network(
    network: Graph, answers: Answers, together: Answers, within: Tolerance, times: float
) -> list[OutputCheck]:
    """Embedding and logits of the file beside the network's own; how far they may be is known from all batches:
    where both round, so many `times` as far as rounding moves the answers. Logits of two classes are one direction,
    which one rounding may spare and another hit: they may go as far as embeddings, if that is further."""
    parts: list[OutputCheck] = []
    moved = 0.0
    least = head_scale(network.model.head, together.ours[1])
    for number, name, scale in ((1, "embeddings", 0.0), (0, "logits", least)):
        softmax = name == "logits" and within.norm is typical and network.has_head and not network.is_multi_label

        def apart(a: Array, b: Array, scale: float = scale, softmax: bool = softmax) -> float:
            return distance(*((from_class_mean(a), from_class_mean(b)) if softmax else (a, b)), within.norm, scale)

        allowed = within.network
        if together.unrounded is not None and within.rounds:  # beyond the limit, a file could say anything
            moved = max(moved, apart(together.ours[number], together.unrounded[number]))
            allowed = max(allowed, min(times * moved, LOOSELY))
        parts.append(OutputCheck(name, apart(answers.ours[number], answers.theirs[number]), allowed, within.scale))
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


def _refuse_beyond(parts: Sequence[OutputCheck], where: str) -> None:
    part = next((part for part in parts if not part.apart <= part.allowed), None)
    if part is None:
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
