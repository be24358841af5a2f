"""Graph: the network as other runtimes get it: img in, logits, embedding and probabilities out.

Its values are the network's own: the same modules run, but for positions where the size is free (`positions`).
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from vitrail.checkpoint import Checkpoint
from vitrail.errors import InputError
from vitrail.exporters.free_positions import free_the_size
from vitrail.exporters.input_stage import Entrance
from vitrail.images.model_info import ModelInfo
from vitrail.network.surgery import rebuild
from vitrail.network.vit import ViT
from vitrail.quantisation.pooled_block import pool_only


class Graph(nn.Module):
    """What is exported; the names of its outputs depend on whether the network has a head."""

    def __init__(self, model: ViT, about: ModelInfo, entrance: Entrance | None) -> None:
        super().__init__()
        self.model, self.about, self.entrance = model, about, entrance
        self.is_multi_label, self.temperature = about.task == "multi-label", about.temperature or 1.0
        self.has_head = model.config.classes > 0

    @property
    def outputs(self) -> tuple[str, ...]:
        return ("logits", "embedding", "probs") if self.has_head else ("logits", "embedding")

    def forward(self, img: Tensor) -> tuple[Tensor, ...]:
        pixels = img if self.entrance is None else self.entrance(img)
        embedding = self.model.embed(pixels)
        logits: Tensor = self.model.head(embedding)
        if embedding.ndim == 3:
            embedding = embedding.mean(dim=1)  # of the cls and the distillation token
        if not self.has_head:
            return logits * 1.0, embedding  # one tensor may not be two outputs
        return logits, embedding, self.probabilities(logits)

    def probabilities(self, logits: Tensor) -> Tensor:
        """What the checkpoint makes of logits (B, K)."""
        scaled = logits / self.temperature
        return scaled.sigmoid() if self.is_multi_label else scaled.softmax(dim=-1)


class Pair(NamedTuple):
    """What is exported, and the network itself to compare it with; they share their memory."""

    graph: Graph
    network: Graph


def build_graph(checkpoint: Checkpoint, *, dynamic_size: bool, entrance: Entrance | None) -> Pair:
    """The graph of a checkpoint, in float32 on the CPU; the checkpoint's own network is left as it is."""
    config = checkpoint.model.config
    if config.pool == "none":
        raise InputError("this network has no pool, so it has no answer for an image: it cannot be exported")
    state = {name: _plain(value) for name, value in checkpoint.model.state_dict().items()}
    plain, shipped = (rebuild(checkpoint.model, config, state) for _ in range(2))
    pool_only(shipped)
    if dynamic_size:
        free_the_size(shipped)
    graph, network = (
        Graph(model, checkpoint.about, entrance).requires_grad_(False).eval() for model in (shipped, plain)
    )
    return Pair(graph, network)


def _plain(value: Tensor) -> Tensor:
    value = value.detach().cpu()
    return value.float() if value.is_floating_point() else value
