"""pixels (B, C, H, W) -> feature map (B, C', H/r, W/r): what may stand before the patches."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrail.checks import check_choice
from vitrail.network.config import STANDARDISATIONS, ConvStem, ResNetStem


def build_stem(stem: ConvStem | ResNetStem, channels: int) -> nn.Module:
    """The module that a stem's description asks for."""
    return EarlyConvolutions(stem, channels) if isinstance(stem, ConvStem) else ResNetV2(stem, channels)


class EarlyConvolutions(nn.Sequential):
    """Convolution, batch norm and ReLU at stride 2, a few times (Xiao et al. 2021)."""

    def __init__(self, stem: ConvStem, channels: int) -> None:
        layers: list[nn.Module] = []
        for width in stem.widths:
            layers += [
                nn.Conv2d(channels, width, 3, stride=2, padding=1, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(inplace=True),
            ]
            channels = width
        super().__init__(*layers)


class ResNetV2(nn.Module):
    """The stem of the paper's hybrids: root convolution and pool, then stages of bottlenecks.

    Padding is SAME in TensorFlow's sense, uneven where it must be: Google's weights need it.
    """

    def __init__(self, stem: ResNetStem, channels: int) -> None:
        super().__init__()
        width = 64 * stem.width_factor
        self.root = StandardisedConv.of_stem(stem, channels, width, 7, stride=2)
        self.root_norm = nn.GroupNorm(32, width, stem.norm_eps)
        self.stages = nn.ModuleList()
        entering = width
        for index, count in enumerate(stem.layers):
            inner = width * 2**index
            units = nn.ModuleList()
            for unit in range(count):
                stride = 2 if unit == 0 and index > 0 else 1
                units.append(Bottleneck(entering, inner, stride, stem))
                entering = inner * 4
            self.stages.append(units)

    def forward(self, pixels: Tensor) -> Tensor:
        x = F.relu(self.root_norm(self.root(pixels)))  # (B, C', H/2, W/2)
        x = F.max_pool2d(pad_same(x, 3, 2, value=-math.inf), 3, 2)  # (B, C', H/4, W/4)
        for stage in self.stages:
            for unit in stage:  # type: ignore[attr-defined]
                x = unit(x)
        return x


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 with group norms; the sum is activated, as in Google's code."""

    def __init__(self, entering: int, inner: int, stride: int, stem: ResNetStem) -> None:
        super().__init__()
        leaving = inner * 4
        self.conv1 = StandardisedConv.of_stem(stem, entering, inner, 1)
        self.norm1 = nn.GroupNorm(32, inner, stem.norm_eps)
        self.conv2 = StandardisedConv.of_stem(stem, inner, inner, 3, stride)
        self.norm2 = nn.GroupNorm(32, inner, stem.norm_eps)
        self.conv3 = StandardisedConv.of_stem(stem, inner, leaving, 1)
        self.norm3 = nn.GroupNorm(32, leaving, stem.norm_eps)
        self.shortcut: StandardisedConv | None = None
        self.shortcut_norm: nn.GroupNorm | None = None
        if stride != 1 or entering != leaving:
            self.shortcut = StandardisedConv.of_stem(stem, entering, leaving, 1, stride)
            self.shortcut_norm = nn.GroupNorm(32, leaving, stem.norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        skip = x
        if self.shortcut is not None and self.shortcut_norm is not None:
            skip = self.shortcut_norm(self.shortcut(x))
        x = F.relu(self.norm1(self.conv1(x)))
        x = F.relu(self.norm2(self.conv2(x)))
        return F.relu(skip + self.norm3(self.conv3(x)))


class StandardisedConv(nn.Conv2d):
    """A convolution whose filters are brought to mean 0 and deviation 1 before use; SAME padding, no bias."""

    def __init__(
        self,
        entering: int,
        leaving: int,
        size: int,
        stride: int = 1,
        eps: float = 1e-5,
        standardise: str = "deviation",
    ) -> None:
        super().__init__(entering, leaving, size, stride=stride, bias=False)
        self.eps, self.standardise = eps, check_choice("standardise", standardise, STANDARDISATIONS)

    @classmethod
    def of_stem(cls, stem: ResNetStem, entering: int, leaving: int, size: int, stride: int = 1) -> StandardisedConv:
        """A convolution that standardises its filters as the stem asks for."""
        return cls(entering, leaving, size, stride, stem.weight_eps, stem.standardise)

    def standardised(self) -> Tensor:
        """The weight as used, per filter: (w - mean) / (deviation + eps), or (w - mean) / sqrt(variance + eps)."""
        variance, mean = torch.var_mean(self.weight, dim=(1, 2, 3), correction=0, keepdim=True)
        if self.standardise == "variance":
            return (self.weight - mean) * torch.rsqrt(variance + self.eps)
        return (self.weight - mean) / (variance.sqrt() + self.eps)

    def forward(self, x: Tensor) -> Tensor:
        x = pad_same(x, self.kernel_size[0], self.stride[0])
        return F.conv2d(x, self.standardised(), None, self.stride)


def pad_same(x: Tensor, size: int, stride: int, value: float = 0.0) -> Tensor:
    """Pad so that the output has ceil(input / stride) cells; the odd cell goes to the right and the bottom."""
    down, right = (max((-(-side // stride) - 1) * stride + size - side, 0) for side in (x.shape[-2], x.shape[-1]))
    if down == 0 and right == 0:
        return x
    return F.pad(x, (right // 2, right - right // 2, down // 2, down - down // 2), value=value)
