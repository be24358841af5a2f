"""augmented: what each option does to an image, and that its batch has no part in it."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from vitrail.data.augmentation import Augment, augment_images, boxes
from vitrail.data.cache import normalise
from vitrail.data.counter_rng import uniform
from vitrail.errors import ConfigError, InputError
from vitrail.images import Preprocess

OPTIONS = {
    "none": Augment(),
    "crop": Augment(crop=(0.05, 1.0)),
    "shift": Augment(shift=3),
    "flip": Augment(flip=True),
    "randaugment": Augment(rand_ops=2),
    "erase": Augment(erase=0.7),
    "all": Augment(crop=(0.2, 0.9), shift=2, flip=True, rand_ops=2, rand_magnitude=7.0, erase=0.5),
}


def noise(*shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(sum(shape)).integers(0, 256, shape, np.uint8))


def run(images: Tensor, how: Augment, rows: np.ndarray | None = None, **changes: object) -> Tensor:
    settings = {"size": tuple(images.shape[2:]), "seed": 5, "epoch": 2, "rows": np.arange(len(images))}
    settings |= {} if rows is None else {"rows": rows}
    return augment_images(images, augment=how, **(settings | changes))  # type: ignore[arg-type]


# ---- a function of seed, epoch and row ---------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 2, 3, 5])
@pytest.mark.parametrize("name", OPTIONS)
def test_the_batch_has_no_part_in_what_becomes_of_an_image(name: str, channels: int) -> None:
    images, how = noise(24, channels, 13, 18), OPTIONS[name]
    rows = np.arange(24) * 7
    whole = run(images, how, rows)
    assert torch.equal(images, noise(24, channels, 13, 18))  # the input stays
    order = np.random.default_rng(0).permutation(24)
    assert torch.equal(run(images[order], how, rows[order]), whole[order])
    for row in range(24):
        assert torch.equal(run(images[row : row + 1], how, rows[row : row + 1])[0], whole[row])
    for part in (slice(0, 5), slice(5, 24)):
        assert torch.equal(run(images[part], how, rows[part]), whole[part])


@pytest.mark.parametrize("name", OPTIONS)
def test_floats_too_are_the_same_in_any_batch(name: str) -> None:
    images, how = noise(24, 3, 33, 31).float() * 1.7, OPTIONS[name]
    whole = run(images, how)
    assert whole.dtype == torch.float32
    for row in range(24):
        assert torch.equal(run(images[row : row + 1], how, np.array([row]))[0], whole[row])


@pytest.mark.parametrize("name", [name for name in OPTIONS if name != "none"])
def test_seed_epoch_and_row_each_change_it(name: str) -> None:
    images, how = noise(1, 3, 16, 16).expand(40, 3, 16, 16), OPTIONS[name]
    torch.manual_seed(1)
    first = run(images, how)
    torch.manual_seed(2)
    assert torch.equal(run(images, how), first)
    assert not torch.equal(run(images, how, seed=6), first)
    assert not torch.equal(run(images, how, epoch=3), first)
    assert not torch.equal(run(images, how, np.arange(40) + 40), first)
    assert how.changes
    assert len({each.numpy().tobytes() for each in first}) > 1


def test_the_defaults_leave_an_image_as_it_is() -> None:
    images = noise(3, 3, 8, 8)
    assert run(images, Augment()) is images
    assert run(images, Augment(mixup=1.0, cutmix=1.0)) is images  # a matter of the batch
    assert not Augment(mixup=1.0, cutmix=1.0).changes


# ---- crop --------------------------------------------------------------------------------------------------------


@pytest.mark.row("001.13", "P.14")
def test_crops_take_5_to_100_percent_of_the_area() -> None:
    """The share is uniform from 0.05 to 1, the shape within 3/4 and 4/3 on a log scale, the place uniform."""
    how = Augment(crop=(0.05, 1.0), flip=True)
    chances = np.random.default_rng(0).random((20_000, 4))
    places = boxes(chances, how.crop or (0, 0), how.aspect, 1000, 1000)
    top, left, tall, wide = places.T
    share = tall * wide / 1e6
    assert share.min() == pytest.approx(0.05, abs=1e-3)
    assert share.max() == pytest.approx(1.0, abs=1e-3)
    for level in (0.1, 0.25, 0.5, 0.75, 0.9):
        assert np.quantile(share, level) == pytest.approx(0.05 + 0.95 * level, abs=0.015)
    shape = np.log(wide / tall)
    assert np.abs(shape).max() <= math.log(4 / 3) + 0.01
    small = share < 0.5
    assert np.quantile(shape[small], 0.75) == pytest.approx(math.log(4 / 3) / 2, abs=0.02)
    assert (top >= 0).all()
    assert (top + tall <= 1000).all()
    assert (left + wide <= 1000).all()
    assert np.corrcoef(share, chances[:, 1])[0, 1] == pytest.approx(0, abs=0.03)
    assert (top[tall < 900] / (1000 - tall[tall < 900])).mean() == pytest.approx(0.5, abs=0.02)


@pytest.mark.row("001.13", "P.14")
def test_values_reach_the_network_from_minus_one_to_one() -> None:
    """Training: a distorted crop, half of them flipped; evaluation: resized to a square; both with mean and std 0.5."""
    preprocess = Preprocess(size=16, resize="squash", crop=1.0, mean=0.5, std=0.5)
    how = Augment(crop=(0.05, 1.0), flip=True)
    image = np.zeros((40, 60, 3), np.uint8)
    image[:, 30:] = 255
    evaluated = preprocess(image)
    assert (evaluated[:, :, 0] == -1).all()
    assert (evaluated[:, :, -1] == 1).all()
    view = torch.from_numpy(np.asarray(preprocess.visible_image(image)).transpose(2, 0, 1).copy())
    seen = normalise(run(view.expand(400, 3, 16, 16), how), preprocess)
    assert (seen.min(), seen.max()) == (-1, 1)
    left, right = seen[:, :, :, 0].mean((1, 2)), seen[:, :, :, -1].mean((1, 2))
    assert 0.35 < ((left > right).sum() / (left != right).sum()).item() < 0.65  # flipped
    alone = normalise(run(view.expand(400, 3, 16, 16), dataclasses.replace(how, flip=False)), preprocess)
    assert (alone[:, :, :, 0].mean((1, 2)) <= alone[:, :, :, -1].mean((1, 2)) + 1e-6).all()


@pytest.mark.parametrize("channels", [1, 3])
def test_a_crop_is_pillows_within_two_grey_levels(channels: int) -> None:
    """Resized up and down, bilinear, antialiased where it shrinks; cut first, so no colour comes in from outside."""
    images = noise(12, channels, 60, 80)
    how = Augment(crop=(0.1, 1.0))
    got = augment_images(images, (24, 20), how, seed=0, epoch=0, rows=np.arange(12))
    places = boxes(uniform(0, "crop", 0, np.arange(12), 4), (0.1, 1.0), how.aspect, 60, 80)
    for image, (top, left, tall, wide), seen in zip(images, places.tolist(), got, strict=True):
        part = image[:, top : top + tall, left : left + wide]
        for plane, result in zip(part.numpy(), seen.numpy(), strict=True):
            expected = np.asarray(Image.fromarray(plane).resize((20, 24), Image.Resampling.BILINEAR)).astype(int)
            assert np.abs(expected - result).max() <= 2
    assert len({tuple(each) for each in places.tolist()}) == 12


def test_a_crop_of_everything_is_the_image() -> None:
    images = noise(4, 3, 17, 11)
    assert torch.equal(run(images, Augment(crop=(1.0, 1.0))), images)


def test_crops_of_images_of_few_pixels_keep_at_least_one() -> None:
    places = boxes(np.random.default_rng(0).random((500, 4)), (1e-3, 1.0), 10.0, 2, 3)
    assert places[:, 2:].min() == 1
    assert (places[:, 0] + places[:, 2]).max() == 2
    assert (places[:, 1] + places[:, 3]).max() == 3
    assert run(noise(9, 3, 2, 3), Augment(crop=(0.001, 1.0), rand_ops=3, erase=1.0, shift=5)).shape == (9, 3, 2, 3)


def test_boxes_reach_every_edge() -> None:
    """The lowest chance is the first place, the highest the last one: no row or column is ever left out."""
    middle, last = np.full(2, 0.5), 1 - 2.0**-53
    places = boxes(
        np.stack([[0.25, 0.5, 0.0, 0.0], [0.25, *middle, last], [0.25, 0.5, last, 0.5]]), (0, 1), 4 / 3, 8, 12
    )
    assert places.tolist() == [[0, 0, 4, 6], [2, 6, 4, 6], [4, 3, 4, 6]]


def test_views_of_another_size_need_a_crop() -> None:
    with pytest.raises(InputError, match=r"images of 20x20 for a network of 16x16: set Augment\(crop=...\)"):
        augment_images(noise(2, 1, 20, 20), (16, 16), Augment(flip=True), seed=0, epoch=0, rows=np.arange(2))
    with pytest.raises(InputError, match=r"images: expected \(3, C, h, w\), one for each row, got \(2, 1, 20, 20\)"):
        augment_images(noise(2, 1, 20, 20), (20, 20), Augment(), seed=0, epoch=0, rows=np.arange(3))


# ---- shift, flip, erase ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flip", [False, True])
def test_shifts_move_by_whole_pixels_and_repeat_the_edge(flip: bool) -> None:
    image = noise(1, 2, 9, 7)
    seen = run(image.expand(800, 2, 9, 7), Augment(shift=2, flip=flip))
    wide = np.pad(image[0].numpy(), ((0, 0), (2, 2), (2, 2)), "edge")
    known = {
        wide[:, top : top + 9, left : left + 7][:, :, :: -1 if turned else 1].tobytes(): (top, left, turned)
        for top in range(5)
        for left in range(5)
        for turned in ((False, True) if flip else (False,))
    }
    found = [known[each.numpy().tobytes()] for each in seen]  # each is one of them, to the byte
    assert set(found) == set(known.values())
    centre = sum(place[:2] == (2, 2) for place in found)
    assert 10 < centre < 60  # a 25th


def test_half_of_the_images_are_flipped() -> None:
    image = noise(1, 3, 5, 6)
    seen = run(image.expand(1000, 3, 5, 6), Augment(flip=True))
    turned = (seen == image.flip(3)).flatten(1).all(1)
    kept = (seen == image).flatten(1).all(1)
    assert (turned ^ kept).all()
    assert 440 < int(turned.sum()) < 560


def test_erased_rectangles_are_of_the_mean_colour() -> None:
    """2 to 33 % of the area, no longer than 10/3 times their width or height, in the share of images asked for."""
    image = torch.zeros(1, 3, 100, 100, dtype=torch.uint8)
    image[:, 0], image[:, 1, :50] = 10, 201  # green is 100.5 in the mean: 101
    seen = run(image.expand(1200, 3, 100, 100), Augment(erase=0.25))
    hit = (seen != image).flatten(1).any(1)
    assert 240 < int(hit.sum()) < 360
    areas, shapes = [], []
    for each in seen[hit]:
        hole = (each[1] != 0) & (each[1] != 201)
        down, across = hole.any(1).nonzero().flatten(), hole.any(0).nonzero().flatten()
        tall, wide = (int(side[-1] - side[0] + 1) for side in (down, across))
        assert int(hole.sum()) == tall * wide
        assert (each[:, hole] == torch.tensor([[10], [101], [0]])).all()
        areas.append(tall * wide / 10_000)
        shapes.append(tall / wide)
    assert 0.018 < min(areas) < 0.05
    assert 0.28 < max(areas) <= 0.34
    assert 0.28 < min(shapes) < 0.4
    assert 2.5 < max(shapes) < 3.6


def test_options_take_their_turn_in_the_order_told() -> None:
    """Cropped, moved, RandAugmented, then erased: each option is given what the one before it made."""
    images, rows = noise(30, 3, 20, 20), np.arange(30)
    about = {"seed": 1, "epoch": 0, "rows": rows}
    turns = [
        Augment(crop=(0.3, 0.8)),
        Augment(shift=2, flip=True),
        Augment(rand_ops=2),
        Augment(erase=0.8),
    ]
    expected = images
    for how in turns:
        expected = augment_images(expected, (16, 16), how, **about)  # type: ignore[arg-type]
    together = Augment(crop=(0.3, 0.8), shift=2, flip=True, rand_ops=2, erase=0.8)
    assert torch.equal(augment_images(images, (16, 16), together, **about), expected)  # type: ignore[arg-type]


# ---- recipes -----------------------------------------------------------------------------------------------------


def test_deits_augmentation_is_one_augment() -> None:
    """DeiT: crops of 8 to 100 %, flips, RandAugment 9 twice, a quarter erased, mixup 0.8 and cutmix 1.0."""
    how = Augment(crop=(0.08, 1.0), flip=True, rand_ops=2, rand_magnitude=9.0, erase=0.25, mixup=0.8, cutmix=1.0)
    images = noise(16, 3, 40, 40)
    seen = augment_images(images, (32, 32), how, seed=0, epoch=0, rows=np.arange(16))
    assert (seen.shape, seen.dtype) == ((16, 3, 32, 32), torch.uint8)
    plain = augment_images(images, (32, 32), Augment(crop=(0.08, 1.0)), seed=0, epoch=0, rows=np.arange(16))
    assert sum(not torch.equal(one, other) for one, other in zip(seen, plain, strict=True)) > 12


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"crop": 0.5}, r"augment crop: expected two shares of the area, \(least, most\), got 0.5"),
        ({"crop": (0.9, 0.5)}, "augment crop: expected the least share first"),
        ({"crop": (0.0, 0.5)}, "augment crop: expected a number from 0.001 to 1.0, got 0.0"),
        ({"aspect": 0.75}, "augment aspect: expected a number from 1.0 to 10.0, got 0.75"),
        ({"shift": -1}, "augment shift: expected a whole number from 0"),
        ({"rand_ops": 1.5}, "augment rand_ops: expected a whole number"),
        ({"rand_magnitude": 11.0}, "augment rand_magnitude: expected a number from 0.0 to 10.0, got 11.0"),
        ({"erase": 2.0}, "augment erase: expected a number from 0.0 to 1.0, got 2.0"),
        ({"flip": 1}, "flip: expected True or False, got 1"),
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Augment(**wrong)  # type: ignore[arg-type]
