"""open_model: every kind of path by one table, each header read once, nothing imported that is not needed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import vitrail
from vitrail.checkpoint import Checkpoint, safetensors_io
from vitrail.errors import CheckpointError, InputError
from vitrail.exporters.exported import Exported
from vitrail.files import ReadOnlyFile
from vitrail.images import Preprocess
from vitrail.inference import open_checkpoint, open_model
from vitrail.inference.recognisers import RECOGNISERS, Header, as_checkpoint, as_runtime
from vitrail.network import ViT, ViTConfig
from vitrail.packed.packed_file import save_packed
from vitrail.packed.packed_runtime import Packed

CONFIG = ViTConfig(image_size=16, patch_size=8, width=64, depth=1, heads=1, mlp_width=128, classes=3)
IMAGES = [np.random.default_rng(0).integers(0, 256, (20, 20, 3), np.uint8)]


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    torch.manual_seed(0)
    return Checkpoint(ViT(CONFIG).eval(), Preprocess(size=16), tuple("abc"))


@pytest.fixture(scope="module")
def shelf(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every kind of file, of one network."""
    folder = tmp_path_factory.mktemp("shelf")
    vitrail.save(checkpoint, folder / "own.safetensors")
    (folder / "run").mkdir()
    shutil.copy(folder / "own.safetensors", folder / "run" / "best.safetensors")
    (folder / "run" / "data.json").write_text("{}")
    save_packed(Packed(checkpoint), checkpoint, folder / "packed.safetensors")
    vitrail.convert(folder / "own.safetensors", folder / "timm.safetensors", to="timm")
    vitrail.convert(folder / "own.safetensors", folder / "transformers", to="transformers")
    vitrail.export(checkpoint, folder / "a.onnx")
    vitrail.export(checkpoint, folder / "a.xml")
    return folder


KINDS = {
    "own.safetensors": Checkpoint,
    "run": Checkpoint,
    "packed.safetensors": Packed,
    "transformers": Checkpoint,
    "timm.safetensors": Checkpoint,
    "a.onnx": Exported,
    "a.xml": Exported,
}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_path_answers_the_same(name: str, shelf: Path, checkpoint: Checkpoint) -> None:
    override = {"size": 16} if name == "timm.safetensors" else None
    opened = open_model(shelf / name, override=override)
    assert type(opened) is KINDS[name]
    pixels = np.random.default_rng(0).standard_normal((2, 3, 16, 16), np.float32)
    np.testing.assert_allclose(opened.run(pixels)[0], checkpoint.run(pixels)[0], atol=1e-4)


def test_verbs_take_paths_of_all_of_them(shelf: Path, checkpoint: Checkpoint) -> None:
    for name in ("own.safetensors", "run", "packed.safetensors", "a.onnx"):
        [ours], [theirs] = vitrail.predict(checkpoint, IMAGES), vitrail.predict(shelf / name, IMAGES)
        assert ours.labels == theirs.labels
        np.testing.assert_allclose(vitrail.embed(shelf / name, IMAGES), vitrail.embed(checkpoint, IMAGES), atol=1e-4)
    map_ = vitrail.explain(shelf / "own.safetensors", IMAGES[0], "attention", check=False).map
    np.testing.assert_array_equal(map_, vitrail.explain(checkpoint, IMAGES[0], "attention", check=False).map)


def test_built_in_networks_have_names() -> None:
    assert len(open_model("vitrail:fashion").classes) == 10
    with pytest.raises(CheckpointError, match="vitrail:"):
        open_model("vitrail:nothing")


def test_a_checkpoint_is_packed_if_asked_for(shelf: Path) -> None:
    for runtime, precision in (("packed", "fp32"), ("packed-bf16", "bf16")):
        opened = open_model(shelf / "own.safetensors", runtime=runtime)
        assert isinstance(opened, Packed)
        assert opened.plan is None or opened.plan.precision in (precision, "fp32")  # where bf16 is not there
    assert isinstance(open_model(shelf / "own.safetensors", runtime="eager"), Checkpoint)


@pytest.mark.parametrize("name", ["own.safetensors", "packed.safetensors", "a.onnx"])
def test_what_says_everything_itself_takes_no_settings(name: str, shelf: Path) -> None:
    with pytest.raises(InputError, match="says everything itself: open it without heads, text"):
        open_model(shelf / name, override={"heads": 4}, leave_out=["text"])
    if name != "own.safetensors":
        with pytest.raises(InputError, match="says everything itself: open it without runtime='packed'"):
            open_model(shelf / name, runtime="packed")


@pytest.mark.parametrize("name", KINDS)
def test_checkpoints_go_to_a_device_and_others_stay(name: str, shelf: Path) -> None:
    override = {"size": 16} if name == "timm.safetensors" else None
    is_checkpoint = KINDS[name] is Checkpoint
    for device in ("auto", "cpu", torch.device("cpu")):
        assert type(open_model(shelf / name, override=override, device=device)) is KINDS[name]
    why = (
        "expected 'auto' or one that torch has, here cpu" if is_checkpoint else "computes on the cpu, or where its own"
    )
    with pytest.raises(InputError, match=why):
        open_model(shelf / name, override=override, device="vulkan")
    if is_checkpoint:
        with pytest.raises(InputError, match="device 'vulkan': the runtime packed computes on the cpu"):
            open_model(shelf / name, override=override, runtime="packed", device="vulkan")


def test_what_is_given_stays_unless_it_is_sent(shelf: Path, checkpoint: Checkpoint) -> None:
    packed = open_model(shelf / "packed.safetensors")
    for given in (checkpoint, packed):
        for device in (None, "cpu", "auto"):
            assert as_runtime(given, device) is given
    assert as_checkpoint(checkpoint, "cpu") is checkpoint
    with pytest.raises(InputError, match="device 'vulkan': Packed is no checkpoint and computes on the cpu"):
        as_runtime(packed, "vulkan")
    for place in (as_runtime, as_checkpoint):
        with pytest.raises(InputError, match="expected 'auto' or one that torch has"):
            place(checkpoint, "vulkan")


@pytest.mark.parametrize("verb", ["predict", "embed", "explain", "evaluate", "compare", "audit", "prune", "bench"])
def test_a_verb_hands_the_device_on(verb: str, checkpoint: Checkpoint, tmp_path: Path) -> None:
    given: dict[str, tuple[Any, ...]] = {
        "predict": (checkpoint, IMAGES),
        "embed": (checkpoint, IMAGES),
        "explain": (checkpoint, IMAGES[0]),
        "compare": (checkpoint, checkpoint, "vitrail:fashion"),
        "audit": ("vitrail:fashion",),
        "bench": (checkpoint,),
    }
    more = {"checkpoint": checkpoint} if verb == "audit" else {"keep": 0.5} if verb == "prune" else {}
    with pytest.raises(InputError, match="device: expected 'auto' or one that torch has, here cpu, got 'vulkan'"):
        getattr(vitrail, verb)(*given.get(verb, (checkpoint, "vitrail:fashion")), **more, device="vulkan")


def test_an_unknown_runtime_is_told(shelf: Path) -> None:
    with pytest.raises(InputError, match="no runtime 'packd': did you mean 'packed'?"):
        open_model(shelf / "own.safetensors", runtime="packd")
    with pytest.raises(InputError, match=r"is a checkpoint: `vitrail export .* NAME\.xml` makes a file for openvino"):
        open_model(shelf / "own.safetensors", runtime="openvino")


def test_what_is_none_of_them_is_told(tmp_path: Path) -> None:
    for name, content, words in (
        ("page.safetensors", b"<!DOCTYPE html><html></html>", "is a web page, not weights"),
        ("notes.txt", b"some words", "notes.txt"),
        ("cut.safetensors", b"\x10\x00\x00\x00\x00\x00\x00\x00{", "cut.safetensors"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(CheckpointError, match=words):
            open_model(tmp_path / name)
    save_file({"a": torch.zeros(2)}, tmp_path / "strange.safetensors")
    with pytest.raises(CheckpointError, match="of no vision transformer known here"):
        open_model(tmp_path / "strange.safetensors")
    with pytest.raises(CheckpointError, match="no checkpoint .*none.safetensors: expected a file or folder of weights"):
        open_model(tmp_path / "none.safetensors")
    with pytest.raises(CheckpointError, match="no exported file .*none.onnx"):
        open_model(tmp_path / "none.onnx")
    for wrong in (3, None, "", b"a.onnx"):
        with pytest.raises(InputError, match="expected the path of a file or folder of weights"):
            open_model(wrong)  # type: ignore[arg-type]


def test_a_network_is_asked_for_where_only_answers_are(shelf: Path) -> None:
    assert open_checkpoint(shelf / "own.safetensors").classes == tuple("abc")
    for name in ("packed.safetensors", "a.onnx"):
        with pytest.raises(InputError, match="expected a checkpoint, and .* is made for its runtime alone"):
            open_checkpoint(shelf / name)


@pytest.mark.parametrize(
    "name, door",
    [
        ("own.safetensors", open_model),
        ("packed.safetensors", open_model),
        ("timm.safetensors", open_model),
        ("own.safetensors", vitrail.load),
        ("timm.safetensors", vitrail.load),
    ],
)
def test_the_header_of_a_file_is_parsed_once(
    name: str, door: Callable[[Path], object], shelf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[str] = []
    right = safetensors_io._header

    def counting(file: ReadOnlyFile) -> tuple[dict[str, Any], int]:
        parsed.append(file.name)
        return right(file)

    monkeypatch.setattr(safetensors_io, "_header", counting)
    door(shelf / name)
    assert parsed == [str(shelf / name)]


def test_the_table_is_in_an_order_that_reads_little() -> None:
    """A name is recognised without a look at the disk, and an exported file without its bytes."""
    first = next(each for each in RECOGNISERS if each.recognises(Header("vitrail:fashion")))
    assert first.kind == "built in"
    assert next(each for each in RECOGNISERS if each.recognises(Header("none.onnx"))).kind == "exported"


def test_an_exported_file_never_imports_torch(shelf: Path) -> None:
    for name in ("a.onnx", "a.xml"):
        script = f"""
import json, sys
import numpy as np
from vitrail.inference import open_model, predict
opened = open_model({str(shelf / name)!r})
[found] = predict(opened, [np.zeros((20, 20, 3), np.uint8)])
print(json.dumps([sorted(found.labels), "torch" in sys.modules, "vitrail.network" in sys.modules]))
"""
        run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=600, check=False)
        assert run.returncode == 0, run.stderr
        assert json.loads(run.stdout) == [["a", "b", "c"], False, False]
