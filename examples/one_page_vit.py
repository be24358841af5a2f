"""The Vision Transformer on one page: "An Image is Worth 16x16 Words" (Dosovitskiy et al., 2021), equations 1 to 8.

The sizes are those of ViT-B/16. Letters: B images, N patches, T = N + 1 tokens, D width, A heads, d head width.
"""

import torch
from torch import nn


class Attention(nn.Module):
    """Every token asks all tokens, in A ways at once (equations 5 to 8)."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        b, t, width = x.shape
        qkv = self.qkv(x).reshape(b, t, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (B, A, T, d) each
        scores = q @ k.transpose(-2, -1) / (width // self.heads) ** 0.5  # (B, A, T, T)
        gathered = scores.softmax(dim=-1) @ v  # (B, A, T, d)
        return self.out(gathered.transpose(1, 2).reshape(b, t, width))  # (B, T, D)


class Block(nn.Module):
    """Attention, then an MLP; each behind a norm, each added to what came in (equations 2 and 3)."""

    def __init__(self, width, heads, mlp_width):
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(width, mlp_width), nn.GELU(), nn.Linear(mlp_width, width))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    """Pixels (B, 3, H, W) in, logits (B, K) out (equations 1 and 4)."""

    def __init__(self, size=224, patch=16, width=768, depth=12, heads=12, mlp_width=3072, classes=1000):
        super().__init__()
        self.patch = patch
        self.project = nn.Linear(3 * patch * patch, width)
        self.cls = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, 1 + (size // patch) ** 2, width) * 0.02)
        self.blocks = nn.Sequential(*[Block(width, heads, mlp_width) for _ in range(depth)])
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, classes)

    def patches(self, pixels):
        """Squares of the image, row by row, each flattened: (B, N, 3*P*P)."""
        b, c, h, w = pixels.shape
        p = self.patch
        squares = pixels.reshape(b, c, h // p, p, w // p, p).permute(0, 2, 4, 1, 3, 5)
        return squares.reshape(b, (h // p) * (w // p), c * p * p)

    def forward(self, pixels):
        x = self.project(self.patches(pixels))  # (B, N, D)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], dim=1)  # (B, T, D)
        x = x + self.positions
        x = self.norm(self.blocks(x))
        return self.head(x[:, 0])  # the cls token speaks for the image


if __name__ == "__main__":
    model = ViT()
    logits = model(torch.randn(2, 3, 224, 224))
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, logits {tuple(logits.shape)}")
