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

from inference.colours import Array, ByteColours, Colours, reading, shades
from vitrail.errors import CheckpointError, InputError
from vitrail.images import Preprocess
from vitrail.inference import Named, batches, embed, predict, predictions
from vitrail.inference.batches import run_batches
from vitrail.inference.runtime import MEMBERS

# ---- bytes or pixels ---------------------------------------------------------------------------------------------


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
            run_batches(Colours(), wrong)  # type: ignore[arg-type]
    for wrong in (None, 5, {"a": 1}):
        with pytest.raises(InputError, match="expected images as a path, a folder, .*, got"):
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
