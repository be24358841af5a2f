"""Whole runs: from images to a checkpoint, numbers and a report; resumed, refused, rerun."""

from __future__ import annotations

import csv
import itertools
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import vitrail
from evaluation.markup import read
from training import tiny
from training.quick import NETWORK, QUICK, draw
from vitrail.cli import load_verbs
from vitrail.cli.training_progress import report_run
from vitrail.data import read_data
from vitrail.data.augmentation import Augment
from vitrail.data.manifest import Manifest
from vitrail.errors import InputError
from vitrail.evaluation.caveats import CHOSEN, TRAINED
from vitrail.evaluation.probes import features
from vitrail.evaluation.seen_images import data_for, data_for_both
from vitrail.network.config import Positions
from vitrail.network.vit import ViT
from vitrail.training import (
    Callbacks,
    Options,
    Recipe,
    Run,
    autotune,
    final_evaluation,
    loop,
    pace,
    planning,
    rerun,
    reruns,
    runs,
    train,
)
from vitrail.training import state as saving
from vitrail.training.dry_run import run_dry
from vitrail.training.model_choice import bands_of
from vitrail.training.pace import Speed
from vitrail.training.plan import Plan, plan_differences
from vitrail.training.preparation import prepare
from vitrail.training.processes import Processes, using
from vitrail.training.published import Preset
from vitrail.training.reruns import RerunResult
from vitrail.training.run_folder import locked
from vitrail.training.runs import prepare_model
from vitrail.training.virtual_workers import virtual_workers_of


@pytest.fixture(scope="module", autouse=True)
def quickly() -> Iterator[None]:
    """Intervals from a few resamples: a thousand take longer than so short a training."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(final_evaluation, "evaluation_of", partial(final_evaluation.evaluation_of, resamples=20))
        yield


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw(tmp_path_factory.mktemp("data") / "photos")


def run(photos: Path, out: Path, **options: Any) -> Run:
    return train(photos, **{"model": NETWORK, "recipe": QUICK, "out": out, "check": False} | options)


@pytest.fixture(scope="module")
def finished(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    torch.set_num_threads(1)
    return run(photos, tmp_path_factory.mktemp("runs"), command="vitrail train photos/")


# ---- what a run leaves -------------------------------------------------------------------------------------------


@pytest.mark.row("EVA.3")
def test_a_run_leaves_what_the_design_says(finished: Run) -> None:
    assert finished.folder.name == "photos-1"
    left = {path.name for path in finished.folder.iterdir()}
    assert {"config.json", "data.json", "metrics.jsonl", "state", "best.safetensors", "last.safetensors"} <= left
    assert {"report.html", "predictions.csv", "result.json"} <= left
    figures = {path.name for path in (finished.folder / "figures").iterdir()}
    assert {"curves.png", "batch.png", "prediction.png"} <= figures
    result = json.loads((finished.folder / "result.json").read_text())
    assert {"run", "best", "evaluation", "seconds", "steps"} <= result.keys()
    assert {"n", "top1", "top5", "macro_f1", "ece"} <= result["evaluation"].keys()
    assert result["evaluation"]["top1"] == finished.evaluation.scores["top1"].value
    data = json.loads((finished.folder / "data.json").read_text())
    assert len(data["names"]) == len(data["digests"]) == 60


def test_the_numbers_are_those_of_images_it_never_saw(finished: Run, photos: Path) -> None:
    found = finished.evaluation
    assert found.split == "test"
    assert len(found) == 12  # 20 % of 60, by class
    assert found.scores["top1"].value == 1.0  # colours are easy
    assert found.classes == ("2 red", "10 green", "blue")
    checkpoint = vitrail.load(finished.folder)
    assert checkpoint.classes == found.classes
    assert checkpoint.temperature is not None
    for name, target in zip(found.names, found.targets, strict=True):
        [answer] = vitrail.predict(checkpoint, [photos / name], top=1)
        assert answer.labels == (found.classes[target],)
    again = vitrail.evaluate(checkpoint, replace_splits(finished, photos))
    assert np.allclose(again.logits, found.logits, atol=1e-5)


def replace_splits(finished: Run, photos: Path) -> Any:
    return data_for(str(finished.folder), str(photos), finished.plan.classes)


@pytest.mark.parametrize("way", ["slash", "absolute", "copied", "renamed"])
def test_its_training_images_are_known_however_they_are_named(
    finished: Run, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.chdir(photos.parent)
    given = {"slash": "photos/", "absolute": str(photos), "copied": str(tmp_path / "photos"), "renamed": ""}[way]
    if way in ("copied", "renamed"):
        shutil.copytree(photos, tmp_path / "photos")
    if way == "renamed":
        for place, path in enumerate(sorted((tmp_path / "photos").rglob("*.png"))):
            path.rename(path.with_name(f"other-{place}.png"))
        given = str(tmp_path / "photos")
    classes = vitrail.load(finished.best).classes
    data = data_for(str(finished.folder), given, classes)
    counts = {split: sum(each.split == split for each in data.samples) for split in ("train", "val", "test", "")}
    assert counts["train"] + counts["val"] == 48
    assert counts["test"] + counts[""] == 12
    found = vitrail.evaluate(vitrail.load(finished.best), data, resamples=0)
    assert found.scores["top1"].value == finished.evaluation.scores["top1"].value
    assert len(found) == 12


def test_images_it_was_trained_on_are_not_taken_for_new_ones(finished: Run, photos: Path) -> None:
    loaded = vitrail.load(finished.best)
    for judge in (vitrail.evaluate, partial(vitrail.compare, loaded)):
        with pytest.raises(
            InputError, match="was trained on images of .*: give the run's folder in place of its checkpoint"
        ):
            judge(loaded, photos)
    assert len(vitrail.evaluate(loaded, photos, split="all", resamples=0)) == 60
    assert len(vitrail.evaluate(loaded, data_for(finished.folder), resamples=0)) == 12


def test_two_runs_are_compared_by_what_neither_was_trained_on(finished: Run, photos: Path, tmp_path: Path) -> None:
    other = run(photos, tmp_path, seed=1, report=False)
    classes = vitrail.load(finished.best).classes
    both = data_for_both(str(finished.folder), str(other.folder), str(photos), classes)
    known = [Manifest.from_json((each.folder / "data.json").read_text()).entries for each in (finished, other)]
    held = [{entry.name for entry in each if entry.split == "test"} for each in known]
    assert {each.name for each in both.samples if each.split == "test"} == held[0] & held[1]
    assert len(held[0] & held[1]) < len(held[0])


def test_a_run_with_a_pattern_knows_its_images_again(photos: Path, tmp_path: Path) -> None:
    pattern = r"(?P<label>[^/]+)/\d+\.png"
    made = run(photos, tmp_path, pattern=pattern, report=False)
    data = data_for(str(made.folder), "", vitrail.load(made.folder).classes)
    assert sum(each.split == "test" for each in data.samples) == len(made.evaluation)


def test_evaluating_a_run_on_its_own_data_takes_its_test_images(finished: Run, photos: Path) -> None:
    dataset = replace_splits(finished, photos)
    assert {name: len(dataset.part(name)) for name in dataset.splits} == {"train": 42, "val": 6, "test": 12}
    assert {each.name for each in dataset.part("test").samples} == set(finished.evaluation.names)


def test_predictions_as_a_table(finished: Run) -> None:
    with open(finished.folder / "predictions.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 12
    assert all(row["truth"] == row["predicted"] == row["path"].split("/")[0] for row in rows)


def test_the_report_says_what_was_found(finished: Run) -> None:
    page = (finished.folder / "report.html").read_text()
    assert "100.0" in page
    epochs = [json.loads(line) for line in (finished.folder / "metrics.jsonl").read_text().splitlines()]
    epochs = [row for row in epochs if row["event"] == "epoch"]
    assert len(epochs) == 4
    for row in epochs:
        assert f"validation: accuracy, epoch {row['epoch']}: {100 * row['val_score']:.1f} %" in page
    assert "vitrail train photos/" in page
    assert "not told from those it was trained on" in page  # six validation images promise nothing
    assert "data:image/" in page
    assert 'src="http' not in page


# ---- going on ----------------------------------------------------------------------------------------------------


def interrupted(photos: Path, out: Path, step: int, **options: Any) -> None:
    import os
    import signal

    def stop(done: int, steps: int, loss: float) -> None:
        if done == step:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(vitrail.VitrailError, match=f"stopped at step {step}"):
        run(photos, out, callbacks=Callbacks(step=stop), **options)


def test_the_same_call_goes_on_and_ends_the_same(finished: Run, photos: Path, tmp_path: Path) -> None:
    interrupted(photos, tmp_path, 7)
    told: list[str] = []
    again = run(photos, tmp_path, command="vitrail train photos/", callbacks=Callbacks(log=told.append))
    assert again.folder == tmp_path / "photos-1"
    assert f"going on with {again.folder}" in told
    for name in ("metrics.jsonl", "data.json", "best.safetensors", "last.safetensors", "predictions.csv"):
        assert (again.folder / name).read_bytes() == (finished.folder / name).read_bytes(), name


def test_a_second_run_gets_a_number_of_its_own(photos: Path, tmp_path: Path) -> None:
    first = run(photos, tmp_path)
    before = {path: path.read_bytes() for path in first.folder.rglob("*") if path.is_file()}
    second = run(photos, tmp_path, report=False)
    assert second.folder.name == "photos-2"
    assert all(path.read_bytes() == value for path, value in before.items())


@pytest.mark.fault("T12")
@pytest.mark.parametrize(
    "change, says",
    [
        ({"lr": 1e-3}, "recipe.lr: 0.003 before, 0.001 now"),
        ({"seed": 1}, "seed: 0 before, 1 now"),
        ({"model": replace(NETWORK, depth=3)}, "model.depth: 2 before, 3 now"),
        ({"size": 32}, "preprocess.size: "),
        ({"epochs": 9}, "steps: 20 before, 45 now"),
        ({"val": 0.3}, "changed split"),
    ],
)
def test_a_changed_run_is_refused_with_what_differs(
    photos: Path, tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    interrupted(photos, tmp_path, 3, name="mine")
    with pytest.raises(InputError, match=f"was started with something else: .*{says}"):
        run(photos, tmp_path, name="mine", **change)


@pytest.mark.fault("T12")
def test_another_number_of_threads_is_a_difference(photos: Path, tmp_path: Path) -> None:
    interrupted(photos, tmp_path, 3, name="mine")
    torch.set_num_threads(2)
    with pytest.raises(InputError, match="threads: 1 before, 2 now"):
        run(photos, tmp_path, name="mine")


@pytest.mark.parametrize(
    ("begun", "wanted", "differences"),
    [
        ({}, {}, ["processes: 1 before, 2 now"]),
        ({}, {"elsewhere": True}, []),
        ({"virtual_workers": 4}, {}, []),
        ({"virtual_workers": 6, "threads": 3}, {"exact": True}, []),
        ({"virtual_workers": 4}, {"exact": False}, ["virtual_workers: 4 before, 0 now", "processes: 1 before, 2 now"]),
    ],
)
def test_another_number_of_processes_is_a_difference_unless_sums_are_exact(
    finished: Run, tmp_path: Path, begun: dict[str, Any], wanted: dict[str, Any], differences: list[str]
) -> None:
    for name in ("config.json", "data.json"):
        shutil.copy(finished.folder / name, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text("utf-8"))
    config["plan"] |= begun
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    manifest = Manifest.from_json((tmp_path / "data.json").read_text("utf-8"))
    two, options = Processes(), Options(**wanted)
    two.world = 2
    workers = virtual_workers_of(ViT(NETWORK), options.exact, 2)
    plan = replace(finished.plan, virtual_workers=workers, processes=1 if workers else 2)
    with using(two):
        assert runs.run_differences(tmp_path, plan, manifest, options) == differences


@pytest.mark.fault("T17")
def test_changed_data_is_refused_with_what_differs(photos: Path, tmp_path: Path) -> None:
    own = tmp_path / "photos"
    shutil.copytree(photos, own)
    interrupted(own, tmp_path / "runs", 3, name="mine")
    (own / "blue" / "0.png").unlink()
    shutil.copy(own / "blue" / "1.png", own / "blue" / "new.png")
    Image.new("RGB", (16, 16)).save(own / "blue" / "2.png")
    says = r"1 image removed: blue/0.png.*1 image added: blue/new.png.*changed content"
    with pytest.raises(InputError, match=says):
        run(own, tmp_path / "runs", name="mine")


@pytest.mark.fault("T23", "T13")
@pytest.mark.parametrize("options", [{"workers": 2}, {"threads": 0}, {"threads": 2}])
def test_workers_and_loader_threads_change_no_bit(
    finished: Run, photos: Path, tmp_path: Path, options: dict[str, int]
) -> None:
    again = run(photos, tmp_path, report=False, **options)
    for name in ("metrics.jsonl", "data.json", "best.safetensors", "last.safetensors"):
        assert (again.folder / name).read_bytes() == (finished.folder / name).read_bytes(), name


def test_a_repeated_run_is_the_same_bits(finished: Run, tmp_path: Path) -> None:
    found = rerun(finished.folder, tmp_path)
    assert found.same, found.differences
    with pytest.raises(InputError, match="is no finished run"):
        rerun(tmp_path, tmp_path)


def against(first: Path, second: Run, monkeypatch: pytest.MonkeyPatch) -> tuple[RerunResult, Any]:
    """The run in a folder rerun, where the second time ends as `second` did; with what was asked for."""
    asked: list[Any] = []

    def run_again(data: Any, options: Options, lengths: str) -> Run:
        assert lengths == ""
        asked.append((data, options))
        return second

    monkeypatch.setattr(reruns, "run", run_again)
    return rerun(first), asked[0]


def spoil_weights(path: Path) -> None:
    """One weight of a checkpoint by the least that it can change."""
    loaded = vitrail.load(path)
    weight = loaded.model.head.classify.weight.data
    weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(9.0))
    vitrail.save(loaded, path)


def spoil_text(old: str, new: str, path: Path) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    "name, spoil, said",
    [
        ("best.safetensors", spoil_weights, ["the weights in best.safetensors differ"]),
        ("last.safetensors", spoil_weights, ["the weights in last.safetensors differ"]),
        ("metrics.jsonl", partial(spoil_text, '"step": 3,', '"step": 4,'), ["metrics.jsonl differs"]),
        ("data.json", partial(spoil_text, "blue/0.png", "blue/o.png"), ["data.json differs"]),
        ("config.json", partial(spoil_text, '"lr": 0.003,', '"lr": 0.004,'), ["recipe.lr: 0.004 before, 0.003 now"]),
        ("config.json", partial(spoil_text, '"steps": 20,', '"steps": 21,'), ["steps: 21 before, 20 now"]),
        ("report.html", partial(spoil_text, "</html>", "</html> "), []),  # it says when it was made
    ],
)
def test_a_repeated_run_names_what_is_not_the_same(
    finished: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, spoil: Any, said: list[str]
) -> None:
    first = tmp_path / "photos-1"
    shutil.copytree(finished.folder, first)
    assert against(first, finished, monkeypatch)[0] == (finished, True, ())
    spoil(first / name)
    found, _ = against(first, finished, monkeypatch)
    assert found.differences == tuple(said)
    assert found.same == (not said)


def test_a_repeated_run_is_asked_for_as_the_first_was(
    finished: Run, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, (data, options) = against(finished.folder, finished, monkeypatch)
    assert (data, options.recipe, options.model, options.seed) == (str(photos), QUICK, NETWORK, 0)
    assert (options.out, options.name, options.fresh, options.check) == (finished.folder.parent, "", True, False)
    assert options.steps is None
    timed = tmp_path / "photos-1"
    shutil.copytree(finished.folder, timed)
    spoil_text('"minutes": null', '"minutes": 2.5', timed / "config.json")
    found, (_, options) = against(timed, finished, monkeypatch)
    assert options.steps == 20  # as many as were measured, not measured again
    assert found.same
    given = tmp_path / "given"
    shutil.copytree(finished.folder, given)
    spoil_text('"origin": ""', '"origin": "in memory"', given / "config.json")
    with pytest.raises(InputError, match="given as an object: its file is not known"):
        rerun(given)


def test_a_timed_run_goes_on_with_the_steps_it_was_given(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "clock", lambda: 0)
    monkeypatch.setattr(planning, "measure_speed", lambda job: Speed(step=0.125, validation=0.0))
    interrupted(photos, tmp_path, 2, name="timed", minutes=0.0125)
    plan = json.loads((tmp_path / "timed" / "config.json").read_text())["plan"]
    assert (plan["minutes"], plan["steps"]) == (0.0125, 6)
    monkeypatch.setattr(planning, "measure_speed", lambda job: pytest.fail("measured again"))
    again = run(photos, tmp_path, name="timed", minutes=0.0125, report=False)
    assert again.resumed
    assert again.steps == 6


@pytest.mark.parametrize("step, few", [(0.025, True), (0.003, False)])
def test_what_is_said_of_the_number_of_steps_is_of_those_that_were_measured(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: float, few: bool
) -> None:
    """The recipe's own 4 epochs would be 20 steps, too few; 0.3 s are 12 steps, or 100."""
    monkeypatch.setattr(pace, "clock", lambda: 0)
    monkeypatch.setattr(planning, "measure_speed", lambda job: Speed(step=step, validation=0.0))
    said: list[str] = []
    found = run(photos, tmp_path, minutes=0.005, check=False, callbacks=Callbacks(log=said.append))
    words = [each for each in (*said, *found.warnings) if "too few to learn much" in each]
    assert words == 2 * [each for each in found.warnings if "too few to learn much" in each]
    assert bool(words) == few
    assert all(each.startswith(f"warning: {found.plan.steps} steps") for each in words)
    assert ("too few to learn much" in (found.folder / "report.html").read_text()) == few


def test_minutes_are_measured_and_recorded(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that goes on by a quarter of a second whenever it is looked at: once a step, twice a validation."""
    clock = itertools.count(step=0.25)
    monkeypatch.setattr(autotune, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    monkeypatch.setattr(pace, "clock", lambda: 0)
    found = run(photos, tmp_path, minutes=0.0525, report=False)
    assert (found.plan.minutes, found.plan.steps, found.plan.per_epoch) == (0.0525, 10, 5)  # 3.15 s, 0.3 a step
    assert found.plan.recipe.epochs == 2.0
    with pytest.raises(InputError, match="epochs or minutes, not both"):
        run(photos, tmp_path, minutes=1.0, epochs=1)


def test_what_minutes_became_is_told_and_repeated(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From its 6th step on the machine is three times as slow: 10 of 20 steps are left, and a rerun takes as many."""
    now, learn = [0], loop._Loop.learn

    def slower(training: Any, batch: Any) -> None:
        now[0] += 10**9 * (1 if training.progress.step < 5 else 3)
        learn(training, batch)

    monkeypatch.setattr(loop._Loop, "learn", slower)
    monkeypatch.setattr(pace, "clock", lambda: now[0])
    monkeypatch.setattr(planning, "measure_speed", lambda job: Speed(step=1.0, validation=0.0))
    told: list[str] = []
    found = run(photos, tmp_path, minutes=1 / 3, callbacks=Callbacks(log=told.append))
    assert (found.plan.steps, found.steps, found.lengths[-1][1]) == (20, 10, 10)
    assert now[0] == pytest.approx(20e9, rel=0.1)
    assert found.notes[-1].startswith(
        "20 steps were planned for 0.333333 minutes; the machine's speed changed, and the"
    )
    assert found.notes[-1].endswith(": to 10 steps")
    assert found.notes[-1] in told
    result = found.to_dict()
    assert (result["steps"], result["planned_steps"]) == (10, 20)
    assert result["lengths"] == [list(each) for each in found.lengths]
    page = (found.folder / "report.html").read_text()
    assert "20 steps were planned for" in page
    assert "10 steps of 8 images, 2 epochs" in page
    monkeypatch.setattr(pace, "clock", lambda: 0)
    again = rerun(found.folder)
    assert again.same, again.differences
    assert again.run.lengths == found.lengths


# ---- the data ----------------------------------------------------------------------------------------------------


@pytest.mark.fault("T16")
def test_unreadable_images_are_counted_and_named(photos: Path, tmp_path: Path) -> None:
    own = tmp_path / "photos"
    shutil.copytree(photos, own)
    for row in range(5):
        (own / "blue" / f"{row}.png").write_bytes(b"not an image")
    told: list[str] = []
    found = run(own, tmp_path / "runs", callbacks=Callbacks(log=told.append))
    assert "5 of 60 images cannot be read, and are skipped" in told
    assert "blue/0.png" in (found.folder / "report.html").read_text()
    with pytest.raises(vitrail.VitrailError, match="5 of 60 images .* cannot be read"):
        run(own, tmp_path / "runs", unreadable="stop")


def test_excluded_images_are_left_out(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "out.csv").write_text("path,exclude\nblue/0.png,1\nblue/1.png,0\n2 red/3.png,yes\n")
    found = run(photos, tmp_path / "runs", exclude=tmp_path / "out.csv", report=False)
    names = json.loads((found.folder / "data.json").read_text())["names"]
    assert len(names) == 58
    assert "blue/0.png" not in names
    assert "blue/1.png" in names


def test_several_labels_from_a_table(photos: Path, tmp_path: Path) -> None:
    rows = ["path,label"]
    for name, labels in (("2 red", "warm"), ("10 green", "cold|plant"), ("blue", "cold")):
        rows += [f"{photos / name}/{row}.png,{labels}" for row in range(20)]
    (tmp_path / "labels.csv").write_text("\n".join(rows) + "\n")
    found = train(
        tmp_path / "labels.csv", model=NETWORK, recipe=replace(QUICK, epochs=12), out=tmp_path / "runs", check=False
    )
    assert found.plan.task == "multi-label"
    assert found.evaluation.scores["mean_ap"].value > 0.9
    checkpoint = vitrail.load(found.folder)
    assert checkpoint.thresholds is not None
    [answer] = vitrail.predict(checkpoint, [photos / "10 green" / "0.png"])
    assert set(answer.labels) == {"cold", "plant"}


@pytest.mark.parametrize("kind", ["uint16", "float32", "five bands"])
def test_bands_and_range_are_kept(tmp_path: Path, kind: str) -> None:
    dice = np.random.default_rng(5)
    for number, name in enumerate(("low", "high")):
        (tmp_path / "tiles" / name).mkdir(parents=True)
        for row in range(12):
            shape = (16, 16, 5) if kind == "five bands" else (16, 16)
            values = dice.random(shape) * 0.01 + 0.3 + 0.02 * number  # apart by less than 8 bits would keep well
            scaled = values.astype(np.float32) if kind != "uint16" else (values * 65535).astype(np.uint16)
            np.save(tmp_path / "tiles" / name / f"{row}.npy", scaled)
    data = read_data(tmp_path / "tiles")
    assert (
        bands_of(data)
        == {
            "uint16": {"channels": 1, "range": 65535.0},
            "float32": {"channels": 1, "range": 1.0},
            "five bands": {"channels": 5, "range": 1.0},
        }[kind]
    )
    found = train(data, model=NETWORK, recipe=replace(QUICK, epochs=10), out=tmp_path / "runs", check=False)
    assert found.plan.preprocess.channels == (5 if kind == "five bands" else 1)
    assert found.plan.preprocess.mean == pytest.approx([0.315] * found.plan.preprocess.channels, abs=0.003)
    assert found.evaluation.scores["top1"].value == 1.0


def test_a_test_part_that_is_given_is_the_only_one() -> None:
    data = tiny.make_images()  # with train and val
    prepared = prepare(data, Options(val=0.3, test=0.3))
    assert [each.split for each in prepared.dataset.samples] == [each.split for each in data.samples]


def test_the_mean_and_deviation_are_those_of_the_training_images(finished: Run, photos: Path) -> None:
    manifest = Manifest.from_json((finished.folder / "data.json").read_text())
    names = [each.name for each in manifest.entries if each.split == "train"]
    pixels = np.stack([np.asarray(Image.open(photos / name)) for name in names]) / 255  # (n, 16, 16, 3)
    assert finished.plan.preprocess.mean == pytest.approx(pixels.mean((0, 1, 2)).tolist(), abs=1e-4)
    assert finished.plan.preprocess.std == pytest.approx(pixels.std((0, 1, 2)).tolist(), abs=1e-4)


def test_a_recipe_and_a_plan_come_back_from_json(finished: Run) -> None:
    augment = Augment(crop=(0.25, 0.75), shift=2, flip=True, rand_ops=1, erase=0.125, mixup=0.5)
    recipe = replace(QUICK, augment=augment, dropout=0.25, optimiser="sgd", schedule="linear")
    assert Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe
    plan = replace(finished.plan, recipe=recipe)
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan


def test_where_two_plans_differ_is_named_in_full() -> None:
    old = {"steps": 9, "size": [8, 8], "recipe": {"lr": 0.1, "augment": {"flip": True}}, "old": 1}
    new = {"steps": 9, "size": (8, 8), "recipe": {"lr": 0.1, "augment": {"flip": False}}, "new": 2}
    assert plan_differences(old, old) == []
    assert plan_differences(old, new) == [
        "recipe.augment.flip: True before, False now",
        "old: 1 before, None now",
        "new: None before, 2 now",
    ]


# ---- starting from a checkpoint ----------------------------------------------------------------------------------


@pytest.mark.row("004.10")
def test_from_pre_training_to_fine_tuning(photos: Path, finished: Run, tmp_path: Path) -> None:
    own = tmp_path / "two"
    for name in ("2 red", "blue"):
        shutil.copytree(photos / name, own / name)
    recipe = replace(QUICK, epochs=2, lr=1e-4)
    found = train(own, start=finished.best, recipe=recipe, out=tmp_path / "runs", check=False)
    assert [each.name for each in found.stages] == ["k-NN", "linear probe"]
    assert all(each.score.value == 1.0 for each in found.stages)
    assert found.evaluation.scores["top1"].value == 1.0
    assert found.plan.classes == ("2 red", "blue")
    assert str(finished.best) in found.plan.origin
    page = (found.folder / "report.html").read_text()
    steps = next(each.text for each in read(page).all("section") if each.text.startswith("Step by step"))
    places = [steps.index(each) for each in ("k-NN100.0 %", "linear probe100.0 %", "fine-tuned100.0 %")]
    assert places == sorted(places)
    assert steps.endswith(f"the whole network, {found.steps} steps")


def test_a_kill_before_the_first_state_keeps_the_probe(
    photos: Path, finished: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(photos, start=finished.best, recipe=QUICK, out=tmp_path / "a", check=False, report=False)

    def reached(point: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(saving, "reached", reached)
        with pytest.raises(KeyboardInterrupt):
            train(photos, start=finished.best, recipe=QUICK, out=tmp_path / "b", check=False, report=False)
    assert (tmp_path / "b" / "photos-1" / "state").is_dir()
    again = train(photos, start=finished.best, recipe=QUICK, out=tmp_path / "b", check=False, report=False)
    assert again.resumed
    for name in ("metrics.jsonl", "last.safetensors"):
        assert (again.folder / name).read_bytes() == (whole.folder / name).read_bytes()


def test_a_start_is_shown_images_of_the_size_asked_for(photos: Path, finished: Run) -> None:
    for size, expected in (((32, 24), (32, 24)), (None, (16, 16))):
        _, choice = prepare_model(photos, Preset(recipe=QUICK), Options(start=finished.best, size=size))
        assert choice.preprocess.size == choice.model.config.image_size == expected


def test_features_are_those_of_a_network_in_use(tmp_path: Path) -> None:
    job = tiny.job(tmp_path, 1)
    found = [
        features(vitrail.Checkpoint(job.model.train(mode), job.plan.preprocess), job.train.views)
        for mode in (True, False)
    ]
    assert found[0].shape == (48, 16)
    assert np.array_equal(*found)


def test_a_start_with_two_tokens_for_its_head(photos: Path, tmp_path: Path) -> None:
    two = {"pool": "cls+distillation", "cls_token": True, "distillation_token": True, "positions": Positions()}
    config = replace(NETWORK, classes=3, **two)  # type: ignore[arg-type]
    names = [f"class {number}" for number in range(3)]
    vitrail.save(vitrail.Checkpoint(ViT(config), vitrail.Preprocess(16), names), tmp_path / "two.safetensors")
    found = train(
        photos, start=tmp_path / "two.safetensors", recipe=QUICK, out=tmp_path / "runs", check=False, report=False
    )
    assert [each.name for each in found.stages] == ["k-NN", "linear probe"]


def test_judged_by_validation_a_caveat_stands_wherever_the_number_stands(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the result, its JSON and report; where it is evaluated again or compared; not on images that are new to it."""
    found = run(photos, tmp_path, test=0.0, epochs=1)
    assert (found.evaluation.split, found.evaluation.caveat) == ("val", CHOSEN)
    assert json.loads((found.folder / "result.json").read_text())["evaluation"]["caveat"] == CHOSEN
    assert CHOSEN in (found.folder / "report.html").read_text()
    report_run(found, as_json=False)
    assert f"caveat            {CHOSEN}" in capsys.readouterr().out
    new = draw(tmp_path / "new", count=3, side=20)
    for words in (["evaluate"], ["compare", str(found.folder)]):
        seen, fresh = (
            CliRunner().invoke(load_verbs(), [*words, str(found.folder), str(where)]).output for where in (photos, new)
        )
        assert f"caveat            {CHOSEN}" in seen
        assert "caveat" not in fresh
        out = tmp_path / words[0]
        CliRunner().invoke(load_verbs(), [*words, str(found.folder), str(photos), "--out", str(out)])
        written = {each.suffix: each.read_text() for each in out.iterdir() if each.suffix in (".html", ".json")}
        assert CHOSEN in written[".html"]
        assert json.loads(written[".json"])["caveat"] == CHOSEN


@pytest.mark.parametrize("crop", [None, (0.5, 1.0)])
def test_judged_by_its_own_images_it_says_so(
    photos: Path, finished: Run, tmp_path: Path, crop: tuple[float, float] | None
) -> None:
    recipe = replace(QUICK, augment=Augment(crop=crop))
    found = train(photos, start=finished.best, recipe=recipe, out=tmp_path, val=0.0, test=0.0, check=False)
    assert found.evaluation.split == "train"
    assert [each.name for each in found.stages] == ["linear probe"]  # the nearest image would be itself
    page = (found.folder / "report.html").read_text()
    assert TRAINED in page
    assert "on new images like these" not in page


def test_nothing_learned_leaves_the_probe(photos: Path, finished: Run, tmp_path: Path) -> None:
    found = train(photos, start=finished.best, recipe="probe", out=tmp_path, check=False)
    assert rerun(found.folder, tmp_path / "again").same
    assert found.steps == 0
    before, after = vitrail.load(finished.best).model.state_dict(), vitrail.load(found.folder).model.state_dict()
    changed = {name for name in after if not torch.equal(before[name], after[name])}
    assert changed == {"head.classify.weight", "head.classify.bias"}
    assert found.evaluation.scores["top1"].value == found.stages[-1].score.value


def test_a_model_and_a_checkpoint_at_once_are_refused(photos: Path, finished: Run, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not both"):
        train(photos, model="vit-ti16", start=finished.best, out=tmp_path)
    with pytest.raises(InputError, match="no preset 'vit-ti61': did you mean 'vit-ti16'"):
        train(photos, model="vit-ti61", out=tmp_path)
    with pytest.raises(InputError, match="no recipe 'scrach': did you mean 'scratch'"):
        train(photos, recipe="scrach", out=tmp_path)


# ---- before a run ------------------------------------------------------------------------------------------------


def test_trials_go_through_the_network_as_the_run_would(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, bool]] = []
    forward = ViT.forward

    def watched(self: ViT, pixels: torch.Tensor, **more: Any) -> torch.Tensor:
        seen.append((len(pixels), torch.is_autocast_enabled("cpu")))
        return forward(self, pixels, **more)

    monkeypatch.setattr(ViT, "forward", watched)
    recipe = replace(QUICK, pieces=4, precision="bf16")
    run_dry(photos, Options(model=NETWORK, recipe=recipe, out=tmp_path), search=True)
    assert set(seen) == {(2, True)}


def test_a_damaged_run_is_in_nobodys_way(photos: Path, tmp_path: Path) -> None:
    interrupted(photos, tmp_path, 2)
    (tmp_path / "photos-1" / "config.json").write_text("{")
    assert run(photos, tmp_path, report=False).folder.name == "photos-2"


@pytest.mark.fault("T11")
def test_starting_anew_leaves_a_run_under_way_alone(photos: Path, tmp_path: Path) -> None:
    run(photos, tmp_path, name="mine", report=False)
    with locked(tmp_path / "mine"), pytest.raises(InputError, match="is being trained by process"):
        run(photos, tmp_path, name="mine", fresh=True)
    assert (tmp_path / "mine" / "result.json").exists()


def test_a_recipe_known_to_fail_is_refused(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="known to fail: .*0.01"):
        train(photos, model=NETWORK, recipe=replace(QUICK, lr=1e-2), out=tmp_path)


def test_trying_rates_leaves_no_run(photos: Path, tmp_path: Path) -> None:
    options = Options(model=NETWORK, recipe=QUICK, out=tmp_path)
    found = run_dry(photos, options, rates=True, search=True)
    assert {each.name for each in found.rates} == {"entry", "block 0", "block 1", "end", "head"}
    assert found.suggested is not None
    assert 1e-5 < found.suggested < 1
    assert [path.name for path in tmp_path.iterdir()] == ["learning-rates.png"]
    with Image.open(tmp_path / "learning-rates.png") as plot:
        assert plot.size == (1184, 760)
    lrs = [each.lr for each in found.tried]
    assert lrs == sorted(lrs)
    assert json.dumps(found.to_dict())


def test_tiny_job_is_what_the_campaigns_train(tmp_path: Path) -> None:
    job = tiny.job(tmp_path, 1)
    assert job.plan.recipe.optimiser == "muon"
    assert job.plan.recipe.ema > 0
    assert job.model.config.stem is not None


def test_a_run_recorded_in_earlier_words_goes_on(photos: Path, tmp_path: Path) -> None:
    """Runs of before said "one" for single-label, and knew no objective."""
    given: dict[str, Any] = {"model": NETWORK, "recipe": QUICK, "check": False, "report": False, "name": "run"}
    straight = train(photos, out=tmp_path / "a", **given)

    def stop(step: int, steps: int, loss: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(photos, out=tmp_path / "b", callbacks=Callbacks(step=stop), **given)
    folder = tmp_path / "b" / "run"
    config = json.loads((folder / "config.json").read_text())
    assert config["plan"].pop("task") == "single-label"
    config["plan"]["task"] = "one"
    for recipe in (config["plan"]["recipe"], config["options"]["recipe"]):
        del recipe["objective"]
    (folder / "config.json").write_text(json.dumps(config))
    manifest = (folder / "data.json").read_text()
    earlier = manifest.replace('"format":2', '"format":1').replace('"task":"single-label"', '"task":"one"')
    assert earlier != manifest
    (folder / "data.json").write_text(earlier)
    again = train(photos, out=tmp_path / "b", **given)
    assert again.resumed
    assert again.plan == straight.plan
    assert (again.folder / "metrics.jsonl").read_bytes() == (straight.folder / "metrics.jsonl").read_bytes()
    config["plan"]["task"] = "several"
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="task: 'multi-label' before, 'single-label' now"):
        train(photos, out=tmp_path / "b", finished=True, **given)


def test_the_report_says_what_is_promised_of_images_unlike_the_training_ones() -> None:
    told = final_evaluation._unlike(SimpleNamespace(ood=SimpleNamespace(false_alarms=0.05)))  # type: ignore[arg-type]
    assert told == "marked; a false alarm for at most 5 % of images like the training ones"
