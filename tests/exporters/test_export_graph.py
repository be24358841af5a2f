"""The graph of any size gives the network's own numbers, and probabilities as the checkpoint does."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from exporters.graph_networks import NETWORKS, agree, random_pixels
from shipping import small
from vitrail.exporters.export_graph import build_graph


@pytest.mark.parametrize("name", NETWORKS)
def test_the_graph_of_any_size_gives_the_networks_own_numbers(name: str) -> None:
    checkpoint = small.checkpoint(**NETWORKS[name])
    graph = build_graph(checkpoint, dynamic_size=True, entrance=None).graph
    for batch, height, width in ((1, 32, 32), (2, 8, 48), (5, 64, 24)):
        pixels = random_pixels(batch, height, width)
        logits, embedding, _ = graph(torch.from_numpy(pixels))
        agree([logits, embedding], checkpoint.run(pixels))


def test_the_graph_gives_probabilities_as_the_checkpoint_does() -> None:
    one = small.checkpoint()
    several = replace(one, task="multi-label", temperature=None, reject=None, thresholds=(0.5,) * 5)
    pixels = torch.randn(3, 3, 32, 32)
    for checkpoint, expected in (
        (one, lambda logits: (logits / 1.7).softmax(dim=1)),
        (several, lambda logits: logits.sigmoid()),
    ):
        logits, _, probs = build_graph(checkpoint, dynamic_size=False, entrance=None).graph(pixels)
        torch.testing.assert_close(probs, expected(logits), rtol=0, atol=1e-6)
