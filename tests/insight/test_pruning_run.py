"""prune: heads are cut by importance, within a budget, and what it cost is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitrail
from insight.small import build
from vitrail import training
from vitrail.data import Dataset, read_data
from vitrail.data.samples import Sample
from vitrail.errors import InputError
from vitrail.inference import timing
from vitrail.insight import explain, importance, prune, prune_heads, pruning_run, trace
from vitrail.insight.cost import estimate
from vitrail.insight.pruning_run import batches_of, faster, heads_in_words, ranked


def test_the_best_head_of_a_block_always_stays() -> None:
    model = build()
    heads = np.array([[1.0, 2, 3, 4], [1e-6, 4e-6, 2e-6, 3e-6], [5.0, 5.0, 5.0, 6.0]])
    order = ranked(model, heads)
    assert len(order) == 9
    assert {(0, 3), (1, 1), (2, 3)}.isdisjoint(order)
    scaled = heads / np.sqrt((heads**2).sum(axis=1, keepdims=True))
    values = [scaled[each] for each in order]
    assert values == sorted(values)


@pytest.fixture(scope="module")
def pruned() -> Any:
    return prune(vitrail.load("vitrail:fashion"), "vitrail:fashion", keep=0.7)


@pytest.fixture(scope="module")
def few() -> Dataset:
    """40 training and 15 test images of each class."""
    data = read_data("vitrail:fashion")
    labels = np.array([each.labels[0] for each in data.samples])
    train = np.array([each.split == "train" for each in data.samples])
    rows = [np.flatnonzero((labels == name) & train)[:40] for name in data.classes]
    rows += [np.flatnonzero((labels == name) & ~train)[:15] for name in data.classes]
    return data.select(np.sort(np.concatenate(rows)))


def test_thirty_percent_of_the_heads_of_the_built_in_network(pruned: Any, tmp_path: Path) -> None:
    old = vitrail.load("vitrail:fashion")
    assert sum(len(each) for each in pruned.heads.values()) == round(0.3 * 16)
    assert pruned.split == "test"
    assert pruned.ranked_by == "train"
    smaller = pruned.checkpoint.model.config
    assert sum(len(smaller.heads_of(block)) for block in range(4)) == 16 - round(0.3 * 16)
    for measured, config in ((pruned.before, old.model.config), (pruned.cut, smaller)):
        cost = estimate(config)
        assert (measured.parameters, measured.multiply_adds) == (cost.parameters, cost.multiply_adds)
    cut = round(0.3 * 16)
    width, tokens = smaller.width, smaller.tokens
    per_head = 4 * tokens * width * smaller.per_head + 2 * tokens * tokens * smaller.per_head
    assert pruned.before.multiply_adds - pruned.cut.multiply_adds == cut * per_head
    assert pruned.cut.accuracy.value > pruned.before.accuracy.value - 0.03
    about = pruned.checkpoint.provenance
    assert about.metrics == {"test_top1": pruned.after.accuracy.value}  # none of the whole network's
    assert about.notes.endswith("pruned")
    assert (old.temperature is None, pruned.checkpoint.temperature) == (False, None)
    path = tmp_path / "small.safetensors"
    vitrail.save(pruned.checkpoint, path)
    again = vitrail.load(path)
    data = read_data("vitrail:fashion").part("test")
    found = vitrail.evaluate(again, data, split="all", resamples=0)
    assert found.scores["top1"].value == pruned.after.accuracy.value
    image = data.images[3]
    [said] = vitrail.predict(again, [image])
    assert explain(again, image, "relevance").target == said.labels[0]
    seen = trace(again.model, torch.from_numpy(again.preprocess(image))[None])
    assert [each.shape[1] for each in seen.attention] == [len(smaller.heads_of(block)) for block in range(4)]


def test_a_budget_is_kept_on_the_images_it_was_set_on(few: Dataset) -> None:
    loaded = vitrail.load("vitrail:fashion")
    told: list[str] = []
    tight = prune(loaded, few, max_drop=0.0, log=told.append)
    loose = prune(loaded, few, max_drop=5.0)
    few, many = (sum(len(each) for each in found.heads.values()) for found in (tight, loose))
    assert few < many
    assert any("can go within 0 points" in each for each in told)


def test_tuning_wins_back_what_cutting_lost(few: Dataset) -> None:
    loaded = vitrail.load("vitrail:fashion")
    found = prune(loaded, few, keep=0.25, channels=True, tune=3)
    assert found.channels == round(loaded.model.config.mlp_width * 12 / 16)
    assert found.after.accuracy.value > found.cut.accuracy.value
    assert found.after.parameters == found.cut.parameters < 0.6 * found.before.parameters
    plain = found.to_dict()
    assert plain["after"]["accuracy"]["value"] == found.after.accuracy.value


def test_what_prune_cannot_do_is_named(tmp_path: Path) -> None:
    loaded = vitrail.load("vitrail:fashion")
    with pytest.raises(InputError, match="keep=0.7 .* or max_drop=0.5"):
        prune(loaded, "vitrail:fashion")
    with pytest.raises(InputError, match="one of them"):
        prune(loaded, "vitrail:fashion", keep=0.5, max_drop=1)
    with pytest.raises(vitrail.VitrailError, match="keep: expected a number from 0"):
        prune(loaded, "vitrail:fashion", keep=1.5)
    with pytest.raises(InputError, match="not ranked on the images that judge them"):
        prune(loaded, "vitrail:fashion", keep=0.5, split="all")
    with pytest.raises(InputError, match="not ranked on the images that judge them"):
        prune(loaded, read_data("vitrail:fashion").part("test"), keep=0.5)


def test_speed_is_a_ratio_of_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that the networks move: the old one takes 6 seconds, the new one 2 and 1 in turn, and 100 at first."""
    now = 0.0
    passes = {"old": 0, "new": 0}

    def moved(name: str) -> Any:
        def move(_: Any, given: Any) -> None:
            nonlocal now
            turn = passes[name] // 2  # untimed, then timed
            passes[name] += 1
            now += 6.0 if name == "old" else 100.0 if turn == 0 else 1.0 + turn % 2

        return move

    old, new = build(), build()
    old.register_forward_pre_hook(moved("old"))
    new.register_forward_pre_hook(moved("new"))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now)
    assert faster(old, new, torch.randn(2, 3, 8, 12)) == 4.0  # between four rounds of 1 second and four of 2
    assert passes == {"old": 18, "new": 18}  # a round to warm up, and eight that count


def test_importance_is_measured_on_five_hundred_and_twelve_images(few: Dataset) -> None:
    loaded = vitrail.load("vitrail:fashion")
    for count in (400, 512, 550):
        batches = batches_of(loaded, few.select(range(count)), 100, seed=3)
        assert sum(len(pixels) for pixels, _ in batches) == min(count, 512)
        assert [len(pixels) for pixels, _ in batches[:-1]] == [100] * ((min(count, 512) - 1) // 100)
    [(one, _)], [(other, _)] = (batches_of(loaded, few.select(range(8)), 8, seed) for seed in (0, 1))
    assert torch.equal(one, other)  # all there are, in their order


@pytest.mark.parametrize("side, recipe", [(48, "scratch"), (56, "scratch"), (64, "finetune"), (88, "finetune")])
def test_small_images_are_tuned_as_from_scratch(
    few: Dataset, monkeypatch: pytest.MonkeyPatch, side: int, recipe: str
) -> None:
    """Below 64 pixels a side; at a gentler rate."""
    asked: dict[str, Any] = {}

    def train(data: Any, **options: Any) -> Any:
        asked.update(options)
        raise StopIteration

    monkeypatch.setattr(training, "train", train)
    loaded = vitrail.load("vitrail:fashion")
    sized = replace(loaded, preprocess=replace(loaded.preprocess, size=(side, 32)))
    with pytest.raises(StopIteration):
        pruning_run._tuned(sized, few, "test", 2.0, 5)
    expected = training.RECIPES[recipe].recipe
    if recipe == "scratch":
        expected = replace(expected, lr=0.3 * expected.lr)
    assert asked["recipe"] == expected
    assert (asked["epochs"], asked["seed"], asked["start"], asked["test"]) == (2.0, 5, sized, 0.0)


NAMES = ("ant", "bee", "cat", "dog", "eel")


@pytest.fixture
def noise() -> Dataset:
    """Twenty images to train on, ten to choose by and ten to test with, of nothing in particular."""
    dice = np.random.default_rng(0)
    splits = ["train"] * 20 + ["val"] * 10 + ["test"] * 10
    samples = tuple(Sample(str(row), (NAMES[row % 5],), split) for row, split in enumerate(splits))
    return Dataset("noise", samples, dice.integers(0, 256, (40, 8, 12, 3), np.uint8), NAMES)


def small_one(**changes: Any) -> vitrail.Checkpoint:
    return vitrail.Checkpoint(build(**changes), vitrail.Preprocess(size=(8, 12), crop=1.0), NAMES, temperature=2.0)


@pytest.mark.parametrize("keep, cut", [(0.9, 1), (0.75, 3), (0.5, 6), (0.0, 9)])
def test_the_share_to_keep_is_of_all_heads(noise: Dataset, keep: float, cut: int) -> None:
    """Of 12; the best of each of the three blocks stays. They are the least important ones, on other images."""
    loaded = small_one()
    found = prune(loaded, noise, keep=keep)
    assert (found.split, found.ranked_by) == ("test", "val")
    scores = importance(loaded.model, batches_of(loaded, noise.part("val")))
    gone: dict[int, list[int]] = {}
    for block, head in ranked(loaded.model, scores.heads)[:cut]:
        gone.setdefault(block, []).append(head)
    assert found.heads == {block: tuple(sorted(heads)) for block, heads in gone.items()}
    assert found.checkpoint.model.config == prune_heads(loaded.model, gone).config
    assert found.checkpoint.temperature is None
    assert found.channels == 0


def test_channels_go_by_the_share_of_the_heads(noise: Dataset) -> None:
    """Half of 24, of every block those that matter least."""
    loaded = small_one()
    found = prune(loaded, noise, keep=0.5, channels=True)
    assert found.channels == 12
    rows = found.importance.channels
    left = [np.sort(row.argsort()[12:]) for row in rows]
    for block, kept in enumerate(left):
        old, new = (each.encoder.blocks[block].mlp.up.weight for each in (loaded.model, found.checkpoint.model))
        assert torch.equal(new, old[torch.from_numpy(kept)])


@pytest.mark.parametrize("drop, lost", [(0.0, 0), (9.0, 0), (10.0, 1), (30.0, 3), (100.0, 10)])
def test_a_budget_is_in_points_of_the_images_that_parts_are_ranked_on(noise: Dataset, drop: float, lost: int) -> None:
    """Ten images, labelled as the whole network answers: ten points are one of them, and one head more costs more."""
    loaded = small_one()
    with torch.no_grad():
        said = loaded.model(torch.from_numpy(loaded.preprocess.batch(list(noise.images)))).argmax(dim=1).tolist()
    samples = tuple(each._replace(labels=(NAMES[k],)) for each, k in zip(noise.samples, said, strict=True))
    own = replace(noise, samples=samples)
    found = prune(loaded, own, max_drop=drop)
    batches = batches_of(loaded, own.part("val"))
    order = ranked(loaded.model, found.importance.heads)

    def wrong(count: int) -> int:
        gone: dict[int, list[int]] = {}
        for block, head in order[:count]:
            gone.setdefault(block, []).append(head)
        with torch.no_grad():
            smaller = prune_heads(loaded.model, gone)
            return sum(int((smaller(pixels).argmax(dim=1) != targets).sum()) for pixels, targets in batches)

    count = sum(len(each) for each in found.heads.values())
    assert wrong(0) == 0
    assert wrong(9) > 3  # so that most budgets are too small for all that may go
    assert wrong(count) <= lost
    assert count == 9 if drop == 100 else wrong(count + 1) > lost


def test_a_budget_may_be_spent_to_the_last_point(noise: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """From 0.4 to 0.3 of the answers are ten points, though 0.4 - 0.1 is a little more than 0.3 in floating point."""
    shares = iter([0.4])
    monkeypatch.setattr(pruning_run, "_right", lambda model, batches: next(shares, 0.3))
    assert sum(len(each) for each in prune(small_one(), noise, max_drop=10.0).heads.values()) == 9
    shares = iter([0.4])
    assert prune(small_one(), noise, max_drop=9.9).heads == {}


def test_images_that_judge_are_never_tuned_on(few: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unsplit images judge where there is no test; training must not see them."""
    loaded = vitrail.load("vitrail:fashion")
    samples = tuple(each._replace(split="" if each.split == "test" else each.split) for each in few.samples)
    seen: list[Any] = []
    true = training.train

    def train(data: Any, **options: Any) -> Any:
        seen.append(data)
        return true(data, **options)

    monkeypatch.setattr(training, "train", train)
    found = prune(loaded, replace(few, samples=samples), keep=0.5, tune=0.2)
    assert found.split == "unsplit"
    assert {each.split for each in seen[0].samples} == {"train"}


def test_cutting_nothing_changes_nothing(few: Dataset) -> None:
    loaded = vitrail.load("vitrail:fashion")
    found = prune(loaded, few, keep=1.0)
    assert found.checkpoint.temperature == loaded.temperature
    assert found.checkpoint.provenance == loaded.provenance


def test_several_labels_are_pruned_by_mean_average_precision(few: Dataset) -> None:
    loaded = replace(vitrail.load("vitrail:fashion"), task="multi-label", temperature=None, reject=None)
    found = prune(loaded, replace(few, task="multi-label"), max_drop=1.0)
    assert 0.5 < found.before.accuracy.value <= 1
    assert "test_mean_ap" in found.checkpoint.provenance.metrics or not found.heads


def test_more_mistakes_of_pruning_are_named(few: Dataset) -> None:
    for wrong in ({"seed": -1}, {"batch": 0}):
        with pytest.raises(InputError):
            prune(vitrail.load("vitrail:fashion"), few, keep=0.5, **wrong)  # type: ignore[arg-type]


def test_heads_in_words_say_how_many_and_which() -> None:
    assert heads_in_words({}) == heads_in_words({3: ()}) == "none"
    assert heads_in_words({9: (0,)}) == "1 (head 0 of block 9)"
    told = "6 (heads 0, 1 and 2 of block 0; heads 1 and 4 of block 3; head 2 of block 9)"
    assert heads_in_words({0: (0, 1, 2), 3: (1, 4), 5: (), 9: (2,)}) == told
