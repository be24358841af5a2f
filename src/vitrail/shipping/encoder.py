"""The encoder of a packed network: kernel after kernel on rows of tokens, where nothing else is asked of the blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules import module

from vitrail.network.attention import Attention
from vitrail.network.encoder import Block, Encoder, Passed, Tape
from vitrail.network.positions import RotaryPositions
from vitrail.network.tokens import Place
from vitrail.shipping.layers import ByteLinear, PackedLinear, PackedMlp, refuse_gradients, side_by_side

Layer = PackedLinear | ByteLinear


class Norm(NamedTuple):
    """What torch.layer_norm is given beside tokens: reading it off a module takes longer."""

    shape: list[int]
    weight: Tensor | None
    bias: Tensor | None
    eps: float

    @classmethod
    def of(cls, norm: nn.Module | None) -> Norm:
        norm = cast(nn.LayerNorm, norm)
        return cls(list(norm.normalized_shape), norm.weight, norm.bias, norm.eps)


class Steps(NamedTuple):
    """What a plain block does, in its order."""

    norm1: Norm
    qkv: Layer
    out: Layer
    norm2: Norm
    up: Layer
    down: Layer


class PackedEncoder(Encoder):
    """The same blocks, called without the modules around their kernels: a good part of a small network's time.

    Tokens leave it in fp32, whatever they were inside, for what comes after is fp32.
    Maps, head masks, hooks, and blocks that do more than the plain ones, go the usual way. Layers are those that were
    there when it was packed.
    """

    def __init__(self, encoder: Encoder) -> None:
        nn.Module.__init__(self)  # the blocks are there already
        self.like(encoder)
        self.blocks = encoder.blocks
        blocks = [cast(Block, each) for each in self.blocks]
        self.plain = all(_plain(each) for each in blocks)
        self._steps = [_steps(each) for each in blocks] if self.plain else []
        self._head_width = blocks[0].attention.head_width
        self._gather = blocks[0].attention.gather
        parts = list(self.blocks.modules())
        self._hooks = [hooks for each in parts for hooks in (each._forward_hooks, each._forward_pre_hooks)]

    def forward(
        self,
        x: Tensor,
        place: Place,
        additions: Sequence[Tensor] = (),
        rotary: RotaryPositions | None = None,
        head_mask: Sequence[Tensor] | None = None,
        tape: Tape | None = None,
        first: int = 0,
    ) -> Passed:
        asked = bool(additions) or rotary is not None or head_mask is not None or tape is not None
        if asked or not self.plain or self.training or self._heard():
            passed = super().forward(x, place, additions, rotary, head_mask, tape, first)
            return passed._replace(tokens=passed.tokens.float())
        refuse_gradients(x)
        return Passed(self._through(x, first).float(), place)

    def _heard(self) -> bool:
        """Whether anyone listens at a part of a block."""
        return any(self._hooks) or bool(module._global_forward_hooks or module._global_forward_pre_hooks)

    def _through(self, x: Tensor, first: int) -> Tensor:
        """Tokens (B, T, D) through every block; of the last come the `first` alone, or all."""
        b, t, width = x.shape
        x = side_by_side(x)  # (B*T, D), to the end
        for number, step in enumerate(self._steps, start=1):
            qkv = step.qkv.rows(torch.layer_norm(x, *step.norm1))  # (B*T, 3*A*d)
            heads = qkv.shape[1] // (3 * self._head_width)
            qkv = qkv.view(b, t, 3, heads, self._head_width).permute(2, 0, 3, 1, 4)  # (3, B, A, T, d)
            q, k, v = (qkv if self._gather is None else qkv.contiguous()).unbind(0)
            if first and number == len(self._steps):
                q, x = q[:, :, :first], side_by_side(x.view(b, t, width)[:, :first])
            gathered = F.scaled_dot_product_attention(q, k, v) if self._gather is None else self._gather(q, k, v, None)
            x = step.out.rows(_side_by_side(gathered, x), x)
            x = step.down.rows(step.up.rows(torch.layer_norm(x, *step.norm2)), x)
        return x.view(b, first or t, width)


def _side_by_side(gathered: Tensor, x: Tensor) -> Tensor:
    """What heads gathered (B, A, T, d) as rows (B*T, A*d), of the same kind as the tokens."""
    gathered = gathered.transpose(1, 2)  # (B, T, A, d)
    if gathered.dtype != x.dtype:
        gathered = x.new_empty(gathered.shape).copy_(gathered)  # turned and converted at once
    return gathered.reshape(len(x), gathered.shape[2] * gathered.shape[3])


def _plain(block: Block) -> bool:
    """Whether a block is two norms, attention of all to all and an MLP whose activation its layer does."""
    attention, mlp = block.attention, cast(PackedMlp, block.mlp)
    norms = all(type(norm) is nn.LayerNorm for norm in (block.norm1, block.norm2))
    return norms and _all_to_all(attention) and not (block.merged or mlp.gated or mlp.activation)


def _all_to_all(attention: Attention) -> bool:
    extras = (attention.query_bias, attention.query_norm, attention.relative)
    return all(each is None for each in extras) and not (attention.line or attention.causal)


def _steps(block: Block) -> Steps:
    mlp = cast(PackedMlp, block.mlp)
    layers = [cast(Layer, each) for each in (block.attention.qkv, block.attention.out, mlp.up, mlp.down)]
    qkv, out, up, down = layers
    return Steps(Norm.of(block.norm1), qkv, out, Norm.of(block.norm2), up, down)
