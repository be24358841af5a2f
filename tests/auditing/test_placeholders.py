"""Placeholder images are found by flatness and by repetition; photos on white ground are left in peace."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from auditing.memory import array_dataset
from auditing.placeholder_images import QUALITIES, placeholder, saved
from evaluation.photos import jpeg, photo, scaled
from vitrail.auditing import Audit, audit
from vitrail.auditing.findings_table import verdicts
from vitrail.auditing.flatness import measure_flatness
from vitrail.auditing.placeholders import BUSY, GROUND, usual
from vitrail.data.readers import read_data
from vitrail.data.samples import Sample


def put(path: Path, image: Image.Image, **options: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **options)


def photos(folder: Path, classes: tuple[str, ...] = ("a", "b", "c"), each: int = 8) -> Path:
    for number, name in enumerate(classes):
        for row in range(each):
            put(folder / name / f"{row}.png", photo(100 * number + row))
    return folder


def found(audited: Audit) -> dict[str, bool]:
    return {each.name: each.sure for each in audited.placeholders}


def test_flatness_is_the_share_of_the_ground_and_of_what_has_no_main_colour() -> None:
    pixels = np.full((80, 80, 3), 250, np.uint8)
    pixels[:8] = (0, 0, 200)
    pixels[8:12] = (200, 0, 0)
    assert measure_flatness(pixels) == (0.0, 0.85)
    pixels[12:28, :40] = np.linspace(0, 198, 640).astype(np.uint8).reshape(16, 40, 1)
    busy, ground = measure_flatness(pixels)
    assert ground == 0.75
    assert 0.07 <= busy <= 0.1  # a gradient, of which the third colour takes what lies near it


@pytest.mark.parametrize("quality", QUALITIES)
def test_words_on_flat_ground_are_flat_in_every_size_and_quality(quality: int) -> None:
    shares = [measure_flatness(np.asarray(saved(placeholder(number), quality))) for number in range(30)]
    flat = [each.busy <= BUSY and each.ground >= GROUND for each in shares]
    assert sum(flat) >= 28  # of 30


def test_a_single_placeholder_among_photos_is_found_and_left_to_a_person(tmp_path: Path) -> None:
    put(photos(tmp_path) / "a/gone.jpg", placeholder(0), quality=75)
    put(tmp_path / "b/blank.png", Image.new("RGB", (80, 80), (250, 250, 250)))
    audited = audit(tmp_path)
    assert found(audited) == {"a/gone.jpg": False, "b/blank.png": False}
    assert {each.why for each in audited.placeholders} == {
        "a few colours, and hardly any detail",
        "shows a single colour",
    }
    assert (
        audited.to_dict()["placeholders"][1]
        == {
            "path": "a/gone.jpg",
            "labels": ["a"],
            "why": "a few colours, and hardly any detail",
            "sure": False,
        }
        or audited.to_dict()["placeholders"][0]["path"] == "a/gone.jpg"
    )


def test_one_that_comes_back_under_several_labels_is_sure(tmp_path: Path) -> None:
    photos(tmp_path)
    for name, quality in {"a": 60, "b": 75, "c": 90}.items():
        put(tmp_path / name / "gone.jpg", placeholder(1, (300, 200)), quality=quality)
    audited = audit(tmp_path)
    assert found(audited) == {"a/gone.jpg": True, "b/gone.jpg": True, "c/gone.jpg": True}
    assert {each.why for each in audited.placeholders} == {"the same or nearly the same 3 times under 3 labels"}
    said = [each.words for each in verdicts(audited)]
    assert len(audited.conflicts) == 1
    assert not any("different labels" in each for each in said), "of a placeholder no label is right"


def test_a_class_of_more_placeholders_than_photos_is_found_by_repetition(tmp_path: Path) -> None:
    photos(tmp_path)
    for row in range(12):
        put(tmp_path / "a" / f"gone{row}.jpg", placeholder(3, (320, 240)), quality=50 + 4 * row)
    assert found(audit(tmp_path)) == {f"a/gone{row}.jpg": True for row in range(12)}


def test_an_image_that_is_not_flat_is_one_under_three_labels_but_not_under_two(tmp_path: Path) -> None:
    photos(tmp_path)
    logo, other = photo(900), photo(901)
    for name in "abc":
        put(tmp_path / name / "logo.png", jpeg(90)(logo))
    for name in "ab":
        put(tmp_path / name / "other.png", scaled(1.2)(other))
    assert found(audit(tmp_path)) == {f"{name}/logo.png": False for name in "abc"}


def test_one_image_many_times_is_one_unless_everything_is_repeated() -> None:
    images = [np.asarray(photo(row)) for row in range(30)]
    several = np.stack([*images, *[images[0]] * 9])
    assert set(found(audit(array_dataset(several, *[("a", "", "")] * 39)))) == {"0", *map(str, range(30, 39))}
    assert not found(audit(array_dataset(several[:38], *[("a", "", "")] * 38)))  # nine times
    assert not found(audit(array_dataset(np.repeat(np.stack(images[:3]), 10, axis=0), *[("a", "", "")] * 30)))


def test_drawings_which_all_are_flat_are_none(tmp_path: Path) -> None:
    for name in "ab":
        for row in range(10):
            shape = Image.new("RGB", (100, 100), (255, 255, 255))
            x, y = 7 * row, 60 - 5 * row if name == "a" else 5 * row
            shape.paste((0, 0, 0), (x, y, x + 20 + row, y + 30))
            put(tmp_path / name / f"{row}.png", shape)
    audited = audit(tmp_path)
    assert not [each for each in audited.placeholders if "colours" in each.why]


def test_what_is_usual_is_the_middle_of_the_class_or_of_all() -> None:
    samples = [Sample(str(row), (label,)) for row, label in enumerate(["a"] * 5 + ["b"] * 5 + ["c"] * 2)]
    busy = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 0.0, 0.0])
    assert usual(samples, busy).tolist() == [0.3] * 5 + [np.median(busy)] * 7


def _share(audited: Audit) -> float:
    return len(audited.placeholders) / audited.images


@pytest.mark.parametrize("name", ["fruits360_10", "sign_language_digits"])
def test_photos_on_plain_ground_are_none(fixtures: Path, name: str) -> None:
    """White ground round fruits, grey behind hands: at most five false ones of a thousand."""
    dataset = read_data(fixtures / name)
    assert _share(audit(dataset.select(range(0, len(dataset), 2)))) <= 0.005


def test_digits_are_none(fixtures: Path) -> None:
    dataset = read_data(fixtures / "mnist")
    assert _share(audit(dataset.select(range(4000)))) <= 0.005


def test_photos_of_every_kind_are_none() -> None:
    data = pytest.importorskip("skimage.data")
    names = ("astronaut.png", "brick.png", "camera.png", "cell.png", "chelsea.png", "clock_motion.png", "coffee.png")
    others = ("coins.png", "grass.png", "gravel.png", "hubble_deep_field.jpg", "moon.png", "page.png", "retina.jpg")
    folder = Path(data.__file__).parent
    for name in (*names, *others, "horse.png", "microaneurysms.png", "rocket.jpg", "text.png"):
        busy, ground = measure_flatness(np.asarray(Image.open(folder / name).convert("RGB")))
        assert busy > BUSY or ground < GROUND, name
