"""Exported: a file that `vitrail export` wrote, as a runtime: pixels in, logits and embedding out.

Without torch, but for NAME.pt2, which nothing else can run.

Before a runtime sees the file, all of it is checked: that it is ours, whole, and holds nothing that reaches elsewhere.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from threading import Lock, Thread
from typing import Any, Final, NamedTuple

import numpy as np

from vitrail.checks import check_int
from vitrail.errors import CheckpointError, InputError, MissingExtraError
from vitrail.images.model_info import ModelInfo
from vitrail.inference import onnx_file, openvino_file, torch_file, torch_program
from vitrail.inference.export_info import Contents, read_contents
from vitrail.inference.runtime import RuntimeBase, Takes

Array = np.ndarray[Any, Any]
Compute = Callable[[Array, Sequence[str]], Sequence[Array]]  # img and names of outputs -> those outputs

SUFFIXES: Final = {".onnx": "onnx", ".xml": "openvino", ".pt2": "torch"}
OUTPUTS: Final = ("logits", "embedding")
_WHOLE_BYTE: Final = 0.02  # how far pixels may be from a whole byte and still count as one


class Exported(RuntimeBase):
    """An exported network with all that its use needs; `predict`, `embed` and `evaluate` take it as they take any."""

    def __init__(self, path: Path, contents: Contents, compute: Compute) -> None:
        self.path, self.contents = path, contents
        self.about: ModelInfo = contents.about
        self._compute = compute

    def __repr__(self) -> str:
        height, width = self.contents.size
        size = "any size" if self.contents.dynamic_size or self.contents.resize_inside else f"{height}x{width}"
        return f"Exported({self.path.name!r}, {self.contents.precision}, {self.contents.pixels} of {size})"

    @property
    def takes_uint8(self) -> bool:
        return self.contents.pixels == "bytes"

    @property
    def takes(self) -> Takes:
        """Full images where the graph resizes by itself."""
        if self.contents.resize_inside:
            return "images"
        return "uint8" if self.takes_uint8 else "pixels"

    def run(self, pixels: Array) -> tuple[Array, Array]:
        """Pixels (B, C, H, W) -> logits (B, K) and embedding (B, D)."""
        if not isinstance(pixels, np.ndarray) or pixels.dtype.kind != "f":
            got = getattr(pixels, "dtype", type(pixels).__name__)
            raise InputError(f"expected pixels as a float array, got {got}: images go through .preprocess")
        if pixels.ndim != 4 or pixels.shape[1] != self.contents.channels or not len(pixels):
            raise InputError(f"expected pixels (B, {self.contents.channels}, H, W), got {pixels.shape}")
        if self.takes_uint8:
            return self.run_uint8(self._as_bytes(pixels))
        self._check_size(pixels.shape[2], pixels.shape[3])
        return self._run(np.ascontiguousarray(pixels, np.float32))

    def run_uint8(self, values: Array) -> tuple[Array, Array]:
        """8-bit values (B, H, W, C), as Preprocess leaves them before it normalises -> logits and embedding.

        Where the file resizes inside, whole images of one size instead.
        """
        if not isinstance(values, np.ndarray) or values.dtype != np.uint8:
            got = getattr(values, "dtype", type(values).__name__)
            raise InputError(f"expected 8-bit values, an array of uint8, got {got}")
        if values.ndim != 4 or values.shape[3] != self.contents.channels or not values.size:
            raise InputError(f"expected values (B, H, W, {self.contents.channels}), got {values.shape}")
        if not self.takes_uint8:
            return self.run(self.preprocess.normalise(values))
        if not self.contents.resize_inside:
            self._check_size(values.shape[1], values.shape[2])
        return self._run(np.ascontiguousarray(values))

    def compute(self, img: Array, outputs: Sequence[str] = OUTPUTS) -> Sequence[Array]:
        """The graph as it is: its input, and the outputs asked for; `run` checks the input and says what is wrong."""
        return self._compute(img, outputs)

    def _run(self, img: Array) -> tuple[Array, Array]:
        logits, embedding = self._compute(img, OUTPUTS)
        return np.asarray(logits, np.float32), np.asarray(embedding, np.float32)

    def _check_size(self, height: int, width: int) -> None:
        (h, w), (p, q) = self.contents.size, self.contents.cell
        if not self.contents.dynamic_size:
            if (height, width) != (h, w):
                raise InputError(
                    f"{self.path.name} takes images of {h}x{w} only, got {height}x{width}: resize them, or export "
                    "with dynamic_size=True"
                )
        elif height < p or width < q or height % p or width % q:
            raise InputError(
                f"{self.path.name} takes sides that are multiples of {p}x{q} pixels, got {height}x{width}: resize them"
            )

    def _as_bytes(self, pixels: Array) -> Array:
        """Pixels back to the 8-bit values they were made from, for a graph that normalises by itself."""
        preprocess = self.preprocess
        if self.contents.resize_inside and (preprocess.resize != "squash" or preprocess.crop != 1.0):
            raise InputError(
                f"{self.path.name} resizes and crops by itself, so it takes whole images, uint8 (B, H, W, C): use "
                "run_uint8, or export without resize_inside"
            )
        mean, std = (np.reshape(each, (-1, 1, 1)) for each in (preprocess.mean, preprocess.std))
        values = (pixels * std + mean) * preprocess.range
        whole_values = np.rint(values)
        if not np.abs(values - whole_values).max() < _WHOLE_BYTE or whole_values.min() < 0 or whole_values.max() > 255:
            raise InputError(
                f"{self.path.name} takes 8-bit values, and these pixels are none that were normalised: give images "
                "to its .preprocess, or export with pixels='float'"
            )
        values = whole_values.astype(np.uint8).transpose(0, 2, 3, 1)
        return np.asarray(values[..., ::-1] if preprocess.order == "BGR" else values)


def is_exported(path: object) -> bool:
    """Whether this is the name of an exported file: NAME.onnx, NAME.xml or NAME.pt2."""
    return isinstance(path, str | os.PathLike) and Path(os.fsdecode(path)).suffix.lower() in SUFFIXES


def open_exported(path: str | os.PathLike[str], threads: int = 0, few: bool = False) -> Exported:
    """Open NAME.onnx, NAME.xml or NAME.pt2, checked in full first; `threads` 0 leaves their number to the runtime.

    For a `few` images alone, a runtime need not prepare for many: NAME.onnx is opened sooner, and answers later.
    """
    if not is_exported(path):
        raise InputError(f"expected an exported file, NAME.onnx, NAME.xml or NAME.pt2, got {path!r:.80}")
    check_int("threads", threads, least=0, most=4096, error=InputError)
    place = Path(os.fsdecode(path))
    bring, session = _RUNTIMES[SUFFIXES[place.suffix.lower()]]
    importing = _Importing(bring)  # beside the checks, which mostly wait for the disk and the hash
    contents = read_exported(place)
    return Exported(place, contents, session(importing.result(), place, contents, threads, few))


def read_exported(path: Path) -> Contents:
    """What an exported file says of itself, once all of it has been checked; no runtime is needed."""
    target = SUFFIXES[path.suffix.lower()]
    description, notes, found = _READERS[target](path)
    if description not in found:
        raise CheckpointError(f"{path} holds no description of ours: export the checkpoint again with vitrail.export")
    contents = read_contents(found[description], found.get(notes, ""), str(path))
    if contents.target != target:
        raise CheckpointError(f"{path} says it was made for {contents.target}, and is {target}: export it again")
    return contents


def _read_onnx(path: Path) -> _Read:
    with _mapped(path) as data:
        onnx_file.check_seal(data, str(path))
        return _Read(onnx_file.DESCRIPTION, onnx_file.NOTES, onnx_file.metadata(data, str(path)))


def _read_openvino(path: Path) -> _Read:
    with _mapped(path) as text, _mapped(path.with_suffix(".bin")) as weights:
        openvino_file.check_seal(text, weights, str(path))
        found = openvino_file.metadata(text, len(weights), str(path))
        return _Read(openvino_file.DESCRIPTION, openvino_file.NOTES, found)


def _read_torch(path: Path) -> _Read:
    with _mapped(path) as data:
        torch_file.check_seal(data, str(path))
        found = torch_file.metadata(torch_file.entries(data, str(path)), str(path))
        return _Read(torch_file.DESCRIPTION, torch_file.NOTES, found)


class _Read(NamedTuple):
    """The entries of a file that are ours, and what those of them are called that say the most."""

    description: str
    notes: str
    found: Mapping[str, str]


_READERS: Final = {"onnx": _read_onnx, "openvino": _read_openvino, "torch": _read_torch}


# ---- ONNX Runtime ----------------------------------------------------------------------------------------------


def _onnxruntime() -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise MissingExtraError("NAME.onnx runs in ONNX Runtime: pip install 'vitrail[onnx]'") from None
    return onnxruntime


def _onnx_session(runtime: Any, path: Path, contents: Contents, threads: int, few: bool) -> Compute:
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # errors alone
    options.intra_op_num_threads = threads
    if few:  # making a second copy of the weights, in another order, pays over many images only
        options.add_session_config_entry("session.disable_prepacking", "1")
    try:
        session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # kinds of its own, none of them public
        raise CheckpointError(f"ONNX Runtime refuses {path}: {error}") from None
    names = [each.name for each in session.get_outputs()]
    inputs = [each.name for each in session.get_inputs()]
    if inputs != ["img"] or any(each not in names for each in OUTPUTS):
        raise CheckpointError(f"{path}: expected the input img and outputs logits and embedding, got {inputs}, {names}")

    def compute(img: Array, outputs: Sequence[str]) -> Sequence[Array]:
        try:
            found: Sequence[Array] = session.run(outputs, {"img": img})
        except Exception as error:
            raise InputError(f"ONNX Runtime could not run {path.name} on {img.shape}: {error}") from None
        return found

    return compute


# ---- OpenVINO --------------------------------------------------------------------------------------------------


def _openvino() -> Any:
    try:
        import openvino
    except ImportError:
        raise MissingExtraError("NAME.xml runs in OpenVINO: pip install 'vitrail[openvino]'") from None
    return openvino


@cache
def _core(runtime: Any) -> Any:
    """One for the whole process, never taken down.

    OpenVINO 2026.4 gives the thread another stack for signals when a core first compiles, and puts the one before it
    back when the core goes: of two cores, the second to go puts back the first one's, whose memory is gone, and the
    next signal that has a handler ends the process.
    """
    core = runtime.Core()
    core.set_property({"ENABLE_MMAP": True})
    return core


@cache
def multiplies_bf16() -> bool:
    """Whether OpenVINO takes bf16, and this processor multiplies it: OpenVINO would imitate it on AVX-512 alone."""
    if "BF16" not in _core(_openvino()).get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        return False
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:  # no Linux: OpenVINO's word is all there is
        return True
    return "avx512_bf16" in flags or "amx_bf16" in flags


def _openvino_session(runtime: Any, path: Path, contents: Contents, threads: int, few: bool) -> Compute:
    try:
        core = _core(runtime)
        # Left alone, OpenVINO computes in bf16 wherever the processor can: float32 files were verified in float32.
        half = contents.in_bf16 and multiplies_bf16()
        settings = {"INFERENCE_PRECISION_HINT": "bf16" if half else "f32", "PERFORMANCE_HINT": "LATENCY"}
        if threads:
            settings["INFERENCE_NUM_THREADS"] = str(threads)
        compiled = core.compile_model(core.read_model(str(path)), "CPU", settings)
        for name in OUTPUTS:
            compiled.output(name)
        request, turn = compiled.create_infer_request(), Lock()  # one request serves one thread at a time
    except RuntimeError as error:
        raise CheckpointError(f"OpenVINO refuses {path}: {error}") from None

    def compute(img: Array, outputs: Sequence[str]) -> Sequence[Array]:
        try:
            with turn:
                found = request.infer({"img": img}, share_inputs=True)
                return [np.array(found[each]) for each in outputs]  # copies: the request writes over its own
        except RuntimeError as error:
            raise InputError(f"OpenVINO could not run {path.name} on {img.shape}: {error}") from None

    return compute


# ---- torch -----------------------------------------------------------------------------------------------------


def _torch_session(runtime: Any, path: Path, contents: Contents, threads: int, few: bool) -> Compute:
    if threads:
        raise InputError(f"{path.name} runs in torch, whose threads are the whole process's: torch.set_num_threads")
    with _mapped(path) as data:  # once more, so that what torch gets is what was looked at
        return torch_program.program(runtime, path, torch_file.entries(data, str(path)))


_RUNTIMES: Final[dict[str, tuple[Callable[[], Any], Callable[[Any, Path, Contents, int, bool], Compute]]]] = {
    "onnx": (_onnxruntime, _onnx_session),
    "openvino": (_openvino, _openvino_session),
    "torch": (torch_program.bring_torch, _torch_session),
}


# ---- files -----------------------------------------------------------------------------------------------------


class _Importing:
    """A runtime that is imported beside other work."""

    def __init__(self, bring: Callable[[], Any]) -> None:
        self._bring = bring
        self._thread = Thread(target=self._try, daemon=True)
        self._thread.start()

    def _try(self) -> None:
        with suppress(MissingExtraError):  # told by result(), in the thread that asked
            self._bring()

    def result(self) -> Any:
        self._thread.join()
        return self._bring()


_READ: Final = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


@contextmanager
def _mapped(path: Path) -> Iterator[memoryview]:
    """The bytes of a file, which must be the same file when they have been looked at."""
    try:
        number = os.open(path, _READ)  # a pipe must not hold us up
    except FileNotFoundError:
        raise CheckpointError(f"no exported file {path}") from None
    except OSError as error:
        raise CheckpointError(f"could not read {path}: {error.strerror}") from error
    with ExitStack() as closing:
        closing.callback(os.close, number)
        before = os.fstat(number)
        if not stat.S_ISREG(before.st_mode):
            raise CheckpointError(f"{path} is no file: expected one that `vitrail export` wrote")
        if not before.st_size:
            raise CheckpointError(f"{path} is empty: get it anew, or export it again")
        # Never closed by hand: an error on its way out still holds pieces of it.
        yield memoryview(mmap.mmap(number, 0, access=mmap.ACCESS_READ))
        after = os.stat(path)
        if any(getattr(before, each) != getattr(after, each) for each in ("st_ino", "st_size", "st_mtime_ns")):
            raise CheckpointError(f"{path} was changed while being read: open it again")
