"""A small residual CNN, which transformers are compared with: a convolution, then residual units that halve."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional as F


class Unit(nn.Module):
    """relu(x + conv(relu(conv(x)))), each convolution with a batch norm; the shortcut follows stride and width."""

    def __init__(self, entering: int, leaving: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(entering, leaving, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(leaving)
        self.conv2 = nn.Conv2d(leaving, leaving, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(leaving)
        same = stride == 1 and entering == leaving
        self.shortcut = None if same else nn.Conv2d(entering, leaving, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        branch = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(branch + (x if self.shortcut is None else self.shortcut(x)))


class ResidualCNN(nn.Module):
    """pixels (B, C, H, W) -> logits (B, K)."""

    def __init__(self, channels: int, classes: int, width: int = 16) -> None:
        super().__init__()
        self.root = nn.Sequential(
            nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        widths = (width, 2 * width, 4 * width, 8 * width)
        self.units = nn.Sequential(*(Unit(a, b, 2) for a, b in pairwise(widths)))
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, pixels: Tensor) -> Tensor:
        logits: Tensor = self.head(self.units(self.root(pixels)).mean(dim=(2, 3)))
        return logits
