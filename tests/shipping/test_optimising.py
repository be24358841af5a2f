"""The search under a budget, the table of runtimes, and runtimes by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitrail
from shipping.packs import checkpoint, labelled
from vitrail.errors import CheckpointError, ConfigError, InputError
from vitrail.shipping import bench, benching, exporting, open_packed, open_runtime, optimising, optimize
from vitrail.shipping.benching import KINDS
from vitrail.shipping.limits import limits
from vitrail.shipping.packed import Packed
from vitrail.shipping.plots import save_plot
from vitrail.shipping.timing import interleaved, latencies


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few shares are tried, and timed once on few pictures: what is asserted of rates holds for any number of them."""
    monkeypatch.setattr(optimising, "TIMED", 4)
    monkeypatch.setattr(optimising, "SHARES", optimising.SHARES[::3])
    monkeypatch.setattr(optimising, "interleaved", lambda calls, rounds: interleaved(calls, 1, 0.0))


@pytest.mark.usefixtures("few")
def test_the_fastest_within_the_budget_is_written_with_its_measurements(tmp_path: Path) -> None:
    made = checkpoint()
    data = labelled(made, 90, train=30, val=40, test=20)
    said: list[str] = []
    found = optimize(
        made, data, tmp_path / "fast", max_drop=10.0, batches=(1, 4), runtimes=("packed",), tell=said.append
    )
    assert found.best.within
    assert found.best.judged.drop.value <= 10.0
    assert all(each.rate <= found.best.rate for each in found.tried if each.within)
    tried = {str(each.way) for each in found.tried}
    assert {"eager fp32", "packed fp32", "packed int8"} <= tried
    assert any("merged in blocks from" in each for each in tried)
    assert found.eager.way.runtime == "eager"
    assert found.speed == pytest.approx(found.best.rate / found.eager.rate)
    assert found.reported.pictures == 20
    assert found.out == tmp_path / "fast.safetensors"
    if found.best.way.runtime == "packed":
        opened = open_packed(found.out)
        assert opened.measurements["best"]["pictures_per_second"] == found.best.rate
        assert opened.model.config.merge_per_block == found.best.way.merging.count
    save_plot(found, tmp_path / "plots" / "found.png")
    assert (tmp_path / "plots" / "found.png").stat().st_size > 10_000
    with pytest.raises(InputError, match=r"expected FILE\.png"):
        save_plot(found, tmp_path / "found.txt")


@pytest.mark.usefixtures("few")
def test_a_budget_that_only_the_network_itself_keeps(tmp_path: Path) -> None:
    made = checkpoint()
    found = optimize(
        made, labelled(made, 60, train=20, val=40), tmp_path / "fast", max_drop=0.0, batches=(4,), runtimes=("packed",)
    )
    assert found.best.judged.drop.value <= 0.0
    assert found.reported.drop.value <= 0.0


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
    with pytest.raises(InputError, match=r"nothing keeps the budget of -1 points on 30 pictures: the best found"):
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
    monkeypatch.setattr(optimising, "has_bf16_units", lambda: True)
    monkeypatch.setattr(exporting, "multiplies_bf16", lambda: True)
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
        opened = open_runtime(found.out)
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
        tell=said.append,
    )
    assert found.best.way.runtime == "eager"
    assert "onnx fp32 left out: not exported: it drifts" in said
    assert vitrail.load(found.out).classes == made.classes


@pytest.mark.row("P.13")
def test_bench_names_speed_memory_start_and_the_largest_batch_for_each_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benching, "limits", lambda: limits(1, (256, 96, 128)))  # the whole one takes seconds
    found = bench(checkpoint(), batches=(1, 3), sizes=(32, 64), runtimes=("packed int8",), rounds=1)
    keys = [(each.runtime, each.size, each.batch) for each in found.rows]
    assert keys == [
        (runtime, (side, side), batch) for side in (32, 64) for batch in (1, 3) for runtime in ("eager", "packed int8")
    ]
    for each in found.rows:
        assert each.pictures_per_second == pytest.approx(1000 * each.batch / each.milliseconds)
        assert each.start_seconds > 0
        assert each.memory_bytes is not None
        assert 50e6 < each.memory_bytes < 5e9
        assert each.largest_batch is None or 1 < each.largest_batch < 10**9
        assert each.of_limit is not None
        assert each.of_limit > 0
    assert {each.ratio for each in found.rows if each.runtime == "eager"} == {1.0}
    assert all(0 < each.difference < 0.5 for each in found.rows if each.runtime == "packed int8")
    assert found.limits["fp32"] > 0
    assert found.to_dict()["rows"][0]["runtime"] == "eager"
    with pytest.raises(InputError, match="no runtime 'packed fp16'"):
        bench(checkpoint(), runtimes=("packed fp16",))
    assert "openvino fp32" in KINDS


def test_the_limit_is_the_faster_of_plain_and_packed() -> None:
    found = limits(rounds=1, shape=(64, 32, 48))
    assert set(found) - {"bf16"} == {"fp32", "int8"}
    assert all(rate > 0 for rate in found.values())


def test_timing_takes_turns() -> None:
    order: list[str] = []
    took = interleaved({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=3, least=0.0)
    assert set(took) == {"a", "b"}
    assert order.count("a") == order.count("b") == 2 + 3 * 2
    found = latencies({"eager": checkpoint()}, batch=2, rounds=1)
    assert found["eager"] > 0


def test_runtimes_by_name(tmp_path: Path) -> None:
    made = checkpoint()
    path = tmp_path / "weights.safetensors"
    vitrail.save(made, path)
    pixels = torch.randn(2, 3, 32, 32).numpy()
    expected, _ = made.run(pixels)
    for name, kind in (("", vitrail.Checkpoint), ("eager", vitrail.Checkpoint), ("packed", Packed)):
        runtime = open_runtime(path, name)
        assert isinstance(runtime, kind)
        np.testing.assert_allclose(runtime.run(pixels)[0], expected, rtol=0, atol=1e-5)
    assert open_runtime(path, "packed-bf16").precision == "bf16"  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="no runtime 'packd'"):
        open_runtime(path, "packd")
    with pytest.raises(InputError, match=r"is a checkpoint: `vitrail export .* NAME\.onnx` makes a file for onnx"):
        open_runtime(path, "onnx")
    vitrail.shipping.save_packed(Packed(made), made, tmp_path / "packed.safetensors")
    assert isinstance(open_runtime(tmp_path / "packed.safetensors"), Packed)
    with pytest.raises(InputError, match="was made for its runtime"):
        open_runtime(tmp_path / "packed.safetensors", "packed")
