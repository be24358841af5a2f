"""Names of files: natural order."""

from __future__ import annotations

import itertools
import re

from vitrail.images.file_names import in_order, natural

NAMES = ["a", "a1", "a01", "a2", "a10", "a1b", "a-1", "a!", "", "1", "10", "9", "a1b2", "a1b10", "٣", "a٣", "Z", "z2/1"]


def test_numbers_sort_by_value() -> None:
    assert in_order(["10", "9", "a10", "a2", "1", "b"]) == ["1", "9", "10", "a2", "a10", "b"]
    assert in_order(["x10", "x٣", "x2"]) == ["x2", "x٣", "x10"]
    assert in_order(["a1", "a01"]) == in_order(["a01", "a1"]) == ["a01", "a1"]
    assert in_order(["9" * 5000, "1" + "0" * 5000]) == ["9" * 5000, "1" + "0" * 5000]


def test_the_order_is_that_of_the_parts() -> None:
    def parts(name: str) -> list[tuple[int, str]]:
        return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]

    for first, second in itertools.permutations(NAMES, 2):
        assert (natural(first) < natural(second)) == (parts(first) < parts(second)), (first, second)
