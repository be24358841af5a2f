"""Near ties of scaled images are decided by the full one: which they are, and what becomes of them."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vitrail.images import Preprocess
from vitrail.images.model_info import About, Described
from vitrail.inference import embed, predict
from vitrail.inference.batches import PATIENCE, passes
from vitrail.inference.settling import CLEAR, near_ties, settle

Array = np.ndarray[Any, Any]
FULL, SCALED = Preprocess(size=32), Preprocess(size=32, scaled_decoding=True)


class Sharpness(Described):
    """A stand-in network: 'smooth' and 'sharp' are `apart` and change places with full decoding, seen by its pixels."""

    def __init__(self, full: Array, apart: float, preprocess: Preprocess = SCALED, task: str = "single-label") -> None:
        self.about = About(preprocess, ("smooth", "sharp"), task=task)
        self.full, self.apart = full, apart
        self.given: list[int] = []

    def run(self, pixels: Array) -> tuple[Array, Array]:
        self.given.append(len(pixels))
        same = np.array([np.array_equal(each, self.full) for each in pixels])
        logits = np.stack([~same, same], 1) * np.float32(self.apart)  # (B, 2)
        logits.flags.writeable = False  # as some runtimes give them
        return logits, logits


@pytest.fixture(scope="module")
def data() -> bytes:
    """A JPEG large enough to be decoded at a part of its size."""
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).resize((400, 400), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
    return file.getvalue()


def test_near_is_less_than_clear() -> None:
    apart = np.log(CLEAR)
    logits = np.array([[0, 5, 5 + 0.99 * apart], [5 + 1.01 * apart, 5, 0], [1, 1, 1], [-9, 3, -9]], np.float32)
    assert near_ties(logits, "single-label").tolist() == [True, False, True, False]
    assert near_ties(logits, "multi-label").tolist() == [False] * 4  # every class is asked by itself
    assert near_ties(logits[:, :1], "single-label").tolist() == [False] * 4
    assert near_ties(np.zeros((2, 0), np.float32), "single-label").tolist() == [False] * 2


def test_near_ties_of_all_batches_are_run_at_once() -> None:
    first = np.array([[0.1, 0.0], [9.0, 0.0]], np.float32), np.array([[0.0], [1.0]], np.float32)
    second = np.array([[0.1, 0.0], [0.2, 0.0]], np.float32), np.array([[2.0], [3.0]], np.float32)
    again = {(0, 0): np.array([7], np.uint8), (1, 0): None, (1, 1): np.array([8], np.uint8)}
    ran: list[Array] = []

    def run(values: Array) -> tuple[Array, Array]:
        ran.append(values)
        return np.array([[0.0, 4.0], [0.0, 5.0]], np.float32), np.array([[40.0], [50.0]], np.float32)

    (one, its), (other, others) = settle([first, second], again, run)
    assert one.tolist() == [[0.0, 4.0], first[0][1].tolist()]
    assert other.tolist() == [second[0][0].tolist(), [0.0, 5.0]]
    assert (its.tolist(), others.tolist()) == ([[40], [1]], [[2], [50]])
    assert [each.tolist() for each in ran] == [[[7], [8]]]
    assert first[0][0, 1] == 0  # what the runtime gave is left alone
    assert settle([first], {(0, 0): None}, run)[0][0] is first[0]
    assert len(ran) == 1


class Black(Sharpness):
    """The same, but sure that what is black is smooth."""

    def run(self, pixels: Array) -> tuple[Array, Array]:
        logits = super().run(pixels)[0].copy()
        logits[pixels.max(axis=(1, 2, 3)) <= -1] = 9.0, 0.0
        return logits, logits


def test_near_ties_wait_until_they_fill_a_batch(data: bytes) -> None:
    black, full = np.zeros((40, 40, 3), np.uint8), FULL(data)
    images = [data if number % 3 == 0 else black for number in range(24)]  # two or one of four are near ties
    runtime = Black(full, 0.2)
    found = list(passes(runtime, images, batch=4, settled=True))
    assert [each.rows.tolist() for each in found] == np.arange(24).reshape(6, 4).tolist()
    labels = np.concatenate([each.logits for each in found]).argmax(axis=1)
    assert labels.tolist() == [int(number % 3 == 0) for number in range(24)]
    assert runtime.given == [4, 4, 4, 4, 4, 4, 4, 4]  # six batches; after every three of them, their four ties


def test_a_near_tie_does_not_wait_for_ever(data: bytes) -> None:
    black, full = np.zeros((40, 40, 3), np.uint8), FULL(data)
    drawn: list[int] = []

    def endless() -> Iterator[Any]:
        for number in range(400):
            drawn.append(number)
            yield data if number == 0 else black

    runtime = Black(full, 0.2)
    first = next(passes(runtime, endless(), batch=2, settled=True))
    assert first.rows.tolist() == [0, 1]
    assert first.logits.argmax(axis=1).tolist() == [1, 0]
    assert runtime.given == [2] * PATIENCE + [1]
    assert len(drawn) <= 2 * PATIENCE + 4
    # What was waiting comes before an error that the images themselves raise.

    def broken() -> Iterator[Any]:
        yield from (data, black, black)
        raise OSError("the camera is gone")

    found = passes(Black(full, 0.2), broken(), batch=2, settled=True)
    assert next(found).logits.argmax(axis=1).tolist() == [1, 0]
    assert next(found).rows.tolist() == [2]
    with pytest.raises(OSError, match="the camera is gone"):
        next(found)
    clear = Black(full, 0.2)
    next(passes(clear, [black] * 40, batch=2, settled=True))
    assert clear.given == [2]  # without ties there is nothing to wait for


def test_the_full_image_decides(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(data)
    full = FULL(data)
    assert not np.array_equal(full, SCALED(data))
    near, clear = Sharpness(full, 0.2), Sharpness(full, 0.5)
    for source in (data, path):
        assert predict(near, [source])[0].labels[0] == "sharp"
        assert predict(clear, [source])[0].labels[0] == "smooth"
    assert (near.given, clear.given) == ([1, 1] * 2, [1] * 2)


def test_all_else_is_run_once(data: bytes) -> None:
    """Embeddings, several labels, full decoding; images in memory, which are never scaled."""
    full = FULL(data)
    with Image.open(io.BytesIO(data)) as image:
        decoded = np.asarray(image)
    vectors, several = Sharpness(full, 0.2), Sharpness(full, 0.2, task="multi-label")
    plain, memory = Sharpness(full, 0.2, FULL), Sharpness(full, 0.2)
    embed(vectors, [data])
    predict(several, [data])
    predict(plain, [data])
    predict(memory, [decoded, Image.fromarray(decoded)])
    assert [each.given for each in (vectors, several, plain, memory)] == [[1], [1], [1], [2]]


def test_a_file_that_is_gone_keeps_its_answer(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(data)

    class Removing(Sharpness):
        def run(self, pixels: Array) -> tuple[Array, Array]:
            path.unlink()
            return super().run(pixels)

    assert predict(Removing(FULL(data), 0.2), [path])[0].labels[0] == "smooth"


def test_a_file_that_is_another_by_now_keeps_its_answer(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "latest.jpg"
    path.write_bytes(data)
    with Image.open(io.BytesIO(data)) as image:
        image.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "next.jpg", quality=90)

    class Exchanging(Sharpness):
        def run(self, pixels: Array) -> tuple[Array, Array]:
            path.write_bytes((tmp_path / "next.jpg").read_bytes())
            return super().run(pixels)

    assert predict(Exchanging(FULL(tmp_path / "next.jpg"), 0.2), [path])[0].labels[0] == "smooth"


def test_several_ties_of_a_batch_are_counted_once_and_keep_their_order(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "broken.jpg").write_bytes(data[:200])
    network = Sharpness(FULL(data), 0.2)
    done: list[int] = []
    left_out: list[str] = []
    found = list(
        passes(
            *(network, [data, data, tmp_path / "broken.jpg", data, data]),
            batch=3,
            skip=lambda name, error: left_out.append(name),
            done=done.append,
            settled=True,
        )
    )
    assert [each.rows.tolist() for each in found] == [[0, 1], [3, 4]]
    assert [each.logits.argmax(1).tolist() for each in found] == [[1, 1], [1, 1]]
    assert network.given == [2, 2, 3, 1]  # scaled, of each batch, then in full, of both, a batch at a time
    assert (sum(done), len(left_out)) == (5, 1)


def test_another_file_of_the_same_size_is_another(data: bytes, tmp_path: Path) -> None:
    """Time and size tell whether a file is still the one that was read."""
    path = tmp_path / "latest.jpg"
    path.write_bytes(data)
    os.utime(path, ns=(0, 1_000_000_000))

    class Exchanging(Sharpness):
        def run(self, pixels: Array) -> tuple[Array, Array]:
            path.write_bytes(data)
            os.utime(path, ns=(0, 2_000_000_000))
            return super().run(pixels)

    assert predict(Exchanging(FULL(data), 0.2), [path])[0].labels[0] == "smooth"
    assert predict(Sharpness(FULL(data), 0.2), [path])[0].labels[0] == "sharp"


@pytest.mark.parametrize("clear, decided_by", [(1.5, "quick"), (2.5, "sure"), (1.0, "itself")])
def test_of_two_networks_the_sure_one_decides_what_is_unclear(data: bytes, clear: float, decided_by: str) -> None:
    """Of two classes, one is twice as likely: clear enough for the quick one, or not; at 1 there is nothing to ask."""

    class Pair(Sharpness):
        def __init__(self) -> None:
            super().__init__(FULL(data), 0.0)
            self.clear = clear
            self.quick, self.sure = (Sharpness(FULL(data), 0.0) for _ in range(2))
            for network, logits in ((self.quick, (0.0, 0.7)), (self.sure, (0.9, 0.0)), (self, (0.0, 5.0))):
                network.run = self.saying(network, logits)  # type: ignore[method-assign]

        def saying(self, network: Sharpness, logits: tuple[float, float]) -> Any:
            def run(pixels: Array) -> tuple[Array, Array]:
                network.given.append(len(pixels))
                found = np.tile(np.array(logits, np.float32), (len(pixels), 1))
                return found, found

            return run

    runtime = Pair()
    [found] = predict(runtime, [data], top=1)
    asked = {"quick": len(runtime.quick.given), "sure": len(runtime.sure.given), "itself": len(runtime.given)}
    assert found.labels == (("smooth",) if decided_by == "sure" else ("sharp",))
    assert asked == {
        "quick": int(decided_by != "itself"),
        "sure": int(decided_by == "sure"),
        "itself": int(decided_by == "itself"),
    }
