"""tokens (B, T, D) -> tokens (B, T, D): the stack of blocks, each attention then MLP, each behind a norm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from vitrail.checks import choice
from vitrail.errors import ConfigError
from vitrail.network.attention import Attention
from vitrail.network.config import ACTIVATIONS, ViTConfig
from vitrail.network.merging import merge
from vitrail.network.positions import RotaryPositions, Rotation
from vitrail.network.tokens import Place


def activate(x: Tensor, activation: str, in_place: bool = False) -> Tensor:
    """The non-linearity of an MLP, by name."""
    if activation in ("gelu", "gelu_tanh"):
        gelu = torch.ops.aten.gelu_ if in_place else torch.ops.aten.gelu
        activated: Tensor = gelu(x, approximate="tanh" if activation == "gelu_tanh" else "none")
        return activated
    if activation == "quick_gelu":
        return x * torch.sigmoid(1.702 * x)
    return F.relu(x, in_place) if activation == "relu" else F.silu(x, in_place)


class Mlp(nn.Module):
    """Up, activate, down; dropout after both layers, as in the paper."""

    def __init__(self, width: int, mlp_width: int, activation: str = "gelu", dropout: float = 0.0) -> None:
        super().__init__()
        self.activation, self.dropout = choice("activation", activation, ACTIVATIONS), dropout
        self.up = nn.Linear(width, mlp_width)
        self.down = nn.Linear(mlp_width, width)

    def forward(self, x: Tensor) -> Tensor:
        # The widest tensor of the network: without gradients it is activated where it stands, which saves a pass
        # through fresh memory; a hook on `up` still sees what `up` gave.
        in_place = not torch.is_grad_enabled() and not self.up._forward_hooks
        x = activate(self.up(x), self.activation, in_place)  # (B, T, M)
        x = self.down(F.dropout(x, self.dropout, self.training) if self.dropout else x)
        return F.dropout(x, self.dropout, self.training) if self.dropout else x


class SwiGLU(nn.Module):
    """A gated MLP: silu(gate) * value, then down; `up` holds gate first, then value."""

    def __init__(self, width: int, mlp_width: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout
        self.up = nn.Linear(width, 2 * mlp_width)
        self.down = nn.Linear(mlp_width, width)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.up(x).chunk(2, dim=-1)
        x = self.down(F.dropout(F.silu(gate) * value, self.dropout, self.training))
        return F.dropout(x, self.dropout, self.training)


class LayerScale(nn.Module):
    """One learned factor for each value of a token."""

    def __init__(self, width: int, start: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((width,), float(start)))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class TokenBatchNorm(nn.BatchNorm1d):
    """Batch norm over tokens (B, T, D) or vectors (B, D): statistics of the batch, not of each token."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.transpose(1, 2)).transpose(1, 2) if x.ndim == 3 else super().forward(x)


def build_norm(config: ViTConfig, width: int | None = None) -> nn.Module:
    """The norm the config asks for."""
    kind = nn.LayerNorm if config.norm == "layer" else TokenBatchNorm
    return kind(width or config.width, eps=config.norm_eps)


def drop_path(x: Tensor, rate: float) -> Tensor:
    """Silence the whole branch for a share of the images, and scale the others up."""
    keep = x.new_empty(x.shape[0], *[1] * (x.ndim - 1)).bernoulli_(1 - rate)
    return x * (keep / (1 - rate))


class Passed(NamedTuple):
    """What a block hands on; weights only where they were asked for."""

    tokens: Tensor
    place: Place
    weights: Tensor | None = None


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); or both side by side on one norm."""

    def __init__(self, config: ViTConfig, index: int = 0, causal: bool = False) -> None:
        super().__init__()
        self.merged = config.merged_in(index)
        self.by_tokens, self.heeds = config.merge_by == "tokens", config.heeds_in(index)  # which are merged
        self.joins = False  # whether the last layers of both branches add to the tokens themselves: packed ones can
        self.drop_path = config.drop_path * index / max(config.depth - 1, 1)
        self.norm1 = build_norm(config)
        self.attention = Attention.of_block(config, index, causal)
        self.norm2 = None if config.parallel else build_norm(config)
        self.mlp: Mlp | SwiGLU
        if config.mlp == "swiglu":
            self.mlp = SwiGLU(config.width, config.mlp_width, config.dropout)
        else:
            self.mlp = Mlp(config.width, config.mlp_width, config.activation, config.dropout)
        self.scale1 = self.scale2 = None
        if config.layer_scale is not None:
            self.scale1 = LayerScale(config.width, config.layer_scale)
            self.scale2 = LayerScale(config.width, config.layer_scale)

    def forward(
        self,
        x: Tensor,
        place: Place,
        rotation: Rotation | None = None,
        head_mask: Tensor | None = None,
        explicit: bool = False,
        mlp_chunk: int = 0,
        rows: Sequence[int] = (),
        first: int = 0,
    ) -> Passed:
        """Tokens after the block; `explicit` also gives the attention weights, of all tokens or of `rows` alone.

        With `first` only so many tokens gather and go on: the others are seen, and needed by nobody after. Prefix
        tokens are never merged, so there is nothing to merge then.
        """
        normed = self.norm1(x)
        x = x[:, :first] if first else x
        onto = x if self.joins else None
        weights = None
        if explicit or self.merged or first:
            attended = self.attention.attend(
                normed,
                place=place,
                rotation=rotation,
                head_mask=head_mask,
                explicit=explicit,
                rows=rows,
                onto=onto,
                first=first,
                heeds=self.heeds and self.merged > 0 and not first,
            )
            branch, weights = attended.output, attended.weights
            normed = normed[:, :first] if first else normed
        else:
            branch = self.attention(normed, place=place, rotation=rotation, head_mask=head_mask, onto=onto)
        x = branch if self.joins else x + self._branch(branch, self.scale1)
        if self.norm2 is None:  # side by side
            x = self.mlp(normed, x) if self.joins else x + self._branch(self._mlp(normed, mlp_chunk), self.scale2)
        if self.merged and not first:
            metric = x if self.by_tokens else _mean_keys(attended.keys, head_mask)
            x, place = merge(x, place, metric, self.merged, attended.heeded)
        if self.norm2 is not None:
            normed = self.norm2(x)
            x = self.mlp(normed, x) if self.joins else x + self._branch(self._mlp(normed, mlp_chunk), self.scale2)
        return Passed(x, place, weights)

    def _branch(self, x: Tensor, scale: LayerScale | None) -> Tensor:
        x = scale(x) if scale is not None else x
        return drop_path(x, self.drop_path) if self.training and self.drop_path else x

    def _mlp(self, x: Tensor, chunk: int) -> Tensor:
        """The MLP, `chunk` tokens at a time where memory is short; the result is the same."""
        parts = [self.mlp(part) for part in x.split(chunk, dim=1)] if chunk else [self.mlp(x)]
        return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]


def _mean_keys(keys: Tensor, head_mask: Tensor | None) -> Tensor:
    """Keys of every head (B, A, T, d) -> their mean (B, T, d); a silenced head has no say."""
    keys = keys if head_mask is None else keys * head_mask.view(-1, 1, 1)
    return keys.mean(dim=1)


class Tape:
    """What a pass through the encoder is asked to leave behind."""

    def __init__(self, blocks: Sequence[int] = (), hidden: bool = False, rows: Sequence[int] = ()) -> None:
        self.blocks = list(blocks)  # blocks whose attention weights are wanted
        self.rows = list(rows)  # tokens whose rows of them are wanted; none named: all
        self.wants_hidden = hidden
        self.attention: dict[int, Tensor] = {}
        self.hidden: list[Tensor] = []
        self.places: list[Place] = []  # where the tokens stand that enter each block; last, those that leave


class Encoder(nn.Module):
    """The stack of blocks.

    `checkpointing` recomputes blocks in the backward pass to save memory; `mlp_chunk` does the MLP that many
    tokens at a time. Both change memory, and no result but which values dropout picks.
    """

    def __init__(self, config: ViTConfig, causal: bool = False) -> None:
        super().__init__()
        self.mlp_chunk = 0
        self._checkpointing = False
        self.blocks = nn.ModuleList(Block(config, index, causal) for index in range(config.depth))

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

    def like(self, other: Encoder) -> None:
        """Take over how another encoder spends memory."""
        self.mlp_chunk, self._checkpointing = other.mlp_chunk, other.checkpointing

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
        """Tokens through every block, the last of which gives all or, without a tape, the `first`.

        `tape` collects what was asked for on the way.
        """
        rotation = None
        for index, block in enumerate(self.blocks):
            if tape is not None:
                tape.places.append(place)
                if tape.wants_hidden:
                    tape.hidden.append(x)
            if additions:
                x = x + additions[index]
            if rotary is not None and place.places is not None:
                rotation = rotary(place.places, index)
            mask = head_mask[index] if head_mask is not None else None
            explicit = tape is not None and index in tape.blocks
            rows = tape.rows if explicit and tape else ()
            wanted = first if tape is None and index == len(self.blocks) - 1 else 0
            inputs = (x, place, rotation, mask, explicit, self.mlp_chunk, rows, wanted)
            if self.checkpointing and self.training and torch.is_grad_enabled():
                passed = checkpoint(block, *inputs, use_reentrant=False)
            else:
                passed = block(*inputs)
            x, place = passed.tokens, passed.place
            if tape is not None and passed.weights is not None:
                tape.attention[index] = passed.weights
        if tape is not None:
            tape.places.append(place)
            if tape.wants_hidden:
                tape.hidden.append(x)
        return Passed(x, place)
