"""Positions that are resampled on any grid, by matrices that leave the native one as it is."""

from __future__ import annotations

import pytest
import torch

from exporters.graph_networks import DINO, agree, random_pixels
from shipping import small
from vitrail.errors import InputError
from vitrail.exporters.export_graph import build_graph
from vitrail.exporters.free_positions import free_the_size
from vitrail.network import Positions, Resample


def test_offsets_are_left_out_on_the_whole_grid_alone() -> None:
    """A table is resampled with its offset as soon as one side is another."""
    checkpoint = small.checkpoint(positions=DINO)
    graph = build_graph(checkpoint, dynamic_size=True, entrance=None).graph
    for height, width in ((32, 32), (32, 48), (48, 32)):
        pixels = random_pixels(1, height, width)
        agree(graph(torch.from_numpy(pixels))[:2], checkpoint.run(pixels))


def test_relative_keys_of_any_grid_are_the_networks_own() -> None:
    checkpoint = small.checkpoint(positions=Positions("relative"), pool="mean", cls_token=False)
    graph = build_graph(checkpoint, dynamic_size=True, entrance=None).graph
    for height, width in ((32, 32), (24, 56), (64, 8)):
        pixels = random_pixels(2, height, width)
        agree(graph(torch.from_numpy(pixels))[:2], checkpoint.run(pixels))


@pytest.mark.parametrize(
    "positions",
    [
        DINO,
        Positions("learned-2d"),
        Positions("sincos-2d-moco"),
        Positions("sincos-2d", resample=Resample("bilinear")),
    ],
    ids=lambda positions: positions.kind,
)
def test_a_table_of_any_grid_is_the_networks_own(positions: Positions) -> None:
    model, free = (small.checkpoint(positions=positions).model for _ in range(2))
    free.load_state_dict(model.state_dict())
    free_the_size(free)
    (own,), (any_grid,) = model.tokens.tables, free.tokens.tables
    assert type(own) is not type(any_grid)
    for grid in ((4, 4), (4, 6), (3, 7)):
        torch.testing.assert_close(any_grid(grid), own(grid), rtol=0, atol=2e-6)
    if positions.kind != "sincos-2d-moco":  # its waves are made anew on every grid
        assert torch.equal(any_grid((4, 4)), own((4, 4)))


def test_what_a_graph_must_know_beforehand_is_refused() -> None:
    with pytest.raises(InputError, match=r"refuses other sizes \(fixed_size=True\): export without dynamic_size"):
        free_the_size(small.checkpoint(fixed_size=True).model)
    with pytest.raises(InputError, match="or with merge_per_block=0"):
        free_the_size(small.checkpoint(merge_per_block=2).model)
