"""DINO, DINOv2, DINOv3, MAE and DeiT written anew from what is known of them: names as in their files, plain passes.

Nothing here is shared with the package: attention is written out, positions are resampled as each family does it.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SMALL: dict[str, Any] = {"size": 32, "patch": 8, "width": 128, "depth": 2, "heads": 2}


# ---- a block and its parts ---------------------------------------------------------------------------------------


class Scale(nn.Module):
    """ls1, ls2: one factor a value."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))


class Fused(nn.Linear):
    """qkv of DINOv3: the bias is multiplied with a mask that silences its middle third."""

    def __init__(self, width: int) -> None:
        super().__init__(width, 3 * width)
        mask = torch.ones(3, width)
        mask[1] = 0
        self.register_buffer("bias_mask", mask.flatten())

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias * self.bias_mask)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, masked: bool = False, bias: bool = True) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = Fused(width) if masked else nn.Linear(width, 3 * width, bias=bias)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor, angles: Tensor | None = None) -> Tensor:
        b, t, width = x.shape
        q, k, v = self.qkv(x).reshape(b, t, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        if angles is not None:
            q, k = turned(q, angles), turned(k, angles)
        scores = q @ k.transpose(-1, -2) / math.sqrt(width // self.heads)
        return self.proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, width))


class Mlp(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class PackedGate(nn.Module):
    """DINOv2's SwiGLU: one layer for gate and value, the gate first."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.w12, self.w3 = nn.Linear(width, 2 * inner), nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        both = self.w12(x)
        half = both.shape[-1] // 2
        return self.w3(F.silu(both[..., :half]) * both[..., half:])


class Gate(nn.Module):
    """DINOv3's SwiGLU: the gate is w1, the value w2."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.w1, self.w2, self.w3 = nn.Linear(width, inner), nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.w3(F.silu(self.w1(x)) * self.w2(x))


class Block(nn.Module):
    def __init__(
        self, width: int, heads: int, mlp: nn.Module, eps: float = 1e-6, scale: str = "", **attention: Any
    ) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width, eps), nn.LayerNorm(width, eps)
        self.attn, self.mlp = Attention(width, heads, **attention), mlp
        self.scale = scale
        if scale == "ls":
            self.ls1, self.ls2 = Scale(width), Scale(width)
        elif scale == "gamma":
            self.gamma_1, self.gamma_2 = nn.Parameter(torch.ones(width)), nn.Parameter(torch.ones(width))

    def factors(self) -> tuple[Any, Any]:
        if self.scale == "ls":
            return self.ls1.gamma, self.ls2.gamma
        return (self.gamma_1, self.gamma_2) if self.scale else (1.0, 1.0)

    def forward(self, x: Tensor, angles: Tensor | None = None) -> Tensor:
        first, second = self.factors()
        x = x + first * self.attn(self.norm1(x), angles)
        return x + second * self.mlp(self.norm2(x))


class Patches(nn.Module):
    def __init__(self, patch: int, width: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, width, patch, patch)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.proj(pixels).flatten(2).transpose(1, 2)


def turned(x: Tensor, angles: Tensor) -> Tensor:
    """DINOv3's rotary positions on the patches, which stand last: value n pairs with value n + d/2."""
    patches = x[:, :, -angles.shape[0] :]
    half = patches.shape[-1] // 2
    other = torch.cat((-patches[..., half:], patches[..., :half]), -1)
    return torch.cat((x[:, :, : -angles.shape[0]], patches * angles.cos() + other * angles.sin()), 2)


def resized(table: Tensor, grid: tuple[int, int], way: str) -> Tensor:
    """Patches' positions (1, N, D) of a square on another grid: "offset", "smooth" or "plain"."""
    side = math.isqrt(table.shape[1])
    if grid == (side, side):
        return table
    image = table.reshape(1, side, side, -1).permute(0, 3, 1, 2)
    if way == "offset":
        factors = ((grid[0] + 0.1) / side, (grid[1] + 0.1) / side)
        image = F.interpolate(image, scale_factor=factors, mode="bicubic")
    else:
        image = F.interpolate(image, size=grid, mode="bicubic", antialias=way == "smooth")
    assert image.shape[-2:] == grid
    return image.permute(0, 2, 3, 1).reshape(1, grid[0] * grid[1], -1)


# ---- the networks ------------------------------------------------------------------------------------------------


class Original(nn.Module):
    """What they share: patches, tokens, blocks, norm; `model(pixels)` gives the normed cls token or logits."""

    way = "plain"  # of resampling
    eps = 1e-6
    blocks: nn.ModuleList

    def __init__(self, size: int, patch: int, width: int) -> None:
        super().__init__()
        self.patch = patch
        self.patch_embed = Patches(patch, width)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.norm: nn.Module | None = nn.LayerNorm(width, self.eps)

    def grid(self, pixels: Tensor) -> tuple[int, int]:
        return pixels.shape[-2] // self.patch, pixels.shape[-1] // self.patch

    def tokens(self, pixels: Tensor) -> Tensor:
        """cls and patches, each with its position."""
        x = torch.cat((self.cls_token.expand(len(pixels), -1, -1), self.patch_embed(pixels)), 1)
        table = torch.cat((self.pos_embed[:, :1], resized(self.pos_embed[:, 1:], self.grid(pixels), self.way)), 1)
        return x + table

    def walk(self, pixels: Tensor) -> list[Tensor]:
        """What every block hands on."""
        x, states = self.tokens(pixels), []
        for block in self.blocks:
            x = block(x)
            states.append(x)
        return states

    def forward(self, pixels: Tensor) -> Tensor:
        return self.norm(self.walk(pixels)[-1])[:, 0]


class Dino(Original):
    way = "offset"

    def __init__(self, size: int, patch: int, width: int, depth: int, heads: int) -> None:
        super().__init__(size, patch, width)
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + (size // patch) ** 2, width))
        self.blocks = nn.ModuleList(Block(width, heads, Mlp(width, 2 * width)) for _ in range(depth))


class DinoHead(nn.Module):
    """The projection of a training file; the network never needs it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(width, 16), nn.GELU(), nn.Linear(16, 8))
        self.last_layer = nn.Module()  # a layer whose rows have a length and a direction
        self.last_layer.weight_g = nn.Parameter(torch.ones(32, 1))
        self.last_layer.weight_v = nn.Parameter(torch.ones(32, 8))


class Features(Original):
    """What DINOv2 and DINOv3 give besides the cls token."""

    registers = 0

    def forward_features(self, pixels: Tensor) -> dict[str, Tensor]:
        x = self.walk(pixels)[-1]
        normed = self.norm(x)
        return {
            "x_norm_clstoken": normed[:, 0],
            "x_norm_regtokens": normed[:, 1 : 1 + self.registers],
            "x_norm_patchtokens": normed[:, 1 + self.registers :],
            "x_prenorm": x,
        }

    def get_intermediate_layers(
        self, pixels: Tensor, n: int = 1, reshape: bool = False, return_class_token: bool = False, norm: bool = True
    ) -> tuple[Any, ...]:
        states = [self.norm(x) if norm else x for x in self.walk(pixels)[-n:]]
        patches = [x[:, 1 + self.registers :] for x in states]
        if reshape:
            h, w = self.grid(pixels)
            patches = [x.reshape(len(x), h, w, -1).permute(0, 3, 1, 2) for x in patches]
        if return_class_token:
            return tuple((x, state[:, 0]) for x, state in zip(patches, states, strict=True))
        return tuple(patches)


class DinoV2(Features):
    def __init__(
        self,
        size: int,
        patch: int,
        width: int,
        depth: int,
        heads: int,
        registers: int = 0,
        gated: bool = False,
        chunk: int = 0,
    ) -> None:
        super().__init__(size, patch, width)
        self.registers, self.way = registers, "smooth" if registers else "offset"
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + (size // patch) ** 2, width))
        self.mask_token = nn.Parameter(torch.zeros(1, width))
        if registers:
            self.register_tokens = nn.Parameter(torch.zeros(1, registers, width))
        mlp = PackedGate if gated else Mlp
        blocks = [Block(width, heads, mlp(width, 2 * width), scale="ls") for _ in range(depth)]
        self.blocks = nn.ModuleList(blocks)
        if chunk:  # training cuts the blocks into chunks, where each keeps its number
            chunks = [[nn.Identity()] * i + blocks[i : i + chunk] for i in range(0, depth, chunk)]
            self.blocks = nn.ModuleList(nn.Sequential(*each) for each in chunks)

    def tokens(self, pixels: Tensor) -> Tensor:
        x = super().tokens(pixels)
        if not self.registers:
            return x
        return torch.cat((x[:, :1], self.register_tokens.expand(len(x), -1, -1), x[:, 1:]), 1)


class Periods(nn.Module):
    """rope_embed: wave lengths that lie in the file."""

    def __init__(self, per_head: int, base: float = 100.0) -> None:
        super().__init__()
        self.register_buffer("periods", base ** (2 * torch.arange(per_head // 4) / (per_head // 2)))


class DinoV3(Features):
    eps = 1e-5

    def __init__(
        self,
        size: int,
        patch: int,
        width: int,
        depth: int,
        heads: int,
        registers: int = 4,
        gated: bool = False,
        bias: bool = True,
        local: bool = False,
    ) -> None:
        super().__init__(size, patch, width)
        self.registers = registers
        self.storage_tokens = nn.Parameter(torch.zeros(1, registers, width))
        self.mask_token = nn.Parameter(torch.zeros(1, width))
        self.rope_embed = Periods(width // heads)
        mlp = Gate if gated else Mlp
        self.blocks = nn.ModuleList(
            Block(width, heads, mlp(width, 2 * width), self.eps, "ls", masked=bias, bias=bias) for _ in range(depth)
        )
        if local:
            self.local_cls_norm = nn.LayerNorm(width, self.eps)

    def walk(self, pixels: Tensor) -> list[Tensor]:
        prefix = torch.cat((self.cls_token, self.storage_tokens), 1).expand(len(pixels), -1, -1)
        x, states = torch.cat((prefix, self.patch_embed(pixels)), 1), []
        angles = self.angles(self.grid(pixels))
        for block in self.blocks:
            x = block(x, angles)
            states.append(x)
        return states

    def angles(self, grid: tuple[int, int]) -> Tensor:
        """Centres of the patches from -1 to 1, row before column, over the periods; twice side by side: (N, d)."""
        rows, columns = ((torch.arange(side) + 0.5) / side * 2 - 1 for side in grid)
        places = torch.stack(torch.meshgrid(rows, columns, indexing="ij"), -1).reshape(-1, 2)
        angles = 2 * math.pi * places[:, :, None] / self.rope_embed.periods.float()
        return angles.flatten(1).repeat(1, 2)


class Deit(Original):
    """DeiT: cls token, a distillation token with its own head where distilled; DeiT-III: gamma, no slot for cls."""

    def __init__(
        self,
        size: int,
        patch: int,
        width: int,
        depth: int,
        heads: int,
        classes: int = 10,
        distilled: bool = False,
        third: bool = False,
    ) -> None:
        super().__init__(size, patch, width)
        self.third = third
        self.slots = 0 if third else 2 if distilled else 1
        self.pos_embed = nn.Parameter(torch.zeros(1, self.slots + (size // patch) ** 2, width))
        if distilled:
            self.dist_token = nn.Parameter(torch.zeros(1, 1, width))
            self.head_dist = nn.Linear(width, classes)
        scale = "gamma" if third else ""
        self.blocks = nn.ModuleList(Block(width, heads, Mlp(width, 2 * width), scale=scale) for _ in range(depth))
        self.head = nn.Linear(width, classes)

    def tokens(self, pixels: Tensor) -> Tensor:
        named = [self.cls_token] + ([self.dist_token] if hasattr(self, "dist_token") else [])
        prefix = torch.cat(named, 1)
        if self.slots:
            prefix = prefix + self.pos_embed[:, : self.slots]
        patches = self.patch_embed(pixels) + resized(self.pos_embed[:, self.slots :], self.grid(pixels), self.way)
        return torch.cat((prefix.expand(len(pixels), -1, -1), patches), 1)

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.norm(self.walk(pixels)[-1])
        if hasattr(self, "head_dist"):
            return (self.head(x[:, 0]) + self.head_dist(x[:, 1])) / 2
        return self.head(x[:, 0])


def waves(width: int, side: int) -> Tensor:
    """MAE's fixed table with zeros for the cls token: (1, 1 + N, D); half the width tells the column, half the row."""
    powers = torch.tensor([1 / 10000 ** (k / (width // 4)) for k in range(width // 4)], dtype=torch.float64)
    rows = []
    for row in range(side):
        for column in range(side):
            x, y = column * powers, row * powers
            rows.append(torch.cat((x.sin(), x.cos(), y.sin(), y.cos())))
    return torch.cat((torch.zeros(1, width), torch.stack(rows).float()))[None]


class Mae(Original):
    """The encoder; with `decoder` its width, and the decoder beside it; with `classes` fine-tuned behind a mean."""

    def __init__(
        self,
        size: int,
        patch: int,
        width: int,
        depth: int,
        heads: int,
        decoder: int = 0,
        decoder_heads: int = 1,
        classes: int = 0,
    ) -> None:
        super().__init__(size, patch, width)
        side = size // patch
        self.pos_embed = nn.Parameter(waves(width, side), requires_grad=False)
        self.blocks = nn.ModuleList(Block(width, heads, Mlp(width, 2 * width)) for _ in range(depth))
        if classes:
            self.norm = None
            self.fc_norm, self.head = nn.LayerNorm(width, self.eps), nn.Linear(width, classes)
        if decoder:
            self.decoder_embed = nn.Linear(width, decoder)
            self.mask_token = nn.Parameter(torch.zeros(1, 1, decoder))
            self.decoder_pos_embed = nn.Parameter(waves(decoder, side), requires_grad=False)
            self.decoder_blocks = nn.ModuleList([Block(decoder, decoder_heads, Mlp(decoder, 2 * decoder))])
            self.decoder_norm = nn.LayerNorm(decoder, self.eps)
            self.decoder_pred = nn.Linear(decoder, patch * patch * 3)

    def forward(self, pixels: Tensor) -> Tensor:
        if self.norm is not None:
            return super().forward(pixels)
        return self.head(self.fc_norm(self.walk(pixels)[-1][:, 1:].mean(1)))

    def rebuild(self, pixels: Tensor, order: Tensor, kept: int) -> Tensor:
        """Every patch's pixels from the first `kept` of an order (B, N) of the patches."""
        x = self.tokens(pixels)
        chosen = order[:, :kept, None].expand(-1, -1, x.shape[2])
        x = torch.cat((x[:, :1], x[:, 1:].gather(1, chosen)), 1)
        for block in self.blocks:
            x = block(x)
        x = self.decoder_embed(self.norm(x))
        masked = self.mask_token.expand(len(x), order.shape[1] - kept, -1)
        back = order.argsort(1)[..., None].expand(-1, -1, x.shape[2])
        x = torch.cat((x[:, :1], torch.cat((x[:, 1:], masked), 1).gather(1, back)), 1) + self.decoder_pos_embed
        for block in self.decoder_blocks:
            x = block(x)
        return self.decoder_pred(self.decoder_norm(x))[:, 1:]
