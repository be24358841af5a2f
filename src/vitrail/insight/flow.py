"""Attention flow (Abnar and Zuidema 2020): the most that can flow from each patch to the pool through all blocks.

Tokens of every layer are nodes, attention weights the capacities of the links between them. scipy, extra `insight`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from vitrail.errors import MissingExtraError
from vitrail.insight.covering import Array
from vitrail.insight.methods import Flow
from vitrail.insight.recording import traced
from vitrail.insight.rollout import fuse, with_residual, without_weak
from vitrail.network.vit import ViT

UNIT = 1_000_000  # capacities are whole numbers: millionths


def flow_map(model: ViT, pixels: Tensor, method: Flow) -> Tensor:
    """A maximum flow for each patch of each picture: (B, h, w)."""
    found = traced(model, pixels)
    prefix = model.config.prefix
    steps = [
        with_residual(without_weak(fuse(each.float(), method.fusion), method.discard, prefix))
        for each in found.attention
    ]
    maps = [
        patch_flows([each[row].cpu().numpy() for each in steps], found.pool_weights[row].float().cpu().numpy(), prefix)
        for row in range(len(pixels))
    ]
    return torch.from_numpy(np.stack(maps)).reshape(-1, *model.grid_of(pixels)).float()


def patch_flows(steps: Sequence[Array], start: Array, prefix: int) -> Array:
    """The flow from what the pool reads (T,) down through blocks (T, T) each, first block first, to every patch."""
    try:
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import maximum_flow
    except ImportError:
        raise MissingExtraError("method 'flow' needs scipy: pip install 'vitrail[insight]'") from None
    tokens, depth = len(start), len(steps)
    source = (depth + 1) * tokens  # nodes: layer * T + token, the embedding output is layer 0
    rows, columns, values = [], [], []
    for layer, step in enumerate(steps, start=1):
        to, given = np.nonzero(step)
        rows.append(layer * tokens + to)
        columns.append((layer - 1) * tokens + given)
        values.append(step[to, given])
    read = np.flatnonzero(start)
    rows.append(np.full(len(read), source))
    columns.append(depth * tokens + read)
    values.append(start[read])
    capacity = np.rint(np.concatenate(values) * UNIT).astype(np.int32)
    graph = coo_array(
        (capacity, (np.concatenate(rows), np.concatenate(columns))), shape=(source + 1, source + 1)
    ).tocsr()
    return np.array([maximum_flow(graph, source, sink).flow_value / UNIT for sink in range(prefix, tokens)])
