"""The steps of a pickle are those that pickletools sees, under limits of our own."""

from __future__ import annotations

import pickle
import pickletools
import re
from typing import Any

import pytest

from vitrail.weights.reading.pickle_opcodes import LONGEST_TEXT, RefusedPickle, read_steps

VALUES: dict[str, Any] = {
    "numbers": [0, 255, 256, 65536, -1, 2**40, -(2**200), 1.5, True, None],
    "texts": ["", "a", "\u00e9\u4e16", "x" * 300, b"bytes", b"\0" * 300, bytearray(b"ab")],
    "containers": {"a": (1, 2), "b": [3], "c": {4}, "d": frozenset({5}), "e": ((), (1,), (1, 2, 3, 4))},
}


def steps(data: bytes, longest: int = LONGEST_TEXT) -> list[tuple[str, Any, int]]:
    found = []
    for step in read_steps(data, 0, longest):
        found.append(tuple(step))
        if step.name == "STOP":
            break
    return found


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("kind", VALUES)
def test_the_steps_are_those_of_pickletools(kind: str, protocol: int) -> None:
    data = pickle.dumps(VALUES[kind], protocol)
    ours = steps(data)
    theirs = list(pickletools.genops(data))
    assert [name for name, _, _ in ours] == [opcode.name for opcode, _, _ in theirs]
    assert [end for _, _, end in ours] == [*(place for _, _, place in theirs[1:]), len(data)]
    for (name, ours_, _), (_, argument, _) in zip(ours, theirs, strict=True):
        assert (" ".join(ours_) if name in ("GLOBAL", "INST") else ours_) == argument


def test_texts_of_python_2_are_utf_8_or_else_bytes() -> None:
    assert steps(b"U\x02\xc3\xa9.")[0][1] == "\u00e9"
    assert steps(b"T\x02\0\0\0\xe9\xff.")[0][1] == "\u00e9\u00ff"
    assert steps(b"S'\\x41'\n.")[0][1] == "\\x41"
    assert steps("c\u043es\nsystem\n.".encode())[0][1] == ["\u043es", "system"]


@pytest.mark.parametrize(
    "data, words",
    [
        (b"\xfe", "takes the step 0xfe"),
        (b"\x8a\x41" + bytes(65), "number or text of 65 bytes"),
        (b"L" + b"9" * 65 + b"L\n", "line of more than 64 bytes"),
        (b"X\x0b\0\0\0" + bytes(11), "number or text of 11 bytes, at most 10"),
        (b"\x8e" + b"\xff" * 8, "at most 10 are read"),
        (b"V" + b"a" * 11 + b"\n", "line of more than 10 bytes"),
    ],
)
def test_what_is_too_long_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(RefusedPickle, match=re.escape(words)):
        steps(data + b".", longest=10)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_cut_anywhere_is_cut_short(protocol: int) -> None:
    data = pickle.dumps(VALUES, protocol)
    for end in range(0, len(data), 7):
        with pytest.raises(ValueError, match="cut short"):
            steps(data[:end])
