"""NAME.pt2 -> what is written about it inside, once nothing in it can make torch run anything but its operators.

torch.export.load unpickles what a file says it pickled, evaluates sizes and guards as Python, loads compiled libraries
and calls any function of torch that is named. Our exports hold none of that but sizes, whose words are few, and calls
of ATen's operators: everything else is refused here.

An exported file is an uncompressed zip archive of one folder; its comment, the last bytes, is the checksum of all
before it. Read without torch.
"""

from __future__ import annotations

import io
import json
import math
import re
import struct
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from vitrail.checks import short_repr
from vitrail.errors import CheckpointError
from vitrail.inference.digest import digest_of

DESCRIPTION: Final = "extra/vitrail.json"  # our JSON
NOTES: Final = "extra/vitrail.notes.json"  # and what was found out about the file once it was there
GRAPH: Final = "models/model.json"
EXAMPLES: Final = "data/sample_inputs/model.pt"  # a pickle wherever torch wrote it; always empty in ours
FOLDER: Final = "vitrail/"  # that all of the archive stands in
AGAIN: Final = "export the checkpoint again with vitrail.export(checkpoint, 'NAME.pt2')"

_LAST: Final = b"vitrail sha256:"
_HEAD: Final = 30  # bytes before a file's name in the archive; the last four are the lengths of it and of what follows
_MOST_TEXT: Final = 256 << 20  # bytes of JSON; the graph of 40 blocks has some ten million
_CONFIGS: Final = {"weights": "weight_", "constants": "tensor_"}  # lists of tensors, and what their files are called
_PLAIN: Final = ("archive_format", "archive_version", "byteorder", ".data/version", ".data/serialization_id")
_ENTRY: Final = re.compile(r"data/weights/weight_\d+|data/constants/tensor_\d+")
_LISTS: Final = {folder: f"data/{folder}/model_{folder}_config.json" for folder in _CONFIGS}
_TEXTS: Final = (DESCRIPTION, NOTES, GRAPH, EXAMPLES, *_PLAIN, *_LISTS.values())

# Bytes of a number by its kind in torch's schema: uint8, int8, int16, int32, int64, float16, float32, float64, bool,
# bfloat16.
_BYTES: Final = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 2, 7: 4, 8: 8, 12: 1, 13: 2}


def seal(digest: str) -> bytes:
    """The archive's comment."""
    return _LAST + digest.encode()


SEAL: Final = len(seal("0" * 64))


def check_seal(data: memoryview, name: str) -> None:
    """The file is as it was written, to the last byte."""
    body, last = data[: max(len(data) - SEAL, 0)], bytes(data[max(len(data) - SEAL, 0) :])
    if re.fullmatch(_LAST + b"[0-9a-f]{64}", last) is None:
        raise CheckpointError(
            f"{name} has no checksum at its end: it was cut short, or something else rewrote it, or it is no file of "
            f"`vitrail export`: {AGAIN}"
        )
    found = digest_of(body)
    if seal(found) != last:
        raise CheckpointError(f"{name} is damaged: its checksum is {found}, expected {last[-64:].decode()}")


def entries(data: memoryview, name: str) -> dict[str, memoryview]:
    """Every file of the archive by its name in the folder, after a look at all of them."""
    found = dict(_unpacked(data, name))
    missing = [each for each in (GRAPH, *_LISTS.values(), *_PLAIN[:4]) if each not in found]
    if missing:
        raise CheckpointError(f"{name}: expected a program of torch.export, got none with {missing[0]}: {AGAIN}")
    if found.get(EXAMPLES):
        raise CheckpointError(f"{name}: refused, it holds pickled examples, which our exports never do")
    for folder in _CONFIGS:
        _check_tensors(_json(found[_LISTS[folder]], name), folder, found, name)
    _check_graph(_json(found[GRAPH], name), name)
    return found


def metadata(found: Mapping[str, memoryview], name: str) -> dict[str, str]:
    """Our own entries, as text."""
    try:
        return {each: bytes(found[each]).decode("utf-8") for each in (DESCRIPTION, NOTES) if each in found}
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{name}: the description inside is damaged: {error}") from None


def packed(found: Mapping[str, bytes | memoryview]) -> io.BytesIO:
    """An archive of just these files: what torch reads is then what was looked at, however the file is laid out."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for each, content in found.items():
            archive.writestr(zipfile.ZipInfo(FOLDER + each), content)  # of one date, so that equal files are equal
        archive.comment = seal("0" * 64)
    out.seek(0)
    return out


def _unpacked(data: memoryview, name: str) -> Iterator[tuple[str, memoryview]]:
    """Names and contents as they stand in the file."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            listed = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, EOFError, struct.error) as error:
        raise CheckpointError(f"{name} is cut short or damaged ({error}): {AGAIN}") from None
    seen: set[str] = set()
    for each in listed:
        place = each.filename.removeprefix(FOLDER)
        if place in seen or (place not in _TEXTS and not _ENTRY.fullmatch(place)):
            raise CheckpointError(f"{name}: refused, it holds {short_repr(each.filename)}, which our exports never do")
        if each.compress_type != zipfile.ZIP_STORED:
            raise CheckpointError(f"{name}: refused, {place} is compressed, which our exports never are")
        seen.add(place)
        head = bytes(data[each.header_offset : each.header_offset + _HEAD])
        start = each.header_offset + _HEAD + sum(struct.unpack("<2H", head[-4:])) if len(head) == _HEAD else len(data)
        if start + each.file_size > len(data):
            raise CheckpointError(f"{name} is cut short or damaged: {place} reaches beyond its end: {AGAIN}")
        yield place, data[start : start + each.file_size]


def _json(raw: memoryview, name: str) -> dict[str, Any]:
    if len(raw) > _MOST_TEXT:
        raise CheckpointError(f"{name}: refused, {len(raw):,} bytes of text")
    try:
        found = json.loads(bytes(raw))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{name} is cut short or damaged ({error}): {AGAIN}") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{name} is damaged: expected an object of JSON, got {short_repr(found)}: {AGAIN}")
    return found


# ---- tensors -----------------------------------------------------------------------------------------------------


def _check_tensors(config: dict[str, Any], folder: str, found: Mapping[str, memoryview], name: str) -> None:
    """Numbers as they are, never pickled; as many bytes as shapes ask for, and all of them here."""
    try:
        for each in config["config"].values():
            file = each["path_name"]
            if each["use_pickle"] is not False or not re.fullmatch(_CONFIGS[folder] + r"\d+", file):
                raise CheckpointError(f"{name}: refused, {file!r:.40} is pickled, which our exports never are")
            meta = each["tensor_meta"]
            sizes, strides, start = _whole(meta["sizes"]), _whole(meta["strides"]), _whole([meta["storage_offset"]])[0]
            width, held = _BYTES[meta["dtype"]], len(found[f"data/{folder}/{file}"])
            reach = start + sum((side - 1) * step for side, step in zip(sizes, strides, strict=True)) + 1
            wanted = width * reach if math.prod(sizes) else 0
            if meta["device"] != {"type": "cpu", "index": None} or wanted > held or held % width:
                raise CheckpointError(
                    f"{name}: refused, a tensor of shape {tuple(sizes)[:16]} claims {wanted:,} bytes, and {file} has "
                    f"{held:,}: {AGAIN}"
                )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{name} is damaged: a tensor without its shape, kind or place: {AGAIN}") from None


def _whole(values: Any) -> list[int]:
    found = [each["as_int"] for each in values]
    if any(type(each) is not int or each < 0 for each in found):
        raise ValueError
    return found


# ---- the graph ---------------------------------------------------------------------------------------------------

_OPERATOR: Final = re.compile(
    r"torch\.ops\.aten\.(?:[a-z][A-Za-z0-9_]*|_assert_tensor_metadata)\.[A-Za-z][A-Za-z0-9_]*"
    r"|_operator\.(?:add|sub|mul|floordiv|truediv|mod|pow|neg|getitem|eq|ne|lt|le|gt|ge)"
    r"|torch\.sym_(?:max|min|int|float|not)|math\.(?:ceil|floor|trunc)"
)
_ARGUMENTS: Final = {  # kinds of values that a node may be given or give; not functions, graphs or objects
    *("as_bool", "as_bools", "as_device", "as_expr", "as_float", "as_floats", "as_int", "as_ints", "as_layout"),
    *("as_memory_format", "as_name", "as_none", "as_optional_tensors", "as_scalar_type", "as_string", "as_sym_bool"),
    *("as_sym_float", "as_sym_int", "as_sym_ints", "as_tensor", "as_tensors"),
}
_TEXT_ARGUMENTS: Final = ("approximate", "indexing", "mode", "rounding_mode")  # gelu's, meshgrid's, pad's, div's
_NAME: Final = re.compile(r"[A-Za-z0-9_.]*", re.ASCII)
_SIZE: Final = re.compile(  # Mul(Integer(8), Symbol('s18', positive=True, integer=True))
    r"(?:\b(?:Symbol|Integer|Rational|Add|Mul|Pow|Min|Max|FloorDiv|CeilDiv|CleanDiv|Mod|PythonMod|ModularIndexing|"
    r"positive|nonnegative|integer|True|False)\b|'[su]\d+'|[\d(),= -])*"
)
_RANGE: Final = re.compile(r"(?:[su]\d{1,6}\b|[\d*+ ()-])*")  # 8*s30; torch counts up to the number of a u
_LONGEST: Final = 100_000  # characters of one word
_EMPTY: Final = ("guards_code", "metadata", "treespec_namedtuple_fields")
_TREES: Final = (None, "builtins.tuple", "builtins.list", "builtins.dict")


class _Refused(NamedTuple):
    what: str
    found: Any


def _check_graph(graph: dict[str, Any], name: str) -> None:
    """Every word of it is a name, or one of the few that may be evaluated; every function an operator."""
    try:
        for bad in _refused(graph, ""):
            raise CheckpointError(f"{name}: refused, {bad.what} {short_repr(bad.found)}, which our exports never hold")
    except RecursionError:
        raise CheckpointError(f"{name} is damaged: its graph has no end: {AGAIN}") from None


def _refused(value: Any, key: str) -> Iterator[_Refused]:
    """What our exports never hold, at and below a value that stands under a key."""
    if key in _EMPTY and value:
        yield _Refused(f"{key}:", value)
    elif isinstance(value, dict):
        if _texts(value.get("arg")) and value.get("name") not in _TEXT_ARGUMENTS:
            yield _Refused("text for", value.get("name"))
        for name, each in value.items():
            if name.startswith("as_") and name not in _ARGUMENTS:
                yield _Refused("a value of kind", name)
            if (_RANGE if key == "range_constraints" else _NAME).fullmatch(name) is None:
                yield _Refused("the name", name)
            yield from _refused(each, name)
    elif isinstance(value, list):
        for each in value:
            yield from _refused(each, key)
    elif isinstance(value, str):
        if key in ("in_spec", "out_spec"):
            yield from _tree(value)
        elif len(value) > _LONGEST or _WORDS.get(key, _NAME).fullmatch(value) is None:
            yield _Refused(f"{key or 'a word'}:", value)


def _texts(arg: Any) -> bool:
    return isinstance(arg, dict) and "as_string" in arg


_WORDS: Final = {
    "target": _OPERATOR,
    "expr_str": _SIZE,
    "torch_version": re.compile(r"[\w.+-]*", re.ASCII),
    "as_float": re.compile(r"-?(?:Infinity|NaN)|[\d.eE+-]*"),
    "fqn": re.compile(r"[\w.@]*", re.ASCII),
}


def _tree(text: str) -> Iterator[_Refused]:
    """How inputs and outputs are nested: tuples, lists and dicts only, for torch imports what others name."""
    try:
        waiting = [json.loads(text)]
    except (ValueError, RecursionError):
        yield _Refused("a tree", text)
        return
    while waiting:
        each = waiting.pop()
        if isinstance(each, list):
            waiting += each
        elif isinstance(each, dict):
            if each.get("type") not in _TREES or each.get("context") not in (None, "null", "[]"):
                yield _Refused("a tree of", each.get("type"))
            waiting += [each.get("children_spec")]
        elif not (each is None or type(each) is int):
            yield _Refused("a tree with", each)
