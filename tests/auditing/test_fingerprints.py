"""Fingerprints: what tells images apart, whatever they are made of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from auditing.prints import bits_apart, prints_of, rows_of
from evaluation.photos import CHANGES, photo
from vitrail.auditing.duplicates import find_duplicates
from vitrail.auditing.fingerprints import MIRROR, ORDINARY, fingerprint, visible, wave_hash
from vitrail.errors import InputError


def test_the_same_bytes_in_another_shape_are_another_image() -> None:
    """A block of one colour, 8x16 and 16x8."""
    block = np.full((8, 16, 3), 200, np.uint8)
    assert rows_of(fingerprint([block, block.transpose(1, 0, 2)])) == []  # type: ignore[arg-type]


def test_a_mirrored_image_has_the_mirrored_hash() -> None:
    for seed in range(20):
        image = np.asarray(photo(seed, (32, 32)))
        plain, turned = wave_hash(image), wave_hash(image[:, ::-1])
        assert plain ^ MIRROR == turned
        assert bits_apart(plain, turned) > 12


def test_hashes_of_copies_are_close_and_of_others_far() -> None:
    images = [photo(seed) for seed in range(30)]
    hashes = prints_of([*images, *(CHANGES["smaller, brighter and JPEG"](each) for each in images)]).hashes
    assert max(bits_apart(a, b) for a, b in zip(hashes[:30], hashes[30:], strict=True)) <= 4
    others = [bits_apart(hashes[i], hashes[j]) for i in range(30) for j in range(i)]
    assert 28 < np.mean(others) < 36
    assert min(others) > 8


def test_unreadable_images_are_told_of_and_the_rest_is_in_order(tmp_path: Path) -> None:
    paths = [tmp_path / f"{place}.png" for place in range(5)]
    for path in paths:
        photo(1).save(path)
    paths[1].write_bytes(b"<html>not found</html>")
    paths[3].unlink()
    counted: list[int] = []
    found = fingerprint(paths, done=counted.append)
    assert sum(counted) == 5
    assert list(found.failed) == [1, 3]
    assert found.failed[1].startswith("not an image that can be read: it seems to be a web page")
    assert found.failed[3] == "no such file"
    with pytest.raises(InputError, match="2 of the images could not be read: select the others first"):
        find_duplicates(found)
    kept = found.select(np.array([0, 2, 4]))
    assert rows_of(kept) == [(0, 1, 2)]
    assert kept.sizes.tolist() == [[80, 96]] * 3
    assert kept.kinds == (ORDINARY,) * 3


def test_low_bits_of_deep_images_count(tmp_path: Path) -> None:
    """Two 16-bit images that are all black in 8 bits, and the first again."""
    dice = np.random.default_rng(0)
    dark = dice.integers(0, 60, (3, 20, 20)).astype(np.uint16)
    for place in range(3):
        Image.fromarray(dark[place % 2]).save(tmp_path / f"{place}.png")
    found = fingerprint([tmp_path / f"{place}.png" for place in range(3)])
    assert found.kinds == ("1 bands of uint16",) * 3
    assert rows_of(found) == [(0, 2)]
    assert np.asarray(visible(tmp_path / "0.png")).max() == 255  # stretched, for people


def test_a_few_dead_pixels_do_not_darken_the_rest(tmp_path: Path) -> None:
    """Shown are values from 1,000 to 3,000, from black to white, though four of 1,600 lie far outside."""
    values = np.linspace(1000, 3000, 1600).reshape(40, 40).astype(np.uint16)
    values[0, :2], values[-1, -2:] = 0, 65535
    Image.fromarray(values).save(tmp_path / "a.png")
    found = np.asarray(visible(tmp_path / "a.png"))[..., 0].astype(int)
    expected = 255 * (values - 1000.0) / 2000
    assert np.abs(found - expected)[1:-1].max() < 5  # at most a hundredth of the range is cut at each end


@pytest.mark.parametrize("top", [1.0, 5000.0])
def test_images_of_many_bands(tmp_path: Path, top: float) -> None:
    dice = np.random.default_rng(1)
    bands = (top * dice.random((20, 24, 6))).astype(np.float32)
    np.save(tmp_path / "a.npy", bands)
    np.save(tmp_path / "b.npy", bands[:, :, ::-1])
    np.save(tmp_path / "c.npy", bands)
    found = fingerprint([tmp_path / name for name in ("a.npy", "b.npy", "c.npy")])
    assert not found.failed
    assert found.kinds[0] == "6 bands of float32"
    assert found.sizes.tolist() == [[20, 24]] * 3
    assert rows_of(found) == [(0, 2)]
