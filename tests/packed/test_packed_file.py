"""A packed network in one file: back as it was, smaller, verified; anything else is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import vitrail
from shipping.packs import VARIANTS, checkpoint
from vitrail.checkpoint.safetensors_io import lay_out, read_all, read_safetensors, write_safetensors
from vitrail.errors import CheckpointError, InputError
from vitrail.packed import packed_file, packed_runtime
from vitrail.packed.onednn_kernels import KernelProbe
from vitrail.packed.packed_file import KEY, is_packed, open_packed, save_packed
from vitrail.packed.packed_runtime import Packed
from vitrail.quantisation.quant_plan import QuantPlan
from vitrail.quantisation.range_calibration import calibrate

PIXELS = np.random.default_rng(3).standard_normal((2, 3, 32, 32), np.float32)


def made_of(name: str, plan: str) -> tuple[Packed, vitrail.Checkpoint]:
    made = checkpoint(width=64, mlp_width=256, **VARIANTS[name])
    ranges = calibrate(made.model, [torch.from_numpy(PIXELS)]) if "int8" in plan else {}
    ranges.pop("encoder.blocks.1.mlp.down", None)
    return Packed(made, QuantPlan("bf16" if "bf16" in plan else "fp32", ranges)), made


@pytest.mark.parametrize("plan", ["fp32", "bf16", "int8", "int8+bf16"])
@pytest.mark.parametrize("name", ["plain", "layer scale, no key bias", "merging", "rotary", "pruned"])
def test_a_packed_network_comes_back_the_same(name: str, plan: str, tmp_path: Path) -> None:
    runtime, base = made_of(name, plan)
    path = tmp_path / "packed.safetensors"
    save_packed(runtime, base, path, {"milliseconds": 1.5})
    again = open_packed(path)
    for ours, theirs in zip(again.run(PIXELS), runtime.run(PIXELS), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6 * np.abs(theirs).max())
    assert again.about == runtime.about
    assert again.plan == runtime.plan
    assert again.measurements == {"milliseconds": 1.5}
    assert is_packed(path)
    assert [each.name for each in tmp_path.iterdir()] == ["packed.safetensors"]
    vitrail.save(base, tmp_path / "whole.safetensors")
    share = {"fp32": 1.1, "bf16": 0.6, "int8": 0.5, "int8+bf16": 0.5}[plan]
    assert path.stat().st_size < share * (tmp_path / "whole.safetensors").stat().st_size
    assert not is_packed(tmp_path / "whole.safetensors")
    assert not is_packed(tmp_path / "missing.safetensors")


def rewritten(path: Path, change: str, tmp_path: Path) -> Path:
    """The file with something changed in it."""
    stored, metadata = read_safetensors(path)
    tensors, description = read_all(stored), json.loads(metadata[KEY])
    if change == "weight":
        tensors["encoder.blocks.0.mlp.up.weight"][3, 3] += 1
    elif change == "class":
        description["about"]["classes"][0] = "other"
    elif change in ("newer", "older"):
        description["format"] = {"newer": 6, "older": 4}[change]
    elif change == "range":  # signed anew, so that only the proof can tell
        description["plan"]["int8"]["encoder.blocks.0.mlp.up"] = [-0.001, 0.001]
    elif change == "missing":
        del tensors["encoder.blocks.0.norm1.weight"]
    if change in ("range", "missing"):
        del description["hash"]
        description["hash"] = packed_file.content_hash(description, tensors)
    layout = lay_out(tensors, {KEY: json.dumps(description)})
    out = tmp_path / f"{change}.safetensors"
    with open(out, "wb") as file:
        write_safetensors(file, layout, tensors)
    return out


@pytest.mark.parametrize(
    "change, words",
    [
        ("weight", "is damaged: its content hash"),
        ("class", "is damaged: its content hash"),
        ("newer", "of format 5, got 6: use a newer Vitrail"),
        ("older", "of format 5, got 4: make it again from its checkpoint"),
        ("range", "it answers otherwise than when it was written"),
        ("missing", "encoder.blocks.0.norm1.weight: expected a tensor of shape"),
    ],
)
def test_a_changed_file_is_refused(change: str, words: str, tmp_path: Path) -> None:
    runtime, base = made_of("plain", "int8")
    save_packed(runtime, base, tmp_path / "packed.safetensors")
    with pytest.raises(CheckpointError, match=words):
        open_packed(rewritten(tmp_path / "packed.safetensors", change, tmp_path))


@pytest.mark.parametrize("moved, within", [(0.01, 0.05), (0.2, 0.1), (2.0, 0.3)])
def test_an_int8_network_may_be_half_as_far_from_itself_as_int8_moves_it(moved: float, within: float) -> None:
    """Sums in another order end in other bytes here and there, and the more of them, the more int8 does."""
    assert packed_file._int8_within(moved) == pytest.approx(within)


def test_a_machine_without_int8_opens_it_in_floats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, base = made_of("plain", "int8")
    save_packed(runtime, base, tmp_path / "packed.safetensors")
    expected, _ = runtime.run(PIXELS)
    for working, precision in (("fp32", "fp32"), ("", "eager")):
        monkeypatch.setattr(packed_runtime, "probe", lambda name, working=working: KernelProbe(name == working, "gone"))
        again = open_packed(tmp_path / "packed.safetensors")
        assert again.precision == precision
        assert "int8 is not available (gone)" in again.notes[0]
        found, _ = again.run(PIXELS)
        assert np.abs(found - expected).max() < 0.05 * np.abs(expected).max()


def test_mistakes_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, base = made_of("plain", "fp32")
    with pytest.raises(InputError, match=r"saved as NAME\.safetensors, got 'packed\.bin'"):
        save_packed(runtime, base, tmp_path / "packed.bin")
    with pytest.raises(CheckpointError, match="JSON cannot carry"):
        save_packed(runtime, base, tmp_path / "packed.safetensors", {"speed": float("nan")})
    vitrail.save(base, tmp_path / "mine.safetensors")
    before = (tmp_path / "mine.safetensors").read_bytes()
    with pytest.raises(InputError, match="is there already, and is no packed network"):
        save_packed(runtime, base, tmp_path / "mine.safetensors")
    assert (tmp_path / "mine.safetensors").read_bytes() == before
    (tmp_path / "mine.safetensors").unlink()
    monkeypatch.setattr(
        packed_file, "open_packed", lambda path: (_ for _ in ()).throw(CheckpointError("does not open"))
    )
    with pytest.raises(CheckpointError, match="does not open"):
        save_packed(runtime, base, tmp_path / "packed.safetensors")
    assert list(tmp_path.iterdir()) == []
    vitrail.save(base, tmp_path / "whole.safetensors")
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="is not a packed network"):
        open_packed(tmp_path / "whole.safetensors")
