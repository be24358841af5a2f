"""Attention flow (Abnar and Zuidema 2020): the most that can flow from each patch to the pool through all blocks.

Tokens of every layer are nodes, attention weights the capacities of the links between them. scipy, extra `insight`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from vitrail.checks import check_choice, check_number
from vitrail.errors import MissingExtraError
from vitrail.insight.activations import traced
from vitrail.insight.attention_methods import FUSIONS
from vitrail.insight.attribution import Method
from vitrail.insight.rollout import fuse, with_residual, without_weak
from vitrail.insight.targets import Aim
from vitrail.insight.token_rows import carry
from vitrail.network.tokens import TokenLayout
from vitrail.network.vit import ViT
from vitrail.types import Array

UNIT = 1_000_000  # capacities are whole numbers: millionths


@dataclass(frozen=True)
class Flow(Method):
    """The most that attention lets through from each patch to the pool (Abnar and Zuidema 2020): slow."""

    name: ClassVar[str] = "flow"
    fusion: str = "mean"
    discard: float = 0.9

    def __post_init__(self) -> None:
        check_choice("fusion", self.fusion, FUSIONS)
        check_number("discard", self.discard, 0.0, 1.0, below=True)

    def maps(self, model: ViT, pixels: Tensor, aims: Sequence[Aim]) -> Tensor:
        """A maximum flow for each patch of each image: (B, h, w)."""
        record, layouts = traced(model, pixels)
        steps = []
        for block, weights in enumerate(record.attention):
            fused = without_weak(fuse(weights.float(), self.fusion), self.discard, layouts[block])
            steps.append(merged_rows(with_residual(fused), layouts[block], layouts[block + 1]))
        maps = [
            patch_flows(
                [each[row].cpu().numpy() for each in steps],
                record.pool_weights[row].float().cpu().numpy(),
                model.config.prefix,
            )
            for row in range(len(pixels))
        ]
        return torch.from_numpy(np.stack(maps)).reshape(-1, *model.grid_of(pixels)).float()


def merged_rows(step: Tensor, before: TokenLayout, after: TokenLayout) -> Tensor:
    """The links of a block (B, T, T) from the tokens after its merging (B, T', T): the mean of those merged."""
    if after.counts is None:
        return step
    one = torch.eye(after.counts.shape[1], device=step.device).expand(len(step), -1, -1)  # a row for each token after
    return carry(one, after, before) @ step


def patch_flows(steps: Sequence[Array], start: Array, prefix: int) -> Array:
    """The flow from what the pool reads (T',) down through blocks (T', T) each, first block first, to every patch."""
    try:
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import maximum_flow
    except ImportError:
        raise MissingExtraError("method 'flow' needs scipy: pip install 'vitrail[insight]'") from None
    tokens = [step.shape[1] for step in steps] + [len(start)]  # of each layer, the embedding output first
    *begins, source = np.cumsum([0, *tokens])  # nodes: the tokens of all layers in a row, then the pool
    rows, columns, values = [], [], []
    for layer, step in enumerate(steps, start=1):
        to, given = np.nonzero(step)
        rows.append(begins[layer] + to)
        columns.append(begins[layer - 1] + given)
        values.append(step[to, given])
    read = np.flatnonzero(start)
    rows.append(np.full(len(read), source))
    columns.append(begins[-1] + read)
    values.append(start[read])
    capacity = np.rint(np.concatenate(values) * UNIT).astype(np.int32)
    graph = coo_array(
        (capacity, (np.concatenate(rows), np.concatenate(columns))), shape=(source + 1, source + 1)
    ).tocsr()
    return np.array([maximum_flow(graph, source, sink).flow_value / UNIT for sink in range(prefix, tokens[0])])
