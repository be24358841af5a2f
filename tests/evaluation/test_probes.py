"""Probes: equal to scikit-learn and to numpy's own solution; nearest neighbours by hand; folds that hold out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from evaluation.clusters import clusters, marked, standard
from network import renames
from vitrail.checkpoint import Checkpoint
from vitrail.data.cache import Views
from vitrail.data.samples import Dataset, Sample
from vitrail.errors import ConfigError, ImageError, InputError
from vitrail.evaluation import probes
from vitrail.evaluation.probes import (
    choose_l2,
    features,
    fit_probe,
    knn,
    out_of_fold,
    probe_head,
    ridge,
    stratified,
)
from vitrail.images import Preprocess
from vitrail.inference import embed
from vitrail.network import ViT, ViTConfig

# ---- linear ------------------------------------------------------------------------------------------------------


def test_features_that_may_not_be_written_to() -> None:
    """As from a file that is mapped: the same, and nothing is written."""
    values, targets = clusters(40, 5, 3)
    expected, near = fit_probe(values, targets, 3, l2=1e-2), knn(values, targets, values)
    kept = values.copy()
    values.setflags(write=False)
    assert np.array_equal(fit_probe(values, targets, 3, l2=1e-2).weight, expected.weight)
    assert np.array_equal(knn(values, targets, values), near)
    assert np.array_equal(values, kept)
    assert np.array_equal(fit_probe(values.astype(np.float64), targets, 3, l2=1e-2).weight, expected.weight)


# ---- the strength of the penalty ---------------------------------------------------------------------------------


def test_the_penalty_is_chosen_by_images_held_out() -> None:
    """Noise wants a strong one, clear classes a weak one; and the chosen one predicts better than both ends."""
    values, targets = clusters(300, 40, 4, 0.0)
    noise = choose_l2(values, targets, 4)
    values, targets = clusters(600, 40, 4, 0.45)
    clear = choose_l2(values[:300], targets[:300], 4)
    assert noise == pytest.approx(1.0 * 2 / 3)
    assert clear < 0.1 < noise
    held = probes.losses(fit_probe(values[:300], targets[:300], 4).logits(values[300:]), targets[300:]).mean()
    for end in (1.0, 1e-5):
        other = fit_probe(values[:300], targets[:300], 4, l2=end).logits(values[300:])
        assert held < probes.losses(other, targets[300:]).mean()


def test_more_images_need_a_weaker_penalty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tried on some of them, it is given out in proportion."""
    values, targets = clusters(400, 10, 3, 0.0)
    monkeypatch.setattr(probes, "TRIED", 100)
    assert choose_l2(values, targets, 3) == pytest.approx(1.0 * (100 * 2 / 3) / 400)
    assert choose_l2(values[:5], targets[:5], 3) == probes.DEFAULT, "too few to try"


# ---- a probe as a head -------------------------------------------------------------------------------------------

CONFIG = ViTConfig(image_size=16, patch_size=8, width=16, depth=1, heads=2, mlp_width=32, classes=3)


@pytest.fixture(scope="module")
def small() -> Checkpoint:
    torch.manual_seed(1)
    model = ViT(CONFIG).eval()
    renames.randomise(model)
    return Checkpoint(model, Preprocess(size=16), ("a", "b", "c"))


@pytest.fixture(scope="module")
def images() -> Dataset:
    dice = np.random.default_rng(0)
    samples = tuple(Sample(f"{row}", ("abc"[row % 3],)) for row in range(30))
    return Dataset("rough", samples, dice.integers(0, 256, (30, 16, 16, 3), np.uint8), ("a", "b", "c"))


def test_a_probe_copied_into_the_head(small: Checkpoint, images: Dataset) -> None:
    """The network then answers what the probe answered."""
    known = features(small, images)
    probe = fit_probe(known, images.targets(), 3, l2=1e-2)
    weight, bias = probe_head(probe)
    model = ViT(CONFIG).eval()
    model.load_state_dict(small.model.state_dict())
    linear = next(each for each in model.head.modules() if isinstance(each, torch.nn.Linear))
    with torch.no_grad():
        linear.weight.copy_(torch.from_numpy(weight))
        linear.bias.copy_(torch.from_numpy(bias))
    logits, _ = replace(small, model=model).run(small.preprocess.batch(list(images.images)))
    assert logits == pytest.approx(probe.logits(known), abs=1e-4)
    by_hand = (known - probe.mean) / probe.std @ probe.weight.T + probe.bias
    assert probe.logits(known) == pytest.approx(by_hand, abs=1e-5)


def test_features_are_what_the_head_receives(small: Checkpoint, images: Dataset) -> None:
    """From a data set, from images, from views: the embeddings, in order."""
    expected = embed(small, images.images)
    told: list[int] = []
    found = features(small, images, batch=7, threads=3, done=told.append)
    assert found.dtype == np.float32
    assert np.abs(found - expected).max() <= 2e-6 * np.abs(expected).max()
    assert told == [7, 7, 7, 7, 2]
    assert np.array_equal(features(small, list(images.images), batch=7), found)
    views = Views(images, small.preprocess)
    assert np.array_equal(features(small, views, batch=7), found)
    with pytest.raises(InputError, match="made for another preprocessing"):
        features(small, Views(images, Preprocess(size=16, mean=0.3)))


def test_features_of_unreadable_images(small: Checkpoint, images: Dataset, tmp_path: Path) -> None:
    """An error; or, where somebody is told, a row of NaN, which no probe takes."""
    paths = [tmp_path / f"{row}.png" for row in range(4)]
    for path, image in zip(paths, images.images, strict=False):
        Image.fromarray(image).save(path)
    paths[2].write_bytes(b"no image")
    with pytest.raises(ImageError, match="2.png"):
        features(small, paths)
    told: list[str] = []
    found = features(small, paths, skip=lambda name, _: told.append(name))
    assert told == [str(paths[2])]
    assert np.isnan(found).any(axis=1).tolist() == [False, False, True, False]
    assert found[3] == pytest.approx(features(small, paths[3:])[0], abs=1e-5)
    with pytest.raises(InputError, match="features: 1 rows are no numbers, first 2: leave unreadable images out"):
        fit_probe(found, np.arange(4), 4)
    with pytest.raises(InputError, match="no images that can be read"):
        features(small, paths[2:3], skip=lambda *_: None)


# ---- ridge -------------------------------------------------------------------------------------------------------


@pytest.mark.row("P.7")
@pytest.mark.parametrize("l2", [1e-3, 1.0, 1024.0])
@pytest.mark.parametrize("count, width, classes", [(50, 8, 3), (12, 40, 4), (20, 20, 2), (1, 5, 2)])
def test_ridge_is_the_solution_in_closed_form(l2: float, count: int, width: int, classes: int) -> None:
    """As numpy solves the normal equations to 1 and -1, with a column of ones for the bias that nothing holds back."""
    values, targets = clusters(count, width, classes)
    found = ridge(values, targets, classes, l2=l2)
    raw = values.astype(np.float64)
    std = np.where(raw.std(axis=0) > 0, raw.std(axis=0), 1)
    placed = np.concatenate([(raw - raw.mean(axis=0)) / std, np.ones((count, 1))], axis=1)
    aims = np.where(targets[:, None] == np.arange(classes), 1.0, -1.0)
    held = np.diag([l2] * width + [0.0])
    expected = np.linalg.solve(placed.T @ placed + held, placed.T @ aims)
    assert found.weight == pytest.approx(expected[:-1].T, abs=1e-8)
    assert found.bias == pytest.approx(expected[-1], abs=1e-8)
    assert found.logits(values) == pytest.approx(placed @ expected, abs=1e-4)


@pytest.mark.row("P.7")
def test_ridge_of_several_labels_and_for_few_images() -> None:
    values, targets = marked(40, 6, 3)
    several, one = ridge(values, targets), ridge(values, targets[:, 1], 2)
    assert several.weight[1] == pytest.approx(one.weight[1], abs=1e-12)
    assert several.task == "multi-label"
    values, targets = clusters(200, 30, 5, 1.5)
    few = ridge(values[:25], targets[:25], 5, l2=10.0)
    assert (few.logits(values[25:]).argmax(axis=1) == targets[25:]).mean() > 0.8, "five a class teach most of it"


# ---- nearest neighbours ------------------------------------------------------------------------------------------


@pytest.mark.row("4.DINO")
@pytest.mark.parametrize("temperature", [None, 0.07, 0.5])
@pytest.mark.parametrize("k", [1, 5, 20, 500])
def test_neighbours_by_hand(k: int, temperature: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cosines of every pair, the k highest, votes weighed and summed; all of them where k is more."""
    values, targets = clusters(60, 8, 4)
    known, queries, truth = values[:45], values[45:], targets[:45]
    found = knn(known, truth, queries, k, temperature, classes=4)
    for query, row in zip(queries.astype(np.float64), found, strict=True):
        cosines = known @ query / np.linalg.norm(known, axis=1) / np.linalg.norm(query)
        near = np.argsort(-cosines)[:k]
        weights = np.ones(len(near)) if temperature is None else np.exp(cosines[near] / temperature)
        votes = np.bincount(truth[near], weights, minlength=4) / weights.sum()
        assert row == pytest.approx(votes, abs=1e-4)


def test_neighbours_weigh_as_in_dino_unless_told() -> None:
    """Twenty of them, and a temperature of 0.07."""
    values, targets = clusters(60, 8, 4)
    assert np.array_equal(
        knn(values[:45], targets[:45], values[45:]), knn(values[:45], targets[:45], values[45:], 20, 0.07)
    )


def test_neighbours_of_several_labels() -> None:
    known = np.array([[1, 0], [1, 0.1], [0, 1]], np.float32)
    marks = np.array([[1, 1, 0], [1, 0, 0], [0, 0, 1]])
    found = knn(known, marks, np.array([[2, 0.1], [0, 3]], np.float32), 2, None)
    assert found[0] == pytest.approx([1, 0.5, 0])
    assert found[1] == pytest.approx([0.5, 0, 0.5])
    assert knn(known, marks, known, 1) == pytest.approx(marks), "the nearest is the image itself"


def test_neighbours_whatever_the_length_of_vectors() -> None:
    values, targets = clusters(40, 5, 3)
    first = knn(values, targets, values[:5])
    second = knn(values * np.linspace(1, 9, 40, dtype=np.float32)[:, None], targets, values[:5] * 100)
    assert first == pytest.approx(second, abs=1e-4)


# ---- held out ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folds", [2, 5])
def test_every_class_has_its_share_of_every_fold(folds: int) -> None:
    targets = np.repeat([0, 1, 2, 3], [53, 20, 3, 1])
    found = stratified(targets, folds)
    for number in range(4):
        shares = np.bincount(found[targets == number], minlength=folds)
        assert shares.max() - shares.min() <= 1
    whole = np.bincount(found, minlength=folds)
    assert whole.max() - whole.min() <= 1
    assert np.array_equal(found, stratified(targets, folds))
    assert not np.array_equal(found, stratified(targets, folds, seed=1))


def test_the_rarest_of_several_labels_decides_the_fold() -> None:
    marks = np.zeros((60, 3), int)
    marks[:, 0] = 1
    marks[:12, 1] = 1
    marks[10:13, 2] = 1
    found = stratified(marks, 3)
    assert np.bincount(found[marks[:, 2] == 1], minlength=3).tolist() == [1, 1, 1]
    rare = np.bincount(found[marks[:, 1] == 1], minlength=3)
    assert rare.max() - rare.min() <= 2
    assert len(stratified(np.zeros((7, 2), int), 3)) == 7, "images without a label too"


def test_the_rarest_label_is_dealt_out_evenly_whatever_the_seed() -> None:
    """Three images of 60 have it, and the commonest one too: one in each fold, for every seed."""
    marks = np.ones((60, 2), int)
    marks[3:, 1] = 0
    for seed in range(12):
        assert sorted(stratified(marks, 3, seed)[:3].tolist()) == [0, 1, 2]


@pytest.mark.parametrize("task", ["single-label", "multi-label"])
def test_out_of_fold_is_a_probe_of_the_others(task: str) -> None:
    """Each image by a fit to the other folds; standardised with all, as no label enters there."""
    values, targets = clusters(90, 6, 3, 0.5) if task == "single-label" else marked(90, 6, 3)
    found = out_of_fold(values, targets, 4, seed=2, l2=1e-2)
    assert found.shape == (90, 3)
    fold = stratified(targets, 4, seed=2)
    placed = standard(values)
    linear = pytest.importorskip("sklearn.linear_model", reason="the oracle scikit-learn is not installed")
    for each in range(4):
        held = fold == each
        strength = 1 / ((~held).sum() * 1e-2)
        columns = [targets] if task == "single-label" else list(targets.T)
        fits = [
            linear.LogisticRegression(C=strength, tol=1e-10, max_iter=20_000).fit(placed[~held], column[~held])
            for column in columns
        ]
        expected = [one.predict_proba(placed[held]) for one in fits]
        theirs = expected[0] if task == "single-label" else np.stack([one[:, 1] for one in expected], axis=1)
        assert np.abs(found[held] - theirs).max() < 1e-5


def test_out_of_fold_finds_wrong_labels() -> None:
    """Ten labels in three hundred changed: the ten least believed hold nearly all of them."""
    values, targets = clusters(300, 12, 4, 2.0)
    wrong = np.random.default_rng(1).choice(300, 10, replace=False)
    given = targets.copy()
    given[wrong] = (given[wrong] + 1) % 4
    believed = out_of_fold(values, given)[np.arange(300), given]
    assert len(set(np.argsort(believed)[:10]) & set(wrong)) >= 9


def test_out_of_fold_with_classes_smaller_than_the_folds() -> None:
    values, targets = clusters(60, 5, 2, 3.0)
    targets[:3], targets[3] = 2, 3
    values[:3] += 40
    found = out_of_fold(values, targets, 5, l2=1e-2)
    assert found.sum(axis=1) == pytest.approx(np.ones(60))
    assert found[:3, 2].min() > 0.5, "three that are alike: two always teach the third"
    assert found[3, 3] < 1e-3, "one alone: nothing teaches it"
    few = out_of_fold(values[:3], np.array([0, 0, 1]), 5)
    assert np.isfinite(few).all()
    assert few.shape == (3, 2)


# ---- refused -----------------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_refused() -> None:
    values, targets = clusters(10, 3, 2)
    with pytest.raises(InputError, match=r"features: expected an array \(images, width\), got shape \(10,\)"):
        fit_probe(values[:, 0], targets, 2)
    with pytest.raises(InputError, match=r"one row for each of 10 features, got shape \(9,\)"):
        fit_probe(values, targets[:9], 2)
    with pytest.raises(InputError, match="targets: expected whole numbers from 0 to 1, got 0 to 7"):
        ridge(values, np.where(targets, 7, 0), 2)
    with pytest.raises(InputError, match="expected 3 columns, one a label, got 2"):
        fit_probe(values, np.zeros((10, 2)), 3)
    with pytest.raises(InputError, match="queries of 2 numbers beside features of 3"):
        knn(values, targets, values[:, :2])
    with pytest.raises(ConfigError, match="l2: expected a number from"):
        fit_probe(values, targets, 2, l2=0)
    with pytest.raises(InputError, match="folds: expected a whole number from 2"):
        out_of_fold(values, targets, 1)
    with pytest.raises(InputError, match="at least 2 images"):
        out_of_fold(values[:1], targets[:1])
