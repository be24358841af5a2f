"""TensorRT engines: the cache beside the file is right, ONNX Runtime standing in; without a device, a clear no."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnxruntime
import pytest

from shipping import small
from vitrail.errors import CheckpointError, InputError, MissingExtraError
from vitrail.exporters import onnx as to_onnx
from vitrail.exporters import tensorrt
from vitrail.exporters.export_info import ExportInfo
from vitrail.exporters.exporter import add_measurements, export, prepare, trace
from vitrail.exporters.qdq import quantised
from vitrail.exporters.tensorrt import Builder, EngineSpec, command_for, engine_for, engine_name
from vitrail.quantisation.quant_plan import QuantPlan


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """float32, int8 about 0, and int8 as ONNX Runtime likes it; of two networks, so that they differ."""
    folder = tmp_path_factory.mktemp("files")
    ready = prepare(small.checkpoint(), "onnx")
    model = to_onnx.onnx_model(ready.graph, trace(ready.graph, ready.contents), to_onnx.FREE)
    found: dict[str, bytes] = {}
    for name, symmetric in (("float32", None), ("int8", True), ("uint8", False)):
        whole = (
            model if symmetric is None else quantised(model, {"encoder.blocks.0.mlp.up": (-1, 2)}, symmetric=symmetric)
        )
        contents = replace(ready.contents, precision="float32" if symmetric is None else "int8")
        to_onnx.write_onnx(whole, contents, folder / name)
        found[name] = (folder / name).read_bytes()
    return found


def test_int8_files_as_export_writes_them_are_recognised(tmp_path: Path) -> None:
    ranges = {"encoder.blocks.0.mlp.up": (-1.0, 2.0)}
    for symmetric in (True, False):
        path = tmp_path / f"{symmetric}.onnx"
        export(small.checkpoint(), path, plan=QuantPlan("fp32", ranges), symmetric=symmetric)
        stand_in = StandIn()
        if symmetric:
            assert engine_for(path, precision="int8", builder=stand_in.builder).path.is_file()
            with pytest.raises(InputError, match="is int8"):
                engine_for(path, precision="fp16", builder=stand_in.builder)
        else:
            with pytest.raises(InputError, match="symmetric"):
                engine_for(path, precision="int8", builder=stand_in.builder)


@pytest.fixture
def source(files: dict[str, bytes], tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(files["float32"])
    return path


class StandIn:
    """Builds with ONNX Runtime: its optimised graph takes the place of an engine."""

    def __init__(self, version: str = "stand-in 1", breaks: bool = False) -> None:
        self.wishes: list[EngineSpec] = []
        self.breaks = breaks
        self.builder = Builder(version, self.build)

    def build(self, source: Path, out: Path, spec: EngineSpec, contents: ExportInfo) -> None:
        self.wishes.append(spec)
        if self.breaks:
            out.write_bytes(b"half an engi")
            raise CheckpointError("no room on the device")
        options = onnxruntime.SessionOptions()
        options.optimized_model_filepath = str(out)
        onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])


def test_a_name_says_what_an_engine_is_for() -> None:
    assert engine_name(Path("a/flowers.onnx"), EngineSpec()) == "flowers.fp16.gpu.1-8-16.engine"
    assert engine_name(Path("flowers.onnx"), EngineSpec("int8", "dla:1", (2, 2, 4))) == "flowers.int8.dla1.2-2-4.engine"
    names = {
        engine_name(Path("x.onnx"), EngineSpec(precision, device, batch))
        for precision in ("fp16", "int8")
        for device in ("gpu", "dla:0", "dla:1")
        for batch in ((1, 1, 1), (1, 1, 11), (1, 11, 11))
    }
    assert len(names) == 18


@pytest.mark.row("DL.7", "4.TRT")
def test_an_engine_is_built_once_and_anew_when_stale(source: Path, files: dict[str, bytes], tmp_path: Path) -> None:
    stand_in = StandIn()
    first = engine_for(source, precision="fp32", builder=stand_in.builder)
    assert first == (tmp_path / "model.fp32.gpu.1-8-16.engine", True)
    onnxruntime.InferenceSession(str(first.path), providers=["CPUExecutionProvider"])
    assert engine_for(source, precision="fp32", builder=stand_in.builder) == (first.path, False)  # found
    assert engine_for(source, precision="fp16", builder=stand_in.builder).built  # of another kind
    assert engine_for(source, precision="fp32", batch=(1, 1, 1), builder=stand_in.builder).built
    assert engine_for(source, precision="fp32", cache=tmp_path / "else", builder=stand_in.builder).built  # elsewhere
    assert engine_for(source, precision="fp32", builder=StandIn("stand-in 2").builder).built  # another version
    assert engine_for(source, precision="fp32", builder=stand_in.builder).built
    assert not engine_for(source, precision="fp32", builder=stand_in.builder).built

    os.utime(source, ns=(2**62, 2**62))  # touched since: the same bytes, but newer than the engine
    assert engine_for(source, precision="fp32", builder=stand_in.builder).built
    os.utime(source, ns=(1, 1))
    assert not engine_for(source, precision="fp32", builder=stand_in.builder).built
    source.write_bytes(files["int8"])
    os.utime(source, ns=(1, 1))  # older, but other bytes
    assert engine_for(source, precision="int8", builder=stand_in.builder).built
    first.path.write_bytes(first.path.read_bytes()[:-1])  # cut short
    source.write_bytes(files["float32"])
    os.utime(source, ns=(1, 1))
    assert engine_for(source, precision="fp32", builder=stand_in.builder).built


def test_an_engine_of_another_file_under_the_same_name_is_not_believed(source: Path, tmp_path: Path) -> None:
    """Other bytes, of the same size for all that is known, and older than the engine."""
    stand_in = StandIn()
    first = engine_for(source, precision="fp32", builder=stand_in.builder)
    add_measurements(source, tmp_path / "other.onnx", {"top1": 0.5})
    os.replace(tmp_path / "other.onnx", source)
    os.utime(source, ns=(1, 1))
    assert engine_for(source, precision="fp32", builder=stand_in.builder) == (first.path, True)
    assert engine_for(source, precision="fp32", builder=stand_in.builder) == (first.path, False)


def test_half_an_engine_never_remains(source: Path, tmp_path: Path) -> None:
    engine_for(source, precision="fp32", builder=StandIn().builder)
    os.utime(source, ns=(2**62, 2**62))
    with pytest.raises(CheckpointError, match="no room"):
        engine_for(source, precision="fp32", builder=StandIn(breaks=True).builder)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["model.fp32.gpu.1-8-16.engine", "model.onnx"]
    assert engine_for(source, precision="fp32", builder=StandIn().builder).built  # the older one is not believed
    empty = Builder("empty", lambda source, out, spec, contents: out.write_bytes(b"") and None)
    with pytest.raises(CheckpointError, match="wrote no engine"):
        engine_for(source, precision="fp16", builder=empty)


@pytest.mark.row("DL.7", "4.TRT")
def test_without_tensorrt_or_a_device_it_says_what_would_run(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(tensorrt, "has_device", lambda: False)
    with pytest.raises(MissingExtraError, match="trtexec is not on the PATH.*would run: trtexec --onnx="):
        engine_for(source)
    script = tmp_path / "trtexec"
    script.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo "&&&& RUNNING TensorRT.trtexec [TensorRT v101]" && exit 0\n'
        'for each in "$@"; do case "$each" in --saveEngine=*) echo "$@" > "${each#--saveEngine=}";; esac; done\n'
    )
    script.chmod(0o755)
    with pytest.raises(InputError, match="no NVIDIA device.*--saveEngine=.*model.fp16.gpu.1-8-16.engine"):
        engine_for(source)
    monkeypatch.setattr(tensorrt, "has_device", lambda: True)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    built = engine_for(source, device="dla:0", batch=(1, 2, 4))
    assert built.path.read_text().endswith(
        "--minShapes=img:1x3x32x32 --optShapes=img:2x3x32x32 --maxShapes=img:4x3x32x32 --fp16 --useDLACore=0 "
        "--allowGPUFallback\n"
    )
    script.write_text("#!/bin/sh\necho broken >&2\nexit 3\n")
    with pytest.raises(CheckpointError, match="could not build the engine \\(broken\\)"):
        engine_for(source, precision="fp32")


def test_the_command_of_a_graph_that_takes_bytes() -> None:
    contents = replace(prepare(small.checkpoint(), "onnx").contents, pixels="bytes")
    line = command_for(Path("a.onnx"), Path("a.engine"), EngineSpec("int8"), contents)
    assert line[3:] == [
        "--minShapes=img:1x32x32x3",
        "--optShapes=img:8x32x32x3",
        "--maxShapes=img:16x32x32x3",
        "--int8",
        "--fp16",
    ]


@pytest.mark.parametrize(
    "kind, spec, words",
    [
        ("float32", {"precision": "int8"}, "built from an int8 file"),
        ("int8", {"precision": "fp16"}, "precision='int8'"),
        ("uint8", {"precision": "int8"}, "symmetric=True"),
        ("float32", {"precision": "fp8"}, "unknown"),
        ("float32", {"device": "tpu"}, "expected gpu, or dla:0"),
        ("float32", {"device": "dla:0", "precision": "fp32"}, "fp16 and int8 only"),
        ("float32", {"batch": (8, 1, 16)}, "rising numbers"),
        ("float32", {"batch": (1, 8)}, "least, the usual and the largest"),
    ],
)
def test_wishes_that_cannot_be_are_refused(
    kind: str, spec: dict[str, Any], words: str, files: dict[str, bytes], tmp_path: Path
) -> None:
    (tmp_path / "a.onnx").write_bytes(files[kind])
    with pytest.raises(ValueError, match=words):
        engine_for(tmp_path / "a.onnx", **spec, builder=StandIn().builder)
    with pytest.raises(InputError, match="NAME.onnx"):
        engine_for(tmp_path / "a.xml", builder=StandIn().builder)
