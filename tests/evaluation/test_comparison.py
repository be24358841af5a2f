"""compare: the exact McNemar test, paired intervals, classes in any order, images that one cannot read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from network import renames
from vitrail.checkpoint import Checkpoint
from vitrail.data.samples import Dataset, Sample
from vitrail.errors import InputError
from vitrail.evaluation import compare, evaluation_of
from vitrail.evaluation.comparison import comparison_of, difference, mcnemar
from vitrail.evaluation.report_files import shorter
from vitrail.images import Preprocess
from vitrail.network import ViT, ViTConfig

Array = np.ndarray[Any, Any]

CLASSES = ("ape", "bee", "cow")
CONFIG = ViTConfig(image_size=16, patch_size=8, width=16, depth=1, heads=2, mlp_width=32, classes=3)


def network(seed: int) -> Checkpoint:
    torch.manual_seed(seed)
    model = ViT(CONFIG).eval()
    renames.randomise(model)
    return Checkpoint(model, Preprocess(size=16), CLASSES)


def turned(checkpoint: Checkpoint) -> Checkpoint:
    """The same network with its classes the other way round, in head and names."""
    model = ViT(CONFIG).eval()
    model.load_state_dict(checkpoint.model.state_dict())
    with torch.no_grad():
        for each in model.head.parameters():
            each.copy_(each.flip(0))
    return replace(checkpoint, model=model, classes=CLASSES[::-1])


@pytest.fixture(scope="module")
def data() -> Dataset:
    dice = np.random.default_rng(0)
    samples = tuple(Sample(f"{row}", (CLASSES[dice.integers(3)],)) for row in range(60))
    return Dataset("rough", samples, dice.integers(0, 256, (60, 16, 16, 3), np.uint8), CLASSES)


# ---- the caveat --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "a, b, said",
    [
        ("", "", ""),
        ("Seen.", "Seen.", "Seen."),
        ("Seen.", "", "A: Seen."),
        ("", "Seen.", "B: Seen."),
        ("Seen.", "Chosen.", "A: Seen. B: Chosen."),
    ],
)
def test_the_caveat_says_which_of_the_two_it_is_of(a: str, b: str, said: str) -> None:
    """One that saw the images against one that did not: the reader must know which is which."""
    evaluation = evaluation_of(np.eye(3), np.arange(3), list("xyz"), CLASSES, resamples=0)
    compared = comparison_of(replace(evaluation, caveat=a), replace(evaluation, caveat=b))
    assert compared.caveat == said
    assert compared.to_dict()["caveat"] == (said or None)


# ---- the test ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "only_a, only_b",
    [
        (0, 0),
        (1, 0),
        (0, 1),
        (3, 3),
        (5, 4),
        (0, 10),
        (10, 2),
        (57, 88),
        (400, 300),
        (2500, 2600),
        (900, 3000),
        (0, 1500),
    ],
)
def test_mcnemar_is_exact(only_a: int, only_b: int) -> None:
    stats = pytest.importorskip("scipy.stats", reason="the oracle scipy is not installed")
    total = only_a + only_b
    expected = stats.binomtest(only_a, total).pvalue if total else 1.0
    assert mcnemar(only_a, only_b) == pytest.approx(expected, rel=1e-9, abs=1e-300)


def test_the_difference_is_of_pairs() -> None:
    """Drawing images and counting by hand gives the interval of drawing counts, to the width of the draws."""
    first, second = np.repeat([1, 1, 0, 0], [300, 40, 20, 40]), np.repeat([1, 0, 1, 0], [300, 40, 20, 40])
    dice = np.random.default_rng(5)
    drawn = [(first[rows] - second[rows]).mean() for rows in dice.integers(0, 400, (2000, 400))]
    found = difference(40, 20, 400)
    assert found.value == 0.05
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])), abs=0.006)
    assert difference(40, 20, 400) == found, "the same every time"
    assert difference(0, 0, 400) == (0, 0, 0)
    assert difference(20, 40, 400).value == -0.05


# ---- two networks ------------------------------------------------------------------------------------------------


def test_counts_and_rows(data: Dataset) -> None:
    found = compare(network(1), network(2), data, batch=7)
    first = found.a.probabilities.argmax(axis=1)
    second = found.b.probabilities.argmax(axis=1)
    truth = found.a.targets
    counts = (found.both_right, found.only_a, found.only_b, found.both_wrong)
    right_a, right_b = first == truth, second == truth
    assert counts == tuple(
        int(each.sum()) for each in (right_a & right_b, right_a & ~right_b, right_b & ~right_a, ~right_a & ~right_b)
    )
    assert sum(counts) == 60
    assert min(counts) > 0, "a case of every kind"
    assert found.p_value == mcnemar(found.only_a, found.only_b)
    assert found.difference.value == pytest.approx(found.a.scores["top1"].value - found.b.scores["top1"].value)
    assert found.difference.low <= found.difference.value <= found.difference.high
    rows = np.flatnonzero(first != second)
    assert [each.row for each in found.differing] == rows.tolist()
    for each in found.differing:
        assert each.name == str(each.row)
        assert each.truth == (CLASSES[truth[each.row]],)
        assert (each.predicted_a, each.predicted_b) == ((CLASSES[first[each.row]],), (CLASSES[second[each.row]],))
        assert (each.right_a, each.right_b) == (right_a[each.row], right_b[each.row])
        assert each.probability_a == found.a.probabilities[each.row].max()
        assert each.probability_b == found.b.probabilities[each.row].max()


def test_a_network_against_itself_with_its_classes_turned_round(data: Dataset) -> None:
    """Classes go by name, so nothing differs."""
    found = compare(network(1), turned(network(1)), data)
    assert (found.only_a, found.only_b, found.p_value) == (0, 0, 1.0)
    assert found.differing == ()
    assert found.difference == (0, 0, 0)
    assert found.a.scores["macro_f1"].value == pytest.approx(found.b.scores["macro_f1"].value)


def test_several_labels_are_right_together(data: Dataset) -> None:
    dice = np.random.default_rng(2)
    marks = dice.random((60, 3)) < 0.3
    samples = tuple(
        each._replace(labels=tuple(np.array(CLASSES)[row].tolist()))
        for each, row in zip(data.samples, marks, strict=True)
    )
    several = replace(data, samples=samples, task="multi-label")
    a, b = (replace(network(seed), task="multi-label", thresholds=(0.3, 0.9, 0.9)) for seed in (1, 2))
    found = compare(a, b, several)
    cuts = np.array([0.3, 0.9, 0.9])
    predicted_a, predicted_b = found.a.probabilities >= cuts, found.b.probabilities >= cuts
    right_a, right_b = (predicted_a == marks).all(axis=1), (predicted_b == marks).all(axis=1)
    assert (found.both_right, found.only_a) == (int((right_a & right_b).sum()), int((right_a & ~right_b).sum()))
    assert found.only_a + found.only_b > 0
    assert found.difference.value == pytest.approx(right_a.mean() - right_b.mean())
    assert [each.row for each in found.differing] == np.flatnonzero((predicted_a != predicted_b).any(axis=1)).tolist()
    first = found.differing[0]
    assert first.predicted_a == tuple(name for name, said in zip(CLASSES, predicted_a[first.row], strict=True) if said)


def test_an_image_that_one_cannot_read_counts_for_neither(data: Dataset, tmp_path: Path) -> None:
    paths = [tmp_path / f"{row}.png" for row in range(6)]
    for path, image in zip(paths, data.images, strict=False):
        Image.fromarray(image).save(path)
    paths[3].write_bytes(b"no image")
    found = compare(network(1), network(2), replace(data, samples=data.samples[:6], images=paths))
    assert found.a.names == found.b.names == ("0", "1", "2", "4", "5")
    a = evaluation_of(np.eye(3), np.arange(3), list("xyz"), resamples=0, skipped=[("w", "cut off")])
    b = evaluation_of(np.eye(3)[[1, 1, 1, 2]], np.array([0, 0, 1, 2]), list("wxyz"), resamples=0)
    mixed = comparison_of(a, b)
    assert mixed.a.names == mixed.b.names == ("x", "y", "z")
    assert (mixed.both_right, mixed.only_a, mixed.only_b, mixed.both_wrong) == (2, 1, 0, 0)
    assert mixed.b.scores["top1"].value == pytest.approx(2 / 3)
    assert mixed.a.skipped == (("w", "cut off"),)


def test_a_comparison_keeps_thresholds_and_temperature_of_what_is_left() -> None:
    """One of three images is missing from the second: the first is scored anew without it, and else as it was."""
    logits, targets = np.array([[0.5, -0.5], [1.5, -1.0], [-1.0, 2.0]]), np.array([[0, 0], [1, 0], [0, 1]])
    settings = {"temperature": 2.0, "thresholds": (0.6, 0.7), "resamples": 0}
    a = evaluation_of(logits, targets, list("xyz"), CLASSES[:2], "multi-label", **settings)
    b = evaluation_of(logits[1:], targets[1:], list("yz"), CLASSES[:2], "multi-label", **settings)
    found = comparison_of(a, b).a
    assert found.names == ("y", "z")
    assert found.temperature == 2.0
    assert [each.threshold for each in found.per_class] == [0.6, 0.7]
    assert np.array_equal(found.probabilities, b.probabilities)


def test_plain_json(data: Dataset) -> None:
    found = compare(network(1), network(2), data)
    plain = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert (plain["n"], plain["only_a"], plain["p_value"]) == (60, found.only_a, found.p_value)
    assert plain["difference"] == found.difference._asdict()
    assert plain["differing"][0]["predicted_a"] == list(found.differing[0].predicted_a)
    assert plain["a"]["top1"] == found.a.scores["top1"].value


def test_what_cannot_be_compared(data: Dataset) -> None:
    other = replace(network(2), classes=("ape", "bee", "cows"))
    with pytest.raises(InputError, match=r"got others in the second: missing: 'cow'; unknown: 'cows'"):
        compare(network(1), other, data)
    with pytest.raises(InputError, match="for the same task, got 'single-label' and 'multi-label' labels an image"):
        compare(network(1), replace(network(2), task="multi-label"), data)
    a = evaluation_of(np.eye(3), np.arange(3), list("xyz"), resamples=0)
    with pytest.raises(InputError, match="no image in common"):
        comparison_of(a, evaluation_of(np.eye(3), np.arange(3), list("uvw"), resamples=0))
    with pytest.raises(InputError, match="in another order"):
        comparison_of(a, evaluation_of(np.eye(3), np.arange(3), list("xzy"), resamples=0))


@pytest.mark.parametrize(
    "paths, expected",
    [
        (("runs/a-1", "runs/a-2"), ("a-1", "a-2")),
        (("/one/runs/a-1", "/two/runs/a-1"), ("one/runs/a-1", "two/runs/a-1")),
        (("vitrail:fashion", "runs/best.safetensors"), ("vitrail:fashion", "best.safetensors")),
        (("a", "a"), ("a", "a")),
        (("a", "b/a"), ("a", "b/a")),
    ],
)
def test_names_on_the_page_are_as_short_as_tells_them_apart(paths: tuple[str, str], expected: tuple[str, str]) -> None:
    assert shorter(*paths) == expected
