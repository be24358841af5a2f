"""Stems: early convolutions, and the ResNetV2 of the hybrids with its padding and standardised filters."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from network import renames
from vitrail.errors import ConfigError
from vitrail.insight.cost import count_parameters
from vitrail.network import ConvStem, ResNetStem, ViT, ViTConfig
from vitrail.network.presets import preset
from vitrail.network.stem import EarlyConvolutions, ResNetV2, StandardisedConv, pad_same
from vitrail.network.surgery import build_empty

SMALL: dict[str, Any] = {"width": 32, "depth": 1, "heads": 2, "mlp_width": 64, "classes": 5}


# ---- the ResNetV2 ------------------------------------------------------------------------------------------------


@pytest.mark.row("001.03")
def test_the_r50_stem_is_exact() -> None:
    """3, 4 and 9 bottlenecks: 1024 channels at a sixteenth, 11,894,848 parameters."""
    stem = ResNetStem((3, 4, 9))
    assert (stem.channels, stem.reduction) == (1024, 16)
    with torch.device("meta"):
        module = ResNetV2(stem, channels=3)
        assert module(torch.empty(2, 3, 224, 224)).shape == (2, 1024, 14, 14)
    assert count_parameters(module) == 11_894_848


@pytest.mark.row("001.03")
def test_the_parameters_by_hand() -> None:
    """Root 7x7; a unit has 1x1, 3x3 and 1x1, three norms; the first of a stage a 1x1 and a norm beside them."""
    total, entering = 7 * 7 * 3 * 64 + 2 * 64, 64
    for index, units in enumerate((3, 4, 9)):
        inner = 64 * 2**index
        for unit in range(units):
            total += entering * inner + 9 * inner**2 + 4 * inner**2 + 2 * (inner + inner + 4 * inner)
            if unit == 0:
                total += entering * 4 * inner + 2 * 4 * inner
            entering = 4 * inner
    assert total == 11_894_848


@pytest.mark.row("001.02")
def test_plain_and_hybrid_give_the_same_grid() -> None:
    """224 pixels are 196 patches both ways; a patch of the hybrid is a single cell of its feature map."""
    plain, hybrid = preset("vit-b16"), preset("r50-vit-b16")
    assert (plain.grid, hybrid.grid) == ((14, 14), (14, 14))
    assert (plain.tokens, hybrid.tokens) == (197, 197)
    assert (plain.patch_size, hybrid.patch_size) == ((16, 16), (1, 1))
    assert (plain.cell, hybrid.cell) == ((16, 16), (16, 16))
    with torch.device("meta"):
        pixels = torch.empty(1, 3, 224, 224)
    for config in (plain, hybrid):
        model = build_empty(config).eval()
        x = pixels if model.stem is None else model.stem(pixels)
        assert model.patches(x).shape == (1, 196, 768)


@pytest.mark.row("001.02")
@pytest.mark.parametrize("size", [160, 448, 512])
def test_hybrids_run_at_sizes_where_a_derived_patch_fails(size: int) -> None:
    """Trap E26: the patch is one cell always, never computed from the image size."""
    model = build_empty(preset("r50-vit-b16", depth=1)).eval()
    with torch.device("meta"):
        assert model(torch.empty(1, 3, size, size)).shape == (1, 1000)


@pytest.mark.row("P.4")
@pytest.mark.parametrize(
    "name, layers, reduction, patch, tokens",
    [
        ("r50-vit-b16", (3, 4, 9), 16, 1, 196),
        ("r50-vit-b32", (3, 4, 6, 3), 32, 1, 49),
        ("r50-vit-l32", (3, 4, 6, 3), 32, 1, 49),
        ("r26-vit-s32", (2, 2, 2, 2), 32, 1, 49),
        ("r-vit-ti16", (), 4, 8, 49),
    ],
)
def test_hybrids_and_their_tokens(name: str, layers: tuple[int, ...], reduction: int, patch: int, tokens: int) -> None:
    config = preset(name)
    assert isinstance(config.stem, ResNetStem)
    assert (config.stem.layers, config.stem.reduction) == (layers, reduction)
    assert config.patch_size == (patch, patch)
    assert config.grid[0] * config.grid[1] == tokens
    model = build_empty(config).eval()
    with torch.device("meta"):
        assert model.features(torch.empty(1, 3, 224, 224)).patches.shape == (1, tokens, config.width)
        wide = model.features(torch.empty(1, 3, 160, 288))
    assert wide.grid == (160 // config.cell[0], 288 // config.cell[1])


@pytest.mark.row("P.4")
def test_width_factor_widens_the_stem() -> None:
    assert ResNetStem((3, 4, 9), width_factor=2).channels == 2048
    with torch.device("meta"):
        module = ResNetV2(ResNetStem((1, 1), width_factor=2), channels=3)
        assert module(torch.empty(1, 3, 32, 32)).shape == (1, 1024, 4, 4)


def unit_by_hand(x: Tensor, unit: Any, eps: float) -> Tensor:
    """A bottleneck from standard parts: explicit padding, explicit standardisation, explicit group norm."""

    def conv(x: Tensor, layer: Any) -> Tensor:
        return same_conv(x, standardised(layer.weight, 1e-5), layer.stride[0])

    skip = x if unit.shortcut is None else group_norm(conv(x, unit.shortcut), unit.shortcut_norm, eps)
    y = group_norm(conv(x, unit.conv1), unit.norm1, eps).clamp(min=0)
    y = group_norm(conv(y, unit.conv2), unit.norm2, eps).clamp(min=0)
    return (skip + group_norm(conv(y, unit.conv3), unit.norm3, eps)).clamp(min=0)


def standardised(weight: Tensor, eps: float) -> Tensor:
    """Google's formula, in numpy: (w - mean) / (deviation + eps) over all but the outputs."""
    w = weight.detach().double().numpy()
    w = w - w.mean(axis=(1, 2, 3), keepdims=True)
    w = w / (w.std(axis=(1, 2, 3), keepdims=True) + eps)
    return torch.from_numpy(w)


def same_conv(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """SAME as TensorFlow documents it: out = ceil(in / stride), the odd cell after."""
    pads: list[int] = []
    for side in (x.shape[3], x.shape[2]):  # F.pad wants the last axis first
        size = weight.shape[-1]
        whole = (side // stride if side % stride == 0 else side // stride + 1) * stride
        total = max(size - stride, 0) if side % stride == 0 else max(size - side % stride, 0)
        assert (side + total - size) // stride + 1 == whole // stride
        pads += [total // 2, total - total // 2]
    return F.conv2d(F.pad(x, pads), weight, stride=stride)


def group_norm(x: Tensor, norm: nn.GroupNorm, eps: float) -> Tensor:
    b, c, h, w = x.shape
    groups = x.reshape(b, 32, -1)
    mean, var = groups.mean(dim=2, keepdim=True), groups.var(dim=2, keepdim=True, correction=0)
    normed = ((groups - mean) / (var + eps).sqrt()).reshape(b, c, h, w)
    return normed * norm.weight.double()[:, None, None] + norm.bias.double()[:, None, None]


@pytest.mark.row("001.03")
@pytest.mark.parametrize("size", [(64, 48), (33, 50)])
def test_the_whole_stem_against_a_recomputation(size: tuple[int, int]) -> None:
    """In float64 from the formulas: Google's eps of 1e-6 in the norms and 1e-5 in the filters, sums activated."""
    module = ResNetV2(ResNetStem((1, 2)), channels=3).eval()
    renames.randomise(module)
    pixels = torch.randn(2, 3, *size)
    x = same_conv(pixels.double(), standardised(module.root.weight, 1e-5), 2)
    x = group_norm(x, module.root_norm, 1e-6).clamp(min=0)
    height, width = x.shape[2:]
    pooled = torch.stack(  # 3x3 of stride 2; even sides reach one past the end, odd ones one before the start too
        [
            torch.stack(
                [
                    x[..., max(r - height % 2, 0) : r - height % 2 + 3, max(c - width % 2, 0) : c - width % 2 + 3]
                    .flatten(2)
                    .max(dim=2)
                    .values
                    for c in range(0, width, 2)
                ],
                dim=-1,
            )
            for r in range(0, height, 2)
        ],
        dim=-2,
    )
    x = pooled
    for stage in module.stages:
        for unit in stage:
            x = unit_by_hand(x, unit, 1e-6)
    with torch.no_grad():
        assert renames.gap(module(pixels).double(), x) < 1e-5


def test_every_norm_of_a_stem_takes_its_eps() -> None:
    stem = ResNetV2(ResNetStem((1, 1), norm_eps=0.25), channels=3)
    norms = [module for module in stem.modules() if isinstance(module, nn.GroupNorm)]
    assert len(norms) == 1 + 2 * 4
    assert {(norm.eps, norm.num_groups) for norm in norms} == {(0.25, 32)}


@pytest.mark.row("001.04")
def test_filters_have_mean_0_and_variance_1_when_used() -> None:
    conv = StandardisedConv(ResNetStem(), 24, 8, 3)
    nn.init.normal_(conv.weight, mean=3.0, std=0.5)
    used = conv.standardised().detach()
    assert used.mean(dim=(1, 2, 3)).abs().max() < 1e-5
    assert (used.var(dim=(1, 2, 3), correction=0) - 1).abs().max() < 1e-4  # the eps takes 2 * 1e-5 / 0.5
    assert (used - standardised(conv.weight, 1e-5)).abs().max() < 1e-5


@pytest.mark.row("001.04")
@pytest.mark.parametrize("deviation", [1.0, 1e-3, 1e-5])
def test_filters_by_deviation_and_by_variance(deviation: float) -> None:
    """Both formulas in float64; they part where the filters are small, and a filter of one value gives zeros."""
    weight = deviation * (0.5 + torch.randn(6, 4, 3, 3))
    weight[0] = deviation  # nothing to standardise
    w = weight.double()
    centred, variance = w - w.mean((1, 2, 3), keepdim=True), w.var((1, 2, 3), correction=0, keepdim=True)
    by_deviation = StandardisedConv(ResNetStem(weight_eps=1e-5), 4, 6, 3)
    by_variance = StandardisedConv(ResNetStem(weight_eps=1e-8, standardise="variance"), 4, 6, 3)
    for conv, expected in (
        (by_deviation, centred / (variance.sqrt() + 1e-5)),
        (by_variance, centred / (variance + 1e-8).sqrt()),
    ):
        conv.weight.data.copy_(weight)
        assert (conv.standardised().detach() - expected).abs().max() < 1e-5
        assert conv.standardised()[0].abs().max() < 1e-5
    apart = (by_deviation.standardised() - by_variance.standardised()).abs().max()
    assert (apart > 1e-2) == (deviation < 1.0)


@pytest.mark.row("001.04")
def test_a_stem_standardises_all_its_filters_one_way() -> None:
    stem = ResNetStem((1, 1), norm_eps=1e-5, weight_eps=1e-8, standardise="variance")
    with torch.device("meta"):
        convs = [each for each in ResNetV2(stem, channels=3).modules() if isinstance(each, StandardisedConv)]
    assert len(convs) == 1 + 2 * 4
    assert {(each.eps, each.standardise) for each in convs} == {(1e-8, "variance")}
    config = ViTConfig(image_size=32, patch_size=1, stem=stem, **SMALL)
    assert ViTConfig.from_dict(config.to_dict()) == config
    older = config.to_dict()
    del older["stem"]["standardise"]  # a file from before the setting: Google's form
    assert ViTConfig.from_dict(older).stem == ResNetStem((1, 1), norm_eps=1e-5, weight_eps=1e-8)
    with pytest.raises(ConfigError, match="resnet stem standardise 'std' is unknown: expected one of"):
        ResNetStem(standardise="std")


@pytest.mark.row("001.04")
@pytest.mark.parametrize("size, stride", [(1, 1), (3, 1), (3, 2), (7, 2), (1, 2)])
def test_a_standardised_convolution_against_loops(size: int, stride: int) -> None:
    """Every output cell summed by hand, with zeros outside; odd and even sides."""
    conv = StandardisedConv(ResNetStem(), 2, 3, size, stride)
    x = torch.randn(1, 2, 7, 10)
    weight = standardised(conv.weight, 1e-5).numpy()
    out = conv(x).detach()[0]
    rows, columns = -(-7 // stride), -(-10 // stride)
    assert out.shape == (3, rows, columns)
    top = max((rows - 1) * stride + size - 7, 0) // 2
    left = max((columns - 1) * stride + size - 10, 0) // 2
    image = x[0].numpy()
    for row, column in product(range(rows), range(columns)):
        total = np.zeros(3)
        for i, j in product(range(size), range(size)):
            y, z = row * stride + i - top, column * stride + j - left
            if 0 <= y < 7 and 0 <= z < 10:
                total += weight[:, :, i, j] @ image[:, y, z]
        assert out[:, row, column].numpy() == pytest.approx(total, abs=1e-4)


@pytest.mark.row("001.03")
def test_padding_is_uneven_where_it_must_be() -> None:
    """Trap E27: 7x7 of stride 2 on 224 pads 2 before and 3 after, the pool 0 before and 1 after: 112, then 56."""
    ones = torch.ones(1, 1, 224, 224)
    padded = pad_same(ones, 7, 2)
    assert padded.shape[-2:] == (229, 229)
    assert (padded[0, 0, 100] == 0).nonzero().flatten().tolist() == [0, 1, 226, 227, 228]
    pooled = pad_same(torch.ones(1, 1, 112, 112), 3, 2, value=-torch.inf)
    assert pooled.shape[-2:] == (113, 113)
    assert pooled[0, 0, 50].isinf().nonzero().flatten().tolist() == [112]
    assert pad_same(ones, 1, 2) is ones  # nothing to add


# ---- early convolutions ------------------------------------------------------------------------------------------


@pytest.mark.row("P.4")
def test_early_convolutions_halve_the_image_each() -> None:
    stem = ConvStem((8, 16, 24))
    assert (stem.reduction, stem.channels) == (8, 24)
    config = ViTConfig(image_size=(32, 48), patch_size=1, stem=stem, **SMALL)
    assert (config.grid, config.cell) == ((4, 6), (8, 8))
    model = ViT(config).eval()
    renames.randomise(model)
    pixels = torch.randn(2, 3, 32, 48)
    assert model.stem is not None
    assert model.stem(pixels).shape == (2, 24, 4, 6)
    assert model(pixels).shape == (2, 5)
    assert model(torch.randn(1, 3, 64, 16)).shape == (1, 5)
    by_hand = 9 * (3 * 8 + 8 * 16 + 16 * 24) + 2 * (8 + 16 + 24)
    assert count_parameters(model.stem) == by_hand


def test_early_convolutions_against_plain_layers() -> None:
    """3x3 of stride 2 with a border of one, batch norm by its running statistics, ReLU."""
    stem = EarlyConvolutions(ConvStem((4, 8)), channels=3).eval()
    renames.randomise(stem)
    for module in stem.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2.0)
    pixels = torch.randn(2, 3, 16, 24)
    x = pixels.double()
    layers = list(stem)
    for conv, norm in zip(layers[0::3], layers[1::3], strict=True):
        x = F.conv2d(F.pad(x, (1, 1, 1, 1)), conv.weight.double(), stride=2)
        mean, var = (each.double()[:, None, None] for each in (norm.running_mean, norm.running_var))
        x = (x - mean) / (var + norm.eps).sqrt()
        x = (x * norm.weight.double()[:, None, None] + norm.bias.double()[:, None, None]).clamp(min=0)
    with torch.no_grad():
        assert renames.gap(stem(pixels).double(), x) < 1e-5


def test_an_image_that_does_not_divide_after_the_stem_is_refused() -> None:
    with pytest.raises(ConfigError, match="image 40x32 does not divide into patches of 16x16 pixels"):
        ViTConfig(image_size=(40, 32), patch_size=2, stem=ConvStem((8, 16, 24)), **SMALL)
