"""The names that a torch file may ask for: each has an inert stand-in, and nothing else of Python is among them."""

from __future__ import annotations

import struct
from typing import Any

import pytest
import torch

from vitrail.weights.reading.pickle_allowlist import DTYPES, STORAGES, SYMBOLS, Kind, parameter, typed
from vitrail.weights.reading.pickle_opcodes import RefusedPickle
from vitrail.weights.reading.unpickler import Bag, Inert, Symbol


def make(name: str, *arguments: Any) -> Any:
    return SYMBOLS[name].make(*arguments)


def test_no_name_leads_out_of_the_list() -> None:
    """Stand-ins are our own symbols, kinds of numbers and kinds of storages: never a class or function of Python's."""
    assert {type(each) for each in SYMBOLS.values()} == {Symbol, Kind, torch.dtype}
    for name in ("os.system", "builtins.eval", "builtins.getattr", "torch.load", "numpy.load", "functools.partial"):
        assert name not in SYMBOLS


def test_kinds_of_numbers_are_torchs_own() -> None:
    for name, dtype in STORAGES.items():
        assert SYMBOLS[f"torch.{name}Storage"] == SYMBOLS[f"torch.cuda.{name}Storage"] == Kind(dtype)
        assert torch.storage._dtype_to_storage_type_map()[dtype] == f"{name}Storage"
    assert SYMBOLS["torch.UntypedStorage"] == Kind(None)
    assert all(SYMBOLS[f"torch.{name}"] is getattr(torch, name) for name in DTYPES)


@pytest.mark.parametrize(
    "name, arguments, value",
    [
        ("collections.OrderedDict", ([("a", 1), ["b", 2]],), {"a": 1, "b": 2}),
        ("collections.Counter", ({"a": 2},), {"a": 2}),
        ("collections.defaultdict", (SYMBOLS["builtins.list"], [("a", 1)]), {"a": 1}),
        ("builtins.set", ([3, 1],), [3, 1]),
        ("builtins.complex", (1, 2.5), 1 + 2.5j),
        ("builtins.bytearray", ("\xff\x00", "latin-1"), b"\xff\x00"),
        ("_codecs.encode", (b"raw",), b"raw"),
        ("torch.Size", ([2, 3],), (2, 3)),
        ("torch.device", ("cuda", 1), "cuda:1"),
        ("pathlib.PosixPath", ("/", "data", "x"), "/data/x"),
        ("torch.torch_version.TorchVersion", ("2.8.0",), "2.8.0"),
    ],
)
def test_plain_values_stand_in(name: str, arguments: tuple[Any, ...], value: Any) -> None:
    found = make(name, *arguments)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    "code, form, value", [("f4", "f", 1.5), ("i8", "q", -7), ("u2", "H", 65535), ("b1", "?", True)]
)
@pytest.mark.parametrize("order", ["<", ">"])
def test_numbers_of_numpy_are_numbers(code: str, form: str, value: Any, order: str) -> None:
    kind = make("numpy.dtype", code, False, True)
    kind.fill((3, order, None))
    raw = struct.pack(order + form, value)
    assert make("numpy._core.multiarray.scalar", kind, raw) == value
    assert make("numpy.core.multiarray.scalar", kind, raw.decode("latin-1")) == value


def test_what_is_no_number_stays_blank() -> None:
    kind = make("numpy.dtype", "O8", False, True)
    assert type(make("numpy._core.multiarray.scalar", kind, b"x")) is Inert
    assert type(make("numpy._core.multiarray._reconstruct", None, (0,), b"b")) is Inert
    assert type(make("builtins.slice", 1, 2)) is Inert


@pytest.mark.parametrize(
    "name, arguments",
    [
        ("collections.OrderedDict", (["ab", ("c",)],)),
        ("builtins.set", ("text",)),
        ("torch.Size", ("23",)),
        ("torch.Size", ([1] * 1000,)),
        ("torch.device", (b"cpu",)),
        ("builtins.complex", ("1", 2)),
        ("pathlib.PosixPath", (b"x",)),
        ("numpy._core.multiarray.scalar", ("f4", b"0000")),
    ],
)
def test_arguments_of_another_kind_are_refused(name: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match="what is no|what is none|without a|no text"):
        make(name, *arguments)


def test_objects_and_tensors_are_made_in_the_usual_way_alone() -> None:
    namespace = SYMBOLS["argparse.Namespace"]
    assert type(make("copyreg._reconstructor", namespace, SYMBOLS["builtins.object"], None)) is Bag
    with pytest.raises(RefusedPickle, match="makes an object in an unusual way"):
        make("copyreg._reconstructor", SYMBOLS["builtins.list"], SYMBOLS["builtins.object"], None)
    with pytest.raises(RefusedPickle, match="encodes text in an unusual way"):
        make("_codecs.encode", "text", "rot13")
    rebuild, tensor = Symbol("torch._utils._rebuild_tensor_v2", lambda *given: given), SYMBOLS["torch.Tensor"]
    assert typed(rebuild, tensor, (1, 2), None) == (1, 2)
    with pytest.raises(RefusedPickle, match="makes a tensor in an unusual way"):
        typed(SYMBOLS["builtins.set"], tensor, ([1],), None)
    with pytest.raises(ValueError, match="a parameter that is no tensor"):
        parameter([1.0])
