"""Duplicates: every copy is found however it was saved, nothing else is, and no pair is missed for speed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from auditing.prints import bits_apart, prints_of, rows_of
from evaluation.photos import CHANGES, Change, jpeg, mirrored, photo
from vitrail.auditing import duplicates
from vitrail.auditing.duplicates import Near, Sets, close_pairs, contrast, find_duplicates, find_lookalikes, matches
from vitrail.auditing.fingerprints import MIRROR, Fingerprints, fingerprint
from vitrail.errors import ConfigError, InputError

Array = np.ndarray[Any, Any]


# ---- what is found -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changed_copies_are_found_and_nothing_else(change: Change) -> None:
    """Every second of 24 images has a copy."""
    originals = [photo(seed) for seed in range(24)]
    copies = [change(each) for each in originals[::2]]
    assert rows_of(prints_of(originals + copies)) == [(2 * place, 24 + place) for place in range(12)]


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_copies_of_real_images_are_found(change: Change, fixtures: Path) -> None:
    paths = [sorted((fixtures / "sign_language_digits" / str(digit)).iterdir())[0] for digit in range(10)]
    originals = [Image.open(path).convert("RGB") for path in paths]
    found = rows_of(prints_of(originals + [change(each) for each in originals]))
    assert found == [(place, 10 + place) for place in range(10)]


def test_different_images_of_like_things_are_not_duplicates(fixtures: Path) -> None:
    """Hands in the same poses before the same wall."""
    paths = [path for digit in "016" for path in sorted((fixtures / "sign_language_digits" / digit).iterdir())[:80]]
    assert rows_of(fingerprint(paths)) == []


def test_frames_of_one_turn_that_stand_in_both_splits_are_found(fixtures: Path) -> None:
    """A banana that was turned by more than a full turn: these two frames are one view of it, in train and test."""
    folder = fixtures / "fruits360_10"
    paths = [folder / "test/Banana/r_12_100.jpg", folder / "train/Banana/r_314_100.jpg"]
    paths += [folder / "train/Lemon/17_100.jpg", folder / "train/Banana/r_0_100.jpg"]
    assert rows_of(fingerprint(paths)) == [(0, 1)]


def test_the_same_pixels_are_told_from_nearly_the_same(tmp_path: Path) -> None:
    first, second = photo(1), photo(2)
    paths = [tmp_path / name for name in ("a.png", "b.bmp", "c.jpg", "d.png", "e.tif")]
    for path, image in zip(paths, [first, first, first, second, first], strict=True):
        image.save(path)
    [group] = find_duplicates(fingerprint(paths))
    assert group.rows == (0, 1, 2, 4)
    assert group.images == (0, 0, 2, 0)  # PNG, BMP and TIFF hold the same; JPEG does not


def test_one_pixel_makes_another_image() -> None:
    image = np.asarray(photo(3)).copy()
    other = image.copy()
    other[5, 5, 0] ^= 1
    [group] = find_duplicates(fingerprint([image, other]))  # type: ignore[arg-type]
    assert group.images == (0, 1)


def test_blank_images_are_duplicates_only_of_themselves() -> None:
    """Noise on a blank page is no likeness."""
    dice = np.random.default_rng(0)
    pages = [np.full((40, 40, 3), 250, np.uint8) + dice.integers(0, 3, (40, 40, 3), np.uint8) for _ in range(12)]
    prints = fingerprint([*pages, pages[4]])  # type: ignore[list-item]
    assert contrast(prints.copies).max() < duplicates.BLANK
    assert rows_of(prints) == [(4, 12)]


def test_blank_images_have_nothing_to_be_alike_in() -> None:
    """Empty scans, all a little darker to one side and with one speck each."""
    pages = np.repeat(np.linspace(240, 245, 40)[None, None, :, None], 40, axis=1).repeat(8, axis=0).repeat(3, axis=3)
    pages = pages.astype(np.uint8)
    pages[np.arange(8), np.arange(8), 20] += 2
    assert rows_of(fingerprint(pages)) == []


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_whites_that_a_brighter_copy_lost_do_not_hide_it(order: tuple[int, int]) -> None:
    """A light image, a fifth brighter: a good part of it has become white."""
    light = Image.fromarray((120 + 0.6 * np.asarray(photo(4))).astype(np.uint8))
    both = [light, Image.fromarray(np.minimum(np.asarray(light) * 1.2, 255).astype(np.uint8))]
    assert (np.asarray(both[1]) == 255).mean() > 0.15
    assert rows_of(prints_of([both[place] for place in order])) == [(0, 1)]


def test_drawings_in_black_and_white_are_found_again() -> None:
    """Nearly nothing is between black and white, so hardly a pixel tells of brightness, and those few are noise."""
    dice = np.random.default_rng(1)
    copies = np.repeat(255 * dice.integers(0, 2, (1, 16, 16, 1)), 3, axis=3).repeat(2, axis=0)
    copies[:, 0, :4] = 128 + dice.integers(-3, 4, (2, 4, 3))
    prints = prints_of([photo(1), photo(2)])._replace(copies=copies.astype(np.uint8), hashes=np.zeros(2, np.uint64))
    assert rows_of(prints) == [(0, 1)]


def test_a_green_page_is_blank_too() -> None:
    page = np.zeros((1, 16, 16, 3), np.uint8)
    page[..., 1] = 255
    assert contrast(page)[0] == 0


def test_faint_images_must_agree_in_shape_and_not_only_be_faint() -> None:
    """All within a few steps of grey, so that any two hardly differ; only a copy rises and falls as the first does."""
    faint = [Image.fromarray((110 + np.asarray(photo(seed)) // 11).astype(np.uint8)) for seed in range(20)]
    copy = Image.fromarray(np.asarray(faint[7]) + np.uint8(5))
    prints = prints_of([*faint, copy])
    assert contrast(prints.copies).min() > duplicates.BLANK
    assert rows_of(prints) == [(7, 20)]
    same_hash = prints._replace(hashes=np.zeros(21, np.uint64))  # were it only for the copies
    assert rows_of(same_hash) == [(7, 20)]
    assert len(rows_of(same_hash, Near(correlation=0.0))[0]) > 10


def test_exposures_too_far_apart_are_other_images() -> None:
    image = photo(5)
    dim = Image.fromarray((np.asarray(image) // 3).astype(np.uint8))
    assert rows_of(prints_of([image, dim])) == []


def test_who_is_like_one_of_a_group_belongs_to_it() -> None:
    """Three images in small steps: the first and the last differ by more than is allowed."""
    first, last = (np.asarray(photo(seed)).astype(float) for seed in (6, 7))
    steps = [Image.fromarray((first + share * (last - first)).astype(np.uint8)) for share in (0.0, 0.1, 0.2)]
    prints = prints_of(steps)
    near = Near(bits=7, difference=3.0)
    rows = np.arange(3)
    assert rows_of(prints, near) == [(0, 1, 2)]
    assert matches(prints, rows[:2], rows[2:], near).tolist() == [False, True]  # itself, not by way of a third


def test_matches_sees_copies_and_mirrors() -> None:
    image, other = photo(8), photo(9)
    prints = prints_of([image, mirrored(image), image, other, jpeg(80)(other)])
    rows = np.arange(5)
    assert matches(prints, rows[:1], rows[1:2]).tolist() == [True]
    assert matches(prints, rows[:1], rows[2:3]).tolist() == [True]
    assert matches(prints, rows[:1], rows[3:]).tolist() == [False]
    assert matches(prints, rows[3:4], rows[4:]).tolist() == [True]
    assert matches(prints, rows, rows[:0]).tolist() == [False] * 5


def test_groups_do_not_depend_on_the_pieces_they_are_found_in(monkeypatch: pytest.MonkeyPatch) -> None:
    images = [photo(seed) for seed in range(12)]
    prints = prints_of([*images, *(jpeg(60)(each) for each in images), *(mirrored(each) for each in images)])
    whole = rows_of(prints)
    assert whole == [(place, 12 + place, 24 + place) for place in range(12)]
    for name in ("_PAIRS", "_COMPARED", "_JOINED"):
        monkeypatch.setattr(duplicates, name, 3)
    assert rows_of(prints) == whole


# ---- where nearly the same ends ----------------------------------------------------------------------------------


def step_towards(share: float, squeeze: float = 1.0) -> Fingerprints:
    """An image, and the same with so much of another mixed in; squeezed into fewer steps of grey around the middle."""
    start, end = (np.asarray(photo(seed)).astype(float) for seed in (6, 7))
    both = (start, start + share * (end - start))
    images = [(110 * (1 - squeeze) + squeeze * each).round().astype(np.uint8) for each in both]
    prints = prints_of([Image.fromarray(each) for each in images])
    return prints._replace(hashes=np.zeros(2, np.uint64))  # as if the hashes never told them apart


@pytest.mark.parametrize("share, alike", [(0.11, True), (0.12, True), (0.13, False), (0.14, False)])
def test_tiny_copies_may_differ_by_three_steps(share: float, alike: bool) -> None:
    """Root mean squares of 2.7 and just under 3; of just over 3 and of 3.5."""
    prints = step_towards(share)
    assert rows_of(prints) == [(0, 1)] * alike
    assert matches(prints, np.array([0]), np.array([1])).tolist() == [alike]
    assert rows_of(prints, Near(difference=2.0)) == []
    assert rows_of(prints, Near(difference=4.5)) == [(0, 1)]


@pytest.mark.parametrize("share, alike", [(0.12, True), (0.15, True), (0.17, False), (0.19, False)])
def test_tiny_copies_must_correlate(share: float, alike: bool) -> None:
    """Faint images, a step or less apart; their correlations fall from 0.977 by way of 0.971 and 0.966 to 0.961."""
    prints = step_towards(share, squeeze=1 / 11)
    one, other = prints.copies.reshape(2, -1).astype(float)
    assert (np.corrcoef(one, other)[0, 1] >= 0.97) == alike
    assert rows_of(prints) == [(0, 1)] * alike
    assert rows_of(prints, Near(correlation=0.98)) == []
    assert rows_of(prints, Near(correlation=0.955)) == [(0, 1)]


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("bits, alike", [(6, True), (7, True), (8, False), (10, False)])
def test_hashes_may_differ_in_seven_bits(bits: int, alike: bool, parts: int) -> None:
    """Bits in one of the four parts of the hash, or in all; the tiny copies are the same."""
    image = np.asarray(photo(3)).copy()
    other = image.copy()
    other[5, 5, 0] ^= 1
    prints = prints_of([Image.fromarray(image), Image.fromarray(other)])
    turned = sum(1 << (16 * (place % parts) + place) for place in range(bits))
    prints = prints._replace(hashes=np.array([0, turned], np.uint64))
    assert rows_of(prints) == [(0, 1)] * alike
    assert matches(prints, np.array([0]), np.array([1])).tolist() == [alike]


@pytest.mark.parametrize(
    "gain, alike", [(1.0, True), (1.3, True), (1.38, True), (1.6, False), (0.8, True), (0.72, True), (0.5, False)]
)
def test_contrast_may_change_by_less_than_half(gain: float, alike: bool) -> None:
    """The brighter image has so many times the contrast of the darker one."""
    image = np.asarray(photo(5)).astype(float)
    waves = image - image.mean()
    prints = prints_of([Image.fromarray(np.rint(each).astype(np.uint8)) for each in (110 + waves, 120 + gain * waves)])
    assert prints.copies.min() > 4
    assert prints.copies.max() < 251
    assert rows_of(prints) == [(0, 1)] * alike


@pytest.mark.parametrize("spread, shows", [(1.4, False), (1.9, False), (2.1, True), (2.9, True)])
def test_an_image_shows_something_from_a_contrast_of_two_on(spread: float, shows: bool) -> None:
    """Half of it lighter than the middle by so many steps, half darker: that is its standard deviation."""
    copies = np.full((2, 16, 16, 3), 100.0)
    share = round(256 * (spread - int(spread)))  # as many pixels go one step further
    steps = np.full(256, int(spread))
    steps[:share] += 1
    copies[:] += (steps * np.where(np.arange(256) % 2, 1, -1)).reshape(16, 16, 1)
    prints = prints_of([photo(1), photo(2)])._replace(copies=copies.astype(np.uint8), hashes=np.zeros(2, np.uint64))
    assert contrast(prints.copies) == pytest.approx([spread] * 2, abs=0.1)
    assert rows_of(prints) == [(0, 1)] * shows


@pytest.mark.parametrize("cosine, alike", [(0.98, True), (0.971, True), (0.969, False), (0.955, False)])
def test_lookalikes_begin_at_their_cosine(cosine: float, alike: bool) -> None:
    """Embeddings at an angle of which this is the cosine, of different lengths."""
    embeddings = np.array([[2.0, 0.0, 0.0], [5 * cosine, 5 * (1 - cosine**2) ** 0.5, 0.0], [0.0, 0.0, 1.0]])
    assert find_lookalikes(embeddings) == [[0, 1]] * alike


# ---- fingerprints ------------------------------------------------------------------------------------------------


# ---- the search --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [0, 3, 7])
@pytest.mark.parametrize("turned", [0, int(MIRROR)])
def test_close_pairs_are_all_the_close_pairs_once(bits: int, turned: int) -> None:
    """Against every pair compared: hashes at all distances, many equal, all parts hit."""
    dice = np.random.default_rng(2)
    centres = dice.integers(0, 2**63, 25, np.uint64)
    hashes = centres[dice.integers(0, 25, 300)]
    for _ in range(5):
        flips = np.uint64(1) << dice.integers(0, 64, 300).astype(np.uint64)
        hashes = np.where(dice.random(300) < 0.5, hashes ^ flips, hashes)
    hashes[250:] = hashes[:50]
    hashes[::7] ^= np.uint64(turned)
    queries = hashes ^ np.uint64(turned)
    found = [pair for one, other in close_pairs(queries, hashes, bits) for pair in zip(one, other, strict=True)]
    expected = {(i, j) for j in range(300) for i in range(j) if bits_apart(queries[i], hashes[j]) <= bits}
    assert len(found) == len(set(found)) == len(expected) > 10
    assert set(found) == expected


def test_pairs_known_to_belong_together_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """One bucket for all; what is known may change while the pairs are listed."""
    monkeypatch.setattr(duplicates, "_PAIRS", 6)
    hashes = np.zeros(6, np.uint64)

    def pairs(known: Array) -> set[tuple[int, int]]:
        listed = close_pairs(hashes, hashes, 0, lambda: known)
        return {(int(i), int(j)) for one, other in listed for i, j in zip(one, other, strict=True)}

    every = {(i, j) for j in range(6) for i in range(j)}
    assert pairs(np.arange(6)) == every
    assert pairs(np.zeros(6, int)) == set()
    assert pairs(np.array([0, 0, 0, 3, 3, 3])) >= {(i, j) for i in range(3) for j in range(3, 6)}
    numbers = np.arange(6)
    met = []
    for one, other in close_pairs(hashes, hashes, 0, lambda: numbers):
        met += list(zip(one, other, strict=True))
        numbers[:] = 0
    assert met == [(0, j) for j in range(1, 6)]


def test_many_frames_of_one_scene_are_one_group() -> None:
    dice = np.random.default_rng(0)
    scene = np.asarray(photo(1)).astype(int)
    frames = [np.clip(scene + dice.integers(-3, 4, scene.shape), 0, 255).astype(np.uint8) for _ in range(60)]
    assert rows_of(fingerprint(frames)) == [tuple(range(60))]  # type: ignore[arg-type]


def test_close_pairs_of_nothing() -> None:
    assert list(close_pairs(np.zeros(0, np.uint64), np.zeros(0, np.uint64), 6)) == []
    assert find_duplicates(fingerprint([])) == []


def test_sets_join_whatever_the_order() -> None:
    sets = Sets(8)
    sets.join(6, 3)
    sets.join_all(np.array([5, 7, 3]), np.array([7, 1, 6]))
    assert sets.groups() == [[1, 5, 7], [3, 6]]
    sets.join(5, 6)
    assert sets.groups() == [[1, 3, 5, 6, 7]]
    assert sets.tops().tolist() == [0, 1, 2, 1, 4, 1, 1, 1]


def test_lookalikes_are_the_parts_of_the_graph_of_close_directions() -> None:
    """Against every pair compared, over several blocks; lengths do not matter."""
    dice = np.random.default_rng(3)
    features = dice.normal(size=(700, 12)) * dice.uniform(0.1, 9, (700, 1))
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    sets = Sets(700)
    close = np.argwhere(np.triu(unit @ unit.T >= 0.8, 1))
    for i, j in close:
        sets.join(int(i), int(j))
    found = find_lookalikes(features, Near(cosine=0.8))
    assert found == sets.groups()
    assert len(found) > 10
    assert max(len(each) for each in found) > 2


def test_lookalikes_need_numbers() -> None:
    with pytest.raises(InputError, match=r"expected finite embeddings \(n, D\)"):
        find_lookalikes(np.array([[1.0, np.nan]]))


@pytest.mark.parametrize("wrong", [{"bits": 8}, {"bits": -1}, {"difference": -1.0}, {"cosine": 1.5}])
def test_nearness_has_bounds(wrong: dict[str, Any]) -> None:
    [name] = wrong
    with pytest.raises(ConfigError, match=f"near {name}: expected"):
        Near(**wrong)
