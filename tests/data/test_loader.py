"""The loader: the same batches for any number of threads, errors where they belong, and no thread left behind."""

from __future__ import annotations

import gc
import hashlib
import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.data.augmentation import Augment, augment_images
from vitrail.data.cache import Views, normalise
from vitrail.data.loader import Batch, BatchRows, balanced_order, batches, epoch_order, repeats
from vitrail.data.mixing import mix_batch, one_hot
from vitrail.data.samples import Dataset, Sample
from vitrail.errors import ConfigError, InputError
from vitrail.images import Preprocess

ROOT = Path(__file__).resolve().parents[2]
PREPROCESS = Preprocess(size=12, crop=1.0, channels=1, mean=0.3, std=0.4)
EVERYTHING = Augment(crop=(0.3, 1.0), shift=1, flip=True, rand_ops=1, erase=0.3, mixup=0.5, cutmix=0.5)
COUNT = 41


def dataset_of(images: Any) -> Dataset:
    samples = tuple(Sample(f"{row}", (str(row % 3),)) for row in range(len(images)))
    return Dataset("set", samples, images, ("0", "1", "2"))


@pytest.fixture
def views() -> Views:
    return Views(dataset_of(np.random.default_rng(0).integers(0, 256, (COUNT, 12, 12), np.uint8)), PREPROCESS)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert loader_threads() == []


def loader_threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("vitrail-loader")]


def plan(epochs: int = 2, size: int = 8, seed: int = 4, start: int = 0) -> Iterator[BatchRows]:
    """As a training makes one: step after step, the last of an epoch smaller."""
    steps = itertools.count()
    for epoch in range(epochs):
        rows = epoch_order(seed, epoch, COUNT)
        for place in range(0, COUNT, size):
            step = next(steps)
            if step >= start:
                yield BatchRows(epoch, step, rows[place : place + size])


def load(views: Views, steps: Any, how: Augment = EVERYTHING, **changes: Any) -> Any:
    settings = {"preprocess": PREPROCESS, "augment": how, "seed": 4, "classes": 3, "smoothing": 0.1}
    return batches(views, np.arange(COUNT) % 3, steps, **(settings | changes))


def same(one: list[Batch], other: list[Batch]) -> bool:
    pairs = zip(one, other, strict=True)
    return all(
        np.array_equal(a.rows, b.rows) and torch.equal(a.pixels, b.pixels) and torch.equal(a.targets, b.targets)
        for a, b in pairs
    )


# ---- what a batch holds ------------------------------------------------------------------------------------------


def test_a_batch_is_the_views_augmented_normalised_and_mixed(views: Views) -> None:
    for step, batch in zip(plan(), load(views, plan()), strict=True):
        images = augment_images(views.get(step.rows), (12, 12), EVERYTHING, seed=4, epoch=step.epoch, rows=step.rows)
        targets = one_hot(torch.from_numpy(step.rows % 3), 3, 0.1)
        about = {"seed": 4, "epoch": step.epoch, "step": step.step}
        expected = mix_batch(normalise(images, PREPROCESS), targets, EVERYTHING, **about)
        np.testing.assert_array_equal(batch.rows, step.rows)
        assert torch.equal(batch.pixels, expected.pixels)
        assert torch.equal(batch.targets, expected.targets)


def test_without_augmentation_the_pixels_are_predicts(views: Views) -> None:
    for batch in load(views, plan(epochs=1), Augment(), smoothing=0.0):
        expected = PREPROCESS.batch([views.dataset.images[row] for row in batch.rows])
        np.testing.assert_array_equal(batch.pixels.numpy().view(np.int32), expected.view(np.int32))
        assert batch.targets.argmax(1).tolist() == (batch.rows % 3).tolist()
        assert batch.targets.sum(1).tolist() == [1.0] * len(batch.rows)


def test_several_labels_are_marks(views: Views) -> None:
    marks = (np.arange(COUNT * 3).reshape(COUNT, 3) % 2).astype(np.float32)
    settings: dict[str, Any] = {"preprocess": PREPROCESS, "augment": Augment(), "seed": 0, "classes": 3}
    [batch, *_] = batches(views, marks, plan(), **settings)
    np.testing.assert_array_equal(batch.targets.numpy(), marks[batch.rows])
    [batch, *_] = batches(views, marks, plan(), **settings, smoothing=0.2)
    np.testing.assert_allclose(batch.targets.numpy(), marks[batch.rows] * 0.8 + 0.1, rtol=1e-6)


def test_crops_are_cut_from_larger_views() -> None:
    images = np.random.default_rng(0).integers(0, 256, (COUNT, 15, 15), np.uint8)
    large = Views(dataset_of(images), PREPROCESS, margin=1.25)
    assert large.shape == (1, 15, 15)
    [batch, *_] = load(large, plan())
    assert batch.pixels.shape == (8, 1, 12, 12)
    with pytest.raises(InputError, match="images of 15x15 for a network of 12x12"):
        next(load(large, plan(), Augment(flip=True)))


# ---- threads -----------------------------------------------------------------------------------------------------


@pytest.mark.fault("T13")
@pytest.mark.parametrize("threads, ahead", [(1, 0), (1, 2), (2, 2), (3, 7)])
def test_t13_any_number_of_threads_gives_the_same(views: Views, threads: int, ahead: int) -> None:
    in_line = list(load(views, plan(), threads=0))
    assert len(in_line) == 12
    assert same(list(load(views, plan(), threads=threads, ahead=ahead)), in_line)


@pytest.mark.fault("T13")
def test_t13_the_order_is_a_function_of_seed_epoch_and_index() -> None:
    """The same rows whatever reads the images and prepares the batches, and from whichever step on."""
    images = np.random.default_rng(0).integers(0, 256, (COUNT, 14, 14), np.uint8)  # not the network's size: read
    hashes = set()
    for count in (0, 1, 2):
        views = Views(dataset_of(images), PREPROCESS, workers=count)
        hashes.add(
            hashlib.sha256(b"".join(each.rows.tobytes() for each in load(views, plan(), threads=count))).digest()
        )
    assert len(hashes) == 1
    for epoch in range(3):
        assert sorted(epoch_order(4, epoch, COUNT).tolist()) == list(range(COUNT))
    assert epoch_order(1, 2, 8).tolist() == [5, 1, 4, 3, 6, 7, 2, 0]  # for ever
    assert epoch_order(4, 0, COUNT).tolist() != epoch_order(4, 1, COUNT).tolist()
    assert epoch_order(4, 0, COUNT).tolist() != epoch_order(5, 0, COUNT).tolist()


def test_a_later_start_gives_the_rest(views: Views) -> None:
    everything = list(load(views, plan()))
    assert same(list(load(views, plan(start=5), threads=2)), everything[5:])


def test_no_more_is_prepared_than_asked_for(views: Views) -> None:
    """One batch is handed out and `ahead` more are under way; an endless plan is no trouble."""
    asked: list[int] = []

    def endless() -> Iterator[BatchRows]:
        for step in itertools.count():
            asked.append(step)
            yield BatchRows(0, step, np.array([step % COUNT]))

    feed = load(views, endless(), ahead=3)
    assert asked == []
    next(feed)
    assert asked == [0, 1, 2, 3]
    next(feed)
    assert asked == [0, 1, 2, 3, 4]
    feed.close()


@pytest.mark.parametrize("threads", [1, 3])
def test_torch_uses_one_thread_in_each_and_the_caller_keeps_its_own(
    views: Views, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    inside: list[int] = []
    get = Views.get

    def watched(self: Views, rows: Any) -> Any:
        inside.append(torch.get_num_threads())
        return get(self, rows)

    monkeypatch.setattr(Views, "get", watched)
    torch.set_num_threads(3)
    list(load(views, plan(), threads=threads))
    assert set(inside) == {1}
    assert torch.get_num_threads() == 3
    later: list[int] = []
    thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert later == [3]  # the default for new threads is the caller's too


@pytest.mark.parametrize("threads", [0, 2])
def test_the_threads_end_with_the_iterator(views: Views, monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    all_asked = threading.Event()
    get = Views.get

    def patient(self: Views, rows: Any) -> Any:
        """A thread that is done at once would be given the next step too, and no second one would start."""
        if threads:
            all_asked.wait()
        return get(self, rows)

    def telling() -> Iterator[BatchRows]:
        for number, step in enumerate(plan()):
            if number == threads:
                all_asked.set()
            yield step

    monkeypatch.setattr(Views, "get", patient)
    feed = load(views, telling(), threads=threads)
    assert loader_threads() == []  # nothing runs before the first batch is asked for
    next(feed)
    assert len(loader_threads()) == threads
    feed.close()
    assert loader_threads() == []

    feed = load(views, plan(), threads=threads)
    next(feed)
    del feed
    gc.collect()
    assert loader_threads() == []

    feed = load(views, plan(), threads=threads)
    assert len(list(feed)) == 12
    assert loader_threads() == []


def test_an_iterator_left_open_does_not_hold_up_the_end_of_the_program(tmp_path: Path) -> None:
    script = tmp_path / "open.py"
    script.write_text(
        "import numpy as np\n"
        "from vitrail.data.augmentation import Augment\n"
        "from vitrail.data.cache import Views\n"
        "from vitrail.data.loader import BatchRows, batches\n"
        "from vitrail.data.samples import Dataset, Sample\n"
        "from vitrail.images import Preprocess\n"
        "images = np.zeros((9, 8, 8), np.uint8)\n"
        "data = Dataset('set', tuple(Sample(str(row), ('a',)) for row in range(9)), images, ('a',))\n"
        "grey = Preprocess(size=8, crop=1.0, channels=1)\n"
        "plan = (BatchRows(0, step, np.arange(9)) for step in range(10**9))\n"
        "feed = batches(Views(data, grey), np.zeros(9, np.int64), plan, preprocess=grey, augment=Augment(), seed=0,\n"
        "               classes=1, threads=2)\n"
        "print(next(feed).pixels.mean().item())\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    run = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=environment, timeout=600, check=False
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "-1.0\n", "")


# ---- what goes wrong ---------------------------------------------------------------------------------------------


@pytest.mark.fault("T16")
@pytest.mark.parametrize("threads", [0, 1, 2])
def test_t16_a_file_that_breaks_in_the_middle_of_an_epoch_is_named(tmp_path: Path, threads: int) -> None:
    """The batches before it come through; then an error with its name and row, from which a training can go on."""
    files = []
    for row in range(COUNT):
        files.append(tmp_path / f"{row}.png")
        Image.fromarray(np.full((12, 12), row, np.uint8)).save(files[-1])
    views = Views(dataset_of(files), PREPROCESS, limit=0)
    expected = list(load(views, plan()))
    bad = int(expected[3].rows[5])
    files[bad].write_bytes(files[bad].read_bytes()[:50])
    feed = load(views, plan(), threads=threads)
    assert same([next(feed) for _ in range(3)], expected[:3])
    with pytest.raises(InputError, match=rf"/{bad}\.png: damaged or cut short"):
        next(feed)
    assert loader_threads() == []
    without = (step for step in plan(start=3) if bad not in step.rows)
    assert len(list(load(views, without, threads=threads))) == 12 - 3 - 2


@pytest.mark.parametrize("threads", [0, 2])
def test_errors_of_the_plan_and_of_labels_reach_the_caller(views: Views, threads: int) -> None:
    def broken() -> Iterator[BatchRows]:
        yield from plan(epochs=1)
        raise InputError("the plan ends here")

    feed = load(views, broken(), threads=threads, ahead=0)
    with pytest.raises(InputError, match="the plan ends here"):
        list(feed)
    with pytest.raises(InputError, match="labels: expected class numbers from 0 to 1, got 2"):
        list(load(views, plan(), classes=2, threads=threads))


def test_wrong_values_are_refused_at_once(views: Views) -> None:
    with pytest.raises(InputError, match="targets: expected one for each of 41 images, got 5"):
        batches(views, np.arange(5), plan(), preprocess=PREPROCESS, augment=Augment(), seed=0, classes=9)
    with pytest.raises(InputError, match=r"targets: expected \(n,\) or \(n, 4\), got \(41, 3\)"):
        batches(views, np.zeros((COUNT, 3)), plan(), preprocess=PREPROCESS, augment=Augment(), seed=0, classes=4)
    with pytest.raises(InputError, match="threads: expected a whole number from 0 to 1024, got -1"):
        load(views, plan(), threads=-1)
    with pytest.raises(ConfigError, match="smoothing: expected a number from 0.0 to 1.0, got 2"):
        load(views, plan(), smoothing=2.0)


# ---- balanced orders ---------------------------------------------------------------------------------------------


def test_balanced_orders_show_each_class_equally_often() -> None:
    labels = np.array([0] * 50 + [1] * 7 + [3] * 3)  # none of class 2
    fewest = set()
    for epoch in range(8):
        rows = balanced_order(labels, 0, epoch, 62)
        counts = np.bincount(labels[rows], minlength=4)
        fewest.add([0, 1, 3][int(counts[[0, 1, 3]].argmin())])
        assert sorted(counts[[0, 1, 3]].tolist()) == [20, 21, 21]
        assert counts[2] == 0
        seen = np.bincount(rows, minlength=60)
        assert set(seen[57:].tolist()) <= {6, 7}  # three images take 20 or 21 repeats in all: all alike
        assert set(seen[50:57].tolist()) <= {2, 3}
        assert seen[:50].max() == 1
    assert fewest == {0, 1, 3}  # no class is favoured
    orders = {balanced_order(labels, seed, epoch, 62).tobytes() for seed in (0, 1) for epoch in (0, 1, 1)}
    assert len(orders) == 4
    many = np.unique(np.concatenate([balanced_order(labels, 0, epoch, 62) for epoch in range(30)]))
    np.testing.assert_array_equal(many, np.arange(60))  # nobody is left out for good


def test_balanced_orders_are_mixed() -> None:
    """Classes do not stand in blocks: neighbours are of the same class about half of the time."""
    rows = balanced_order(np.array([0] * 500 + [1] * 20), 0, 0, 1000) < 500
    assert 420 < int((rows[1:] == rows[:-1]).sum()) < 580


def test_balance_needs_one_label_an_image() -> None:
    with pytest.raises(InputError, match=r"labels: expected one class number an image, got shape \(4, 3\)"):
        balanced_order(np.zeros((4, 3)), 0, 0, 4)


def test_an_image_that_comes_again_looks_different(views: Views) -> None:
    rows = np.array([7, 3, 7, 7, 3])
    assert repeats(rows).tolist() == [0, 0, 1, 2, 1]
    assert repeats(epoch_order(0, 0, COUNT)).tolist() == [0] * COUNT
    how = Augment(crop=(0.2, 0.6))
    [batch] = load(views, [BatchRows(1, 0, rows, repeats(rows))], how)
    assert len({each.numpy().tobytes() for each in batch.pixels}) == 5
    [again] = load(views, [BatchRows(1, 0, rows)], how)
    assert torch.equal(again.pixels[0], again.pixels[2])
    assert torch.equal(again.pixels[:2], batch.pixels[:2])  # the first time it is as ever
