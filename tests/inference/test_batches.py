"""run_batches: every runtime is given what it takes, any number of images, two batches at a time; no threads stay."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vitrail.errors import CheckpointError, ImageError, InputError
from vitrail.images import Preprocess
from vitrail.images.model_info import ModelInfo
from vitrail.inference import Named, RuntimeBase, Takes, batches, embed, predict, predictions
from vitrail.inference.batches import run_batches
from vitrail.inference.runtime import MEMBERS

Array = np.ndarray[Any, Any]


class Colours(RuntimeBase):
    """A stand-in network: the mean of each channel is its logit, and its embedding."""

    def __init__(self, **changes: Any) -> None:
        self.about = ModelInfo(Preprocess(**{"size": 16, "crop": 1.0} | changes), ("red", "green", "blue"))
        self.given: list[Array] = []

    def run(self, pixels: Array) -> tuple[Array, Array]:
        self.given.append(pixels)
        found = pixels.mean(axis=(2, 3)).astype(np.float32)
        return found, found


class ByteColours(Colours):
    """The same, of 8-bit values."""

    takes: Takes = "uint8"

    def run_uint8(self, values: Array) -> tuple[Array, Array]:
        self.given.append(values)
        found = self.preprocess.normalise(values).mean(axis=(2, 3)).astype(np.float32)
        return found, found


def reading() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("vitrail-reading")]


def shades(count: int) -> list[Array]:
    """Images of one colour each, all different."""
    dice = np.random.default_rng(0).integers(0, 256, (count, 3), np.uint8)
    return [np.broadcast_to(colour, (20, 20, 3)) for colour in dice]


def broken(path: Path) -> Path:
    path.write_bytes(b"\x89PNG\r\n\x1a\n")
    return path


# ---- bytes or pixels ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["RGB", "BGR"])
def test_a_runtime_that_takes_bytes_is_given_them(order: Any) -> None:
    images = shades(10)
    way = {"order": order, "mean": (0.1, 0.2, 0.3), "std": (0.5, 0.6, 0.7)}
    plain, compact = Colours(**way), ByteColours(**way)
    assert predict(compact, images, batch=4) == predict(plain, images, batch=4)
    assert [each.dtype for each in compact.given] == [np.uint8] * 3
    assert [each.shape for each in compact.given] == [(4, 16, 16, 3), (4, 16, 16, 3), (2, 16, 16, 3)]
    assert [each.dtype for each in plain.given] == [np.float32] * 3
    assert 4 * compact.given[0].nbytes == plain.given[0].nbytes
    for values, pixels in zip(compact.given, plain.given, strict=True):
        assert np.array_equal(compact.preprocess.normalise(values), pixels)


def test_images_of_other_ranges_go_as_pixels() -> None:
    deep = ByteColours(range=65535)
    predict(deep, [np.full((20, 20, 3), 40000, np.uint16)])
    assert [each.dtype for each in deep.given] == [np.float32]


def test_whole_images_go_one_by_one() -> None:
    """A runtime that resizes by itself is given each image as large as it is."""

    class Whole(ByteColours):
        takes = "images"

    dice = np.random.default_rng(0)
    images = [dice.integers(0, 256, (height, width, 3), np.uint8) for height, width in ((20, 30), (41, 17), (20, 30))]
    runtime = Whole(scaled_decoding=True)
    predict(runtime, images, batch=4)
    assert len(runtime.given) == 3
    for values, image in zip(runtime.given, images, strict=True):
        assert np.array_equal(values, image[None])
    grey = Whole(channels=1)
    predict(grey, [images[0]])
    assert np.array_equal(grey.given[0], np.asarray(Image.fromarray(images[0]).convert("L"))[None, :, :, None])


def test_a_runtime_resizes_in_its_own_way_only_under_scaled_decoding() -> None:
    """Which asks for speed; all else has the bits that every runtime sees."""
    asked: list[int] = []

    class Own(ByteColours):
        def resample(self, *given: Any) -> Any:
            asked.append(len(given))
            raise RuntimeError("its own way")

    image = np.random.default_rng(0).integers(0, 256, (40, 30, 3), np.uint8)
    plain, scaled = Own(), Own(scaled_decoding=True)
    predict(plain, [image])
    assert asked == []
    assert np.array_equal(plain.given[0][0], plain.preprocess.to_uint8(image))
    with pytest.raises(RuntimeError, match="its own way"):
        predict(scaled, [image])
    assert len(asked) == 1


# ---- streams -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch, threads", [(1, 1), (1, 3), (4, 2), (16, 2)])
def test_a_stream_is_never_drawn_further_than_two_batches(batch: int, threads: int) -> None:
    drawn = 0

    def make_images() -> Iterator[Array]:
        nonlocal drawn
        for shade in shades(300):
            drawn += 1
            yield shade

    runtime = Colours()
    for number, each in enumerate(predictions(runtime, make_images(), batch=batch, threads=threads)):
        assert each.path == f"image {number}"
        finished = number // batch * batch  # images of the batches before this one
        assert drawn <= finished + 2 * batch
    assert number == 299
    assert drawn == 300
    assert reading() == []


@pytest.mark.parametrize("cores, ahead", [(8, 4), (2, 0)])
def test_the_next_batch_is_read_while_the_network_works(
    cores: int, ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With cores to spare, all of the next batch and nothing more; where readers fill the machine, they take turns."""
    monkeypatch.setattr(batches, "_cores", lambda: cores)
    drawn = threading.Semaphore(0)
    count = 0

    def images() -> Iterator[Array]:
        nonlocal count
        for shade in shades(40):
            count += 1
            drawn.release()
            yield shade

    seen: list[int] = []

    class Waiting(Colours):
        def run(self, pixels: Array) -> tuple[Array, Array]:
            for _ in range(4 + ahead if not seen else 4):  # what there is room for comes without fail ...
                drawn.acquire()
            assert not drawn.acquire(timeout=0.1)  # ... and no more
            seen.append(count)
            return super().run(pixels)

    found = predictions(Waiting(), images(), batch=4, threads=2)
    assert [next(found).path for _ in range(12)] == [f"image {number}" for number in range(12)]
    assert seen == [4 + ahead, 8 + ahead, 12 + ahead]
    found.close()
    assert reading() == []


def test_memory_does_not_grow_with_the_number_of_images() -> None:
    """Two batches of four, and what the network makes of one: far from all 400, however fast they are read."""
    image = np.zeros((64, 64, 3), np.uint8)
    runtime = ByteColours(size=64)
    runtime.given = Forgetful()
    list(predictions(runtime, [image] * 20, batch=4))  # whatever is allocated once
    tracemalloc.start()
    try:
        for _ in predictions(runtime, (image for _ in range(400)), batch=4):
            pass
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 100 * image.nbytes  # measured: 33


class Forgetful(list[Array]):
    def append(self, _: Array) -> None:
        """Keep nothing."""


def test_a_stream_gives_what_a_list_gives(tmp_path: Path) -> None:
    paths = []
    for number, shade in enumerate(shades(9)):
        paths.append(tmp_path / f"{number}.png")
        Image.fromarray(np.ascontiguousarray(shade)).save(paths[-1])
    runtime = Colours()
    expected = predict(runtime, paths, batch=4)
    assert [each.path for each in expected] == [str(path) for path in paths]
    assert list(predictions(runtime, iter(paths), batch=4)) == expected
    assert list(predictions(runtime, (str(path) for path in paths), batch=4, threads=1)) == expected
    named = [Named(f"shade {number}", path) for number, path in enumerate(paths)]
    assert [each.path for each in predictions(runtime, named)] == [f"shade {number}" for number in range(9)]
    together = np.concatenate([each.embedding for each in run_batches(runtime, iter(paths), batch=2)])
    assert np.array_equal(together, embed(runtime, paths))


def test_answers_come_before_the_stream_ends() -> None:
    def endless() -> Iterator[Array]:
        while True:
            yield shades(1)[0]

    found = predictions(Colours(), endless(), batch=2)
    assert [next(found).path for _ in range(5)] == [f"image {number}" for number in range(5)]
    assert len(reading()) == 2
    found.close()
    assert reading() == []


# ---- what goes wrong ---------------------------------------------------------------------------------------------


def test_an_image_that_cannot_be_read_comes_in_its_place(tmp_path: Path) -> None:
    given = [*shades(3), broken(tmp_path / "b.png"), *shades(4)]
    seen: list[str] = []
    with pytest.raises(ImageError, match="b.png"):
        seen.extend(each.path for each in predictions(Colours(), given, batch=8))
    assert seen == ["image 0", "image 1", "image 2"]
    assert reading() == []
    told: list[str] = []
    count: list[int] = []
    for batch in (1, 3, 8):
        told.clear()
        count.clear()
        found = list(
            predictions(Colours(), given, batch=batch, skip=lambda name, _: told.append(name), done=count.append)
        )
        assert [each.path for each in found] == [f"image {number}" for number in (0, 1, 2, 4, 5, 6, 7)]
        assert told == [str(tmp_path / "b.png")]
        assert sum(count) == 8


def test_an_image_that_was_not_even_found() -> None:
    given = [Named("a", shades(1)[0]), Named("clip", ImageError("clip: cut short")), Named("b", shades(1)[0])]
    with pytest.raises(ImageError, match="clip: cut short"):
        list(predictions(Colours(), given))
    told: list[tuple[str, str]] = []
    found = list(predictions(Colours(), given, skip=lambda name, error: told.append((name, str(error)))))
    assert [each.path for each in found] == ["a", "b"]
    assert told == [("clip", "clip: cut short")]


def test_whatever_fails_leaves_no_threads(tmp_path: Path) -> None:
    class Failing(Colours):
        def run(self, pixels: Array) -> tuple[Array, Array]:
            raise RuntimeError("out of memory")

    def unplugged() -> Iterator[Array]:
        yield shades(1)[0]
        raise OSError("unplugged")

    for runtime, images, error in (
        (Failing(), shades(40), RuntimeError),
        (Colours(), unplugged(), OSError),
        (Colours(), [*shades(2), None], InputError),
    ):
        with pytest.raises(error):
            list(predictions(runtime, images, batch=4))  # type: ignore[arg-type]
        assert reading() == []

    def stop(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        predict(Colours(), shades(40), batch=4, done=stop)
    assert reading() == []


def test_a_runtime_that_loses_rows_is_found_out() -> None:
    class Losing(Colours):
        def run(self, pixels: Array) -> tuple[Array, Array]:
            logits, embedding = super().run(pixels)
            return logits[1:], embedding

    with pytest.raises(InputError, match="Losing gave 2 rows of logits and 3 embeddings for 3 images"):
        predict(Losing(), shades(3))


def test_mistakes_are_told_before_anything_is_read() -> None:
    image = np.zeros((20, 20, 3), np.uint8)
    for wrong in ("a.jpg", b"x", image, Image.fromarray(image), None, 5, {"a": 1}):
        with pytest.raises(InputError, match="expected images one after another, got .*: put it in a list"):
            predictions(Colours(), wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="threads: expected a whole number from 1 to 256, got 0"):
        predictions(Colours(), [image], threads=0)
    with pytest.raises(InputError, match="batch: expected a whole number from 1 to"):
        predictions(Colours(), [image], batch=0)
    with pytest.raises(CheckpointError, match="no exported file"):
        predictions("model.onnx", [image])
    with pytest.raises(CheckpointError, match="no checkpoint model.safetensors: expected a file or folder of weights"):
        predictions("model.safetensors", [image])
    for wrong in (SimpleNamespace(preprocess=Preprocess(), classes=("a",)), 5, None):
        with pytest.raises(InputError, match="expected a checkpoint or another runtime, got .*: see vitrail.load"):
            predictions(wrong, [image])  # type: ignore[arg-type]
    half = SimpleNamespace(**{name: None for name in MEMBERS if name not in ("takes", "resample")} | {"run": print})
    with pytest.raises(InputError, match="SimpleNamespace is no runtime, it lacks takes, resample: let it inherit"):
        predictions(half, [image])  # type: ignore[arg-type]
    assert reading() == []
