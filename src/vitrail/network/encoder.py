"""tokens (B, T, D) -> tokens (B, T, D): the stack of blocks, each attention then MLP, each behind a norm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from vitrail.checks import check_choice
from vitrail.errors import ConfigError
from vitrail.network.attention import Attention, Kernel
from vitrail.network.config import ACTIVATIONS, ViTConfig
from vitrail.network.positions import RotaryPositions
from vitrail.network.tokens import TokenLayout


def activate(x: Tensor, activation: str, in_place: bool = False) -> Tensor:
    """The non-linearity of an MLP, by name."""
    if activation in ("gelu", "gelu_tanh"):
        gelu = torch.ops.aten.gelu_ if in_place else torch.ops.aten.gelu
        return cast(Tensor, gelu(x, approximate="tanh" if activation == "gelu_tanh" else "none"))
    if activation == "quick_gelu":
        return x * torch.sigmoid(1.702 * x)
    return F.relu(x, in_place) if activation == "relu" else F.silu(x, in_place)


class Mlp(nn.Module):
    """Up, activate, down; dropout after both layers, as in the paper."""

    starts: ClassVar = {"up": "mlp", "down": "mlp"}

    def __init__(self, width: int, mlp_width: int, activation: str = "gelu", dropout: float = 0.0) -> None:
        super().__init__()
        self.activation, self.dropout = check_choice("activation", activation, ACTIVATIONS), dropout
        self.up = nn.Linear(width, mlp_width)  # D -> M
        self.down = nn.Linear(mlp_width, width)  # M -> D

    def forward(self, x: Tensor) -> Tensor:
        # The widest tensor of the network: without gradients it is activated where it stands, which saves a pass
        # through fresh memory; a hook on `up` still sees what `up` gave.
        tracing = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        in_place = not (torch.is_grad_enabled() or self.up._forward_hooks or tracing)
        x = activate(self.up(x), self.activation, in_place)  # (B, T, M)
        x = self.down(F.dropout(x, self.dropout, self.training) if self.dropout else x)  # (B, T, D)
        return F.dropout(x, self.dropout, self.training) if self.dropout else x


class SwiGLU(nn.Module):
    """A gated MLP: silu(gate) * value, then down; `up` holds gate first, then value."""

    starts: ClassVar = {"up": "mlp", "down": "mlp"}

    def __init__(self, width: int, mlp_width: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout
        self.up = nn.Linear(width, 2 * mlp_width)  # D -> 2*M
        self.down = nn.Linear(mlp_width, width)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.up(x).chunk(2, dim=-1)  # (B, T, M) each
        x = self.down(F.dropout(F.silu(gate) * value, self.dropout, self.training))  # (B, T, D)
        return F.dropout(x, self.dropout, self.training)


class LayerScale(nn.Module):
    """One learned factor for each value of a token."""

    starts: ClassVar = {"gamma": "as built"}

    def __init__(self, width: int, start: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((width,), float(start)))  # (D,)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class TokenBatchNorm(nn.BatchNorm1d):
    """Batch norm over tokens (B, T, D) or vectors (B, D): statistics of the batch, not of each token."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.transpose(1, 2)).transpose(1, 2) if x.ndim == 3 else super().forward(x)


def build_norm(config: ViTConfig) -> nn.Module:
    """The norm the config asks for."""
    kind = nn.LayerNorm if config.norm == "layer" else TokenBatchNorm
    return kind(config.width, eps=config.norm_eps)


def drop_path(x: Tensor, rate: float) -> Tensor:
    """Silence the whole branch for a share of the images, and scale the others up."""
    keep = x.new_empty(x.shape[0], *[1] * (x.ndim - 1)).bernoulli_(1 - rate)  # (B, 1, 1)
    return x * (keep / (1 - rate))


class BlockOutput(NamedTuple):
    """What a block hands on: tokens (B, T, D), and where they stand now."""

    tokens: Tensor
    layout: TokenLayout


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); or both side by side on one norm."""

    def __init__(self, config: ViTConfig, index: int = 0) -> None:
        super().__init__()
        self.drop_path = config.drop_path * index / max(config.depth - 1, 1)
        self.mlp_chunk = 0  # tokens that the MLP takes at a time; 0: all
        self.norm1 = build_norm(config)
        self.attention = Attention.of_block(config, index)
        self.norm2 = None if config.parallel else build_norm(config)
        self.mlp: Mlp | SwiGLU
        if config.mlp == "swiglu":
            self.mlp = SwiGLU(config.width, config.mlp_width, config.dropout)
        else:
            self.mlp = Mlp(config.width, config.mlp_width, config.activation, config.dropout)
        factor = config.layer_scale
        self.scale1 = None if factor is None else LayerScale(config.width, factor)
        self.scale2 = None if factor is None else LayerScale(config.width, factor)

    def forward(
        self, x: Tensor, layout: TokenLayout, head_mask: Tensor | None = None, kernel: Kernel | None = None
    ) -> BlockOutput:
        """Equations 2 and 3 of the paper; a kernel given here takes the place of attention's own."""
        normed = self.norm1(x)  # (B, T, D)
        attended = self.attention(normed, layout=layout, head_mask=head_mask, kernel=kernel)
        x = x + self.branch(attended, self.scale1)  # (B, T, D)
        normed = normed if self.norm2 is None else self.norm2(x)
        x = x + self.branch(self.chunked_mlp(normed), self.scale2)  # (B, T, D)
        return BlockOutput(x, layout)

    def branch(self, x: Tensor, scale: LayerScale | None) -> Tensor:
        """What a branch adds to the tokens: scaled, and silenced for some images while training."""
        x = scale(x) if scale is not None else x
        return drop_path(x, self.drop_path) if self.training and self.drop_path else x

    def chunked_mlp(self, x: Tensor) -> Tensor:
        """The MLP, some tokens at a time where memory is short; the result is the same."""
        parts = [self.mlp(part) for part in x.split(self.mlp_chunk, dim=1)] if self.mlp_chunk else [self.mlp(x)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


# Who looks on: called with the number of each block, the tokens that enter it and their layout, and at the end with
# those that leave the last. The kernel it gives, if any, serves that block in this pass.
Observer = Callable[[int, Tensor, TokenLayout], Kernel | None]


class Encoder(nn.Module):
    """The stack of blocks; `checkpointing` and `mlp_chunk` spend time to save memory, and change no result."""

    def __init__(self, config: ViTConfig, build_block: Callable[[ViTConfig, int], Block] = Block) -> None:
        super().__init__()
        self._checkpointing = False  # blocks are computed once more on the way back
        self.blocks = nn.ModuleList(build_block(config, index) for index in range(config.depth))

    @property
    def checkpointing(self) -> bool:
        return self._checkpointing

    @checkpointing.setter
    def checkpointing(self, wanted: bool) -> None:
        if wanted and any(isinstance(module, TokenBatchNorm) for module in self.modules()):
            raise ConfigError(
                "gradient checkpointing runs every block twice, and batch norm would count the batch twice: "
                "use norm='layer', or leave checkpointing off"
            )
        self._checkpointing = wanted

    @property
    def mlp_chunk(self) -> int:
        return int(self.blocks[0].mlp_chunk)  # type: ignore[arg-type]

    @mlp_chunk.setter
    def mlp_chunk(self, tokens: int) -> None:
        for block in self.blocks:
            block.mlp_chunk = tokens  # type: ignore[assignment]

    def forward(
        self,
        x: Tensor,
        layout: TokenLayout,
        additions: Sequence[Tensor] = (),
        rotary: RotaryPositions | None = None,
        head_mask: Sequence[Tensor] | None = None,
        observer: Observer | None = None,
    ) -> BlockOutput:
        """Tokens (B, T, D) through every block, and where they stand in the end."""
        for index, block in enumerate(self.blocks):
            kernel = observer(index, x, layout) if observer is not None else None
            if additions:  # positions at every block
                x = x + additions[index]  # (B, T, D) + (T, D)
            if rotary is not None and layout.coordinates is not None:
                layout = layout._replace(angles=rotary(layout.coordinates, index))
            inputs = (x, layout, None if head_mask is None else head_mask[index], kernel)
            if self.checkpointing and self.training and torch.is_grad_enabled():
                x, layout = checkpoint(block, *inputs, use_reentrant=False)
            else:
                x, layout = block(*inputs)
        if observer is not None:
            observer(len(self.blocks), x, layout)
        return BlockOutput(x, layout._replace(angles=None))  # no pool turns anything
