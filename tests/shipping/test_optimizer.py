"""The search under a budget, the table of runtimes, and runtimes by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import vitrail
import vitrail.shipping
from shipping.packs import checkpoint, labelled
from vitrail.errors import CheckpointError, ConfigError, InputError
from vitrail.evaluation import Score
from vitrail.exporters import TARGETS
from vitrail.inference import open_model
from vitrail.packed import Packed, open_packed, save_packed
from vitrail.quantisation import quantiser
from vitrail.quantisation.accuracy_budget import BudgetResult, Judge
from vitrail.reporting.charts import curves
from vitrail.shipping import candidates, search_plot
from vitrail.shipping import optimizer as optimising
from vitrail.shipping.candidates import precisions_here
from vitrail.shipping.optimizer import Way, optimize, race_settings
from vitrail.shipping.search_plot import save_plot
from vitrail.shipping.steps import SearchStep

SECONDS = {"eager": 2.0, "fp32": 1.0, "bf16": 1.5, "int8": 0.5}  # of a way, by who answers or how exactly


def fixed_times(calls: Any, rounds: int = 5) -> dict[Any, float]:
    """Every way answers once; how long it took is fixed, and longer where tokens are merged."""
    for call in calls.values():
        call()
    return {way: SECONDS.get(way.runtime, SECONDS[way.precision]) + bool(str(way.merging)) / 8 for way in calls}


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few images are timed, in fixed times."""
    monkeypatch.setattr(optimising, "TIMED", 4)
    monkeypatch.setattr(optimising, "interleaved", fixed_times)


@pytest.mark.usefixtures("few")
def test_the_fastest_within_the_budget_is_written_with_its_measurements(tmp_path: Path) -> None:
    made = checkpoint()
    data = labelled(made, 90, train=30, val=40, test=20)
    said: list[str] = []
    steps: list[SearchStep] = []
    found = optimize(
        *(made, data, tmp_path / "fast"),
        max_drop=10.0,
        batches=(1, 4),
        runtimes=("packed",),
        progress=steps.append,
        log=said.append,
    )
    assert [each.number for each in steps] == list(range(1, len(steps) + 1))
    assert steps[-1].number == steps[-1].total  # none was announced that did not come
    assert steps[0][2:] == (1 + 1 + 3 * (1 + len(precisions_here())) + len(race_settings((1, 4))), None)
    assert all(each.seconds_left is not None and each.seconds_left >= 0 for each in steps[1:])
    assert {"how many tokens may be merged", "what may be int8", "packed int8"} <= {each.what for each in steps}
    assert found.best.within
    assert found.best.judged.drop.value <= 10.0
    assert all(each.rate <= found.best.rate for each in found.tried if each.within)
    tried = {str(each.way) for each in found.tried}
    assert {"eager fp32", "packed fp32", "packed int8"} <= tried
    assert any("merged in blocks from" in each for each in tried)
    assert str(found.best.way) == "packed int8"
    assert (found.best.rate, found.eager.rate, found.speed) == (4 / 0.5, 4 / 2.0, 4.0)
    assert found.eager[1:3] == found.best[1:3]
    assert found.reported.images == 20
    assert found.out == tmp_path / "fast.safetensors"
    opened = open_packed(found.out)
    assert opened.precision == "int8"
    assert opened.measurements["best"]["images_per_second"] == found.best.rate
    assert opened.model.config.merge_per_block == 0
    save_plot(found, tmp_path / "plots" / "found.png")
    assert (tmp_path / "plots" / "found.png").stat().st_size > 10_000
    with pytest.raises(InputError, match=r"expected FILE\.png"):
        save_plot(found, tmp_path / "found.txt")


class Contest:
    """A search among ways that are there already, by fixed times and losses: what it takes, and what it reports."""

    WAYS: ClassVar = {Way("eager", "fp32"): 0.0, Way("packed", "fp32"): 0.5, Way("packed", "int8"): 3.0}

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made = checkpoint()
        self.data = labelled(self.made, 90, train=30, val=40, test=20)
        self.asked: list[tuple[int, int, int]] = []  # batch, threads, ways
        self.written: list[Way] = []
        monkeypatch.setattr(optimising, "_candidates", lambda *given: self.candidates())
        monkeypatch.setattr(optimising, "interleaved", fixed_times)
        monkeypatch.setattr(optimising, "run_batches", self.run_batches)
        monkeypatch.setattr(optimising, "_write", lambda winner, made: self.written.append(winner.way))

    def candidates(self) -> list[Any]:
        lost = {
            way: BudgetResult(Score(0.9, 0.8, 1.0), Score(each, 0.0, 9.0), 0.95, 40) for way, each in self.WAYS.items()
        }
        return [optimising._Candidate(way, self.made, self.made, each) for way, each in lost.items()]

    def run_batches(self, runtime: Any, images: Any, *, batch: int, threads: int, skip: Any) -> list[Any]:
        self.asked.append((batch, threads, len(images)))
        return []

    def __call__(self, max_drop: float, **options: Any) -> Any:
        return optimize(self.made, self.data, Path("out"), max_drop=max_drop, **options)


def test_what_is_over_the_budget_never_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    contest = Contest(monkeypatch)
    for budget, winner, speed in ((3.0, "packed int8", 4.0), (2.9, "packed fp32", 2.0), (0.4, "eager fp32", 1.0)):
        found = contest(budget, batches=(4,))
        assert (str(found.best.way), found.speed) == (winner, speed)
        within = {str(each.way): each.within for each in found.tried}
        assert within == {str(way): lost <= budget for way, lost in contest.WAYS.items()}
        assert str(contest.written[-1]) == winner
        assert found.reported.images == 20  # test images, which chose nothing
        assert found.words == "calibrated on train, chosen by val images, reported on test"


def test_every_batch_is_timed_and_for_latency_one_image_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    contest = Contest(monkeypatch)
    monkeypatch.setattr(optimising.torch, "get_num_threads", lambda: 2)
    found = contest(5.0, batches=(2, 8))
    rows = {(each.batch, each.threads) for each in found.tried}
    assert rows == {(2, 1), (2, 2), (8, 1), (8, 2)}
    assert {each[:2] for each in contest.asked} == rows
    assert {each[2] for each in contest.asked} == {40}  # images that choose, at most TIMED of them
    assert contest.asked[0][:2] == (8, 2)  # the largest batch decides who goes on
    found = contest(5.0, batches=(2, 8), goal="latency")
    assert {each.batch for each in found.tried} == {1}


def test_eager_is_timed_as_the_winner_is(monkeypatch: pytest.MonkeyPatch) -> None:
    contest = Contest(monkeypatch)

    def by_batch(calls: Any, rounds: int) -> dict[Any, float]:
        """Eager is slower in small batches, others are faster."""
        took = fixed_times(calls)
        batch = contest.asked[-1][0]
        return {way: each * (8 / batch if way.runtime == "eager" else batch / 8) for way, each in took.items()}

    monkeypatch.setattr(optimising, "interleaved", by_batch)
    found = contest(5.0, batches=(2, 8))
    assert (found.best.batch, found.eager.batch, found.eager.threads) == (2, 2, found.best.threads)
    assert found.speed == pytest.approx(8.0 / 0.125)
    assert found.to_dict()["speed"] == found.speed


def test_the_plot_shows_what_was_lost_below_and_rings_the_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Contest(monkeypatch)(1.0, batches=(4,))
    drawn: dict[str, Any] = {}

    def keep(series: Any, x: Any, y: Any, title: str, points: Any, **more: Any) -> Any:
        drawn.update(title=title, points=points)
        return curves(series, x, y, title, points, **more)

    monkeypatch.setattr(search_plot, "curves", keep)
    save_plot(found, tmp_path / "new" / "plot.svg")
    points = [(each.x, each.y) for each in drawn["points"]]
    assert points == [(80.0, -3.0), (40.0, -0.5), (20.0, 0.0), (40.0, -0.5)]  # the last rings the best
    assert drawn["points"][-1].radius > drawn["points"][0].radius
    assert drawn["title"] == "packed fp32: 2.00 times the checkpoint as it is"
    assert [each.name for each in drawn["points"]] == ["packed int8", "packed fp32", "eager fp32", ""]
    markup = (tmp_path / "new" / "plot.svg").read_text()
    assert all(f">{name}</text>" in markup for name in ("packed int8", "eager fp32", "fp32", "int8", "packed"))


def test_only_the_fastest_within_the_budget_are_timed_further(monkeypatch: pytest.MonkeyPatch) -> None:
    contest = Contest(monkeypatch)
    monkeypatch.setattr(optimising, "FINALISTS", 1)
    found = contest(1.0, batches=(2, 8))
    assert {str(each.way) for each in found.tried if each.batch == 8} == {str(way) for way in contest.WAYS}
    assert {str(each.way) for each in found.tried if each.batch == 2} == {"eager fp32", "packed fp32"}


@pytest.mark.parametrize(
    "name, way, expected",
    [
        ("fast", Way("packed", "int8"), "fast.safetensors"),
        ("fast.onnx", Way("packed", "int8"), "fast.safetensors"),
        ("fast.v2", Way("onnx", "fp32"), "fast.v2.onnx"),
        ("fast.safetensors", Way("openvino", "bf16"), "fast.xml"),
        ("fast", Way("eager", "fp32"), "fast.safetensors"),
    ],
)
def test_a_file_is_called_after_what_won(name: str, way: Way, expected: str) -> None:
    assert optimising._name(Path("there") / name, way) == Path("there") / expected


def test_as_many_tokens_are_merged_as_the_budget_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network that loses a point for each token merged in a block."""
    made = checkpoint(depth=3)
    asked: list[int] = []

    def judge(merged: Any) -> Any:
        asked.append(merged.model.config.merge_per_block)
        return SimpleNamespace(drop=Score(float(asked[-1]), 0.0, 0.0))

    found = optimising.merged_most(made, judge, 3.0)  # type: ignore[arg-type]
    assert {each.count for each in found} == {3}
    assert max(asked) <= 2 * int(0.95 * 16)
    assert optimising.merged_most(made, judge, 0.9) == []  # type: ignore[arg-type]


def test_the_search_merges_in_every_block_or_every_second() -> None:
    made = checkpoint(depth=5)
    found = optimising.merged_most(made, Judge.by(made, labelled(made, 60)), 100.0)
    assert [each.every for each in found] == [1, 2]
    assert str(found[1]) == f"{found[1].count} merged in every second block from 1 on"
    merged = [getattr(each, "merged", 0) for each in found[1].of(made).model.encoder.blocks]
    assert merged == [0, found[1].count, 0, found[1].count, 0]
    assert optimising.schedules(2) == [(0, 1)]  # too few blocks to leave any out
    assert optimising.schedules(12) == [(0, 1), (4, 1), (1, 2)]


@pytest.mark.usefixtures("few")
def test_a_budget_that_only_the_network_itself_keeps(tmp_path: Path) -> None:
    made = checkpoint()
    vitrail.save(made, tmp_path / "net.safetensors")
    found = vitrail.shipping.optimize(  # by its path
        *(tmp_path / "net.safetensors", labelled(made, 60, train=20, val=40), tmp_path / "fast"),
        max_drop=0.0,
        batches=(4,),
        runtimes=("packed",),
    )
    assert found.best.judged.drop.value <= 0.0
    assert found.reported.drop.value <= 0.0


@pytest.mark.usefixtures("few")
def test_mistakes_of_the_search_are_told(tmp_path: Path) -> None:
    made = checkpoint()
    with pytest.raises(ConfigError, match="goal 'speed' is unknown"):
        optimize(made, labelled(made, 40), tmp_path / "a", goal="speed")
    with pytest.raises(InputError, match="batch: expected a whole number"):
        optimize(made, labelled(made, 40), tmp_path / "a", batches=(0,))
    with pytest.raises(InputError, match="expected at least one batch size"):
        optimize(made, labelled(made, 40), tmp_path / "a", batches=())
    for wrong in ("packed", ("tensorrt",)):
        with pytest.raises(InputError, match="runtimes: expected some of packed, onnx, openvino"):
            optimize(made, labelled(made, 40), tmp_path / "a", runtimes=wrong)
    with pytest.raises(InputError, match=r"nothing keeps the budget of -1 points on 30 images: the best found"):
        optimize(
            *(made, labelled(made, 40), tmp_path / "a"),
            max_drop=-1.0,
            batches=(4,),
            merging=False,
            runtimes=("packed",),
        )
    with pytest.raises(InputError, match="expected Checkpoint"):
        optimize(made.model, labelled(made, 40), tmp_path / "a")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
    vitrail.save(made, tmp_path / "a.safetensors")
    with pytest.raises(InputError, match="is there already, and is no packed network"):
        optimize(made, labelled(made, 40), tmp_path / "a")


def test_the_winner_is_what_was_timed_as_the_fastest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = checkpoint(depth=1)
    data = labelled(made, 60, train=20, val=40)
    for module in (candidates, quantiser):
        monkeypatch.setattr(module, "has_bf16_units", lambda: True)
    monkeypatch.setitem(TARGETS, "openvino", replace(TARGETS["openvino"], check=lambda graph, precision: None))
    for wanted, suffix in (
        ("packed int8", ".safetensors"),
        ("packed fp32", ".safetensors"),
        ("onnx int8", ".onnx"),
        ("openvino int8", ".xml"),
    ):

        def fixed(calls: Any, rounds: int = 1, wanted: str = wanted) -> dict[Any, float]:
            return {key: 0.5 if str(key) == wanted else 1.0 for key in calls}

        monkeypatch.setattr(optimising, "interleaved", fixed)
        kinds = (wanted.split()[0],)
        out = tmp_path / wanted.replace(" ", "-")
        found = optimize(made, data, out, max_drop=50.0, batches=(4,), merging=False, runtimes=kinds)
        assert str(found.best.way) == wanted
        assert found.speed == 2.0
        assert found.out == out.with_name(out.name + suffix)
        opened = open_model(found.out)
        packed = suffix == ".safetensors"
        measured = opened.measurements if packed else opened.contents.measurements  # type: ignore[attr-defined]
        assert [measured["best"][each] for each in ("runtime", "precision")] == wanted.split()
        tried = {str(each.way) for each in found.tried}
        assert tried >= {"eager fp32", f"{kinds[0]} fp32", f"{kinds[0]} int8"}
        assert (f"{kinds[0]} bf16" in tried) == (kinds[0] != "onnx")
        precision = opened.precision if packed else opened.contents.precision  # type: ignore[attr-defined]
        assert precision == {"openvino int8": "int8+bf16"}.get(wanted, wanted.split()[1])


def test_a_candidate_that_fails_does_not_end_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = checkpoint()

    def refuse(*given: Any, **options: Any) -> None:
        raise CheckpointError("not exported: it drifts")

    monkeypatch.setattr(optimising, "export", refuse)
    said: list[str] = []
    found = optimize(
        *(made, labelled(made, 40), tmp_path / "a"),
        max_drop=50.0,
        batches=(4,),
        merging=False,
        runtimes=("onnx",),
        log=said.append,
    )
    assert found.best.way.runtime == "eager"
    assert "onnx fp32 left out: not exported: it drifts" in said
    assert vitrail.load(found.out).classes == made.classes


def test_runtimes_by_name(tmp_path: Path) -> None:
    made = checkpoint()
    path = tmp_path / "weights.safetensors"
    vitrail.save(made, path)
    pixels = torch.randn(2, 3, 32, 32).numpy()
    expected, _ = made.run(pixels)
    for name, kind in (("", vitrail.Checkpoint), ("eager", vitrail.Checkpoint), ("packed", Packed)):
        runtime = open_model(path, runtime=name)
        assert isinstance(runtime, kind)
        np.testing.assert_allclose(runtime.run(pixels)[0], expected, rtol=0, atol=1e-5)
    assert open_model(path, runtime="packed-bf16").precision == "bf16"  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="no runtime 'packd'"):
        open_model(path, runtime="packd")
    with pytest.raises(InputError, match=r"is a checkpoint: `vitrail export .* NAME\.onnx` makes a file for onnx"):
        open_model(path, runtime="onnx")
    save_packed(Packed(made), made, tmp_path / "packed.safetensors")
    assert isinstance(open_model(tmp_path / "packed.safetensors"), Packed)
    with pytest.raises(InputError, match="is packed and says everything itself"):
        open_model(tmp_path / "packed.safetensors", runtime="packed")
