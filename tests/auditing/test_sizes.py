"""Sizes: what is suggested for images of one shape, of several and of all shapes; and which of them are odd."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from vitrail.auditing.sizes import find_odd, measure, suggest
from vitrail.data.manifest import Entry
from vitrail.errors import InputError
from vitrail.images import Preprocess


class NamedSize(NamedTuple):
    name: str
    height: int
    width: int


def make_images(*sizes: tuple[int, int], times: int = 1) -> list[NamedSize]:
    """Of (width, height), as people say it."""
    return [NamedSize(f"{place}.png", height, width) for place, (width, height) in enumerate(sizes * times)]


def spread(least: float, most: float, count: int = 60, area: int = 40_000) -> list[NamedSize]:
    """Images of one area, from `least` to `most` times as wide as high."""
    aspects = np.exp(np.linspace(np.log(least), np.log(most), count))
    return make_images(*((round((area * each) ** 0.5), round((area / each) ** 0.5)) for each in aspects))


@pytest.mark.parametrize(
    "side, expected",
    [(28, 28), (30, 32), (32, 32), (50, 48), (63, 64), (64, 64), (100, 96), (150, 144), (224, 224), (640, 224), (3, 4)],
)
def test_square_images_are_cropped_at_about_their_size(side: int, expected: int) -> None:
    found = suggest(make_images((side, side), times=5))
    assert (found.size, found.resize, found.crop) == ((expected, expected), "crop", 1.0)
    assert found.reason.startswith("all of the images are square")


def test_a_few_others_do_not_count() -> None:
    assert suggest(make_images((100, 100), times=96) + make_images((300, 100), times=4)).resize == "crop"
    assert suggest(make_images((100, 100), times=90) + make_images((300, 100), times=10)).resize == "pad"


@pytest.mark.parametrize(
    "size, expected",
    [
        ((640, 480), (192, 256)),  # as many pixels as 224x224
        ((480, 640), (256, 192)),
        ((1920, 1080), (160, 288)),
        ((48, 32), (32, 48)),
        ((1000, 100), (64, 640)),
    ],
)
def test_one_shape_gets_a_frame_of_that_shape(size: tuple[int, int], expected: tuple[int, int]) -> None:
    """`expected` is (height, width)."""
    found = suggest(make_images(size, times=4))
    assert (found.size, found.resize) == (expected, "squash")
    assert f"{size[0] / size[1]:.2f} times as wide as high" in found.reason
    frame = found.size[1] / found.size[0]
    assert frame == pytest.approx(size[0] / size[1], rel=0.1)


def test_mild_shapes_are_squashed_and_wild_ones_padded() -> None:
    mild, wild = suggest(spread(0.75, 1.33)), suggest(spread(0.4, 2.5))
    assert (mild.size, mild.resize) == ((192, 192), "squash")
    assert (wild.size, wild.resize) == ((224, 224), "pad")
    assert "the long side is at most 1.32 times the short" in mild.reason
    assert "a centre crop would cut 13 % off" in mild.reason
    assert "up to 2.4 times the short" in wild.reason
    assert "a centre crop would cut 37 % off" in wild.reason


def test_two_shapes_are_not_one() -> None:
    """Half upright, half lying: neither frame would do."""
    found = suggest(make_images((400, 200), (200, 400), times=10))
    assert (found.size, found.resize) == ((224, 224), "pad")


def test_one_shape_too_narrow_for_the_steps_is_padded() -> None:
    """100 times as wide as high, in steps of 16."""
    found = suggest(make_images((1000, 10), times=3), multiple=32)
    assert found.resize == "squash"
    assert found.size == (32, 3200)
    assert suggest(make_images((45, 32), times=3), multiple=32).resize == "pad"  # 32x32 or 64x32: both distort


def test_sides_are_multiples_of_what_is_asked_for() -> None:
    assert suggest(make_images((100, 100)), multiple=14).size == (98, 98)
    assert suggest(make_images((500, 500)), multiple=14).size == (224, 224)
    with pytest.raises(InputError, match="multiple: expected a whole number from 1 to 224, got 0"):
        suggest(make_images((100, 100)), multiple=0)


@pytest.mark.parametrize(
    "given",
    [make_images((100, 100)), make_images((640, 480)), spread(0.4, 2.5), spread(0.8, 1.25), make_images((9, 400))],
)
def test_a_suggestion_is_a_preprocessing(given: list[NamedSize]) -> None:
    found = suggest(given)
    made = Preprocess(size=found.size, resize=found.resize, crop=found.crop)
    assert (made.size, made.resize) == (found.size, found.resize)


def test_entries_of_a_manifest_are_measured() -> None:
    entry = Entry("a.png", ("x",), "train", "", 48, 64, 1, "")
    found = measure([entry])
    assert (found.suggestion.size, found.aspects.tolist(), found.names) == ((48, 64), [64 / 48], ("a.png",))


def test_what_is_measured() -> None:
    found = measure(make_images((100, 80), (100, 80), (50, 60), (100, 80), (50, 60), (10, 20)))
    assert [tuple(each) for each in found.common] == [(80, 100, 3), (60, 50, 2), (20, 10, 1)]
    assert found.distinct == 3
    assert found.shorts.tolist() == [80, 80, 50, 80, 50, 10]
    assert found.aspects.tolist() == pytest.approx([1.25, 1.25, 5 / 6, 1.25, 5 / 6, 0.5])


@pytest.mark.parametrize("side, expected", [(60, 60), (62, 64), (68, 64), (92, 96)])
def test_sides_from_sixty_four_on_go_in_steps_of_sixteen(side: int, expected: int) -> None:
    """Below, in steps of 4."""
    assert suggest(make_images((side, side), times=5)).size == (expected, expected)


@pytest.mark.parametrize("long, resize", [(106, "crop"), (109, "crop"), (112, "squash"), (116, "squash")])
def test_what_counts_as_square(long: int, resize: str) -> None:
    """Up to 1.1 times as long as wide, whichever side is the long one."""
    assert suggest(make_images((long, 100), times=5)).resize == resize
    assert suggest(make_images((100, long), times=5)).resize == resize


@pytest.mark.parametrize("others, resize", [(4, "crop"), (5, "crop"), (6, "pad"), (8, "pad")])
def test_nearly_all_is_nineteen_of_twenty(others: int, resize: str) -> None:
    given = make_images((100, 100), times=100 - others) + make_images((300, 100), times=others)
    assert suggest(given).resize == resize


@pytest.mark.parametrize("long, resize", [(130, "squash"), (138, "squash"), (143, "pad"), (160, "pad")])
def test_how_far_shapes_may_be_squashed(long: int, resize: str) -> None:
    """Upright and lying images, each up to 1.4 times as long as wide."""
    assert suggest(make_images((long, 100), (100, long), times=10)).resize == resize


@pytest.mark.parametrize("factor, resize", [(1.06, "squash"), (1.08, "squash"), (1.12, "pad"), (1.16, "pad")])
def test_what_counts_as_one_shape(factor: float, resize: str) -> None:
    """About twice as wide as high, half of them wider and half narrower by this factor."""
    given = make_images((round(2000 * factor), 1000), (2000, round(1000 * factor)), times=10)
    assert suggest(given).resize == resize


@pytest.mark.parametrize(
    "size, why",
    [
        ((390, 390), ""),
        ((410, 410), "4.1 times larger"),
        ((26, 26), ""),
        ((24, 24), "4.2 times smaller"),
        ((240, 100), ""),
        ((260, 100), "2.6 times wider in shape"),
        ((100, 240), ""),
        ((100, 260), "2.6 times taller in shape"),
    ],
)
def test_where_odd_begins(size: tuple[int, int], why: str) -> None:
    """Among squares of 100 pixels: four times as large or small, two and a half times as wide or tall."""
    found = find_odd(make_images((100, 100), times=20) + make_images(size))
    assert [each.why for each in found] == [f"{why} than the median size, 100x100"] * bool(why)


def test_a_short_side_of_sixteen_pixels_still_shows_something() -> None:
    assert find_odd(make_images((16, 40))) == ()
    assert len(find_odd(make_images((40, 15)))) == 1


def test_where_sizes_spread_three_times_their_usual_spread_is_odd() -> None:
    """Sides of half and double the middle: a usual spread of 1.4826 * log 2, and three of them are a factor of 21.8."""
    given = make_images((200, 200), (100, 100), (400, 400), times=8)
    for times, odd in ((20, False), (24, True)):
        found = find_odd(given + make_images((200 * times, 200 * times)))
        assert [each.width for each in found] == [200 * times] * odd


def test_odd_sizes_are_named_the_oddest_first() -> None:
    given = [
        *make_images((100, 100), times=20),
        NamedSize("huge", 3024, 3024),
        NamedSize("strip", 40, 400),
        NamedSize("dot", 12, 12),
        NamedSize("twice", 200, 200),
    ]
    found = {odd.name: odd.why for odd in find_odd(given)}
    assert list(found) == ["huge", "strip", "dot"]
    assert found["huge"] == "30.2 times larger than the median size, 100x100"
    assert found["strip"] == "10.0 times wider in shape than the median size, 100x100"
    assert found["dot"] == "8.3 times smaller than the median size, 100x100; under 16 pixels high or wide"


def test_where_sizes_spread_anyway_they_are_not_odd() -> None:
    """Ten times larger than the middle, among images from a tenth to ten times."""
    sides = np.exp(np.linspace(np.log(30), np.log(3000), 40)).astype(int)
    assert find_odd(make_images(*((int(side), int(side)) for side in sides))) == ()


def test_small_images_of_a_small_set_are_told_of() -> None:
    [odd] = find_odd(make_images((15, 40)))
    assert odd.why == "under 16 pixels high or wide"


def test_nothing_cannot_be_measured() -> None:
    with pytest.raises(InputError, match="no images to measure"):
        suggest([])
