"""A pickle of a dict, as CIFAR has them -> its values, with arrays of bytes.

It is not unpickled: a machine that knows plain values reads it, and of numpy it has one stand-in, for arrays of bytes.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from vitrail.errors import InputError
from vitrail.weights.reading.pickle_opcodes import RefusedPickle
from vitrail.weights.reading.unpickler import Inert, Symbol, run


class ByteArray(Inert):
    """A numpy array of bytes: `values`, once its state has come."""

    __slots__ = ("values",)

    def __init__(self, *_: Any) -> None:
        super().__init__("numpy.ndarray")
        self.values: np.ndarray[Any, Any] | None = None

    def fill(self, state: Any) -> None:
        """(version, shape, kind, whether columns come first, bytes); bytes of Python 2 come as text."""
        _, shape, kind, columns, raw = state
        if type(raw) is str:
            raw = raw.encode("latin-1" if len(raw) == math.prod(shape) else "utf-8")
        if not isinstance(kind, Inert) or kind.name != "u1" or type(raw) is not bytes:
            raise ValueError("an array of other things than bytes")
        self.values = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if columns else "C")


def _encoded(text: Any, encoding: Any) -> bytes:
    """_codecs.encode: how Python 3 writes bytes for Python 2."""
    if type(text) is not str or encoding != "latin1":
        raise RefusedPickle("encodes text in an unusual way: refused")
    return text.encode("latin-1")


SYMBOLS: Final = {
    "numpy.ndarray": Symbol("numpy.ndarray"),
    "numpy.dtype": Symbol("numpy.dtype", lambda code, *_: Inert(str(code))),
    "numpy.core.multiarray._reconstruct": Symbol("numpy.ndarray", ByteArray),
    "numpy._core.multiarray._reconstruct": Symbol("numpy.ndarray", ByteArray),
    "_codecs.encode": Symbol("_codecs.encode", _encoded),
}


def read_dict(raw: bytes, where: str, longest: int) -> dict[str, Any]:
    """The dict in a pickle, arrays as arrays; keys that are bytes, as some programs write them, as text."""
    try:
        pickled = run(raw, SYMBOLS, longest=longest)
    except RefusedPickle:
        raise InputError(
            f"{where} is a pickle that asks for more than plain values and arrays of bytes: refused, as no file of "
            "CIFAR does; save the images as .npz instead"
        ) from None
    except ValueError as error:
        raise InputError(f"{where}: its pickle is damaged ({error}): get the file anew") from None
    if type(pickled.value) is not dict or pickled.end != len(raw):
        raise InputError(f"{where}: expected one dict and nothing behind it: get the file anew")
    return {_text(key): value.values if isinstance(value, ByteArray) else value for key, value in pickled.value.items()}


def _text(key: Any) -> str:
    return key.decode("latin-1") if isinstance(key, bytes) else str(key)
