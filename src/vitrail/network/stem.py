"""pixels (B, C, H, W) -> feature map (B, C', H/r, W/r): what may stand before the patches."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.network.config import ConvStem, ResNetStem


def build_stem(stem: ConvStem | ResNetStem, channels: int) -> nn.Module:
    """The module that a stem's description asks for."""
    return EarlyConvolutions(stem, channels) if isinstance(stem, ConvStem) else ResNetV2(stem, channels)


class EarlyConvolutions(nn.Sequential):
    """Convolution, batch norm and ReLU at stride 2, a few times (Xiao et al. 2021)."""

    def __init__(self, stem: ConvStem, channels: int) -> None:
        layers: list[nn.Module] = []
        for entering, leaving in pairwise((channels, *stem.widths)):
            halve = nn.Conv2d(entering, leaving, 3, stride=2, padding=1, bias=False)  # (B, C', H/2, W/2)
            layers += [halve, nn.BatchNorm2d(leaving), nn.ReLU(inplace=True)]
        super().__init__(*layers)


class ResNetV2(nn.Module):
    """The stem of the paper's hybrids: root convolution and pool, then stages of bottlenecks."""

    def __init__(self, stem: ResNetStem, channels: int) -> None:
        super().__init__()
        width = 64 * stem.width_factor
        self.root = StandardisedConv(stem, channels, width, 7, stride=2)
        self.root_norm = nn.GroupNorm(32, width, stem.norm_eps)
        self.stages = nn.ModuleList()
        entering = width
        for index, count in enumerate(stem.layers):
            inner, stride = width * 2**index, 2 if index else 1  # the first unit of a stage halves the sides
            first = Bottleneck(entering, inner, stride, stem)
            entering = inner * 4
            others = (Bottleneck(entering, inner, 1, stem) for _ in range(count - 1))
            self.stages.append(nn.ModuleList([first, *others]))

    def forward(self, pixels: Tensor) -> Tensor:
        x = F.relu(self.root_norm(self.root(pixels)))  # (B, C', H/2, W/2)
        x = F.max_pool2d(pad_same(x, 3, 2, value=-math.inf), 3, 2)  # (B, C', H/4, W/4)
        for stage in self.stages:
            for unit in stage:  # type: ignore[attr-defined]
                x = unit(x)  # every stage but the first halves the sides
        return x


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 with group norms; the sum is activated, as in Google's code."""

    starts: ClassVar = {"norm3": "zeros"}  # each unit starts as its shortcut (Google)

    def __init__(self, entering: int, inner: int, stride: int, stem: ResNetStem) -> None:
        super().__init__()
        leaving = inner * 4  # as in every ResNet with bottlenecks
        self.conv1 = StandardisedConv(stem, entering, inner, 1)
        self.norm1 = nn.GroupNorm(32, inner, stem.norm_eps)
        self.conv2 = StandardisedConv(stem, inner, inner, 3, stride)
        self.norm2 = nn.GroupNorm(32, inner, stem.norm_eps)
        self.conv3 = StandardisedConv(stem, inner, leaving, 1)
        self.norm3 = nn.GroupNorm(32, leaving, stem.norm_eps)
        self.shortcut: StandardisedConv | None = None
        self.shortcut_norm: nn.GroupNorm | None = None
        if stride != 1 or entering != leaving:
            self.shortcut = StandardisedConv(stem, entering, leaving, 1, stride)
            self.shortcut_norm = nn.GroupNorm(32, leaving, stem.norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        skip = x  # (B, C, h, w)
        if self.shortcut is not None and self.shortcut_norm is not None:
            skip = self.shortcut_norm(self.shortcut(x))  # (B, C', h/stride, w/stride)
        x = F.relu(self.norm1(self.conv1(x)))  # (B, C'/4, h, w)
        x = F.relu(self.norm2(self.conv2(x)))  # (B, C'/4, h/stride, w/stride)
        return F.relu(skip + self.norm3(self.conv3(x)))


class StandardisedConv(nn.Conv2d):
    """A convolution whose filters are brought to mean 0 and deviation 1 before use; SAME padding, no bias."""

    def __init__(self, stem: ResNetStem, entering: int, leaving: int, size: int, stride: int = 1) -> None:
        super().__init__(entering, leaving, size, stride=stride, bias=False)  # weight (leaving, entering, size, size)
        self.eps, self.standardise = stem.weight_eps, stem.standardise

    def standardised(self) -> Tensor:
        """The weight as used, per filter: (w - mean) / (deviation + eps), or (w - mean) / sqrt(variance + eps)."""
        variance, mean = torch.var_mean(self.weight, dim=(1, 2, 3), correction=0, keepdim=True)  # (C', 1, 1, 1)
        if self.standardise == "variance":
            return (self.weight - mean) * torch.rsqrt(variance + self.eps)
        return (self.weight - mean) / (variance.sqrt() + self.eps)

    def forward(self, x: Tensor) -> Tensor:
        x = pad_same(x, self.kernel_size[0], self.stride[0])
        return F.conv2d(x, self.standardised(), None, self.stride)


def pad_same(x: Tensor, size: int, stride: int, value: float = 0.0) -> Tensor:
    """TensorFlow's SAME, for Google's weights: ceil(input / stride) cells; the odd one goes to the right and bottom."""
    down, right = (max((-(-side // stride) - 1) * stride + size - side, 0) for side in (x.shape[-2], x.shape[-1]))
    if down == 0 and right == 0:
        return x
    return F.pad(x, (right // 2, right - right // 2, down // 2, down - down // 2), value=value)
