"""Where readers fill the machine, each of them runs images of its own: the same answers, in order, nothing lost."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vitrail.errors import ImageError
from vitrail.images import Preprocess
from vitrail.images.model_info import About, Described
from vitrail.inference import Prediction, predict, predictions
from vitrail.inference import batches as passes_module
from vitrail.inference.batches import passes

Array = np.ndarray[Any, Any]


class Colours(Described):
    """A stand-in network: the mean of each channel is its logit; it keeps who asked it, and whether by itself."""

    def __init__(self) -> None:
        self.about = About(Preprocess(size=16, crop=1.0), ("red", "green", "blue"))
        self.asked: list[tuple[str, bool, int]] = []
        self._here = threading.local()

    def run(self, pixels: Array) -> tuple[Array, Array]:
        alone = getattr(self._here, "alone", False)
        self.asked.append((threading.current_thread().name, alone, len(pixels)))
        found = pixels.mean(axis=(2, 3)).astype(np.float32)
        return found, found


class Lone(Colours):
    """One that may be asked by several threads."""

    def alone(self) -> Any:
        def alone() -> None:
            self._here.alone = True

        return alone


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes_module, "_cores", lambda: 2)


def encoded(values: Array) -> bytes:
    file = io.BytesIO()
    Image.fromarray(values).save(file, "PNG")
    return file.getvalue()


def shades(count: int) -> list[bytes]:
    """Files of one colour each, all different."""
    dice = np.random.default_rng(0).integers(0, 256, (count, 3), np.uint8)
    return [encoded(np.tile(colour, (20, 20, 1))) for colour in dice]


def here() -> str:
    """The thread that asks: a runner of tests need not have them in the main one."""
    return threading.current_thread().name


def reading() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("vitrail-reading")]


def until_it_fails(answers: Iterable[Prediction]) -> tuple[list[str], Exception | None]:
    """Whose answers came, and what was raised then."""
    found: list[str] = []
    try:
        for each in answers:
            found.append(each.path)
    except Exception as error:
        return found, error
    return found, None


@pytest.mark.parametrize("count", [8, 9, 31, 100])
def test_the_same_answers_in_order_whoever_gave_them(count: int) -> None:
    plain, lone = Colours(), Lone()
    assert predict(lone, shades(count), batch=8) == predict(plain, shades(count), batch=8)
    assert all(alone and name != here() and number <= 4 for name, alone, number in lone.asked)
    assert sum(number for *_, number in lone.asked) == count
    assert all(name == here() for name, *_ in plain.asked)
    assert reading() == []


def test_threads_work_at_the_same_time() -> None:
    both = threading.Barrier(2, timeout=600)  # passed only by two at once; broken where one waits in vain

    class Meeting(Lone):
        def run(self, pixels: Array) -> tuple[Array, Array]:
            both.wait()
            return super().run(pixels)

    assert len(predict(Meeting(), shades(16), batch=8)) == 16


def test_few_images_and_small_batches_are_run_by_all_threads_together() -> None:
    for images, batch, threads in ((shades(7), 8, 2), (iter(shades(7)), 8, 2), (shades(9), 1, 2), (shades(9), 8, 1)):
        lone = Lone()
        assert len(list(predictions(lone, images, batch=batch, threads=threads))) > 6
        assert all(name == here() and not alone for name, alone, _ in lone.asked), (batch, threads)


def test_with_cores_to_spare_the_network_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes_module, "_cores", lambda: 4)
    lone = Lone()
    predict(lone, shades(16), batch=8)
    assert all(name == here() for name, *_ in lone.asked)


@pytest.mark.parametrize("batch, threads", [(8, 2), (3, 2), (5, 4), (17, 16)])
def test_a_stream_is_never_drawn_further_than_two_batches(
    batch: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passes_module, "_cores", lambda: threads)
    drawn = 0

    def make_images() -> Iterator[bytes]:
        nonlocal drawn
        for shade in shades(200):
            drawn += 1
            yield shade

    lone = Lone()
    for number, each in enumerate(predictions(lone, make_images(), batch=batch, threads=threads)):
        assert each.path == f"image {number}"
        assert drawn <= number + 1 + 2 * batch
    assert (number, drawn) == (199, 200)
    assert all(alone for _, alone, _ in lone.asked)


class Counted:
    """A stream that does not know its length, and says so by an error."""

    def __iter__(self) -> Iterator[bytes]:
        return iter(shades(20))

    def __len__(self) -> int:
        raise TypeError("no length")


def test_the_length_of_a_stream_is_not_asked_for() -> None:
    assert len(list(predictions(Lone(), Counted(), batch=8))) == 20


def test_images_in_memory_are_not_held_for_a_part_of_a_batch() -> None:
    alive, most = 0, 0
    counting = threading.RLock()  # frames come and go in several threads

    class Frame(np.ndarray[Any, Any]):
        """An image that is counted while it is somewhere."""

        def __array_finalize__(self, other: object) -> None:
            nonlocal alive, most
            with counting:
                alive, most = alive + 1, max(most, alive + 1)

        def __del__(self) -> None:
            nonlocal alive
            with counting:
                alive -= 1

    def frames(files: int) -> Iterator[Any]:
        yield from shades(files)
        for _ in range(60):
            yield np.full((20, 20, 3), 9, np.uint8).view(Frame)

    for files in (0, 16):  # in turn; and, behind files, one by one
        alive = most = 0
        lone = Lone()
        assert len(list(predictions(lone, frames(files), batch=16))) == files + 60
        assert {alone for _, alone, _ in lone.asked} == {files > 0}
        assert most <= 16, (files, most)  # views made on the way count as well


def test_images_that_cannot_be_read_come_in_their_place(tmp_path: Path) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"\x89PNG\r\n\x1a\n")
    images: list[Any] = shades(20)
    images[6] = images[13] = broken
    told: list[str] = []
    done: list[int] = []
    rows = [each.rows for each in passes(Lone(), images, batch=8, skip=lambda n, _: told.append(n), done=done.append)]
    assert np.concatenate(rows).tolist() == [row for row in range(20) if row not in (6, 13)]
    assert told == [str(broken)] * 2
    assert sum(done) == 20
    found, error = until_it_fails(predictions(Lone(), images, batch=8))
    assert isinstance(error, ImageError)
    assert "broken.png" in str(error)
    assert found == [f"image {row}" for row in range(6)]  # all before it, and none behind
    assert reading() == []


def test_a_whole_part_that_cannot_be_read() -> None:
    images: list[Any] = [b"no image"] * 8 + shades(4)
    told: list[str] = []
    rows = [each.rows.tolist() for each in passes(Lone(), images, batch=8, skip=lambda n, _: told.append(n))]
    assert rows == [[8, 9, 10, 11]]
    assert told == [f"image {row}" for row in range(8)]


def test_what_was_drawn_before_an_error_comes_first() -> None:
    def make_images() -> Iterator[bytes]:
        yield from shades(10)
        raise OSError("the camera is gone")

    found, error = until_it_fails(predictions(Lone(), make_images(), batch=8))
    assert isinstance(error, OSError)
    assert found == [f"image {row}" for row in range(10)]
    assert reading() == []


def test_what_the_network_raises_is_raised_in_its_place() -> None:
    class Failing(Lone):
        def run(self, pixels: Array) -> tuple[Array, Array]:
            if pixels.max() > 0.99:
                raise RuntimeError("too bright")
            return super().run(pixels)

    images = [encoded(np.zeros((20, 20, 3), np.uint8))] * 20
    images[9], images[10] = b"no image", encoded(np.full((20, 20, 3), 255, np.uint8))
    told: list[str] = []
    found, error = until_it_fails(predictions(Failing(), images, batch=8, skip=lambda name, _: told.append(name)))
    assert (str(error), told) == ("too bright", ["image 9"])
    assert found == [f"image {row}" for row in range(8)]
    assert reading() == []


def test_near_ties_are_decided_by_the_thread_that_found_them() -> None:
    class Unsure(Lone):
        """Two classes as likely as each other, until the full image is seen."""

        def __init__(self, full: Array) -> None:
            super().__init__()
            self.about = About(Preprocess(size=32, scaled_decoding=True), ("smooth", "sharp"))
            self.full = full

        def run(self, pixels: Array) -> tuple[Array, Array]:
            super().run(pixels)
            same = np.array([np.array_equal(each, self.full) for each in pixels])
            logits = np.stack([~same, same], 1).astype(np.float32) * 0.2
            return logits, logits

    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).resize((400, 400), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
    runtime = Unsure(Preprocess(size=32)(file.getvalue()))
    found = predict(runtime, [file.getvalue()] * 12, top=1, batch=8)
    assert [each.labels for each in found] == [("sharp",)] * 12
    assert [number for *_, number in runtime.asked] == [4] * 6  # three parts, each twice
    assert all(alone for _, alone, _ in runtime.asked)
