"""Positions that are resampled on any grid, by matrices that leave the native one as it is."""

from __future__ import annotations

import torch

from exporters.graph_networks import DINO, agree, random_pixels
from shipping import small
from vitrail.exporters.export_graph import build_graph
from vitrail.network import Positions


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
