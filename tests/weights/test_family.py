"""What families share: what shapes say of heads, grids and depths, names of classes, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from vitrail.checkpoint.safetensors_io import StoredTensor
from vitrail.errors import CheckpointError
from vitrail.weights import FAMILIES
from vitrail.weights import family as shared
from vitrail.weights.family_names import FAMILY_NAMES
from vitrail.weights.imagenet import imagenet1k
from vitrail.weights.reading.contents import WeightContents


def contents(**shapes: tuple[int, ...]) -> WeightContents:
    tensors = {
        name.replace("__", "."): StoredTensor(shape, torch.float32, lambda shape=shape: torch.zeros(shape))
        for name, shape in shapes.items()
    }
    return WeightContents("file", "pickle", tensors)


def test_a_family_is_a_module_of_its_name_and_a_line() -> None:
    assert tuple(FAMILIES) == FAMILY_NAMES
    assert [family.name for family in FAMILIES.values()] == list(FAMILY_NAMES)
    folder = Path(shared.__file__).parent / "families"
    for name in FAMILY_NAMES:
        assert (folder / f"{name.replace('-', '_')}.py").is_file(), name


@pytest.mark.parametrize(
    "inner, override, expected",
    [(768, {}, 12), (1280, {}, 16), (128, {}, 2), (640, {}, 10), (96, {"heads": 3}, 3)],
)
def test_heads_by_what_is_published_or_of_64(inner: int, override: dict[str, Any], expected: int) -> None:
    assert shared.heads_for(inner, override)[0] == expected
    with pytest.raises(CheckpointError, match="heads of 64 do not divide them"):
        shared.heads_for(100, {})


def test_a_table_of_positions_is_a_square_unless_a_size_is_given() -> None:
    assert shared.grid_of(197, (1,), (1, 1), {}) == ((14, 14), 1)
    assert shared.grid_of(196, (0, 1), (16, 8), {}) == ((224, 112), 0)
    assert shared.grid_of(33, (1,), (8, 8), {"image_size": (32, 64)}) == ((32, 64), 1)
    assert shared.grid_of(17, (1,), (8, 8), {"image_size": (32, 64)}) == ((32, 32), 1)  # which does not fit the table
    with pytest.raises(CheckpointError, match="33 positions make no square grid with 1 prefix tokens"):
        shared.grid_of(33, (1,), (8, 8), {})


def test_shapes_rows_and_blocks_of_a_file() -> None:
    file = contents(head__weight=(10, 4), blocks__0__a=(1,), blocks__1__a=(1,), blocks__3__b=(1,))
    assert shared.rows_of(file, "head.weight") == 10
    assert shared.rows_of(file, "head.weight", 1) == 4
    assert shared.rows_of(file, "no.weight") == 0
    assert shared.depth_of(file, "blocks.{i}.a") == 2
    for wrong, message in (
        (lambda: shared.shape_of(file, "cls"), "file: expected a tensor cls, and there is none"),
        (lambda: shared.shape_of(file, "head.weight", axes=4), "expected head.weight with 4 axes"),
        (lambda: shared.depth_of(file, "blocks.{i}.b"), r"numbered from 0 without a gap, got \[3\]"),
        (lambda: shared.square_patch("file", 100, {}), "100 values make no square patch of 3 channels"),
    ):
        with pytest.raises(CheckpointError, match=message):
            wrong()
    assert shared.square_patch("file", 192, {}) == {"patch_size": (8, 8), "channels": 3}
    assert shared.square_patch("file", 64, {"channels": 1}) == {"patch_size": (8, 8), "channels": 1}
    assert shared.usual_size((16, 15), 224, 14) == (224, 210)


def test_names_of_classes() -> None:
    assert shared.class_names(3, {"0": "a", "1": "b", "2": "a"}) == ("a (0)", "b", "a (2)")
    assert shared.class_names(1000) == imagenet1k() == shared.class_names(1000, [f"LABEL_{n}" for n in range(1000)])
    assert shared.class_names(2) == ()
    with pytest.raises(CheckpointError, match="expected names for 3 outputs"):
        shared.class_names(3, ["a", "b"])


def test_the_first_reason_that_holds_is_told() -> None:
    shared.refuse_any("x", {"a": False})
    with pytest.raises(CheckpointError, match="x cannot carry b: choose another family"):
        shared.refuse_any("x", {"a": False, "b": True, "c": True})
    assert (shared.one_or_pair((4, 4)), shared.one_or_pair((4, 6))) == (4, [4, 6])
