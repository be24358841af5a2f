"""Unclear answers of a network that merges tokens are given again by all of them; how much may be merged then."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from shipping.packs import VARIANTS, checkpoint, labelled
from vitrail import Checkpoint
from vitrail.checkpoint import content_hash
from vitrail.checkpoint.safetensors_io import lay_out, read_all, read_safetensors, write_safetensors
from vitrail.errors import CheckpointError, ConfigError, InputError, VitrailError
from vitrail.inference.batches import passes
from vitrail.inference.settling import near_ties
from vitrail.network.surgery import with_merging
from vitrail.packed import packed_runtime as packed
from vitrail.packed.onednn_kernels import Probe, has_bf16_units
from vitrail.packed.packed_file import EXACT, KEY, open_packed, save_packed
from vitrail.packed.packed_runtime import Packed, possible, weight_bytes
from vitrail.packed.packing import Plan, unmerged
from vitrail.packed.torch_resize import resample
from vitrail.quantisation.accuracy_budget import Judge
from vitrail.quantisation.calibration import calibrate
from vitrail.shipping import optimizer as optimising
from vitrail.shipping.optimizer import Merging, doubting, merged_most, optimize

PIXELS = np.random.default_rng(5).standard_normal((32, 3, 32, 32), np.float32)


def merging(name: str = "plain", count: int = 4) -> tuple[Checkpoint, Checkpoint]:
    """A network, and the same one merging so many tokens in each block."""
    whole = checkpoint(**VARIANTS[name])
    return whole, replace(whole, model=with_merging(whole.model, count))


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("name", ["plain", "registers, mean", "swiglu", "distillation"])
def test_unclear_answers_are_those_of_the_whole_network(name: str, precision: str) -> None:
    whole, fewer = merging(name)
    ranges = calibrate(fewer.model, [torch.from_numpy(PIXELS)]) if precision == "int8" else {}
    plan = Plan("fp32" if precision == "int8" else precision, ranges)
    quick, slow = Packed(fewer, plan).run(PIXELS), Packed(whole, plan.exact).run(PIXELS)
    clear = float(np.exp(np.median(np.diff(np.sort(quick[0], axis=1)[:, -2:]))))  # half of them are unclear
    runtime = Packed(fewer, replace(plan, clear=clear))
    again = near_ties(quick[0], "single-label", clear)
    assert 8 <= again.sum() <= 24
    for found, merged, exact in zip(runtime.run(PIXELS), quick, slow, strict=True):
        np.testing.assert_array_equal(found[~again], merged[~again])
        np.testing.assert_allclose(found[again], exact[again], rtol=0, atol=2e-2 if precision == "bf16" else 1e-5)
        assert np.abs(exact[again] - merged[again]).max() > 0.05  # merging does something here
    values = np.random.default_rng(0).integers(0, 256, (8, 32, 32, 3), np.uint8)
    pixels = fewer.preprocess.normalise(values)
    if precision == "bf16":  # where rounding decides which tokens of noise merge: every answer by the whole network
        runtime = Packed(fewer, replace(plan, clear=1e6))
    np.testing.assert_allclose(runtime.run_uint8(values)[0], runtime.run(pixels)[0], rtol=0, atol=0.1)


def test_unclear_answers_in_int8_are_those_of_floats(tmp_path: Path) -> None:
    """Without merging, too: and in the file the weights are there in both precisions."""
    made = checkpoint(**VARIANTS["plain"])
    ranges = calibrate(made.model, [torch.from_numpy(PIXELS)])
    small, exact = Packed(made, Plan("fp32", ranges)).run(PIXELS)[0], Packed(made).run(PIXELS)[0]
    clear = float(np.exp(np.median(np.diff(np.sort(small, axis=1)[:, -2:]))))
    runtime = Packed(made, Plan("fp32", ranges, clear))
    again = near_ties(small, "single-label", clear)
    found = runtime.run(PIXELS)[0]
    np.testing.assert_array_equal(found[~again], small[~again])
    np.testing.assert_allclose(found[again], exact[again], rtol=0, atol=1e-6)
    assert np.abs(small - exact)[again].max() > 1e-3
    np.testing.assert_array_equal(runtime.quick.run(PIXELS)[0], small)
    np.testing.assert_allclose(runtime.sure.run(PIXELS)[0], exact, rtol=0, atol=1e-6)
    assert (runtime.quick.precision, runtime.sure.precision) == ("int8", "fp32")
    save_packed(runtime, made, tmp_path / "net.safetensors")
    assert json.loads(read_safetensors(tmp_path / "net.safetensors").metadata[KEY])["format"] == 3
    opened = open_packed(tmp_path / "net.safetensors")
    np.testing.assert_allclose(opened.run(PIXELS)[0], found, rtol=0, atol=1e-6)
    np.testing.assert_allclose(opened.sure.run(PIXELS)[0], exact, rtol=0, atol=1e-6)


def edited(path: Path, format: int = 4, drop: int = 0) -> Path:
    """The same file, hashed anew, of another format, or without some of what is there twice."""
    stored, metadata = read_safetensors(path)
    tensors = read_all(stored)
    for name in [name for name in tensors if name.startswith(EXACT)][:drop]:
        del tensors[name]
    description = json.loads(metadata[KEY]) | {"format": format}
    del description["hash"]
    description["hash"] = content_hash(description, tensors)
    out = path.with_name("edited.safetensors")
    with open(out, "wb") as file:
        write_safetensors(file, lay_out(tensors, {KEY: json.dumps(description)}), tensors)
    return out


@pytest.mark.parametrize("name", ["plain", "merging by tokens", "swiglu"])
@pytest.mark.parametrize("int8", [False, True])
def test_unclear_answers_in_bf16_may_be_those_of_fp32(name: str, int8: bool, tmp_path: Path) -> None:
    made = checkpoint(**VARIANTS[name])
    whole = replace(made, model=with_merging(made.model, 0))
    ranges = calibrate(made.model, [torch.from_numpy(PIXELS)]) if int8 else {}
    ranges.pop("encoder.blocks.1.mlp.down", None)
    rough, exact = Packed(made, Plan("bf16", ranges)).run(PIXELS)[0], Packed(whole).run(PIXELS)[0]
    clear = float(np.exp(np.median(np.diff(np.sort(rough, axis=1)[:, -2:]))))
    runtime = Packed(made, Plan("bf16", ranges, clear, "fp32"))
    again = near_ties(rough, "single-label", clear)
    found = runtime.run(PIXELS)[0]
    np.testing.assert_array_equal(found[~again], rough[~again])
    np.testing.assert_allclose(found[again], exact[again], rtol=0, atol=1e-5)
    assert np.abs(rough - exact)[again].max() > 1e-3
    assert (runtime.precision, runtime.sure.precision) == ("int8" if int8 else "bf16", "fp32")
    save_packed(runtime, made, tmp_path / "net.safetensors")
    described = json.loads(read_safetensors(tmp_path / "net.safetensors").metadata[KEY])
    assert (described["format"], described["plan"]["again"]) == (4, "fp32")
    for change, words in (
        ({"format": 2}, "is one of format 4, got 2"),
        ({"drop": 1}, "precision that unclear answers need"),
    ):
        with pytest.raises(CheckpointError, match=words):
            open_packed(edited(tmp_path / "net.safetensors", **change))
    opened = open_packed(tmp_path / "net.safetensors")
    assert opened.plan == runtime.plan
    np.testing.assert_allclose(opened.run(PIXELS)[0], found, rtol=0, atol=1e-6)
    np.testing.assert_allclose(opened.sure.run(PIXELS)[0], exact, rtol=0, atol=1e-5)


def test_without_bf16_all_answers_are_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = checkpoint(**VARIANTS["plain"])
    exact = Packed(made).run(PIXELS)[0]
    plan = Plan("bf16", clear=2.0, again="fp32")
    assert possible(Plan("bf16", again="bf16"))[0] == Plan("bf16", again="bf16")
    save_packed(Packed(made, plan), made, tmp_path / "net.safetensors")
    right = packed.probe
    monkeypatch.setattr(packed, "probe", lambda name: Probe(False, "gone") if name == "bf16" else right(name))
    assert possible(Plan("bf16", again="bf16"))[0] == Plan("fp32")
    for each in (Packed(made, plan), open_packed(tmp_path / "net.safetensors")):
        assert (each.clear, each.precision) == (1.0, "fp32")
        np.testing.assert_allclose(each.run(PIXELS)[0], exact, rtol=0, atol=1e-5)


def test_where_int8_is_missing_all_answers_are_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = checkpoint(**VARIANTS["plain"])
    ranges = calibrate(made.model, [torch.from_numpy(PIXELS)])
    exact = Packed(made).run(PIXELS)[0]
    save_packed(Packed(made, Plan("fp32", ranges, 1e6)), made, tmp_path / "net.safetensors")
    right = packed.probe
    monkeypatch.setattr(packed, "probe", lambda name: Probe(False, "gone") if name == "int8" else right(name))
    runtime = Packed(made, Plan("fp32", ranges, 2.0))
    assert (runtime.clear, runtime.precision) == (1.0, "fp32")  # nobody is asked twice for the same
    assert "int8 is not available" in runtime.notes[0]
    for each in (runtime, open_packed(tmp_path / "net.safetensors")):
        assert each.clear == 1.0
        np.testing.assert_allclose(each.run(PIXELS)[0], exact, rtol=0, atol=1e-5)


def test_near_ties_of_scaled_images_go_to_the_sure_network() -> None:
    """In one go with full decoding; images in memory too, which are seen no better."""
    made = checkpoint(**VARIANTS["plain"])
    made = replace(made, preprocess=replace(made.preprocess, scaled_decoding=True))
    noise = np.random.default_rng(0).integers(0, 256, (12, 40, 40, 3), np.uint8)
    files = []
    for each in noise:
        file = io.BytesIO()
        Image.fromarray(each).resize((400, 400), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
        files.append(file.getvalue())
    images = [*files, *noise]
    ranges = calibrate(made.model, [torch.from_numpy(PIXELS)])
    runtime = Packed(made, Plan("fp32", ranges, 1e6))  # everything is unclear
    whole = replace(made, preprocess=replace(made.preprocess, scaled_decoding=False))
    exact, _ = Packed(whole).run_uint8(np.stack([whole.preprocess.to_uint8(each, resample) for each in images]))
    found = np.concatenate([each.logits for each in passes(runtime, images, batch=8, settled=True)])
    np.testing.assert_allclose(found, exact, rtol=0, atol=1e-5)


def test_the_whole_network_costs_no_weights() -> None:
    whole, fewer = merging()
    model = Packed(fewer).model
    other = unmerged(model)
    assert other.config == whole.model.config
    assert (model.config.merge_per_block, model.config.merge_by) == (4, "tokens")
    assert [each.merged for each in model.encoder.blocks] == [4, 4, 4]
    assert [each.merged for each in other.encoder.blocks] == [0, 0, 0]
    assert {id(each) for each in other.parameters()} == {id(each) for each in model.parameters()}
    assert other.encoder.blocks[1].mlp.up is model.encoder.blocks[1].mlp.up
    assert weight_bytes(other) == weight_bytes(model)
    with torch.inference_mode():
        exact, pixels = whole.model(torch.from_numpy(PIXELS)), torch.from_numpy(PIXELS)
        torch.testing.assert_close(other(pixels), exact, rtol=0, atol=1e-5 * float(exact.abs().max()))
        assert not torch.allclose(model(pixels), exact, atol=0.05)
        torch.testing.assert_close(unmerged(fewer.model)(pixels), exact)


def test_it_is_kept_in_the_file_which_older_readers_refuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, fewer = merging()
    runtime = Packed(fewer, Plan("fp32", clear=1.5))
    expected = runtime.run(PIXELS)[0]
    assert not np.array_equal(expected, Packed(fewer).run(PIXELS)[0])
    for made, kind in ((runtime, 2), (Packed(fewer), 1)):
        path = tmp_path / f"{kind}.safetensors"
        save_packed(made, fewer, path)
        assert json.loads(read_safetensors(path).metadata[KEY])["format"] == kind
        again = open_packed(path)
        assert again.clear == made.clear
        np.testing.assert_array_equal(again.run(PIXELS)[0], made.run(PIXELS)[0])
    monkeypatch.setattr(packed, "probe", lambda name: Probe(False, "gone"))  # nothing is packed then, but still asked
    again = open_packed(tmp_path / "2.safetensors")
    assert (again.precision, again.clear) == ("eager", 1.5)
    np.testing.assert_allclose(again.run(PIXELS)[0], expected, rtol=0, atol=1e-4)


def test_mistakes_are_told() -> None:
    whole, fewer = merging()
    for plan in (Plan(clear=2.0), Plan("fp32", clear=2.0, again="fp32"), Plan("bf16", clear=2.0)):
        with pytest.raises(InputError, match="a plan with int8, or one less precise than that"):
            Packed(whole, plan)
    with pytest.raises(InputError, match="one label an image"):
        Packed(replace(fewer, task="multi-label"), Plan(clear=2.0))
    with pytest.raises(ConfigError, match="clear"):
        Plan(clear=0.5)
    with pytest.raises(ConfigError, match="less precise than precision='fp32'"):
        Plan("fp32", again="bf16")
    with pytest.raises(ConfigError, match="again"):
        Plan("bf16", again="int8")


def test_the_least_work_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    made = checkpoint(image_size=64)
    made = replace(made, preprocess=replace(made.preprocess, size=(64, 64)))
    monkeypatch.setattr(optimising, "has_bf16_units", lambda: False)
    monkeypatch.setattr(optimising, "SHARES", (0.7, 0.9))  # fewer would lose nothing
    judge = Judge.by(made, labelled(made, 80))
    for budget in (0.0, 5.0):
        [best] = doubting(made, judge, budget)
        runtime = Packed(best.of(made), Plan(clear=best.clear))
        assert judge(runtime).drop.value <= budget
        assert best.clear > 1 or budget
        for clear in optimising.CLEAR:
            if clear < best.clear:  # a lower threshold would have been less work, and loses more
                assert judge(Packed(best.of(made), Plan(clear=clear))).drop.value > budget
    assert doubting(replace(made, task="multi-label"), judge, 1.0) == []
    assert doubting(made, judge, -1.0) == []  # nothing gains
    assert doubting(best.of(made), judge, 100.0) == []  # what merges already is compared with itself


def test_the_search_merges_in_every_block_or_every_second() -> None:
    made = checkpoint(depth=5)
    found = merged_most(made, Judge.by(made, labelled(made, 60)), 100.0)
    assert [each.every for each in found] == [1, 2]
    assert str(found[1]) == f"{found[1].count} merged in every second block from 1 on"
    merged = [each.merged for each in found[1].of(made).model.encoder.blocks]
    assert merged == [0, found[1].count, 0, found[1].count, 0]
    assert optimising.schedules(2) == [(0, 1)]  # too few blocks to leave any out
    assert optimising.schedules(12) == [(0, 1), (4, 1), (1, 2)]


def test_a_network_without_merging_that_packs_wrongly_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    _, fewer = merging()
    right = packed.unmerged
    monkeypatch.setattr(packed, "unmerged", lambda model: right(Packed(merging(count=2)[1]).model))
    Packed(fewer, Plan(clear=2.0))
    monkeypatch.setattr(packed, "unmerged", lambda model: model)  # still merges
    with pytest.raises(VitrailError, match="differs from the eager one"):
        Packed(fewer, Plan(clear=2.0))


def test_the_search_writes_it_where_it_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = checkpoint(depth=1)
    wanted = Merging(4, 0, 2.0)
    monkeypatch.setattr(optimising, "TIMED", 4)
    monkeypatch.setattr(optimising, "doubting", lambda *given: [wanted])
    monkeypatch.setattr(optimising, "merged_most", lambda *given: [])  # of which other tests speak

    def fixed(calls: Any, rounds: int = 1) -> dict[Any, float]:
        return {key: 0.5 if key.merging == wanted and key.precision == "fp32" else 1.0 for key in calls}

    monkeypatch.setattr(optimising, "interleaved", fixed)
    data = labelled(made, 60, train=20, val=40)
    found = optimize(made, data, tmp_path / "fast", max_drop=100.0, batches=(4,), runtimes=("packed", "onnx"))
    assert str(found.best.way) == "packed fp32, 4 merged in blocks from 0 on, whole below 2 to 1"
    assert not [each for each in found.tried if each.way.merging.clear > 1 and each.way.runtime != "packed"]
    opened = open_packed(found.out)
    assert (opened.clear, opened.model.config.merge_per_block) == (2.0, 4)
    assert opened.measurements["best"]["clear"] == 2.0


@pytest.mark.parametrize("lossless", [True, False])
def test_the_search_asks_again_where_int8_alone_loses_too_much(
    lossless: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = checkpoint(depth=1)
    right, asked = optimising.within_budget, []
    monkeypatch.setattr(optimising, "TIMED", 4)
    monkeypatch.setattr(optimising, "interleaved", lambda calls, rounds: dict.fromkeys(calls, 1.0))

    def budget(base: Any, ranges: Any, judge: Any, max_drop: float, *rest: Any) -> Any:
        clear, again = rest[-2:]
        assert again == ("fp32" if clear > 1 else "")
        asked.append(clear)
        if clear == 1.0 and not lossless:
            raise InputError("no int8 network loses so little")
        return right(base, ranges, judge, max_drop, *rest)

    monkeypatch.setattr(optimising, "within_budget", budget)
    data = labelled(made, 60, train=20, val=40)
    found = optimize(
        made, data, tmp_path / "fast", max_drop=100.0, batches=(4,), merging=False, runtimes=("packed", "onnx")
    )
    ways = {str(each.way) for each in found.tried}
    assert ("packed int8, fp32 below 1.5 to 1" in ways) == (not lossless)
    assert ("packed bf16, fp32 below 1.5 to 1" in ways) == (not lossless and has_bf16_units())
    assert ("packed int8" in ways) == ("onnx int8" in ways) == lossless
    assert asked == ([1.0] if lossless else [1.0, optimising.UNSURE])
    assert not any("packed fp32, fp32" in each for each in ways)  # exact already
