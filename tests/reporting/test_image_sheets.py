"""Images from arrays: bright where the map is high, the same in grey, tiles where they belong."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageChops

from vitrail.reporting.image_sheets import (
    INK,
    PAPER,
    captioned_sheet,
    coloured,
    enlarged,
    fitted,
    font,
    heat_over,
    marked,
    normalised,
    overlay,
    panes,
    sheet,
    smoothed,
)

LUMINANCE = np.array([0.2126, 0.7152, 0.0722])  # of Rec. 709, on linear light


def luminance(image: Image.Image) -> np.ndarray:
    values = np.asarray(image, np.float64) / 255
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    return np.asarray(linear @ LUMINANCE)


def plain(colour: tuple[int, int, int], size: tuple[int, int] = (60, 40)) -> Image.Image:
    return Image.new("RGB", size, colour)


def test_colours_rise_from_dark_to_light() -> None:
    """It reads in grey, printed or by the colour-blind: luminance rises with every step."""
    ramp = coloured(np.linspace(0, 1, 101)[None])
    light = luminance(ramp)[0]
    assert (np.diff(light) > 0).all()
    assert light[0] < 0.01
    assert light[-1] > 0.8
    grey = np.asarray(ramp.convert("L"), int)[0]
    assert (np.diff(grey) >= 0).all()
    assert len(set(grey.tolist())) > 95


def test_values_outside_are_cut_off() -> None:
    values = np.asarray(coloured(np.array([[-5.0, 0.0, 1.0, 7.0]])))
    assert (values[0, 0] == values[0, 1]).all()
    assert (values[0, 2] == values[0, 3]).all()


def test_normalised_spans_nought_to_one() -> None:
    assert normalised(np.array([2.0, 4.0, 3.0])).tolist() == [0.0, 1.0, 0.5]
    assert normalised(np.full((2, 2), 7.0)).tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_enlarged_keeps_places() -> None:
    values = np.zeros((3, 4))
    values[2, 1] = 1
    sharp = enlarged(values, (40, 30), smooth=False)
    assert sharp.shape == (30, 40)
    assert sharp[20:30, 10:20].min() == 1
    assert sharp.sum() == 100
    smooth = enlarged(values, (40, 30))
    assert np.unravel_index(smooth.argmax(), smooth.shape)[0] >= 20


@pytest.mark.row("001.15")
@pytest.mark.parametrize("smooth", [True, False])
@pytest.mark.parametrize("colour", [(0, 0, 0), (90, 120, 60), (255, 255, 255)])
def test_an_overlay_is_bright_where_the_map_is_high(smooth: bool, colour: tuple[int, int, int]) -> None:
    values = np.full((4, 6), 0.1)
    values[1, 4] = 0.9
    image = plain(colour, (120, 80))
    light = luminance(overlay(image, values, smooth))
    hot, rest = light[22:38, 82:98], np.delete(light, np.s_[60:120], axis=1)
    assert hot.mean() > 2 * rest.max()
    assert light.shape == (80, 120)
    ramp = luminance(overlay(image, np.linspace(0, 1, 9)[None], smooth=False))[40, 6::13]
    assert (np.diff(ramp) > 0).all()


def test_a_flat_map_only_dims() -> None:
    image = Image.linear_gradient("L").convert("RGB")
    light = luminance(overlay(image, np.full((3, 3), 0.4)))
    assert light.max() < 0.4
    assert (np.diff(light[:, 0]) >= 0).all()  # the image is still to be seen


def test_panes_hold_every_patch() -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 200, (40, 60, 3), np.uint8))
    cut = panes(image, (4, 5), gap=3)
    assert cut.size == (5 * 15 + 3, 4 * 13 + 3)
    for row in range(4):
        for column in range(5):
            left, top = 3 + column * 15, 3 + row * 13
            patch = cut.crop((left, top, left + 12, top + 10))
            original = image.crop((column * 12, row * 10, column * 12 + 12, row * 10 + 10))
            assert ImageChops.difference(patch, original).getbbox() is None
    assert np.asarray(cut)[:3].reshape(-1, 3).tolist() == [list(PAPER)] * (3 * 78)


def test_a_mark_leaves_the_original_alone() -> None:
    image = plain((0, 0, 0))
    framed = np.asarray(marked(image, (10, 10, 30, 30), (255, 0, 0)))
    assert np.asarray(image).max() == 0
    assert framed[10, 20].tolist() == [255, 0, 0]
    assert framed[20, 20].tolist() == [0, 0, 0]


def test_a_sheet_has_its_tiles_in_order_and_its_size() -> None:
    colours = [[(200, 0, 0), (0, 200, 0), (0, 0, 200)], [(99, 0, 0), (0, 99, 0), (0, 0, 99)]]
    tiles = [[plain(colour, (80, 50)) for colour in row] for row in colours]
    page = sheet(tiles, "Six", gap=6)
    assert page.size == (16 + 3 * 86 + 16, 52 + 2 * 56 + 10)
    for row, line in enumerate(colours):
        for column, colour in enumerate(line):
            box = (16 + column * 86, 52 + row * 56, 16 + column * 86 + 80, 52 + row * 56 + 50)
            assert page.crop(box).getcolors() == [(4000, colour)]
    assert page.getpixel((page.width - 1, page.height - 1)) == PAPER


def test_names_and_title_take_their_room() -> None:
    tiles = [[plain((9, 9, 9))] * 2] * 2
    bare, named = sheet(tiles, "T"), sheet(tiles, "T", ["first row", "second"], ["left", "right"])
    assert named.width == bare.width + round(font(14).getlength("first row")) + 12
    assert named.height == bare.height + 24
    long = sheet(tiles, "a title that is far longer than the two tiles under it are wide")
    assert long.width > bare.width
    assert np.asarray(long)[:, -16:].min() == min(PAPER)  # nothing runs over the edge
    title = np.asarray(bare)[:52]
    assert title.min() <= max(INK)


def test_captioned_images_stand_in_rows_each_above_its_words() -> None:
    colours = [(250, 20 * number, 90) for number in range(5)]
    page = np.asarray(captioned_sheet([(plain(each, (30, 20)), "one\ntwo") for each in colours], "Title", 3)).astype(
        int
    )
    spots = [np.argwhere((page == each).all(axis=-1)) for each in colours]
    assert [len(each) for each in spots] == [168 * 112] * 5  # as wide as a tile, in their own shape
    centres = np.array([each.mean(axis=0) for each in spots])
    assert (np.diff(centres[:3, 1]) == 168 + 14).all()
    assert np.ptp(centres[:3, 0]) == 0
    assert centres[3, 0] - centres[0, 0] == 168 + 2 * 17 + 14
    below = page[spots[0][:, 0].max() + 28 + 1 : spots[3][:, 0].min() - 28, : 168 + 14]
    assert (below < 128).all(axis=-1).sum() > 50  # words


def test_fitted_images_keep_their_shape_and_tiny_ones_their_pixels() -> None:
    assert fitted(plain((1, 2, 3), (400, 200)), 100).size == (100, 50)
    grey = Image.fromarray(np.array([[0, 255]], np.uint8))
    assert np.asarray(fitted(grey, 8)).tolist() == [[[0] * 3] * 4 + [[255] * 3] * 4] * 4


def test_a_patch_without_a_say_looks_like_those_around_it() -> None:
    values = np.array([[9.0, 1.0, 1.0], [2.0, 3.0, 1.0]])
    without = np.zeros((2, 3), bool)
    without[0, 0] = True
    found = smoothed(values, without)
    assert found[0, 0] == pytest.approx(2.0)
    assert (found[~without] == values[~without]).all()
    assert smoothed(values, np.ones((2, 3), bool)).max() == 0


@pytest.mark.row("VE.3")
def test_heat_lies_inside_the_box() -> None:
    image = Image.new("RGB", (100, 50), (90, 90, 90))
    drawn = np.asarray(heat_over(image, np.array([[0.0, 1.0], [0.0, 0.0]]), (25, 0, 75, 50))).astype(int)
    assert drawn[12, 62].sum() > drawn[38, 37].sum() + 200  # the hot quarter
    assert drawn[25, 5].sum() < drawn[38, 37].sum()  # not seen: darker still
    padded = np.asarray(heat_over(image, np.eye(2), (0, -25, 100, 75)))
    assert padded.shape == (50, 100, 3)


def test_a_map_of_a_frame_is_cut_to_the_image() -> None:
    """Bars above and below: what is hot in the middle of the frame is hot in the middle of the image."""
    image = Image.new("RGB", (100, 50), (90, 90, 90))
    values = np.zeros((4, 4))
    values[2, 3] = 1.0
    drawn = np.asarray(heat_over(image, values, (0, -25, 100, 75))).astype(int).sum(axis=-1)
    assert np.unravel_index(drawn.argmax(), drawn.shape)[0] in range(30, 46)
    assert drawn[37, 87] > drawn[12, 87] + 200
    assert drawn[37, 87] > drawn[37, 12] + 200


def test_a_crossed_out_patch_does_not_outshine_the_others() -> None:
    """A value a hundred times the others, of a patch without a say: what it hid is seen, and a cross is on it."""
    image = Image.new("RGB", (80, 80), (90, 90, 90))
    values = np.array([[100.0, 0.0, 0.0, 0.0]] + [[0.0] * 4] * 2 + [[0.0, 0.0, 0.0, 1.0]])
    without = values == 100
    plain = np.asarray(heat_over(image, values, (0, 0, 80, 80))).astype(int).sum(axis=-1)
    calm = np.asarray(heat_over(image, values, (0, 0, 80, 80), without)).astype(int).sum(axis=-1)
    assert calm[70, 70] > plain[70, 70] + 150
    assert plain[18, 3] > calm[18, 3] + 50  # beside the cross, which is light itself
    assert calm[10, 10] == 3 * 252 - 5  # the cross, of paper
