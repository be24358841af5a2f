"""Predicting from exported files: the same answers without torch, and no harm from files that are damaged or evil."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from PIL import Image

import vitrail
from shipping import small
from vitrail.checkpoint import Checkpoint, Provenance
from vitrail.errors import CheckpointError, InputError, MissingExtraError
from vitrail.evaluation.caveats import CHOSEN, TRAINED
from vitrail.exporters import TARGETS, is_exported, onnx_file, openvino_file
from vitrail.exporters.exported import open_exported, read_exported
from vitrail.exporters.protobuf import fields, varint

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def source() -> Checkpoint:
    return small.checkpoint()


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory, source: Checkpoint) -> Path:
    """a.onnx, a.xml and a.bin, and folders of images named after classes."""
    folder = tmp_path_factory.mktemp("exported")
    vitrail.export(source, folder / "a.onnx")
    vitrail.export(source, folder / "a.xml")
    generator = np.random.default_rng(0)
    for number in range(10):
        place = folder / "photos" / "abcde"[number % 5] / f"{number}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 256, (40, 50, 3), np.uint8)).save(place)
    return folder


def make_images(shelf: Path) -> list[Path]:
    return sorted((shelf / "photos").rglob("*.png"))


# ---- the same answers --------------------------------------------------------------------------------------------


@pytest.mark.row("DL.7")
@pytest.mark.parametrize("name", ["a.onnx", "a.xml"])
def test_verbs_take_the_path_of_an_exported_file(name: str, shelf: Path, source: Checkpoint) -> None:
    path = shelf / name
    for ours, theirs in zip(
        vitrail.predict(source, make_images(shelf)), vitrail.predict(path, make_images(shelf)), strict=True
    ):
        assert ours[:2] == theirs[:2]
        np.testing.assert_allclose(ours.probabilities, theirs.probabilities, atol=1e-5)
    np.testing.assert_allclose(
        vitrail.embed(str(path), make_images(shelf)), vitrail.embed(source, make_images(shelf)), atol=1e-4
    )
    ours_scores = vitrail.evaluate(source, shelf / "photos", resamples=10).scores
    theirs_scores = vitrail.evaluate(path, shelf / "photos", resamples=10).scores
    for each in ours_scores:
        assert theirs_scores[each].value == pytest.approx(ours_scores[each].value, abs=1e-4)
    compared = vitrail.compare(source, path, shelf / "photos")
    assert (compared.only_a, compared.only_b) == (0, 0)
    with ThreadPoolExecutor(4) as pool:  # many at once get their own answers
        runtime = open_exported(path)
        given = [np.full((1, 3, 32, 32), number / 10, np.float32) for number in range(20)]
        for pixels, (logits, _) in zip(given, pool.map(runtime.run, given), strict=True):
            np.testing.assert_allclose(logits, source.run(pixels)[0], atol=1e-4)


def test_an_exported_file_knows_what_it_is(shelf: Path, source: Checkpoint) -> None:
    found = open_exported(shelf / "a.onnx", threads=1)
    assert found.about == source.about
    assert (found.classes, found.temperature, found.reject) == (tuple("abcde"), 1.7, 0.05)
    assert (found.contents.size, found.contents.cell, found.contents.precision) == ((32, 32), (8, 8), "float32")
    assert repr(found) == "Exported('a.onnx', float32, float of 32x32)"
    assert [is_exported(each) for each in ("a.onnx", Path("b.XML"), "c.safetensors", 3, None)] == [1, 1, 0, 0, 0]


@pytest.mark.parametrize(
    "pixels, words",
    [
        (np.zeros((1, 3, 32, 40), np.float32), "32x32 only, got 32x40: resize them, or export with dynamic_size"),
        (np.zeros((1, 3, 32, 32), np.uint8), "float array, got uint8"),
        (np.zeros((3, 32, 32), np.float32), r"expected pixels \(B, 3, H, W\), got \(3, 32, 32\)"),
        (np.zeros((0, 3, 32, 32), np.float32), "got \\(0, 3"),
        (np.zeros((1, 1, 32, 32), np.float32), "got \\(1, 1"),
        ([1.0], "got list"),
    ],
)
def test_wrong_pixels_are_told(pixels: Any, words: str, shelf: Path) -> None:
    with pytest.raises(InputError, match=words):
        open_exported(shelf / "a.onnx").run(pixels)


def test_bytes_where_pixels_are_taken_and_other_paths_are_told(shelf: Path) -> None:
    runtime = open_exported(shelf / "a.onnx")
    side = runtime.preprocess.size
    values = np.random.default_rng(0).integers(0, 256, (2, *side, 3)).astype(np.uint8)
    logits, _ = runtime.run_uint8(values)  # a graph of pixels: they are normalised first
    np.testing.assert_array_equal(logits, runtime.run(runtime.preprocess.normalise(values))[0])
    with pytest.raises(InputError, match="expected an exported file, NAME.onnx or NAME.xml, got 'model.tflite'"):
        open_exported("model.tflite")
    with pytest.raises(InputError, match="threads"):
        open_exported(shelf / "a.onnx", threads=-1)


@pytest.mark.parametrize("name, extra", [("a.onnx", "onnxruntime"), ("a.xml", "openvino")])
def test_a_missing_runtime_is_named(name: str, extra: str, shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, extra, None)
    with pytest.raises(MissingExtraError, match="pip install 'vitrail\\[(onnx|openvino)\\]'"):
        open_exported(shelf / name)


def test_files_may_be_opened_and_dropped_in_any_order_beside_signal_handlers(shelf: Path) -> None:
    """OpenVINO exchanges the stack that signals are handled on, and used to leave one behind whose memory was gone."""
    code = f"""
import faulthandler, gc, signal, subprocess
faulthandler.enable()
seen = []
signal.signal(signal.SIGCHLD, lambda *_: seen.append(1))
from vitrail.exporters.exported import open_exported
one, other = open_exported({str(shelf / "a.xml")!r}), open_exported({str(shelf / "a.xml")!r})
del one
gc.collect()
del other
gc.collect()
subprocess.run(["true"])
assert seen
print("alive")
"""
    run = python("-c", code)
    assert run.stdout.strip() == "alive", run.stderr


@pytest.mark.parametrize("name", ["a.onnx", "a.xml", "a.pt2"])
def test_a_file_says_which_run_and_images_it_comes_from(name: str, source: Checkpoint, tmp_path: Path) -> None:
    ours = replace(source, provenance=Provenance(source=str(tmp_path / "photos"), run="photos-1", notes="secret"))
    vitrail.export(ours, tmp_path / name)
    contents = read_exported(tmp_path / name)
    assert (contents.run, contents.source) == ("photos-1", str(tmp_path / "photos"))
    assert "secret" not in contents.to_json()


@pytest.mark.parametrize("name", ["a.onnx", "a.xml"])
def test_a_score_on_images_that_the_run_has_seen_has_its_caveat(
    name: str, shelf: Path, source: Checkpoint, tmp_path: Path
) -> None:
    for number, image in enumerate(make_images(shelf)):
        place = tmp_path / "photos" / ("train", "val")[number % 2] / image.parent.name / image.name
        place.parent.mkdir(parents=True)
        shutil.copy(image, place)
    ours = replace(source, provenance=Provenance(source=str(tmp_path / "photos"), run="photos-1"))
    vitrail.export(ours, tmp_path / name)
    before = vitrail.evaluate(ours, tmp_path / "photos", resamples=0)
    after = vitrail.evaluate(tmp_path / name, tmp_path / "photos", resamples=0)
    assert (before.split, before.caveat) == ("val", CHOSEN)
    assert (after.split, after.caveat) == ("val", CHOSEN)
    compared = vitrail.compare(shelf / name, tmp_path / name, tmp_path / "photos", split="train")
    assert compared.caveat == f"B: {TRAINED}"  # the older file names no run
    older = vitrail.evaluate(shelf / name, tmp_path / "photos", resamples=0)  # which says nothing of a run
    assert (open_exported(shelf / name).provenance, older.caveat) == (None, "")


# ---- without torch -----------------------------------------------------------------------------------------------


def python(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "NO_COLOR": "1"}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, check=False)


def test_predicting_never_imports_torch(shelf: Path) -> None:
    code = (
        "import sys, vitrail\n"
        "model, *images = sys.argv[1:]\n"
        "print(len(vitrail.predict(model, images)), vitrail.embed(model, images).shape[0], 'torch' in sys.modules)"
    )
    for name in ("a.onnx", "a.xml"):
        run = python("-c", code, shelf / name, *make_images(shelf))
        assert (run.stdout, run.stderr) == ("10 10 False\n", "")


def test_the_command_line_never_imports_torch(shelf: Path) -> None:
    for verb, data, key in (("predict", make_images(shelf)[0], "predictions"), ("evaluate", shelf / "photos", "top1")):
        run = python("-X", "importtime", "-m", "vitrail", verb, shelf / "a.onnx", data, "--json")
        assert run.returncode == 0, run.stderr
        assert key in json.loads(run.stdout)
        imported = {line.rpartition("|")[2].strip().split(".")[0] for line in run.stderr.splitlines()}
        assert "onnxruntime" in imported
        assert "torch" not in imported


def test_settings_of_an_exported_file_cannot_be_overridden(shelf: Path) -> None:
    run = python("-m", "vitrail", "predict", shelf / "a.onnx", make_images(shelf)[0], "--set", "heads=2")
    assert run.returncode == 2
    assert "is exported and says everything itself: open it without heads" in run.stderr


# ---- files that are not as they should be ------------------------------------------------------------------------


def sealed(body: bytes) -> bytes:
    return body + onnx_file.SEAL.of(body)


def edited(path: Path, change: Callable[[Any], None]) -> bytes:
    """An ONNX file changed by someone who also knows how to make the checksum right again."""
    model = onnx.load(path, load_external_data=False)
    for number in reversed(range(len(model.metadata_props))):
        if model.metadata_props[number].key == onnx_file.DIGEST:
            del model.metadata_props[number]
    change(model)
    return sealed(model.SerializeToString())


def outside(place: str) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        tensor = model.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = 1
        tensor.external_data.add(key="location", value=place)

    return change


def huge(model: Any) -> None:
    model.graph.initializer[0].dims[:] = [1 << 40, 1 << 20]


def shorter(model: Any) -> None:
    tensor = model.graph.initializer[0]
    tensor.raw_data = tensor.raw_data[:-4]


def in_a_node(model: Any) -> None:
    tensor = onnx.helper.make_tensor("x", 1, [2], [1.0, 2.0])
    tensor.dims[:] = [1 << 50]
    model.graph.node.append(onnx.helper.make_node("Constant", [], ["x"], value=tensor))


def looping(model: Any) -> None:
    model.graph.node.append(onnx.helper.make_node("Loop", ["a"], ["b"], body=onnx.helper.make_graph([], "g", [], [])))


def with_functions(model: Any) -> None:
    model.functions.add(name="f", domain="d")


def negative(model: Any) -> None:
    model.graph.initializer[0].dims[:] = [-4]


def undescribed(model: Any) -> None:
    del model.metadata_props[:]


def described(**changes: Any) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        [entry] = [each for each in model.metadata_props if each.key == onnx_file.DESCRIPTION]
        plain = json.loads(entry.value) | changes
        entry.value = json.dumps({name: value for name, value in plain.items() if value is not None})

    return change


def twice(model: Any) -> None:
    model.metadata_props.add(key=onnx_file.DESCRIPTION, value="{}")


@pytest.mark.fault("W16")
@pytest.mark.parametrize(
    "change, words",
    [
        (outside("../weights.bin"), "data in another file"),
        (outside("weights.bin"), "data in another file"),
        (huge, "claims 1,152,921,504,606,846,976 numbers"),
        (shorter, "claims"),
        (negative, "of shape \\[-4\\]"),
        (in_a_node, "claims"),
        (looping, "a graph within a graph"),
        (with_functions, "functions or training graphs"),
        (undescribed, "holds no description of ours: export the checkpoint again"),
        (twice, "stands twice"),
        (described(format=3), "expected an export of format 2, got 3: use a newer Vitrail"),
        (described(format="x"), "got 'x': export the checkpoint again"),
        (described(about=None), "lacks about"),
        (described(about=[]), "description inside is damaged"),
        (described(size=[0, 0]), "description inside is damaged"),
        (described(target="openvino"), "says it was made for openvino"),
        (described(pixels="jpeg"), "'jpeg' is unknown"),
    ],
)
def test_an_edited_file_is_refused(change: Callable[[Any], None], words: str, shelf: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(edited(shelf / "a.onnx", change))
    with unreached(), pytest.raises(CheckpointError, match=words):
        open_exported(bad)


class unreached:  # noqa: N801  (used as a verb: with unreached())
    """No runtime may see the bytes."""

    def __enter__(self) -> None:
        self.kept = dict(TARGETS)
        for name, target in self.kept.items():
            TARGETS[name] = replace(target, start=self._reached)

    @staticmethod
    def _reached(*_: Any) -> Any:
        raise AssertionError("a runtime saw a file that should have been refused")

    def __exit__(self, *_: object) -> None:
        TARGETS.update(self.kept)


@pytest.mark.fault("W16")
@pytest.mark.parametrize(
    "change, words",
    [
        (lambda raw: b"", "is empty"),
        (lambda raw: raw[: len(raw) // 2], "no checksum at its end"),
        (lambda raw: raw[:-1], "no checksum at its end"),
        (lambda raw: raw + b"x", "no checksum at its end"),
        (lambda raw: raw[:5000] + bytes([raw[5000] ^ 1]) + raw[5001:], "its checksum is"),
        (lambda raw: raw[:-1] + (b"0" if raw[-1:] != b"0" else b"1"), "its checksum is"),
        (lambda raw: sealed(b""), "expected one graph, got 0"),
        (lambda raw: sealed(raw[: len(raw) // 2]), "cut short or damaged"),
        (lambda raw: sealed(b"\x3a\xff\xff\xff\xff\x0f"), "cut short or damaged"),  # a length of 4 GB
        (lambda raw: sealed(b"\xff" * 40), "cut short or damaged"),
        (lambda raw: sealed(b"\x0b\x0c"), "cut short or damaged"),  # a group
        (lambda raw: b"{" + raw[1:], "its checksum is"),
    ],
)
def test_a_damaged_file_is_refused(change: Callable[[bytes], bytes], words: str, shelf: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(change((shelf / "a.onnx").read_bytes()))
    with unreached(), pytest.raises(CheckpointError, match=words):
        open_exported(bad)


@pytest.mark.fault("W16")
def test_what_is_no_file_and_a_plain_onnx_model_are_refused(shelf: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no exported file"):
        open_exported(tmp_path / "none.onnx")
    (tmp_path / "folder.onnx").mkdir()
    with pytest.raises(CheckpointError, match="is no file"):
        open_exported(tmp_path / "folder.onnx")
    os.mkfifo(tmp_path / "pipe.onnx")
    with pytest.raises(CheckpointError, match="is no file"):
        open_exported(tmp_path / "pipe.onnx")
    model = onnx.load(shelf / "a.onnx")
    model.metadata_props.add(key="author", value="someone")
    onnx.save(model, tmp_path / "theirs.onnx")  # written anew by another tool
    with pytest.raises(CheckpointError, match="something else rewrote it.*export the checkpoint again"):
        open_exported(tmp_path / "theirs.onnx")


def copy_of(shelf: Path, folder: Path, change: Callable[[str], str] = str, seal: bool = True) -> Path:
    """a.xml with its .bin, the text changed."""
    shutil.copy(shelf / "a.bin", folder / "a.bin")
    text = (shelf / "a.xml").read_bytes()
    body = change(text[: -openvino_file.SEAL.size].decode()).encode()
    last = text[-openvino_file.SEAL.size :]
    if seal:
        weights = (folder / "a.bin").read_bytes()
        last = openvino_file.SEAL.of(body, weights)
    (folder / "a.xml").write_bytes(body + last)
    return folder / "a.xml"


@pytest.mark.fault("W16")
@pytest.mark.parametrize(
    "change, words",
    [
        (lambda text: text.replace('offset="0"', 'offset="900000000"', 1), "claims"),
        (lambda text: re.sub(r'size="\d+"', 'size="99999999999"', text, count=1), "claims"),
        (lambda text: re.sub(r'(type="Const".*?shape=")[^"]*', r"\g<1>9, 9, 9", text, count=1, flags=re.S), "claims"),
        (lambda text: text.replace("<?xml", '<!DOCTYPE x [<!ENTITY a "b">]><?xml', 1), "XML entities"),
        (lambda text: text.replace("</layers>", ""), "cut short or damaged"),
        (lambda text: text.replace("<net ", "<other ", 1).replace("</net>", "</other>"), "XML of kind 'other'"),
        (lambda text: text.replace('type="MatMul"', 'type="Loop"', 1), "a layer Loop"),
        (lambda text: text.replace("<description ", "<words "), "holds no description"),
        (lambda text: text.replace("&quot;format&quot;: 2", "&quot;format&quot;: 7"), "got 7: use a newer"),
    ],
)
def test_an_edited_openvino_file_is_refused(
    change: Callable[[str], str], words: str, shelf: Path, tmp_path: Path
) -> None:
    assert open_exported(copy_of(shelf, tmp_path)).classes == tuple("abcde")
    bad = copy_of(shelf, tmp_path, change)
    assert bad.read_bytes()[: -openvino_file.SEAL.size] != (shelf / "a.xml").read_bytes()[: -openvino_file.SEAL.size]
    with unreached(), pytest.raises(CheckpointError, match=words):
        open_exported(bad)


@pytest.mark.fault("W16")
def test_a_damaged_openvino_file_is_refused(shelf: Path, tmp_path: Path) -> None:
    path = copy_of(shelf, tmp_path, lambda text: text.replace("vitrail", "Vitrail"), seal=False)
    with unreached(), pytest.raises(CheckpointError, match="do not belong together"):
        open_exported(path)
    path = copy_of(shelf, tmp_path)
    weights = bytearray((tmp_path / "a.bin").read_bytes())
    weights[100] ^= 1
    (tmp_path / "a.bin").write_bytes(weights)
    with unreached(), pytest.raises(CheckpointError, match="do not belong together"):
        open_exported(path)
    (tmp_path / "a.bin").unlink()
    with unreached(), pytest.raises(CheckpointError, match="no exported file"):
        open_exported(path)
    path.write_bytes(path.read_bytes()[:-10])
    (tmp_path / "a.bin").write_bytes(weights)
    with unreached(), pytest.raises(CheckpointError, match="no checksum at its end"):
        open_exported(path)


def test_fields_are_read_as_protobuf_writes_them(shelf: Path) -> None:
    model = onnx.load(shelf / "a.onnx")
    raw = memoryview((shelf / "a.onnx").read_bytes())
    assert onnx_file.metadata(raw, "a") == {each.key: each.value for each in model.metadata_props}
    shape = memoryview(onnx.TensorProto(dims=[1, 300, -5], data_type=7).SerializeToString())
    found = [(each.number, each.value) for each in fields(shape, 0, len(shape), "x")]
    assert found == [(1, 1), (1, 300), (1, 2**64 - 5), (2, 7)]
    assert varint(memoryview(b"\xac\x02"), 0, 2, "x") == (300, 2)


@pytest.mark.fault("W16")
def test_no_damage_leads_to_another_error(shelf: Path, tmp_path: Path) -> None:
    """Bytes changed, cut out and put in at random, with the checksum made right again."""
    dice = np.random.default_rng(0)
    raw = (shelf / "a.onnx").read_bytes()[: -onnx_file.SEAL.size]
    ends = [0, len(raw)]  # where lengths and names stand thickest
    refused = 0
    for _ in range(400):
        body = bytearray(raw)
        place = abs(int(dice.choice(ends)) - int(dice.integers(1, 6000)))
        kind = int(dice.integers(3))
        if kind == 0:
            body[place] = int(dice.integers(256))
        elif kind == 1:
            del body[place : place + int(dice.integers(1, 40))]
        else:
            body[place:place] = dice.bytes(int(dice.integers(1, 40)))
        (tmp_path / "a.onnx").write_bytes(sealed(bytes(body)))
        try:
            read_exported(tmp_path / "a.onnx")
        except CheckpointError:
            refused += 1
    assert refused > 200
