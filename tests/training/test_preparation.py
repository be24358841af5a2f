"""Preparation: every image is decoded once before the first step, whatever a training needs of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitrail
from vitrail.data import image_scan, known_images, view_store
from vitrail.data.augmentation import Augment
from vitrail.data.cache import Views
from vitrail.errors import InputError
from vitrail.evaluation.training_sections import count_data
from vitrail.images import preprocess as preprocessing
from vitrail.images.file_bytes import FileBytes
from vitrail.network.config import ViTConfig
from vitrail.training import Callbacks, Options, Recipe, train
from vitrail.training.options import resolve
from vitrail.training.planning import make_plan
from vitrail.training.preparation import prepare
from vitrail.training.runs import make_parts, prepare_model

NETWORK = ViTConfig(image_size=16, patch_size=8, width=8, depth=1, heads=1, mlp_width=16)
PLAIN = Recipe(epochs=1, batch=8)
CROPS = Recipe(epochs=1, batch=8, augment=Augment(crop=(0.5, 1.0)))
MEMORY = (Views, view_store.ViewStore)  # what holds views, up to a limit


def photos(folder: Path, shapes: tuple[tuple[int, int], ...], bands: int = 3, kind: Any = np.uint8) -> Path:
    dice = np.random.default_rng(4)
    for row in range(30):
        name = ("dark", "bright")[row % 2]
        (folder / name).mkdir(parents=True, exist_ok=True)
        values = dice.integers(0, np.iinfo(kind).max // (2 - row % 2), (*shapes[row % len(shapes)], bands), kind)
        if bands == 3:
            turned = Image.Exif()
            turned[0x0112] = (1, 6, 8)[row % 3]
            Image.fromarray(values).save(folder / name / f"{row}.jpg", exif=turned)
        else:
            np.save(folder / name / f"{row}.npy", values)
    return folder


class Decodes:
    """How often each file was decoded before the first step."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.counts: Counter[str] = Counter()
        self.before_the_first_step: Counter[str] | None = None
        for module in (image_scan, view_store, preprocessing):
            for name in ("decode", "decode_bands", "decode_scaled"):
                if hasattr(module, name):
                    patch.setattr(module, name, self.counted(getattr(module, name)))

    def counted(self, decode: Any) -> Any:
        def count(source: Any, *arguments: Any, **named: Any) -> Any:
            if isinstance(source, str | Path | FileBytes):
                self.counts[Path(source.name if isinstance(source, FileBytes) else source).name] += 1
            return decode(source, *arguments, **named)

        return count

    def step(self, step: int, steps: int, loss: float) -> None:
        if self.before_the_first_step is None:
            self.before_the_first_step = self.counts.copy()


@pytest.mark.parametrize(
    "shapes, bands, kind",
    [
        (((20, 20),), 3, np.uint8),  # a centre crop
        (((24, 30),), 3, np.uint8),  # squashed
        (((20, 60), (50, 20), (40, 40)), 3, np.uint8),  # in bars of the mean, which is measured
        (((20, 20),), 5, np.uint16),
    ],
    ids=["crop", "squash", "pad", "bands"],
)
@pytest.mark.parametrize("recipe", [PLAIN, CROPS], ids=["plain", "crops"])
def test_every_image_is_decoded_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shapes: tuple[tuple[int, int], ...],
    bands: int,
    kind: Any,
    recipe: Recipe,
) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", "")  # the second run would know them
    data = photos(tmp_path / "photos", shapes, bands, kind)
    decodes = Decodes(monkeypatch)
    run = train(data, recipe=recipe, out=tmp_path, check=False, report=False, callbacks=Callbacks(step=decodes.step))
    assert decodes.before_the_first_step == Counter(path.name for path in data.rglob("*.*"))
    start = vitrail.load(run.best)
    decodes.before_the_first_step, decodes.counts = None, Counter()
    train(
        data,
        start=start,
        recipe=recipe,
        out=tmp_path,
        check=False,
        report=False,
        callbacks=Callbacks(step=decodes.step),
    )
    assert decodes.before_the_first_step == Counter(path.name for path in data.rglob("*.*"))  # k-NN and probe too


@pytest.mark.parametrize("recipe", [PLAIN, CROPS], ids=["plain", "crops"])
def test_what_memory_cannot_hold_is_read_again_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: Recipe
) -> None:
    data = photos(tmp_path / "photos", ((20, 60), (50, 20), (40, 40)))
    held = train(data, recipe=recipe, out=tmp_path, check=False, report=False)
    for kind in MEMORY:
        monkeypatch.setitem(kind.__init__.__kwdefaults__, "limit", 0)
    decodes = Decodes(monkeypatch)
    read = train(data, recipe=recipe, out=tmp_path, check=False, report=False, callbacks=Callbacks(step=decodes.step))
    assert decodes.before_the_first_step is not None
    assert max(decodes.before_the_first_step.values()) >= 2
    assert (held.folder / "metrics.jsonl").read_bytes() == (read.folder / "metrics.jsonl").read_bytes()
    weights = [vitrail.load(run.folder / "last.safetensors").model.state_dict() for run in (held, read)]
    assert all(value.equal(weights[1][name]) for name, value in weights[0].items())


def test_a_damaged_image_changes_nothing_for_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its header is whole, so that it was expected in a split: the splits are made again without it."""
    data = photos(tmp_path / "photos", ((20, 20), (24, 20)))
    bad = data / "dark" / "4.jpg"
    bad.write_bytes(bad.read_bytes()[:-300])
    options = Options(model=NETWORK, recipe=CROPS)
    prepared, choice = prepare_model(data, resolve(options), options)
    assert [name for name, _ in prepared.bad] == ["dark/4.jpg"]
    bad.unlink()
    without, same = prepare_model(data, resolve(options), options)
    assert prepared.dataset.samples == without.dataset.samples
    assert choice.preprocess == same.preprocess
    part = prepared.dataset.part("train")
    for margin in (1.0, 1.25):
        views = Views(part, choice.preprocess, margin=margin, store=prepared.store)
        assert views.get(range(len(part))).equal(Views(part, choice.preprocess, margin=margin).get(range(len(part))))


def test_a_store_holds_what_is_used_and_nothing_else(tmp_path: Path) -> None:
    data = photos(tmp_path / "photos", ((20, 20),))
    options = Options(model=NETWORK, recipe=PLAIN, limit=4)
    prepared, choice = prepare_model(data, resolve(options), options)
    assert prepared.store is not None
    stored = prepared.store.find(choice.preprocess)
    assert stored is not None
    names = {each.name for each in prepared.dataset.samples}
    assert {name for name, row in stored.rows.items() if stored.made[row]} == names
    assert len(names) < 30


def test_arrays_that_are_their_own_views_are_not_copied() -> None:
    options = Options(recipe=PLAIN, limit=20, size=28)
    prepared, _ = prepare_model("vitrail:fashion", resolve(options), options)
    assert prepared.store is None


def test_nothing_to_train_on_is_told_after_the_images_were_opened(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos", ((20, 20),))
    (tmp_path / "set").mkdir()
    folder.rename(tmp_path / "set" / "test")
    options = Options(model=NETWORK)
    with pytest.raises(InputError, match="has no images to train on: it has test only"):
        prepare_model(tmp_path / "set", resolve(options), options)


def test_what_is_left_out_or_unreadable_is_named(tmp_path: Path) -> None:
    dice = np.random.default_rng(0)
    for name in ("train/a", "train/b", "val/a", "val/b"):
        (tmp_path / name).mkdir(parents=True)
        for number in range(3):
            Image.fromarray(dice.integers(0, 256, (16, 16, 3), np.uint8)).save(tmp_path / name / f"{number}.png")
    (tmp_path / "train/a/page.jpg").write_text("<!doctype html>")
    (tmp_path / "train/b/gone.png").symlink_to("never.png")
    (tmp_path / "logs").mkdir()
    prepared = prepare(tmp_path, Options())
    assert prepared.notes[:4] == (
        "left out: 1 broken link: train/b/gone.png",
        "left out: 1 folder of logs: logs",
        "1 of 13 images cannot be read, and is skipped",
        "1 image cannot be read (not an image that can be read: it seems to be a web page, not an image: the download "
        "went wrong): train/a/page.jpg",
    )
    assert count_data(prepared.dataset, prepared.bad).left_out_names["unreadable images"] == ("train/a/page.jpg",)


@pytest.mark.parametrize("recipe", [PLAIN, CROPS], ids=["plain", "crops"])
def test_a_second_run_begins_at_once_and_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: Recipe
) -> None:
    """Of images that are known only those of the first batches are decoded before the first step."""
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(known_images, "TICK", -(10**12))  # files that were just made count as old
    data = photos(tmp_path / "photos", ((20, 60), (50, 20), (40, 40)))
    looked_at: list[tuple[int, int]] = []
    runs = []
    for _ in range(2):
        decodes = Decodes(monkeypatch)
        heard = Callbacks(step=decodes.step, images=lambda done, total: looked_at.append((done, total)))
        runs.append(train(data, recipe=recipe, out=tmp_path, check=False, report=False, callbacks=heard))
    assert looked_at[-1] == (30, 30)
    assert len(looked_at) == 1  # the second run looked at none
    assert decodes.before_the_first_step is not None
    assert 8 <= len(decodes.before_the_first_step) < 20  # of 30: batches of 8, and one ahead
    first, second = (run.folder for run in runs)
    assert (first / "data.json").read_bytes() == (second / "data.json").read_bytes()
    assert (first / "metrics.jsonl").read_bytes() == (second / "metrics.jsonl").read_bytes()
    weights = [vitrail.load(folder / "last.safetensors").model.state_dict() for folder in (first, second)]
    assert all(value.equal(weights[1][name]) for name, value in weights[0].items())


@pytest.mark.fault("T17")
def test_an_image_that_changes_before_it_is_decoded_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Known images are decoded when a batch asks for them: never others than those that the run lists."""
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(known_images, "TICK", -(10**12))
    data = photos(tmp_path / "photos", ((20, 20),))
    for change in (False, True):
        options = Options(model=NETWORK, recipe=PLAIN)
        prepared, choice = prepare_model(data, resolve(options), options)
        plan = make_plan(prepared, choice, resolve(options), options)
        part = make_parts(plan, prepared, options)["train"]
        if change:
            path = data / prepared.dataset.part("train").samples[3].name
            Image.new("RGB", (20, 20)).save(path)
            part.views.get([0, 1, 2])
            with pytest.raises(
                InputError, match=f"{path.name} has changed since it was listed: expected SHA-256 .*, got"
            ):
                part.views.get([3])
        else:
            part.views.get(range(len(part.views)))


def test_a_damaged_cache_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    data = photos(tmp_path / "photos", ((20, 20),))
    told: list[str] = []
    for _ in range(2):
        options = Options(model=NETWORK, recipe=PLAIN, callbacks=Callbacks(log=told.append))
        prepare_model(data, resolve(options), options)
        for path in (tmp_path / "cache" / "scans").iterdir():
            path.write_bytes(path.read_bytes()[:-1])
    [line] = told
    assert line.endswith("is damaged: all images are read again")
