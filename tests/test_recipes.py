"""The recipes run, on a handful of images: each study trains what it says, down to its table and plot."""

from __future__ import annotations

import importlib
import json
import runpy
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import vitrail
from vitrail.insight.cost import estimate
from vitrail.network.config import Positions, ViTConfig
from vitrail.network.vit import ViT
from vitrail.training import RECIPES as PRESETS
from vitrail.training import final_evaluation, runs
from vitrail.training.job import Job

RECIPES = Path(__file__).resolve().parents[1] / "recipes"


def noise(path: Path, count: int) -> Path:
    """Ten classes of noise, so many images each to train on, and one to be judged by."""
    dice = np.random.default_rng(1)
    labels = np.arange(10 * count) % 10
    images = dice.integers(0, 255, (10 * count + 10, 28, 28), dtype=np.uint8)
    np.savez(path, train_images=images[:-10], train_labels=labels, test_images=images[-10:], test_labels=np.arange(10))
    return path


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four images a class: enough for a step."""
    return noise(tmp_path_factory.mktemp("few") / "few.npz", 4)


@pytest.fixture(scope="module")
def more(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty images a class: enough for shares of them."""
    return noise(tmp_path_factory.mktemp("more") / "more.npz", 20)


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without intervals, which take longer than so short a training."""
    monkeypatch.setattr(final_evaluation, "evaluation_of", partial(final_evaluation.evaluation_of, resamples=0))


class Imported:
    """The modules of recipes/, imported afresh and forgotten afterwards."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.patch = monkeypatch
        self.patch.syspath_prepend(str(RECIPES))

    def get(self, name: str) -> ModuleType:
        return importlib.import_module(name)

    def run(self, name: str, *arguments: object) -> None:
        self.patch.setattr(sys, "argv", [f"{name}.py", *map(str, arguments)])
        self.get(name).main()

    def command(self, name: str, *arguments: object) -> None:
        """As `python recipes/name.py` runs it."""
        self.patch.setattr(sys, "argv", [f"{name}.py", *map(str, arguments)])
        runpy.run_path(str(RECIPES / f"{name}.py"), run_name="__main__")


@pytest.fixture
def recipes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Imported]:
    names = [path.stem for path in RECIPES.glob("*.py")]
    before = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    yield Imported(monkeypatch)
    for name in names:
        sys.modules.pop(name, None)
    sys.modules.update(before)


class Trained(NamedTuple):
    """A training that a study really ran."""

    config: ViTConfig  # of the network itself
    images: int
    steps: int
    seed: int
    lr: float
    batch: int
    val: int


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[Trained]:
    """Every training from here on, as it starts."""
    seen: list[Trained] = []
    fit = runs.fit

    def watched(job: Job) -> Any:
        plan, val = job.plan, 0 if job.val is None else len(job.val.targets)
        recipe = plan.recipe
        seen.append(
            Trained(job.model.config, len(job.train.targets), plan.steps, plan.seed, recipe.lr, recipe.batch, val)
        )
        return fit(job)

    monkeypatch.setattr(runs, "fit", watched)
    return seen


def table(folder: Path, title: str) -> list[dict[str, Any]]:
    """The table that a study wrote, which has a plot beside it."""
    rows: list[dict[str, Any]] = json.loads((folder / f"{title}.json").read_text())
    assert all(0 <= score <= 1 for row in rows for score in row["scores"])
    with Image.open(folder / f"{title}.png") as plot:
        assert plot.size[0] >= 2 * 600
    return rows


STUDY = ("--steps", 1, "--seeds", 1)


@pytest.mark.row("P.16")
def test_positions_trains_a_network_of_each_kind(
    few: Path, tmp_path: Path, recipes: Imported, trained: list[Trained]
) -> None:
    recipes.run("positions", "--data", few, *STUDY, "--out", tmp_path)
    rows = table(tmp_path, "positions")
    kinds = [(each.config.positions.kind, each.config.rotary is not None) for each in trained]
    expected = {
        "none": ("none", False),
        "learned, 1-D": ("learned", False),
        "learned, 2-D": ("learned-2d", False),
        "sines and cosines, 1-D": ("sincos-1d", False),
        "sines and cosines, 2-D": ("sincos-2d", False),
        "relative": ("relative", False),
        "rotary": ("none", True),
    }
    assert dict(zip([row["name"] for row in rows], kinds, strict=True)) == expected
    alike = {replace(each.config, positions=Positions(prefix=False), rotary=None) for each in trained}
    assert len(alike) == 1  # but for the positions they are one network
    assert alike.pop().stem is None


@pytest.mark.row("P.16", "003.10")
def test_pool_trains_both_pools_at_both_rates(
    few: Path, tmp_path: Path, recipes: Imported, trained: list[Trained]
) -> None:
    recipes.run("pool", "--data", few, *STUDY, "--out", tmp_path)
    rows = table(tmp_path, "pool")
    found = [(each.config.pool, each.config.cls_token, each.lr) for each in trained]
    assert found == [("cls", True, 8e-4), ("cls", True, 3e-4), ("mean", False, 8e-4), ("mean", False, 3e-4)]
    assert [row["name"] for row in rows] == ["cls at 0.0008", "cls at 0.0003", "mean at 0.0008", "mean at 0.0003"]


@pytest.mark.row("P.12")
def test_shapes_changes_one_thing_at_a_time(
    few: Path, tmp_path: Path, recipes: Imported, trained: list[Trained]
) -> None:
    recipes.run("shapes", "--data", few, *STUDY, "--out", tmp_path)
    rows = table(tmp_path, "shapes")
    shapes = [(each.config.depth, each.config.width, each.config.mlp_width, each.config.patch_size) for each in trained]
    expected = {
        "middle": (4, 64, 128, (7, 7)),
        "depth 2": (2, 64, 128, (7, 7)),
        "depth 8": (8, 64, 128, (7, 7)),
        "width 32": (4, 32, 128, (7, 7)),
        "width 128": (4, 128, 128, (7, 7)),
        "mlp 64": (4, 64, 64, (7, 7)),
        "mlp 256": (4, 64, 256, (7, 7)),
        "patch 14": (4, 64, 128, (14, 14)),
        "patch 4": (4, 64, 128, (4, 4)),
    }
    assert dict(zip([row["line"] for row in rows], shapes, strict=True)) == expected
    for row, each in zip(rows, trained, strict=True):
        count = sum(parameter.numel() for parameter in ViT(each.config).parameters())
        assert row["name"] == f"{row['line']} ({count / 1000:.0f} k)"
        assert row["at"] == pytest.approx(estimate(each.config).multiply_adds / 1e6)


@pytest.mark.row("003.18")
def test_larger_tests_one_network_at_every_size(
    few: Path, tmp_path: Path, recipes: Imported, trained: list[Trained], monkeypatch: pytest.MonkeyPatch
) -> None:
    tested: list[tuple[tuple[int, int], tuple[int, int], float]] = []
    evaluate = vitrail.evaluate

    def watched(checkpoint: Any, data: Any, **more: Any) -> Any:
        result = evaluate(checkpoint, data, **more)
        accuracy = result.scores["top1"].value
        tested.append((checkpoint.preprocess.size, checkpoint.model.config.image_size, accuracy))
        return result

    monkeypatch.setattr(vitrail, "evaluate", watched)
    recipes.run("larger", "--data", few, "--steps", 1, "--seeds", 2, "--out", tmp_path)
    rows = table(tmp_path, "larger")
    sizes = [20, 24, 28, 32, 36, 44, 56]
    assert [each[:2] for each in tested] == [((size, size), (size, size)) for size in 2 * sizes]
    assert [row["at"] for row in rows] == sizes
    assert [row["scores"] for row in rows] == [[tested[n][2], tested[n + 7][2]] for n in range(7)]
    assert [(each.config.image_size, each.seed) for each in trained] == [((28, 28), 0), ((28, 28), 1)]


@pytest.mark.row("P.15")
def test_data_size_uses_a_share_of_the_images(
    more: Path, tmp_path: Path, recipes: Imported, trained: list[Trained], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[int, int]] = []
    judged: list[Tensor] = []
    randint, forward = torch.randint, recipes.get("residual").ResidualCNN.forward

    def watched(*arguments: Any, **more: Any) -> Tensor:
        if len(arguments) == 2:  # which images make up a batch of the CNN
            drawn.append((arguments[0], arguments[1][0]))
        return randint(*arguments, **more)

    def seen(self: Any, pixels: Tensor) -> Tensor:
        if not self.training:
            judged.append(pixels)
        result: Tensor = forward(self, pixels)
        return result

    monkeypatch.setattr(torch, "randint", watched)
    monkeypatch.setattr(recipes.get("residual").ResidualCNN, "forward", seen)
    recipes.run("data_size", "--data", more, *STUDY, "--out", tmp_path)
    rows = table(tmp_path, "data-size")
    counts = [10, 10, 20, 60, 200]  # 1, 3, 10, 30 and 100 % of 20 a class, and at least one of each
    assert [(each.images, each.batch) for each in trained[::2]] == [(count, min(64, count)) for count in counts]
    assert [each[:2] for each in trained[1::2]] != [each[:2] for each in trained[::2]]  # ours is no plain ViT
    assert [each.images for each in trained[1::2]] == counts
    assert drawn == [(count, min(64, count)) for count in counts]
    assert [row["at"] for row in rows] == [count for count in counts for _ in range(3)]
    assert [row["line"] for row in rows] == ["ViT", "ours", "residual CNN"] * 5
    with np.load(more) as arrays:
        held = torch.from_numpy(arrays["test_images"][:, None]).float() / 127.5 - 1
    assert all(torch.equal(each, held) for each in judged)


def test_a_share_is_of_every_class_and_never_of_the_test(more: Path, recipes: Imported) -> None:
    data = vitrail.data.read_data(more)
    part = recipes.get("data_size").cut(data, 0.3)
    for split, count in (("train", 6), ("test", 1)):
        labels = [each.labels[0] for each in part.samples if each.split == split]
        assert {name: labels.count(name) for name in data.classes} == dict.fromkeys(data.classes, count)


@pytest.mark.row("P.16")
def test_a_variant_is_scored_once_a_seed_without_validation(
    few: Path, recipes: Imported, trained: list[Trained], capsys: pytest.CaptureFixture[str]
) -> None:
    study = recipes.get("study")
    recipe = PRESETS["scratch"].recipe
    found = study.accuracy(str(few), None, recipe, 3, 2, "three")
    assert [(each.seed, each.steps, each.val, each.images) for each in trained] == [(n, 2, 0, 40) for n in range(3)]
    assert len(found.scores) == 3
    assert "three" in capsys.readouterr().err
    scored = study.Scored("x", [0.5, 0.7], 0.0)
    assert (scored.mean, scored.words) == (pytest.approx(0.6), "60.0 ± 14.1")


def test_a_residual_unit_adds_what_came_in(recipes: Imported) -> None:
    residual = recipes.get("residual")
    x = torch.randn(2, 4, 6, 6)
    same = residual.Unit(4, 4, 1).eval()
    assert same.shortcut is None
    torch.nn.init.zeros_(same.conv2.weight)
    assert torch.equal(same(x), x.relu())
    halved = residual.Unit(4, 8, 2).eval()
    torch.nn.init.zeros_(halved.conv2.weight)
    assert torch.equal(halved(x), halved.shortcut(x).relu())
    logits = residual.ResidualCNN(1, 10).eval()
    assert [unit.conv1.out_channels for unit in logits.units] == [32, 64, 128]
    pixels = torch.randn(2, 1, 28, 28)
    expected = logits.head(logits.units(logits.root(pixels)).flatten(2).mean(2))
    torch.testing.assert_close(logits(pixels), expected)


# ---- the recipes that are commands -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, arguments, options",
    [
        ("scratch", (), {"data": "vitrail:fashion", "epochs": 20.0, "seed": 0, "out": "runs"}),
        (
            "scratch",
            ("--data", "d", "--epochs", "3", "--seed", "4", "--out", "o"),
            {"data": "d", "epochs": 3.0, "seed": 4, "out": "o"},
        ),
        (
            "probe",
            ("d", "--from", "w", "--size", "96", "--seed", "4", "--out", "o"),
            {"data": "d", "start": "w", "recipe": "probe", "size": 96, "seed": 4, "out": "o"},
        ),
        (
            "finetune",
            ("d", "--from", "w", "--size", "96", "--epochs", "3", "--seed", "4", "--out", "o"),
            {"data": "d", "start": "w", "recipe": "finetune", "size": 96, "epochs": 3.0, "seed": 4, "out": "o"},
        ),
    ],
)
def test_what_a_recipe_is_given_reaches_the_training(
    recipes: Imported,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    arguments: tuple[str, ...],
    options: dict[str, Any],
) -> None:
    given: list[dict[str, Any]] = []
    score = SimpleNamespace(value=0.625)

    def train(data: Any, **more: Any) -> Any:
        given.append({"data": data} | more)
        stages = [SimpleNamespace(name="k-NN", score=score)]
        scores = SimpleNamespace(scores={"top1": score})
        return SimpleNamespace(folder=Path("o/run"), stages=stages, evaluation=scores, seconds=1.0)

    monkeypatch.setattr(vitrail, "train", train)
    recipes.run(name, *arguments)
    assert given == [options]
    assert "62.5 %" in capsys.readouterr().out


def test_glass_is_judged_by_windows_it_never_saw(
    recipes: Imported, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    glass = recipes.get("glass")
    draw, drawn = glass.draw, []

    def fewer(first: int, count: int) -> tuple[Tensor, Tensor]:
        drawn.append((first, count))
        images, labels = draw(first, min(count, 24))
        assert images.shape == (min(count, 24), 3, 96, 96)
        return images, labels

    monkeypatch.setattr(glass, "draw", fewer)
    out = tmp_path / "glass.safetensors"
    recipes.run("glass", "--images", 24, "--epochs", 1, "--batch", 8, "--out", out)
    assert drawn == [(0, 24), (10_000_000, 2_000)]
    kept = vitrail.load(out)
    assert kept.classes == tuple(glass.CLASSES)
    held, labels = draw(10_000_000, 24)
    said = kept.run(kept.preprocess.batch(list(held.permute(0, 2, 3, 1).numpy())))[0].argmax(1)
    assert kept.provenance.metrics["accuracy"] == pytest.approx(float((said == labels.numpy()).mean()))
    assert "held-out" in capsys.readouterr().out


def test_from_scratch_and_fine_tuned(
    few: Path, tmp_path: Path, recipes: Imported, capsys: pytest.CaptureFixture[str]
) -> None:
    recipes.command("scratch", "--data", few, "--epochs", 1, "--out", tmp_path)
    assert "report.html" in capsys.readouterr().out
    start = tmp_path / "few-1" / "best.safetensors"
    for place, name in enumerate(("probe", "finetune"), start=2):
        longer = ("--epochs", 1) if name == "finetune" else ()
        recipes.command(name, few, "--from", start, *longer, "--out", tmp_path)
        said = capsys.readouterr().out
        assert said.startswith("k-NN")
        assert "linear probe" in said
        assert f"few-{place}" in said


@pytest.mark.row("P.16")
@pytest.mark.parametrize("name", ["positions", "pool"])
def test_a_study_has_three_seeds_unless_told_and_says_that_its_data_is_small(name: str, recipes: Imported) -> None:
    recipes.patch.setattr(sys, "argv", [f"{name}.py"])
    assert recipes.get("study").options("a study").seeds == 3
    assert "small-data numbers" in (recipes.get(name).__doc__ or "")
