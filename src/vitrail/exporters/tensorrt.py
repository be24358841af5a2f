"""NAME.onnx -> a TensorRT engine beside it, built once for a precision, a device and a range of batches.

TensorRT is NVIDIA's and needs its device; where either is missing this refuses, and says which command would be run.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from vitrail.checks import check_choice, check_int
from vitrail.errors import CheckpointError, InputError, MissingExtraError, import_extra
from vitrail.exporters.export_info import ExportInfo
from vitrail.exporters.exported import read_exported
from vitrail.files import atomic_write, path_text, reason

PRECISIONS: Final = ("fp32", "fp16", "int8")
_DEVICE: Final = re.compile(r"gpu|dla:[0-9]")


@dataclass(frozen=True)
class EngineSpec:
    """What an engine is built for; two engines that differ in one of these are two files."""

    precision: str = "fp16"
    device: str = "gpu"  # or "dla:0", a core of the deep-learning accelerator on Jetson boards
    batch: tuple[int, int, int] = (1, 8, 16)  # least, usual and largest

    def __post_init__(self) -> None:
        check_choice("precision", self.precision, PRECISIONS)
        if not isinstance(self.device, str) or not _DEVICE.fullmatch(self.device):
            raise InputError(f"device: expected gpu, or dla:0 for a core of the accelerator, got {self.device!r:.40}")
        if self.device != "gpu" and self.precision == "fp32":
            raise InputError(
                "the accelerator (dla) computes in fp16 and int8 only: choose one of them, or device='gpu'"
            )
        if not isinstance(self.batch, tuple | list) or len(self.batch) != 3:
            raise InputError(f"batch: expected the least, the usual and the largest number, got {self.batch!r:.40}")
        sizes = tuple(check_int("batch", each, error=InputError) for each in self.batch)
        if not sizes[0] <= sizes[1] <= sizes[2]:
            raise InputError(f"batch: expected rising numbers (least, usual, largest), got {self.batch}")
        object.__setattr__(self, "batch", sizes)


class Engine(NamedTuple):
    """An engine's file, and whether it was built just now or found."""

    path: Path
    built: bool


class Builder(NamedTuple):
    """What makes an engine: version, and a function that writes it for an ONNX file and a spec."""

    version: str
    build: Callable[[Path, Path, EngineSpec, ExportInfo], None]  # source, out


def engine_name(source: Path, spec: EngineSpec) -> str:
    """NAME.fp16.gpu.1-8-16.engine."""
    batches = "-".join(map(str, spec.batch))
    return f"{source.stem}.{spec.precision}.{spec.device.replace(':', '')}.{batches}.engine"


def engine_for(
    source: str | os.PathLike[str],
    *,
    precision: str = "fp16",
    device: str = "gpu",
    batch: tuple[int, int, int] = (1, 8, 16),
    cache: str | os.PathLike[str] = "",
    builder: Builder | None = None,
) -> Engine:
    """The engine of an exported NAME.onnx: the one beside it (or in `cache`) if it is of this very file, or a new one.

    int8 wants a file with explicit nodes, quantised with symmetric=True. Without a builder, NVIDIA's trtexec is run.
    """
    path, spec = Path(path_text(source)), EngineSpec(precision, device, batch)
    if path.suffix != ".onnx":
        raise InputError(f"a TensorRT engine is built from an exported NAME.onnx, got {path.name!r}")
    contents = read_exported(path)
    _check_precision(path, contents, spec)
    folder = Path(path_text(cache)) if cache else path.parent
    out = folder / engine_name(path, spec)
    builder = builder or trtexec(path, out, spec, contents)
    record = {"onnx": _digest(path), "builder": builder.version}
    if _is_fresh(out, path, record):
        return Engine(out, False)
    _build(builder, path, out, spec, contents, record)
    return Engine(out, True)


def command_for(source: Path, out: Path, spec: EngineSpec, contents: ExportInfo) -> list[str]:
    """The line of NVIDIA's trtexec that builds this engine."""
    height, width = contents.size
    bytes_ = contents.pixels == "bytes"
    sides = (height, width, contents.channels) if bytes_ else (contents.channels, height, width)
    shapes = [
        f"--{name}Shapes=img:{'x'.join(map(str, (count, *sides)))}"
        for name, count in zip(("min", "opt", "max"), spec.batch, strict=True)
    ]
    how = {"fp32": [], "fp16": ["--fp16"], "int8": ["--int8", "--fp16"]}[spec.precision]
    where = [] if spec.device == "gpu" else [f"--useDLACore={spec.device[4:]}", "--allowGPUFallback"]
    return ["trtexec", f"--onnx={source}", f"--saveEngine={out}", *shapes, *how, *where]


def trtexec(source: Path, out: Path, spec: EngineSpec, contents: ExportInfo) -> Builder:
    """NVIDIA's own builder, if it and a device are here; or an error that says what is missing, and what would run."""
    line = shlex.join(command_for(source, out, spec, contents))
    program = shutil.which("trtexec")
    if program is None:
        raise MissingExtraError(
            f"TensorRT is not installed: its program trtexec is not on the PATH. Where it is, this would run: {line}"
        )
    if not has_device():
        raise InputError(f"no NVIDIA device on this machine, and TensorRT runs on no other. Where one is: {line}")
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    version = re.search(r"TensorRT[^\d]*([\d.]+)", said)
    return Builder(f"trtexec {version[1] if version else '?'}", _run_trtexec)


def has_device() -> bool:
    """Whether this machine has an NVIDIA device: a card, or a Jetson's own."""
    places = Path("/dev")
    return any(any(places.glob(pattern)) for pattern in ("nvidia[0-9]*", "nvhost-gpu", "nvgpu"))


def _run_trtexec(source: Path, out: Path, spec: EngineSpec, contents: ExportInfo) -> None:
    command = command_for(source, out, spec, contents)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise CheckpointError(f"trtexec could not build the engine ({' '.join(last):.200}): {shlex.join(command)}")


def _check_precision(path: Path, contents: ExportInfo, spec: EngineSpec) -> None:
    if spec.precision == "int8" and contents.precision != "int8":
        raise InputError(
            f"{path.name} is {contents.precision}: an int8 engine is built from an int8 file, whose nodes say what is "
            "rounded and how (vitrail.exporters.qdq.quantised with symmetric=True)"
        )
    if contents.precision == "int8":
        if spec.precision != "int8":
            raise InputError(f"{path.name} is int8: build it with precision='int8', or export it in float32")
        _check_symmetric(path)


def _check_symmetric(path: Path) -> None:
    onnx = import_extra("looking at an int8 file needs onnx", "onnx", "onnx")
    graph = onnx.load(path, load_external_data=False).graph
    zeros = {node.input[2] for node in graph.node if node.op_type == "QuantizeLinear"}
    if any(each.name in zeros and each.data_type != onnx.TensorProto.INT8 for each in graph.initializer):
        raise InputError(f"{path.name} rounds about other zeros than 0, which TensorRT refuses: use symmetric=True")


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _record_of(out: Path) -> Path:
    return out.with_name(out.name + ".json")


def _is_fresh(out: Path, source: Path, record: dict[str, str]) -> bool:
    """Whether an engine is there whole, built from this very file by this builder, and not older than the file."""
    try:
        known: Any = json.loads(_record_of(out).read_text("utf-8"))
        return (
            isinstance(known, dict)
            and all(known.get(name) == value for name, value in record.items())
            and known.get("bytes") == out.stat().st_size
            and out.stat().st_mtime_ns >= source.stat().st_mtime_ns
        )
    except (OSError, ValueError):
        return False


def _build(
    builder: Builder, source: Path, out: Path, spec: EngineSpec, contents: ExportInfo, record: dict[str, str]
) -> None:
    """All or nothing; the record, without which no engine is believed, comes last."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        _record_of(out).unlink(missing_ok=True)
        with atomic_write(out) as temporary:
            builder.build(source, temporary, spec, contents)
            size = temporary.stat().st_size if temporary.is_file() else 0
            if not size:
                raise CheckpointError(f"{builder.version} wrote no engine for {source}")
        with atomic_write(_record_of(out)) as temporary:
            temporary.write_text(json.dumps(record | {"bytes": size}), "utf-8")
    except OSError as error:
        raise CheckpointError(f"could not write {out}: {reason(error)}") from error
