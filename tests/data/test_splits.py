"""split: disjoint, stratified within one, groups whole, a function of seed and names; what is given stays."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from data.named_samples import counts, dataset, of_sizes
from vitrail.data import Dataset, Sample, split
from vitrail.errors import ConfigError, InputError


def where(data: Dataset) -> dict[str, str]:
    return {each.name: each.split for each in data.samples}


# Shares


def test_every_class_has_its_share() -> None:
    found = split(of_sizes(a=100, b=50, c=7), val=0.2, test=0.1)
    assert counts(found.dataset) == {"a": [70, 20, 10], "b": [35, 10, 5], "c": [5, 1, 1]}
    assert found.notes == (
        "31 of 157 images set aside for validation, at random (seed 0)",
        "16 of 157 images set aside for the test, at random (seed 0)",
    )


@pytest.mark.fault("T22")
def test_a_class_with_one_image_goes_to_train_and_is_told_of() -> None:
    found = split(of_sizes(a=10, b=1, c=2), val=0.2, test=0.2)
    assert counts(found.dataset) == {"a": [6, 2, 2], "b": [1, 0, 0], "c": [1, 1, 0]}
    assert found.notes[1] == "val has no images of 'b': too few of them, or all in one group"
    assert found.notes[3] == "test has no images of 'b', 'c': too few of them, or all in one group"


def test_no_share_leaves_all_in_train() -> None:
    found = split(of_sizes(a=3, b=2), val=0)
    assert counts(found.dataset) == {"a": [3, 0, 0], "b": [2, 0, 0]}
    assert found.notes == ("5 images without a split go to train",)


@pytest.mark.parametrize(
    "shares, wrong",
    [
        ({"val": 0.5, "test": 0.5}, "val 0.5 and test 0.5 leave nothing to train on"),
        ({"val": -0.1}, "val: expected a number from 0.0 to under 1.0, got -0.1"),
        ({"test": 1}, "test: expected a number from 0.0 to under 1.0, got 1"),
        ({"seed": 0.5}, "seed: expected a whole number"),
    ],
)
def test_shares_that_make_no_sense(shares: dict[str, float], wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        split(of_sizes(a=3, b=3), **shares)  # type: ignore[arg-type]


# A function of the seed and of names


def test_the_order_of_images_does_not_matter() -> None:
    data = of_sizes(a=40, b=30, c=5)
    shuffled = list(data.samples)
    random.Random(1).shuffle(shuffled)
    first, second = where(split(data, test=0.1).dataset), where(split(dataset(shuffled), test=0.1).dataset)
    assert first == second
    assert first != where(split(data, test=0.1, seed=1).dataset)
    assert [name for name, place in first.items() if place == "val"][:3] != ["a/0.jpg", "a/1.jpg", "a/2.jpg"]


@pytest.mark.parametrize("grouped", [False, True])
def test_a_few_images_more_move_a_few_others(grouped: bool) -> None:
    def some(count: int) -> Dataset:
        return dataset([Sample(f"{n}.jpg", ("ab"[n % 2],), "", f"g{n}" if grouped else "") for n in range(count)])

    before, after = where(split(some(1000)).dataset), where(split(some(1010)).dataset)
    moved = [name for name, place in before.items() if after[name] != place]
    assert len(moved) <= 4  # of 1000: five more of each class make one more of val, and new ones displace old ones


def test_another_class_changes_nothing() -> None:
    alone, together = where(split(of_sizes(a=30, b=20)).dataset), where(split(of_sizes(a=30, b=20, c=9)).dataset)
    assert alone == {name: place for name, place in together.items() if name[0] != "c"}


def test_names_need_not_be_utf8() -> None:
    data = dataset([Sample(f"\udcff{number}", ("ab"[number % 2],)) for number in range(10)])
    assert counts(split(data).dataset) == {"a": [4, 1, 0], "b": [4, 1, 0]}


# What is given stays


def given(**splits: int) -> Dataset:
    """So many images of each of two classes in each split; _ has none yet."""
    return dataset(
        [
            Sample(f"{place}/{kind}{number}", (kind,), place.strip("_"))
            for place, size in splits.items()
            for kind in "ab"
            for number in range(size)
        ]
    )


def test_val_is_cut_from_train_and_never_from_test() -> None:
    found = split(given(train=10, test=20), val=0.3, test=0.5)
    assert counts(found.dataset) == {"a": [7, 3, 20], "b": [7, 3, 20]}
    assert all(each.split == "test" for each in found.dataset.samples if each.name.startswith("test/"))
    assert found.notes == ("6 of 20 training images set aside for validation, at random (seed 0)",)


def test_all_three_stay_as_they_are() -> None:
    data = given(train=5, val=4, test=3)
    assert split(data, val=0.5, test=0.3) == (data, ())
    assert counts(split(given(train=5, val=4)).dataset) == {"a": [5, 4, 0], "b": [5, 4, 0]}


def test_a_test_that_is_asked_for_is_cut_from_train() -> None:
    assert counts(split(given(train=10, val=4), test=0.2).dataset) == {"a": [8, 4, 2], "b": [8, 4, 2]}


def test_images_without_a_split_are_cut_first() -> None:
    found = split(given(train=10, _=5, test=2), val=0.2)
    assert counts(found.dataset) == {"a": [14, 1, 2], "b": [14, 1, 2]}
    assert all(each.name.startswith("_/") for each in found.dataset.samples if each.split == "val")
    found = split(given(train=10, _=5, val=2), val=0.2)
    assert counts(found.dataset) == {"a": [15, 2, 0], "b": [15, 2, 0]}
    assert found.notes == ("10 images without a split go to train",)


def test_nothing_to_train_on() -> None:
    with pytest.raises(InputError, match="photos has no images to train on: it has val, test only"):
        split(given(val=2, test=2))


# Groups


def grouped(seed: int, classes: int, mixed: bool) -> Dataset:
    """Groups of 1 to 6 images, each of one class or mixed, and images of no group."""
    dice = random.Random(seed)
    samples = []
    for group in range(120):
        kind = dice.randrange(classes)
        for number in range(dice.randint(1, 6)):
            kind = dice.randrange(classes) if mixed else kind
            name = "" if group % 10 == 0 else f"p{group}"
            samples.append(Sample(f"{group}/{number}", (f"c{kind}",), "", name))
    return dataset(samples)


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_groups_stay_whole_and_classes_near_their_share(seed: int, mixed: bool) -> None:
    data = grouped(seed, 5, mixed)
    found = split(data, val=0.2, test=0.1, seed=seed)
    places: dict[str, set[str]] = {}
    for each in found.dataset.samples:
        if each.group:
            places.setdefault(each.group, set()).add(each.split)
    assert {len(each) for each in places.values()} == {1}
    assert found.notes[-1] == f"{len(places)} groups stay whole"
    for train, held, tested in counts(found.dataset).values():
        size = train + held + tested
        assert abs(held - 0.2 * size) <= 5  # under the largest group
        assert abs(tested - 0.1 * size) <= 5
        assert min(train, held, tested) >= 1


def test_two_groups_of_a_class_part_and_one_stays_in_train() -> None:
    samples = [Sample(f"a{number}", ("a",), "", f"g{number // 10}") for number in range(20)]
    samples += [Sample(f"b{number}", ("b",), "", "h") for number in range(9)]
    found = split(dataset(samples), val=0.2)
    assert counts(found.dataset) == {"a": [10, 10, 0], "b": [9, 0, 0]}
    assert found.notes[1] == "val has no images of 'b': too few of them, or all in one group"


def test_every_class_of_mixed_groups_is_in_train() -> None:
    """Whatever else the greedy way does, no class is left without images to learn from."""
    for seed in range(60):
        dice = random.Random(seed)
        samples = [Sample(str(n), (dice.choice("abcdef"),), "", f"g{dice.randrange(4)}") for n in range(14)]
        found = counts(split(dataset(samples), val=0.4, test=0.3, seed=seed).dataset)
        assert min(train for train, _, _ in found.values()) >= 1, seed


def test_images_follow_their_group_into_a_given_split() -> None:
    samples = [
        Sample(f"{n}", ("ab"[n % 2],), "test" if n < 4 else "", "p" if n in (3, 4, 5) else "") for n in range(24)
    ]
    found = where(split(dataset(samples)).dataset)
    assert {found[name] for name in ("3", "4", "5")} == {"test"}
    assert Counter(found.values()) == {"train": 14, "val": 4, "test": 6}


def test_a_given_split_that_tears_a_group_is_refused() -> None:
    samples = [Sample("1", ("a",), "train", "p"), Sample("2", ("b",), "test", "p"), Sample("3", ("b",), "train")]
    with pytest.raises(InputError, match="groups must stay in one split, but 1 do not: 'p' in train and test"):
        split(dataset(samples))


# Several labels


@pytest.mark.parametrize("seed", range(3))
def test_every_label_near_its_share(seed: int) -> None:
    dice = random.Random(seed)
    odds = {"rare": 0.02, "some": 0.1, "often": 0.5, "most": 0.8}
    samples = [Sample(str(n), tuple(name for name in odds if dice.random() < odds[name])) for n in range(600)]
    found = split(dataset(samples, "multi-label"), val=0.2, test=0.1, seed=seed).dataset
    for train, held, tested in counts(found).values():
        size = train + held + tested
        assert abs(held - 0.2 * size) <= max(2, 0.02 * size)
        assert abs(tested - 0.1 * size) <= max(2, 0.02 * size)
        assert min(train, held, tested) >= 1
    empty = Counter(each.split for each in found.samples if not each.labels)
    assert abs(empty["val"] - 0.2 * empty.total()) <= 1
    shuffled = list(samples)
    dice.shuffle(shuffled)
    assert where(split(dataset(shuffled, "multi-label"), val=0.2, test=0.1, seed=seed).dataset) == where(found)


def test_no_labels_at_all_are_split_by_name() -> None:
    found = split(dataset([Sample(str(n), ()) for n in range(50)], "multi-label"), val=0.1)
    assert Counter(each.split for each in found.dataset.samples) == {"train": 45, "val": 5}
