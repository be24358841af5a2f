"""NAME.xml and NAME.bin -> what is written about them inside, once nothing in them can lead a runtime astray.

An exported pair is an OpenVINO model whose rt_info carries our description, with a last line of its own in the .xml:
the checksum of what stands before it and of the .bin.
"""

from __future__ import annotations

import math
from typing import Final
from xml.etree import ElementTree

from vitrail.errors import CheckpointError
from vitrail.exporters.sealed_file import Seal

MARK: Final = "vitrail"  # our part of rt_info
DESCRIPTION: Final = "description"  # in it: our JSON
NOTES: Final = "notes"  # and what was found out about the file once it was there
SEAL: Final = Seal(
    b"\n<!-- vitrail sha256:", b" -->\n", "or its .bin is damaged, or the two do not belong together"
)  # the last line of the .xml
_MOST_TEXT: Final = 256 << 20  # bytes of .xml; one of a network of 40 blocks has two million
AGAIN: Final = "export the checkpoint again with vitrail.export(checkpoint, 'NAME.xml')"

# Bits of a number by its kind.
_BITS: Final = {
    **dict.fromkeys(("f64", "i64", "u64"), 64),
    **dict.fromkeys(("f32", "i32", "u32"), 32),
    **dict.fromkeys(("f16", "bf16", "i16", "u16"), 16),
    **dict.fromkeys(("i8", "u8", "boolean"), 8),
}


def metadata(text: memoryview, size: int, name: str) -> dict[str, str]:
    """Our entries of rt_info, after a look at every constant: none reaches beyond the .bin of `size` bytes."""
    if len(text) > _MOST_TEXT:
        raise CheckpointError(f"{name}: refused, {len(text):,} bytes of text")
    raw = bytes(text)
    if b"<!DOCTYPE" in raw or b"<!ENTITY" in raw:
        raise CheckpointError(f"{name}: refused, it declares XML entities, which our exports never do")
    try:
        root = ElementTree.fromstring(raw)
    except (ElementTree.ParseError, ValueError) as error:
        raise CheckpointError(f"{name} is cut short or damaged ({error}): {AGAIN}") from None
    if root.tag != "net":
        raise CheckpointError(f"{name}: expected an OpenVINO model, got XML of kind {root.tag!r:.40}: {AGAIN}")
    for layer in root.iter("layer"):
        if layer.get("type") == "Const":
            _check_constant(layer.find("data"), size, name)
        elif layer.get("type") in ("If", "Loop", "TensorIterator", "ReadValue", "Assign"):
            raise CheckpointError(f"{name}: refused, it holds a layer {layer.get('type')}, which our exports never do")
    ours = root.find(f"rt_info/{MARK}")
    return {each.tag: each.get("value", "") for each in ours} if ours is not None else {}


def _check_constant(data: ElementTree.Element | None, size: int, name: str) -> None:
    """As many bytes as the shape asks for, and all of them in the .bin."""
    try:
        found = {} if data is None else data.attrib
        shape = [int(side) for side in found["shape"].split(",") if side.strip()]
        kind, start, count = found["element_type"], int(found["offset"]), int(found["size"])
    except (KeyError, ValueError):
        raise CheckpointError(f"{name}: refused, a constant without its shape, kind or place: {AGAIN}") from None
    if kind not in _BITS or min(shape, default=0) < 0 or len(shape) > 16:
        raise CheckpointError(f"{name}: refused, a constant of kind {kind[:20]!r} and shape {shape[:16]}")
    if start < 0 or count < 0 or start + count > size or count * 8 != math.prod(shape) * _BITS[kind]:
        raise CheckpointError(
            f"{name}: refused, a constant of shape {tuple(shape)} claims {count:,} bytes from {start:,}, and its .bin "
            f"has {size:,}: {AGAIN}"
        )
