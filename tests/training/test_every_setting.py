"""Every setting does something: a table says what changing each one changes, and a tiny training shows it.

A new field of Recipe, Augment or Options needs an entry here, in the table of its name: mostly one line.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

import vitrail
from vitrail.data import cache as views
from vitrail.data import image_scan, loader, view_store
from vitrail.data.augmentation import Augment
from vitrail.data.manifest import Manifest
from vitrail.errors import ConfigError, InputError, VitrailError
from vitrail.network.config import ViTConfig
from vitrail.network.presets import PRESETS
from vitrail.network.vit import ViT
from vitrail.training import Callbacks, Options, Recipe, Run, compilation, final_evaluation, loop, pace, planning, train
from vitrail.training.pace import Speed
from vitrail.training.recipe import BALANCES, OPTIMISERS, PRECISIONS, SCHEDULES

NETWORK = ViTConfig(
    image_size=8, patch_size=4, width=8, depth=2, heads=1, mlp_width=16, pool="mean", cls_token=False, dropout=0.0
)
SHORT = Recipe(epochs=2, batch=8, warmup=0.0)
COUNTS = {"a": 19, "b": 10, "c": 6}  # images of each class: 24 of 35 are trained on, 3 steps an epoch


COMMAND = "vitrail train tiny --as-no-other"


class Trained(NamedTuple):
    """What a training left."""

    run: Run
    weights: dict[str, Tensor]
    told: list[str]


class Bench:
    """Tiny trainings on a folder of tiny images; one that was asked for before is not run again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.images = folder / "tiny"
        self._known: dict[str, Trained] = {}
        dice = np.random.default_rng(5)
        for number, (name, count) in enumerate(COUNTS.items()):
            (self.images / name).mkdir(parents=True)
            for row in range(count):
                pixels = dice.integers(0, 150, (8, 8, 3), dtype=np.uint8)
                pixels[:, :, number] += 100
                Image.fromarray(pixels).save(self.images / name / f"{row}.png")

    def train(self, **options: Any) -> Trained:
        """The default training but for these options; always of the same seed."""
        asked = repr(sorted(options.items()))
        if asked not in self._known:
            self._known[asked] = self.fresh(**options)
        return self._known[asked]

    def fresh(self, **options: Any) -> Trained:
        """The same, in a new folder and certainly run."""
        told: list[str] = []
        given: dict[str, Any] = {"model": NETWORK, "recipe": SHORT, "check": False, "report": False}
        given |= {
            "out": self.folder / f"runs-{len(list(self.folder.iterdir()))}",
            "callbacks": Callbacks(log=told.append),
        }
        run = train(options.pop("data", self.images), **given | options)
        return Trained(run, load_file(run.folder / "last.safetensors"), told)

    def recipe(self, **settings: Any) -> Trained:
        """The default training but for these settings of its recipe."""
        return self.train(recipe=dataclasses.replace(SHORT, **settings))


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            final_evaluation, "evaluation_of", partial(final_evaluation.evaluation_of, resamples=0)
        )  # intervals take a while
        patch.setattr(os, "fsync", lambda number: None)  # and so do thousands of syncs, which test_state.py looks at
        yield Bench(tmp_path_factory.mktemp("bench"))


def equal(one: Trained, other: Trained) -> bool:
    return one.weights.keys() == other.weights.keys() and all(
        torch.equal(value, other.weights[name]) for name, value in one.weights.items()
    )


def splits_of(trained: Trained) -> list[str]:
    manifest = Manifest.from_json((trained.run.folder / "data.json").read_text())
    return [each.split for each in manifest.entries]


# ---- what an entry may say ---------------------------------------------------------------------------------------

Shows = Callable[[Bench, pytest.MonkeyPatch], None]


def other_weights(name: str, value: Any, **others: Any) -> Shows:
    """A recipe with this setting ends with other weights; both have the `others`, without which it would not matter."""

    def shows(bench: Bench, patch: pytest.MonkeyPatch) -> None:
        assert not equal(bench.recipe(**others), bench.recipe(**others | {name: value}))

    return shows


def every_value(name: str, values: tuple[str, ...], **others: Any) -> Shows:
    """Every one of the values ends with weights of its own."""

    def shows(bench: Bench, patch: pytest.MonkeyPatch) -> None:
        trained = {value: bench.recipe(**others | {name: value}) for value in values}
        same = [(a, b) for a in values for b in values if a < b and equal(trained[a], trained[b])]
        assert same == []

    return shows


def other_images(name: str, value: Any, **others: Any) -> Shows:
    """An augmentation with this setting ends with other weights."""

    def shows(bench: Bench, patch: pytest.MonkeyPatch) -> None:
        before, after = (Augment(**others), Augment(**others | {name: value}))
        assert not equal(bench.recipe(augment=before), bench.recipe(augment=after))

    return shows


def as_in_recipe(name: str, value: Any, **others: Any) -> Shows:
    """The option does what the recipe's setting of its name does, and that is not nothing."""

    def shows(bench: Bench, patch: pytest.MonkeyPatch) -> None:
        recipe = dataclasses.replace(SHORT, **others)
        by_option, by_recipe = bench.train(recipe=recipe, **{name: value}), bench.recipe(**others | {name: value})
        assert equal(by_option, by_recipe)
        assert by_option.run.plan == by_recipe.run.plan
        assert by_option.run.plan != bench.train(recipe=recipe).run.plan

    return shows


# ---- Recipe ------------------------------------------------------------------------------------------------------


def epochs(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    assert [bench.recipe(epochs=count).run.steps for count in (0, 2, 2.5)] == [0, 6, 8]


def batch(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    seen = passes(patch)
    assert bench.fresh(recipe=dataclasses.replace(SHORT, batch=10)).run.steps == 4
    assert seen == [10] * 4  # of 24 images; what is left of an epoch makes no step


def passes(patch: pytest.MonkeyPatch) -> list[int]:
    """How many images go through the network at a time while it learns; filled as it does."""
    seen: list[int] = []
    forward = ViT.forward

    def watched(self: ViT, pixels: Tensor, **more: Any) -> Tensor:
        if self.training:
            seen.append(len(pixels))
        return forward(self, pixels, **more)

    patch.setattr(ViT, "forward", watched)
    return seen


def pieces(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    whole = bench.recipe(optimiser="sgd")
    seen = passes(patch)
    parted = bench.fresh(recipe=dataclasses.replace(SHORT, optimiser="sgd", pieces=3))
    assert seen == [3, 3, 2] * 6
    for name, value in whole.weights.items():
        torch.testing.assert_close(parted.weights[name], value, rtol=0, atol=1e-6)


def patience(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    still: dict[str, Any] = {"lr": 1e-12, "epochs": 9}
    assert bench.recipe(**still).run.steps == 27
    assert bench.recipe(**still, patience=2).run.steps < 27


def ema(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    plain, averaged = bench.recipe(), bench.recipe(ema=0.9)
    assert not equal(plain, averaged)  # the average is what is kept
    [before], [after] = ([*each.run.folder.glob("state/*s000000006*")] for each in (plain, averaged))
    assert b"average.head" not in before.read_bytes()
    assert b"average.head" in after.read_bytes()


def tune(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    start = bench.recipe(epochs=0).weights
    for value, parts in {"all": {"patches", "tokens", "encoder", "norm", "head"}, "head": {"head"}}.items():
        moved = {name for name, each in bench.recipe(tune=value).weights.items() if not torch.equal(each, start[name])}
        assert {name.split(".")[0] for name in moved} == parts


def objective(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="this recipe learns by masked-patch, which cannot be trained here yet"):
        bench.fresh(recipe=dataclasses.replace(SHORT, objective="masked-patch"))
    assert equal(bench.fresh(recipe=dataclasses.replace(SHORT, objective="classify")), bench.train())


def head_start(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    trained: dict[str, Any] = {"model": None, "start": bench.train().run.best}
    still = dataclasses.replace(SHORT, epochs=1, lr=1e-12)
    probe = bench.train(**trained, recipe=still)
    zeros = bench.train(**trained, recipe=dataclasses.replace(still, head_start="zeros"))
    for name, value in probe.weights.items():
        if name.startswith("head."):
            assert float(value.abs().max()) > 1e-3
            assert float(zeros.weights[name].abs().max()) < 1e-9
        else:
            torch.testing.assert_close(zeros.weights[name], value, rtol=0, atol=1e-9)


def regularisation(name: str) -> Shows:
    """Other weights; and the network that is kept has it too, whether it is new or was trained before."""

    def shows(bench: Bench, patch: pytest.MonkeyPatch) -> None:
        recipe = dataclasses.replace(SHORT, **{name: 0.5})
        for start in ({}, {"model": None, "start": bench.train().run.best}):
            plain, changed = bench.train(**start), bench.train(**start, recipe=recipe)
            assert not equal(plain, changed)
            assert getattr(changed.run.plan.model, name) == 0.5
        own = dataclasses.replace(NETWORK, **{name: 0.5})
        assert equal(bench.train(model=own), bench.recipe(**{name: 0.5}))  # None: as the network says
        assert equal(bench.train(model=own, recipe=dataclasses.replace(SHORT, **{name: 0.0})), bench.train())

    return shows


def checkpointing(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    from vitrail.network import encoder

    again = 0
    true = encoder.checkpoint

    def counted(*arguments: Any, **named: Any) -> Any:
        nonlocal again
        again += 1
        return true(*arguments, **named)

    patch.setattr(encoder, "checkpoint", counted)
    recipe = dataclasses.replace(SHORT, checkpointing=True)
    for start in ({}, {"model": None, "start": bench.train().run.best}):
        again = 0
        plain = bench.fresh(**start)
        assert again == 0
        sparing = bench.fresh(**start, recipe=recipe)
        assert again == 6 * NETWORK.depth  # every block of every step
        assert equal(plain, sparing)


def precision(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    every_value("precision", tuple(each for each in PRECISIONS if each != "tf32"))(bench, patch)
    with pytest.raises(InputError, match="tf32 is a mode of cuda"):  # other devices have none
        bench.recipe(precision="tf32")
    with pytest.raises(InputError, match="tf32 is a mode of cuda"):
        bench.train(recipe=dataclasses.replace(SHORT, precision="tf32"), elsewhere=True)


def compiled(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    """Programs are made of the network, and run here as they were traced."""
    made: list[Any] = []

    def backend(program: Any, examples: Any) -> Any:
        made.append(program)
        return program.forward

    patch.setattr(compilation, "BACKEND", backend)
    torch._dynamo.reset()
    found = bench.fresh(recipe=dataclasses.replace(SHORT, optimiser="sgd", compile=True))
    assert made
    for name, value in bench.recipe(optimiser="sgd").weights.items():
        torch.testing.assert_close(found.weights[name], value, rtol=0, atol=1e-5)


RECIPE: Mapping[str, Shows] = {
    "objective": objective,
    "epochs": epochs,
    "batch": batch,
    "pieces": pieces,
    "patience": patience,
    "optimiser": every_value("optimiser", OPTIMISERS),
    "lr": other_weights("lr", 2e-3),
    "weight_decay": other_weights("weight_decay", 0.5),
    "momentum": other_weights("momentum", 0.5, optimiser="sgd"),
    "beta2": other_weights("beta2", 0.9),
    "clip": other_weights("clip", 1e-3, optimiser="sgd"),
    "ema": ema,
    "schedule": every_value("schedule", SCHEDULES),
    "warmup": other_weights("warmup", 0.5),
    "final": other_weights("final", 0.5),
    "restart_epochs": other_weights("restart_epochs", 1.0, schedule="restarts"),
    "restart_factor": other_weights("restart_factor", 1, schedule="restarts", restart_epochs=0.5),
    "step_epochs": other_weights("step_epochs", 0.5, schedule="step"),
    "step_factor": other_weights("step_factor", 0.1, schedule="step"),
    "layer_decay": other_weights("layer_decay", 0.5),
    "head_lr": other_weights("head_lr", 3.0),
    "smoothing": other_weights("smoothing", 0.3),
    "balance": every_value("balance", BALANCES),
    "augment": other_weights("augment", Augment(flip=True)),
    "tune": tune,
    "head_start": head_start,
    "dropout": regularisation("dropout"),
    "drop_path": regularisation("drop_path"),
    "precision": precision,
    "compile": compiled,
    "checkpointing": checkpointing,
}

# ---- Augment -----------------------------------------------------------------------------------------------------

AUGMENT: Mapping[str, Shows] = {
    "crop": other_images("crop", (0.3, 0.9)),
    "aspect": other_images("aspect", 2.0, crop=(0.3, 0.9)),
    "shift": other_images("shift", 2),
    "flip": other_images("flip", True),
    "rand_ops": other_images("rand_ops", 2),
    "rand_magnitude": other_images("rand_magnitude", 3.0, rand_ops=2),
    "erase": other_images("erase", 0.5),
    "mixup": other_images("mixup", 0.4),
    "cutmix": other_images("cutmix", 1.0),
}

# ---- Options -----------------------------------------------------------------------------------------------------


def model(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    deep = bench.train(model=dataclasses.replace(NETWORK, depth=3))
    assert (bench.train().run.plan.model.depth, deep.run.plan.model.depth) == (2, 3)
    assert "encoder.blocks.2.norm1.weight" in deep.weights
    named = bench.train(model="vit-nano4-28", size=8, steps=1)
    assert named.run.plan.model.width == PRESETS["vit-nano4-28"].width != NETWORK.width


def start(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    first = bench.train()
    still = dataclasses.replace(SHORT, epochs=0, dropout=0.2)  # built anew for its dropout, with the weights it had
    found = bench.train(model=None, start=first.run.best, recipe=still)
    assert [stage.name for stage in found.run.stages] == ["k-NN", "linear probe"]
    best = load_file(first.run.best)
    kept = {name for name, value in found.weights.items() if torch.equal(value, best[name])}
    assert found.weights.keys() - kept == {"head.classify.weight", "head.classify.bias"}
    assert found.run.plan.origin.startswith(str(first.run.best))


def recipe(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    own = dataclasses.replace(SHORT, lr=5e-3)
    assert bench.train(recipe=own).run.plan.recipe == own
    named = bench.train(recipe="finetune", steps=1).run.plan.recipe
    expected = dataclasses.replace(vitrail.training.RECIPES["finetune"].recipe, epochs=named.epochs)
    assert named == expected != SHORT


def minutes(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(planning, "measure_speed", lambda job: Speed(step=1.0, validation=0.6))
    patch.setattr(pace, "clock", lambda: 0)
    trained = bench.fresh(minutes=0.2)
    assert trained.run.steps == 9  # 12 s, at 1 s a step and 0.6 s after every third, and after the last
    assert "9 steps fit 0.2 minutes" in trained.told
    with pytest.raises(InputError, match="epochs or minutes, not both"):
        bench.train(minutes=1.0, epochs=1)


def steps(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    assert [bench.train(steps=count).run.steps for count in (1, 5)] == [1, 5]
    assert bench.train(steps=5, epochs=9).run.steps == 5


def size(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    larger = bench.train(size=(16, 12))
    assert larger.run.plan.preprocess.size == larger.run.plan.model.image_size == (16, 12)
    assert larger.weights["tokens.tables.0.table"].shape[0] == 12  # patches of 4
    assert bench.train().weights["tokens.tables.0.table"].shape[0] == 4


def resize(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    found = {how: bench.train(resize=how).run.plan.preprocess for how in ("crop", "pad", "squash")}
    assert {how: each.resize for how, each in found.items()} == {how: how for how in found}
    assert (found["pad"].crop, found["squash"].crop) == (1.0, 1.0)
    with pytest.raises(ConfigError, match="resize"):
        bench.fresh(resize="stretch")


def limit(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    found = bench.train(limit=6)
    splits = splits_of(found)
    assert [splits.count(name) for name in ("train", "val", "test")] == [6, 4, 6]
    assert any(text.startswith("16 of 35") for text in found.told)
    with pytest.raises(InputError, match="limit"):
        bench.fresh(limit=0)


def seed(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    assert equal(bench.train(seed=0), bench.train())
    other = bench.train(seed=1)
    assert not equal(other, bench.train())
    assert splits_of(other) != splits_of(bench.train())


def held_out(name: str) -> Shows:
    """The option is the share of images of this split."""

    def shows(bench: Bench, patch: pytest.MonkeyPatch) -> None:
        counts = [splits_of(bench.train(**{name: share}, steps=1)).count(name) for share in (0.0, 0.25, 0.5)]
        assert counts[0] == 0
        assert counts[1:] == pytest.approx([8.75, 17.5], abs=1.5)

    return shows


def pattern(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    assert bench.train().run.plan.classes == ("a", "b", "c")
    found = bench.train(pattern=r"./(?P<label>\d)\d?\.png", steps=1)
    assert found.run.plan.classes == tuple("0123456789")


def exclude(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    table = bench.folder / "exclude.csv"
    table.write_text("path,exclude\na/0.png,1\nb/1.png,1\nc/2.png,0\n")
    found = bench.train(exclude=table)
    names = json.loads((found.run.folder / "data.json").read_text())["names"]
    assert len(names) == 33
    assert not {"a/0.png", "b/1.png"} & set(names)
    assert any("2 left out" in text for text in found.told)


def unreadable(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    broken = bench.folder / "broken"
    for name in ("a", "b"):
        (broken / name).mkdir(parents=True)
        for row in range(9):
            Image.new("RGB", (8, 8), (row, 0, 0)).save(broken / name / f"{row}.png")
    (broken / "a" / "0.png").write_bytes(b"no image")
    skipped = bench.fresh(data=broken, unreadable="skip", steps=1)
    assert any(text.startswith("1 of 18") for text in skipped.told)
    with pytest.raises(VitrailError, match=r"1 of 18 .* cannot be read"):
        bench.fresh(data=broken, unreadable="stop", steps=1)


def nothing_fits(patch: pytest.MonkeyPatch) -> None:
    """A memory that holds no view."""
    for kind in (views.Views, view_store.ViewStore):
        patch.setitem(kind.__init__.__kwdefaults__, "limit", 0)


def workers(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    plain, threads, processes = bench.train(), [], []
    pool, loader = image_scan.ThreadPoolExecutor, views.loading.DataLoader

    def counted(number: int) -> Any:
        threads.append(number)
        return pool(number)

    def started(*arguments: Any, **named: Any) -> Any:
        processes.append(named["num_workers"])
        return loader(*arguments, **named)

    patch.setattr(image_scan, "ThreadPoolExecutor", counted)
    patch.setattr(views.loading, "DataLoader", started)
    assert all(equal(bench.fresh(workers=number), plain) for number in (1, 3))
    assert (threads, processes) == ([2, 3], [])  # each image was decoded by them, and never again
    nothing_fits(patch)
    assert equal(bench.fresh(workers=1, cache=bench.folder / "by-processes"), plain)
    assert processes == [1, 1, 1]  # for train, val and test


def cache(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    folder, plain = bench.folder / "disk-cache", bench.train()
    nothing_fits(patch)
    assert equal(bench.fresh(), plain)
    assert not folder.exists()
    assert equal(bench.fresh(cache=folder), plain)
    assert len([path for path in folder.rglob("*") if path.is_file()]) == 3  # for train, val and test


def threads(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    plain, started = bench.train(), []
    true = loader.ThreadPoolExecutor

    def counted(number: int, *arguments: Any) -> Any:
        started.append(number)
        return true(number, *arguments)

    patch.setattr(loader, "ThreadPoolExecutor", counted)
    for number, expected in {0: [], 1: [1], 3: [3]}.items():
        started.clear()
        assert equal(bench.fresh(threads=number), plain)
        assert started == expected


def device(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    assert equal(bench.train(device="cpu"), bench.train())
    with pytest.raises(InputError, match="device: expected 'auto' or one that torch has"):
        bench.fresh(device="gpu")


def compile_option(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    """What the recipe's setting of its name does, with programs that are run as they were traced."""
    patch.setattr(compilation, "BACKEND", lambda program, examples: program.forward)
    torch._dynamo.reset()
    assert bench.fresh(compile=True, steps=1).run.plan.recipe == dataclasses.replace(SHORT, epochs=1 / 3, compile=True)
    assert not bench.train(compile=False).run.plan.recipe.compile


def batch_option(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    as_in_recipe("batch", 12)(bench, patch)
    auto = bench.fresh(batch="auto", steps=1)
    assert auto.run.plan.recipe.batch == 2  # 24 images, 8 steps of an epoch
    [note] = [text for text in auto.told if text.startswith("batches of")]
    assert note == (
        "batches of 2 images: memory would hold more, and an epoch has 12 steps so; the learning rate stays the "
        "recipe's, 0.001 for batches of 8: --lr sets another"
    )
    with pytest.raises(ConfigError, match="batch 'much' is unknown: .*auto"):
        bench.fresh(batch="much")


def processes(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    """Those that were started together; tests/scale starts some."""
    with pytest.raises(InputError, match="processes: expected 1, as many as were started together, got 2"):
        bench.fresh(processes=2)


def shard(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    """One process has nobody to share with: the same bits. tests/scale starts several."""
    assert bench.fresh(shard=True).run.plan == dataclasses.replace(bench.train().run.plan, shard=True)
    assert equal(bench.fresh(shard=True), bench.train())
    with pytest.raises(InputError, match="--shard leaves to each process a part of the network"):
        bench.fresh(shard=True, exact=True)


def exact(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    parted = bench.fresh(exact=True)
    assert parted.run.plan == dataclasses.replace(bench.train().run.plan, virtual_workers=4)
    assert not equal(parted, bench.train())
    assert bench.train(exact=False).run.plan.virtual_workers == 0


def elsewhere(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    """Here with another number of threads; tests/devices goes to another device."""
    where: dict[str, Any] = {"out": bench.folder / "moved", "name": "mine"}

    def stop(step: int, steps: int, loss: float) -> None:
        if step == 2:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(VitrailError, match="stopped at step 2"):
        bench.fresh(**where, callbacks=Callbacks(step=stop))
    torch.set_num_threads(2)
    with pytest.raises(InputError, match="threads: 1 before, 2 now"):
        bench.fresh(**where)
    moved = bench.fresh(**where, elsewhere=True)
    torch.set_num_threads(1)
    note = "trained on cpu with 1 threads, then cpu with 2 threads: its numbers repeat to rounding, not to the bit"
    assert note in moved.told
    assert moved.run.resumed


def out(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    assert bench.fresh(out=bench.folder / "elsewhere").run.folder == bench.folder / "elsewhere" / "tiny-1"


def name(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    assert bench.fresh(out=bench.folder / "named", name="mine").run.folder == bench.folder / "named" / "mine"


def fresh(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    where: dict[str, Any] = {"out": bench.folder / "anew", "name": "mine"}
    first = bench.fresh(**where)
    (first.run.folder / "note").write_text("of the first")
    again = bench.fresh(**where, fresh=True)
    assert not (again.run.folder / "note").exists()
    assert (bench.folder / "anew" / "mine.old-1" / "note").exists()


def finished(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    where: dict[str, Any] = {"out": bench.folder / "done", "name": "mine"}
    bench.fresh(**where)
    with pytest.raises(InputError, match="is finished"):
        bench.fresh(**where)
    assert bench.fresh(**where, finished=True).run.resumed


def check(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="known to fail"):
        bench.fresh(lr=0.02, check=True)
    tried: list[int] = []
    patch.setattr(planning, "LONG", 3)
    patch.setattr(planning, "overfits", lambda job: tried.append(job.plan.steps))
    with pytest.raises(InputError, match="by heart"):
        bench.fresh(check=True)
    assert bench.fresh(check=False).run.steps == 6
    assert tried == [6]


def report(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    given = [{"report": False}, {"report": True, "command": COMMAND}]
    names = [{path.name for path in bench.train(**options).run.folder.iterdir()} for options in given]
    assert names[1] - names[0] == {"report.html", "predictions.csv", "figures"}


def tensorboard(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard")
    assert not (bench.train().run.folder / "tensorboard").exists()
    assert [*(bench.train(tensorboard=True).run.folder / "tensorboard").glob("events.*")]


def command(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    assert COMMAND in (bench.train(report=True, command=COMMAND).run.folder / "report.html").read_text()


def save_seconds(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    """By a clock that goes on by one second with every step, and stands still while saving."""
    counts = {}
    for seconds in (3.0, 1e9):
        now, saved = [0.0], []
        clock = SimpleNamespace(monotonic=lambda now=now: now[0], perf_counter=lambda now=now: now[0])
        patch.setattr(loop, "time", clock)
        write = loop.write_state
        patch.setattr(loop, "write_state", lambda folder, state, saved=saved: saved.append(state.facts["step"]))

        def tick(step: int, steps: int, loss: float, now: list[float] = now) -> None:
            now[0] += 1.0

        trained = bench.fresh(
            recipe=dataclasses.replace(SHORT, epochs=1, batch=1), save_seconds=seconds, callbacks=Callbacks(step=tick)
        )
        patch.setattr(loop, "write_state", write)
        assert trained.run.steps == 24
        counts[seconds] = saved
    assert counts[3.0] == [0, 2, 5, 8, 11, 14, 17, 20, 23, 24]
    assert counts[1e9] == [0, 2, 6, 14, 24]  # after 2, 4 and 8 seconds, and at the end


def callbacks(bench: Bench, patch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    steps: list[tuple[int, int]] = []
    epochs: list[int] = []
    bench.fresh(
        lr=0.02,
        callbacks=Callbacks(
            log=told.append,
            step=lambda step, of, loss: steps.append((step, of)),
            epoch=lambda row: epochs.append(row["epoch"]),
        ),
    )
    assert any(text.startswith("error: lr 0.02") for text in told)
    assert steps == [(step, 6) for step in range(1, 7)]
    assert epochs == [1, 2]


OPTIONS: Mapping[str, Shows] = {
    "model": model,
    "start": start,
    "recipe": recipe,
    "epochs": as_in_recipe("epochs", 1.0),
    "minutes": minutes,
    "steps": steps,
    "batch": batch_option,
    "size": size,
    "resize": resize,
    "limit": limit,
    "lr": as_in_recipe("lr", 2e-3),
    "patience": as_in_recipe("patience", 2, lr=1e-12, epochs=9),
    "balance": as_in_recipe("balance", "weights"),
    "seed": seed,
    "val": held_out("val"),
    "test": held_out("test"),
    "pattern": pattern,
    "exclude": exclude,
    "unreadable": unreadable,
    "workers": workers,
    "cache": cache,
    "threads": threads,
    "device": device,
    "precision": as_in_recipe("precision", "bf16"),
    "compile": compile_option,
    "elsewhere": elsewhere,
    "processes": processes,
    "exact": exact,
    "shard": shard,
    "out": out,
    "name": name,
    "fresh": fresh,
    "finished": finished,
    "check": check,
    "report": report,
    "tensorboard": tensorboard,
    "command": command,
    "save_seconds": save_seconds,
    "callbacks": callbacks,
}

# ---- the tests ---------------------------------------------------------------------------------------------------

TABLES: Mapping[type[Any], Mapping[str, Shows]] = {Recipe: RECIPE, Augment: AUGMENT, Options: OPTIONS}
WRONG: Mapping[type[Any], Mapping[str, Any]] = {  # a value of each that is refused
    Recipe: {
        "objective": "clasify",
        "epochs": -1,
        "batch": 0,
        "pieces": 65,
        "patience": -1,
        "optimiser": "adamv",
        "lr": 0.0,
        "weight_decay": -0.1,
        "momentum": 1.0,
        "beta2": 1.0,
        "clip": -1.0,
        "ema": 1.0,
        "schedule": "cosin",
        "warmup": -1,
        "final": 1.5,
        "restart_epochs": 0.0,
        "restart_factor": 0,
        "step_epochs": 0.0,
        "step_factor": 0.0,
        "layer_decay": 0.0,
        "head_lr": -1.0,
        "smoothing": 1.0,
        "balance": "weight",
        "augment": {"flip": True},
        "tune": "heads",
        "head_start": "zero",
        "dropout": 1.0,
        "drop_path": 1.0,
        "precision": "fp8",
        "compile": 1,
        "checkpointing": 1,
    },
    Augment: {
        "crop": (0.9, 0.3),
        "aspect": 0.5,
        "shift": -1,
        "flip": 1,
        "rand_ops": -1,
        "rand_magnitude": 11,
        "erase": 1.5,
        "mixup": -0.1,
        "cutmix": -0.1,
    },
}


@pytest.mark.parametrize("kind", TABLES, ids=lambda kind: kind.__name__)
def test_every_setting_stands_in_its_table(kind: type[Any]) -> None:
    names = {each.name for each in dataclasses.fields(kind)}
    assert TABLES[kind].keys() == names
    assert kind not in WRONG or WRONG[kind].keys() == names


@pytest.mark.parametrize(
    "kind, setting",
    [pytest.param(kind, each, id=f"{kind.__name__}-{each}") for kind, table in TABLES.items() for each in table],
)
def test_a_setting_does_what_its_table_says(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, kind: type[Any], setting: str
) -> None:
    TABLES[kind][setting](bench, monkeypatch)


@pytest.mark.parametrize(
    "kind, setting", [pytest.param(kind, each, id=f"{kind.__name__}-{each}") for kind in WRONG for each in WRONG[kind]]
)
def test_a_wrong_value_is_refused_by_its_name(kind: type[Any], setting: str) -> None:
    with pytest.raises(ConfigError, match=setting):
        kind(**{setting: WRONG[kind][setting]})


def test_the_same_training_twice_is_the_same_bits(bench: Bench) -> None:
    """What makes the others mean something: nothing but the setting differs."""
    assert equal(bench.fresh(), bench.fresh())
