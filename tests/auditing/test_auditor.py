"""audit: everything planted in a data set is found, told apart, written down, and obeyed by a training."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from auditing.memory import array_dataset
from evaluation import markup
from evaluation.photos import photo
from vitrail.auditing.audit_page import build_page
from vitrail.auditing.auditor import Audit, audit
from vitrail.auditing.duplicates import Near
from vitrail.auditing.findings_table import findings
from vitrail.auditing.label_errors import Judgement
from vitrail.checkpoint import Checkpoint
from vitrail.data.readers import read_data, read_unlabelled
from vitrail.data.samples import Dataset, Sample
from vitrail.errors import ImageError, InputError
from vitrail.images import Preprocess
from vitrail.network import ViT, ViTConfig

PLAIN = ViTConfig(image_size=16, patch_size=8, width=16, depth=1, heads=2, mlp_width=16, classes=3)


def members(found: Audit) -> list[tuple[str, ...]]:
    return sorted(tuple(each.name for each in group.members) for group in found.duplicates)


# ---- what is found -----------------------------------------------------------------------------------------------


def test_everything_planted_is_counted(found: Audit) -> None:
    assert found.counts() == {
        "images": 42,
        "unreadable": 2,
        "exact_copies": 4,  # of the leak, two of the twin, of the one with two labels
        "exact_groups": 3,
        "near_groups": 2,
        "leaks": 2,
        "leaked_images": 2,
        "conflicts": 1,
        "crossing_groups": 0,
        "lookalike_groups": 0,
        "suspects": 0,
        "odd_sizes": 1,
        "blank": 1,
        "placeholders": 1,
    }
    assert members(found) == [
        ("test/cat/exact_leak.png", "train/cat/exact_leak.bmp"),
        ("test/dog/near_leak.png", "train/dog/near_leak.jpg"),
        ("train/cat/twin_a.png", "train/cat/twin_b.tif", "train/cat/twin_c.png"),
        ("train/cat/two_labels.png", "train/dog/two_labels.png"),
        ("train/dog/near_a.png", "train/dog/near_b.png"),
    ]
    assert [each.name for each in found.blank] == ["train/dog/page.png"]
    assert [each.name for each in found.sizes.odd] == ["train/dog/huge.png"]


def test_leaks_stand_first_and_name_the_training_image(found: Audit) -> None:
    first, second, third, *_ = found.duplicates
    assert [each.leaked for each in first.members] == [False, True]
    assert (first.exact, second.exact) == (True, False)
    assert (first.leaks, second.leaks, third.leaks) == (True, True, False)
    assert third.conflicts
    assert found.leaks == (first, second)
    assert found.conflicts == (third,)


def test_unreadable_files_are_listed_with_reasons(found: Audit) -> None:
    reasons = dict(found.unreadable)
    assert list(reasons) == ["train/cat/empty.png", "train/cat/torn.jpg"]
    assert reasons["train/cat/empty.png"] == "empty, 0 bytes: copy or download it again"
    assert "torn" not in reasons["train/cat/torn.jpg"]  # the name is beside it


def test_classes_are_weighed_without_the_unreadable(found: Audit) -> None:
    assert found.balance.counts == {"cat": (19, 6), "dog": (11, 6)}
    assert found.balance.ratio == 19 / 11


def test_notes_say_what_was_not_looked_for(found: Audit, root: Path) -> None:
    assert found.notes == (
        "Possible label errors and look-alikes were not looked for: that needs a checkpoint, of any network.",
    )
    assert found.agreement is None
    whole = audit(read_data(str(root / "train")))
    assert whole.leaks == ()
    assert whole.notes[0].startswith("The images are not split yet, so nothing can have leaked")


def test_given_groups_in_two_splits_are_told_of() -> None:
    images = np.stack([np.asarray(photo(seed)) for seed in range(7)])
    places = [
        ("train", "ann"),
        ("test", "ann"),
        ("train", "bob"),
        ("train", "bob"),
        ("", "ann"),
        ("val", "cy"),
        ("test", "cy"),
    ]
    found = audit(array_dataset(images, *(("x", part, group) for part, group in places)))
    assert [(each.name, dict(each.counts), each.names) for each in found.crossing] == [
        ("ann", {"train": 1, "test": 1}, ("0", "1")),
        ("cy", {"val": 1, "test": 1}, ("5", "6")),
    ]
    rows = [each for each in findings(found) if each.finding == "group in two splits"]
    assert [(each.path, each.detail, each.exclude) for each in rows[:1]] == [
        ("0", "ann is in train (1) and test (1)", 0)
    ]


def test_images_not_split_yet_leak_only_into_what_is_held_out() -> None:
    image, other = np.asarray(photo(1)), np.asarray(photo(2))
    images = np.stack([image, image, other, other])
    found = audit(array_dataset(images, ("a", "", ""), ("a", "train", ""), ("a", "", ""), ("a", "test", "")))
    assert [(tuple(one.name for one in each.members), each.leaks) for each in found.duplicates] == [
        (("3", "2"), True),
        (("0", "1"), False),
    ]


def test_arrays_are_audited_as_files_are(root: Path, found: Audit) -> None:
    data = read_data(str(root))
    kept = [row for row, each in enumerate(data.samples) if each.name not in dict(found.unreadable)]
    chosen = data.select([row for row in kept if data.samples[row].name != "train/dog/near_b.png"])
    images = np.stack([np.asarray(Image.open(path).convert("RGB").resize((96, 80))) for path in chosen.images])
    again = audit(dataclasses.replace(chosen, images=images))
    assert members(again) == [each for each in members(found) if "train/dog/near_b.png" not in each]
    assert again.sizes.distinct == 1


def test_nearness_can_be_set(root: Path) -> None:
    strict = audit(str(root), near=Near(bits=0, difference=0.0))
    assert (strict.counts()["near_groups"], strict.counts()["exact_groups"]) == (0, 3)


def test_grey_images_are_counted() -> None:
    colour = np.asarray(photo(1))
    images = np.stack([colour, np.repeat(colour[:, :, :1], 3, axis=2)])
    found = audit(array_dataset(images, ("a", "", ""), ("a", "", "")))
    assert (found.grey, dict(found.kinds)) == (1, {"8-bit colour or grey": 2})


def test_progress_counts_every_image_once_and_twice_with_a_network(root: Path) -> None:
    seen: list[int] = []
    audit(str(root), done=seen.append)
    assert sum(seen) == 44
    seen.clear()
    audit(str(root), checkpoint=tiny(), done=seen.append)
    assert sum(seen) == 44 + 42  # what cannot be read, the network is not shown


# ---- with a network ----------------------------------------------------------------------------------------------


def tiny(classes: tuple[str, ...] = ("x", "y", "z")) -> Checkpoint:
    torch.manual_seed(0)
    return Checkpoint(ViT(PLAIN).eval(), Preprocess(size=16, crop=1.0), classes)


def test_a_network_adds_lookalikes_and_leaves_the_rest_as_it_was(root: Path, found: Audit) -> None:
    with_network = audit(str(root), checkpoint=tiny(), near=Near(cosine=0.9999))
    assert with_network.duplicates == found.duplicates
    assert with_network.sizes.odd == found.sizes.odd
    assert with_network.agreement is not None
    assert not any("needs a checkpoint" in note for note in with_network.notes)
    loose = audit(str(root), checkpoint=tiny(), near=Near(cosine=0.97))
    assert len(loose.lookalikes) > 2
    others = {one.name for group in found.duplicates for one in group.members[1:]}
    names = {one.name for group in loose.lookalikes for one in group.members}
    assert not others & names  # one stands for its duplicates
    rows = [each for each in findings(loose) if each.finding == "look-alike"]
    assert len(rows) == len(names) - len(loose.lookalikes)
    assert not any(each.exclude for each in rows)


def test_where_all_looks_alike_nothing_is_listed(root: Path) -> None:
    found = audit(str(root), checkpoint=tiny(), near=Near(cosine=0.0))
    assert found.lookalikes == ()
    assert found.notes[-1] == "Look-alikes are not listed: to this network, most of the images look alike."


def test_probes_learn_from_one_of_the_same_and_from_every_label(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of five copies that repeat a label none is judged; the image with two labels is judged under both."""
    judged: list[int] = []

    def record(features: np.ndarray[Any, Any], targets: np.ndarray[Any, Any]) -> Judgement:
        judged.append(len(targets))
        return Judgement([], 1.0, len(targets))

    monkeypatch.setattr(importlib.import_module("vitrail.auditing.auditor"), "judge", record)
    audit(str(root), checkpoint=tiny())
    assert judged == [42 - 5]


def test_a_weak_network_says_so(root: Path) -> None:
    """Images of noise under labels at random: no probe can agree with them."""
    found = audit(str(root), checkpoint=tiny())
    assert found.agreement is not None
    assert found.agreement < 0.7
    assert any("it hardly tells these classes apart" in note for note in found.notes)


@pytest.mark.parametrize("agreement, weak", [(0.7, True), (0.79, True), (0.81, False), (0.9, False)])
def test_where_weak_begins(root: Path, monkeypatch: pytest.MonkeyPatch, agreement: float, weak: bool) -> None:
    """Below four labels in five that the probes would have given: in the notes, and on the page."""
    module = importlib.import_module("vitrail.auditing.auditor")
    monkeypatch.setattr(module, "judge", lambda features, targets: Judgement([], agreement, len(targets)))
    data = read_data(str(root))
    few = data.select([row for row, each in enumerate(data.samples) if each.name.split("/")[-1] in ("0.png", "1.png")])
    found = audit(few, checkpoint=tiny())
    assert any("it hardly tells these classes apart" in note for note in found.notes) == weak
    page = markup.read(build_page(found, few)).text
    assert f"The probes agree with {100 * agreement:.1f} % of all labels{', which is little' if weak else '.'}" in page


@pytest.mark.parametrize("alike, listed", [(4, 1), (5, 1), (6, 0), (8, 0)])
def test_look_alikes_are_listed_up_to_half_of_the_images(
    monkeypatch: pytest.MonkeyPatch, alike: int, listed: int
) -> None:
    """Ten images; the embeddings of so many of them are one direction."""
    features = np.eye(10, dtype=np.float32)
    features[:alike] = features[0]
    module = importlib.import_module("vitrail.auditing.auditor")
    monkeypatch.setattr(module, "embeddings_of", lambda *given, **options: features)
    images = np.stack([np.asarray(photo(seed)) for seed in range(10)])
    found = audit(array_dataset(images, *[("a", "", "")] * 10), checkpoint=tiny())
    assert [len(each.members) for each in found.lookalikes] == [alike] * listed
    assert any("most of the images look alike" in note for note in found.notes) != bool(listed)


@pytest.mark.parametrize("cosine, alike", [(0.98, True), (0.971, True), (0.969, False), (0.955, False)])
def test_look_alikes_of_an_audit_begin_at_their_cosine(
    monkeypatch: pytest.MonkeyPatch, cosine: float, alike: bool
) -> None:
    features = np.eye(6, dtype=np.float32)
    features[3] = [0, cosine, 0, (1 - cosine**2) ** 0.5, 0, 0]
    module = importlib.import_module("vitrail.auditing.auditor")
    monkeypatch.setattr(module, "embeddings_of", lambda *given, **options: features)
    images = np.stack([np.asarray(photo(seed)) for seed in range(6)])
    found = audit(array_dataset(images, *[("a", "", "")] * 6), checkpoint=tiny())
    assert [[one.name for one in each.members] for each in found.lookalikes] == [["1", "3"]] * alike


@pytest.mark.parametrize("share, alike", [(0.11, True), (0.14, False)])
def test_near_duplicates_of_an_audit_end_at_three_steps(share: float, alike: bool) -> None:
    """Tiny copies 2.7 and 3.5 steps of 255 apart, in root mean square."""
    start, end = (np.asarray(photo(seed)).astype(float) for seed in (6, 7))
    images = np.stack([start.astype(np.uint8), (start + share * (end - start)).astype(np.uint8)])
    found = audit(array_dataset(images, ("a", "train", ""), ("a", "test", "")))
    assert len(found.leaks) == alike
    assert found.counts()["leaked_images"] == alike


@pytest.mark.parametrize("upper, lower, blank", [(1, 1, True), (1, 2, True), (2, 2, False), (2, 3, False)])
def test_blank_ends_at_a_contrast_of_two(upper: int, lower: int, blank: bool) -> None:
    """A board whose squares are so many steps lighter and darker than the middle, in its upper and its lower half."""
    board = np.kron(np.indices((16, 16)).sum(axis=0) % 2 * 2 - 1, np.ones((2, 2), int))
    steps = np.repeat([upper, lower], 16)[:, None]
    image = np.repeat((120 + steps * board)[:, :, None], 3, axis=2).astype(np.uint8)
    found = audit(array_dataset(image[None], ("a", "", "")))
    assert [each.name for each in found.blank] == ["0"] * blank


def test_a_network_that_knows_the_classes_may_know_the_errors(root: Path) -> None:
    model = ViT(dataclasses.replace(PLAIN, classes=2)).eval()
    knowing = Checkpoint(model, Preprocess(size=16, crop=1.0), ("dog", "cat"))
    assert any(
        "This network knows these classes already" in note for note in audit(str(root), checkpoint=knowing).notes
    )


def test_too_few_images_for_probes_are_told_of() -> None:
    images = np.stack([np.asarray(photo(seed)) for seed in range(6)])
    found = audit(array_dataset(images, *[("a", "", ""), ("b", "", "")] * 3), checkpoint=tiny())
    assert (found.suspects, found.agreement) == ((), None)
    assert "Possible label errors were not looked for: fewer than two classes have 5 images" in found.notes[-1]


def test_several_labels_with_a_label_too_many_and_one_missing() -> None:
    """Labels are what an image shows: red, green, both or nothing, in noise."""
    dice = np.random.default_rng(0)
    marks = dice.random((160, 2)) < 0.5
    images = dice.integers(0, 60, (160, 16, 16, 3), np.uint8)
    images[..., :2] += (marks * 150).astype(np.uint8)[:, None, None]
    labels = [tuple(name for name, mark in zip(("green", "red"), row[::-1], strict=True) if mark) for row in marks]
    extra, missing = (int(np.flatnonzero(marks[:, 0] == value)[0]) for value in (False, True))
    truth = {str(place): labels[place] for place in (extra, missing)}
    labels[extra] = (*labels[extra], "red")
    labels[missing] = tuple(name for name in labels[missing] if name != "red")
    samples = tuple(Sample(str(place), each) for place, each in enumerate(labels))
    dataset = Dataset("colours", samples, images, ("green", "red"), "multi-label")
    found = audit(dataset, checkpoint=tiny(), near=Near(bits=0, difference=0.0))
    assert {each.name: each.suggested for each in found.suspects} == truth
    assert [each.given for each in found.suspects] == [labels[int(each.name)] for each in found.suspects]
    assert found.agreement == pytest.approx(318 / 320)


def test_real_data_that_leaks(fixtures: Path) -> None:
    """Bananas and blueberries of Fruits-360: frames of one turn of one fruit, dealt out to train and test."""
    data = read_data(str(fixtures / "fruits360_10"))
    chosen = data.select([row for row, each in enumerate(data.samples) if each.labels[0] in ("Banana", "Blueberry")])
    found = audit(chosen)
    assert found.counts()["exact_copies"] == 0
    assert len(found.leaks) >= 5
    pairs = {frozenset(one.name for one in each.members) for each in found.leaks}
    assert frozenset(("test/Banana/r_12_100.jpg", "train/Banana/r_314_100.jpg")) in pairs
    assert not found.conflicts


def test_images_without_labels_are_audited_too(root: Path) -> None:
    data = read_unlabelled(str(root / "train" / "cat"))
    found = audit(data, checkpoint=tiny())
    assert [tuple(one.name for one in each.members) for each in found.duplicates] == [
        ("twin_a.png", "twin_b.tif", "twin_c.png")
    ]
    assert found.conflicts == ()
    assert found.balance.advice == "The images have no labels."
    assert "Possible label errors were not looked for" in " ".join(found.notes)
    page = markup.read(build_page(found, data))
    assert "no label: 3 the same" in page.text
    assert "Classes" not in [each.text for each in page.all("h2")]


# ---- wrong input -------------------------------------------------------------------------------------------------


def test_nothing_readable_is_an_error(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.png").write_bytes(b"no")
    with pytest.raises(ImageError, match=r"none of the 2 images in .* can be read: a/1.png: not an image"):
        audit(str(tmp_path))


def test_more_than_half_unreadable_is_still_told_of(tmp_path: Path) -> None:
    """Where a training would stop, the audit lists what is wrong."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for place in range(3):
            (tmp_path / name / f"{place}.png").write_bytes(b"no")
    photo(1).save(tmp_path / "a" / "good.png")
    found = audit(str(tmp_path))
    assert (found.images, len(found.unreadable)) == (1, 6)
    assert "No image at all: 'b'" in found.balance.advice


def test_wrong_arguments(root: Path) -> None:
    with pytest.raises(InputError, match="expected a checkpoint or another runtime, got int"):
        audit(str(root), checkpoint=3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="threads: expected a whole number from 1 to 256, got 0"):
        audit(str(root), threads=0)
    with pytest.raises(InputError, match="near: expected Near, got 0.9"):
        audit(str(root), near=0.9)  # type: ignore[arg-type]
