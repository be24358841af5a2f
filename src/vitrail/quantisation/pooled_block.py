"""A last block that computes the tokens that the pool reads, and no others: what ships needs no more."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from vitrail.network.attention import Kernel
from vitrail.network.encoder import Block, BlockOutput
from vitrail.network.tokens import TokenLayout
from vitrail.network.vit import ViT


class FirstQueries:
    """A kernel for the first tokens alone: the others are seen, and needed by nobody after."""

    def __init__(self, kernel: Kernel, count: int) -> None:
        self.kernel, self.count = kernel, count

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, dropout: float) -> Tensor:
        if bias is not None and bias.shape[-2] > 1:
            bias = bias[..., : self.count, :]
        return self.kernel(q[:, :, : self.count], k, v, bias, dropout)  # (B, A, count, d)


class PooledBlock(Block):
    """The last block for the first `pooled_tokens`; prefix tokens are never merged, so it merges nothing."""

    def __init__(self, block: Block, count: int) -> None:
        nn.Module.__init__(self)
        vars(self).update(vars(block))  # its parts, which nobody else has a use for
        self.count = count

    def forward(
        self, x: Tensor, layout: TokenLayout, head_mask: Tensor | None = None, kernel: Kernel | None = None
    ) -> BlockOutput:
        normed = self.norm1(x)
        kernel = FirstQueries(kernel or self.attention.kernel, self.count)
        attended = self.attention(normed, layout=layout, head_mask=head_mask, kernel=kernel)
        x = x[:, : self.count] + self.branch(attended, self.scale1)
        normed = normed[:, : self.count] if self.norm2 is None else self.norm2(x)
        return BlockOutput(x + self.branch(self.chunked_mlp(normed), self.scale2), layout)


def pool_only(model: ViT) -> ViT:
    """The model itself, its last block changed for one of the same parts that stops at what the pool reads."""
    count = model.config.pooled_tokens
    if count:
        model.encoder.blocks[-1] = PooledBlock(cast(Block, model.encoder.blocks[-1]), count)
    return model
