"""The names that a torch file may ask for, each with an inert stand-in: nothing outside is ever looked up or called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from vitrail.checkpoint.safetensors_io import MOST_DIMENSIONS, StoredTensor
from vitrail.weights.reading.pickle_opcodes import RefusedPickle
from vitrail.weights.reading.unpickler import Bag, Inert, Symbol, plain_key

STORAGES: Final = {
    "Double": torch.float64,
    "Float": torch.float32,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Long": torch.int64,
    "Int": torch.int32,
    "Short": torch.int16,
    "Char": torch.int8,
    "Byte": torch.uint8,
    "Bool": torch.bool,
    "ComplexFloat": torch.complex64,
    "ComplexDouble": torch.complex128,
}
DTYPES: Final = (
    *("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"),
    *("uint16", "uint32", "uint64", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2"),
)


class Kind(NamedTuple):
    """A class of storages: the kind of number in them, None for bytes."""

    dtype: torch.dtype | None


def parameter(tensor: Any, *_: Any) -> StoredTensor:
    if not isinstance(tensor, StoredTensor):
        raise ValueError("a parameter that is no tensor")
    return tensor


def typed(make: Any, kind: Any, arguments: Any, state: Any) -> Any:
    """A tensor with attributes: the tensor. What makes it must be one of the makers of tensors."""
    if type(make) is not Symbol or "._rebuild_tensor" not in make.name or make.make is None:
        raise RefusedPickle("makes a tensor in an unusual way: refused")
    if type(kind) is not Symbol or type(arguments) is not tuple:
        raise ValueError("a tensor without kind or arguments")
    return make.make(*arguments)


def _mapping(pairs: Any = ()) -> dict[Any, Any]:
    """OrderedDict, Counter: a dict, perhaps from pairs."""
    if type(pairs) is dict:
        return dict(pairs)
    if type(pairs) not in (list, tuple) or not all(type(each) in (list, tuple) and len(each) == 2 for each in pairs):
        raise ValueError("a dict of what is no pairs")
    return {plain_key(key): value for key, value in pairs}


def _defaults(factory: Any = None, pairs: Any = ()) -> dict[Any, Any]:
    return _mapping(pairs)


def _listed(values: Any = ()) -> list[Any]:
    if type(values) not in (list, tuple):
        raise ValueError("a set of what is no list")
    return list(values)


def _size(values: Any = ()) -> tuple[int, ...]:
    if type(values) not in (list, tuple) or len(values) > MOST_DIMENSIONS:
        raise ValueError("a shape of what is no list")
    return tuple(values)


def _encoded(text: Any = "", encoding: Any = "latin1") -> bytes:
    """_codecs.encode, bytearray: how older protocols write bytes."""
    if type(text) is bytes:
        return text
    if type(text) is not str or encoding not in ("latin1", "latin-1"):
        raise RefusedPickle("encodes text in an unusual way: refused")
    return text.encode("latin-1")


def _joined(*parts: Any) -> str:
    """A path, or a version: its text."""
    if not all(type(each) is str for each in parts):
        raise ValueError("a path or version that is no text")
    return "/".join(parts).replace("//", "/")


def _device(*about: Any) -> str:
    if not all(type(each) in (str, int) for each in about):
        raise ValueError("a device without a name")
    return ":".join(str(each) for each in about)


def _complex(real: Any = 0.0, imaginary: Any = 0.0) -> complex:
    if not all(type(each) in (int, float) for each in (real, imaginary)):
        raise ValueError("a complex number of what is none")
    return complex(real, imaginary)


def _object(kind: Any, base: Any, state: Any) -> Any:
    """copyreg._reconstructor: an object before its attributes; only of a kind that we have a stand-in for."""
    if type(kind) is not Symbol or kind.name != "argparse.Namespace":
        raise RefusedPickle("makes an object in an unusual way: refused")
    return Bag()


class _NumberKind(Inert):
    """numpy.dtype: the code of a kind of number; little-endian unless it says otherwise."""

    __slots__ = ("order",)

    def fill(self, state: Any) -> None:
        self.order = state[1] if type(state) is tuple and len(state) > 1 and state[1] == ">" else "<"


_NUMBERS: Final = ("f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "b1")


def _number_kind(code: Any, *_: Any) -> _NumberKind:
    kind = _NumberKind(code if type(code) is str and code in _NUMBERS else "numpy.dtype")
    kind.fill(None)
    return kind


def _number(kind: Any, raw: Any = b"") -> Any:
    """numpy's scalar: a number of Python's, or a stand-in where it is none."""
    if type(kind) is not _NumberKind:
        raise ValueError("a number without a kind")
    raw = raw.encode("latin-1") if type(raw) is str and len(raw) <= 8 else raw
    if kind.name not in _NUMBERS or type(raw) is not bytes:
        return Inert("numpy.scalar")
    (number,) = np.frombuffer(raw, kind.order + kind.name)
    return number.item()


def _stand_in(name: str) -> Callable[..., Inert]:
    return lambda *_: Inert(name)


def _symbols() -> dict[str, Any]:
    """Every name with what takes its place; those of tensors are added for each file."""
    makers: dict[str, Callable[..., Any] | None] = {
        "collections.OrderedDict": _mapping,
        "collections.Counter": _mapping,
        "collections.defaultdict": _defaults,
        "argparse.Namespace": lambda: Bag(),
        "torch.Size": _size,
        "torch.device": _device,
        "torch.torch_version.TorchVersion": _joined,
        "torch.Tensor": None,
        "torch.nn.parameter.Parameter": None,
        "_codecs.encode": _encoded,
    }
    for module in ("copyreg", "copy_reg"):
        makers[f"{module}._reconstructor"] = _object
    for module in ("builtins", "__builtin__"):
        makers |= {f"{module}.set": _listed, f"{module}.frozenset": _listed, f"{module}.complex": _complex}
        makers |= {f"{module}.bytearray": _encoded, f"{module}.slice": _stand_in("slice")}
        makers |= {f"{module}.{name}": None for name in ("object", "list", "dict", "int", "float")}
    for module in ("pathlib", "pathlib._local"):
        for name in ("PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath"):
            makers[f"{module}.{name}"] = _joined
    for module in ("numpy.core", "numpy._core"):
        makers[f"{module}.multiarray.scalar"] = _number
        makers[f"{module}.multiarray._reconstruct"] = _stand_in("numpy.ndarray")
    makers |= {"numpy.dtype": _number_kind, "numpy.ndarray": None}
    symbols: dict[str, Any] = {name: Symbol(name, make) for name, make in makers.items()}
    symbols |= {f"torch.{name}": getattr(torch, name) for name in DTYPES}
    for name, dtype in STORAGES.items():
        symbols |= {f"torch.{name}Storage": Kind(dtype), f"torch.cuda.{name}Storage": Kind(dtype)}
    for name in ("torch.storage.UntypedStorage", "torch.UntypedStorage"):
        symbols[name] = Kind(None)
    return symbols


SYMBOLS: Final = _symbols()
