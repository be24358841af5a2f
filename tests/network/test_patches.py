"""Patches: cut, flattened, projected and put back; every number stays where it belongs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from vitrail.errors import InputError
from vitrail.network import Resample, ViT, ViTConfig, channels_first, patchify, resize_kernel, unpatchify
from vitrail.network.patches import PatchEmbed


def tiny(**changes: Any) -> ViTConfig:
    sizes = {"image_size": (8, 12), "patch_size": 4, "width": 16, "depth": 1, "heads": 4, "mlp_width": 24}
    return ViTConfig(**{**sizes, "classes": 5, **changes})


def by_loop(pixels: torch.Tensor, p: int, q: int) -> torch.Tensor:
    """Every patch cut out by hand, row by row."""
    height, width = pixels.shape[2:]
    cut = [pixels[:, :, y : y + p, x : x + q] for y in range(0, height, p) for x in range(0, width, q)]
    return torch.stack([each.flatten(1) for each in cut], dim=1)


@pytest.mark.row("004.05")
def test_an_image_of_256_has_256_patches_of_16_and_loses_nothing() -> None:
    image = torch.randn(1, 3, 256, 256)
    patches = patchify(image, (16, 16))
    assert patches.shape == (1, 256, 768)
    assert patches.numel() == 196_608
    assert torch.equal(unpatchify(patches, (16, 16), (16, 16)), image)


@pytest.mark.row("004.05", "000.02")
@given(
    grid=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    patch=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    channels=st.integers(1, 5),
    batch=st.integers(1, 3),
    last=st.booleans(),
)
def test_unpatchify_undoes_patchify(
    grid: tuple[int, int], patch: tuple[int, int], channels: int, batch: int, last: bool
) -> None:
    height, width = grid[0] * patch[0], grid[1] * patch[1]
    pixels = torch.arange(batch * channels * height * width).reshape(batch, channels, height, width).float()
    patches = patchify(pixels, patch, channels_last=last)
    assert torch.equal(unpatchify(patches, grid, patch, channels_last=last), pixels)
    if not last:
        assert torch.equal(patches, by_loop(pixels, *patch))


@pytest.mark.row("004.05")
def test_a_bare_reshape_cuts_strips_not_squares() -> None:
    """The known trap E1: on 8x8 with patches of 4, a reshaped "patch" is two whole rows of the image."""
    image = torch.arange(64.0).reshape(1, 1, 8, 8)
    square = patchify(image, (4, 4))[0, 0]
    assert square.tolist() == [float(8 * row + column) for row in range(4) for column in range(4)]
    strip = image.reshape(1, 4, 16)[0, 0]
    assert strip.tolist() == [float(value) for value in range(16)]
    assert not torch.equal(square, strip)


@pytest.mark.row("000.02")
def test_224_pixels_make_196_patches_of_768() -> None:
    config = ViTConfig()
    assert config.grid == (14, 14)
    embed = PatchEmbed(config)
    pixels = torch.randn(1, 3, 224, 224)
    out = embed(pixels)
    assert out.shape == (1, 196, 768)
    last = pixels[0, :, 208:, 208:].flatten() @ embed.projection.weight.flatten(1).T + embed.projection.bias
    torch.testing.assert_close(out[0, 195], last, atol=1e-5, rtol=1e-5)
    with torch.device("meta"):
        assert PatchEmbed(config)(torch.empty(32, 3, 224, 224)).shape == (32, 196, 768)


@pytest.mark.row("000.02", "000.03")
@pytest.mark.parametrize("patch", [(4, 4), (2, 4), (8, 3)])
@pytest.mark.parametrize("channels", [1, 3, 7])
@pytest.mark.parametrize("bias", [True, False])
def test_projection_is_slice_flatten_linear(patch: tuple[int, int], channels: int, bias: bool) -> None:
    embed = PatchEmbed(tiny(patch_size=patch, channels=channels, patch_bias=bias))
    if bias:
        torch.nn.init.normal_(embed.projection.bias)
    pixels = torch.randn(2, channels, 8, 12)
    expected = F.linear(by_loop(pixels, *patch), embed.projection.weight.flatten(1), embed.projection.bias)
    torch.testing.assert_close(embed(pixels), expected, atol=1e-5, rtol=1e-5)
    convolved = F.conv2d(pixels, embed.kernel, embed.projection.bias, stride=patch).flatten(2).transpose(1, 2)
    torch.testing.assert_close(embed(pixels), convolved, atol=1e-5, rtol=1e-5)
    unfolded = F.unfold(pixels, patch, stride=patch).transpose(1, 2)
    assert torch.equal(unfolded, patchify(pixels, patch))


@pytest.mark.row("003.05")
def test_values_in_the_order_row_column_channel_need_the_weights_in_that_order() -> None:
    """`(px py c)` + Linear equals the convolution once the weights are permuted, and only then."""
    embed = PatchEmbed(tiny(patch_size=(4, 2)))
    pixels = torch.randn(2, 3, 8, 12)
    patches = patchify(pixels, (4, 2), channels_last=True)  # (B, N, P*P*C)
    assert torch.equal(patches[0, 0, :3], pixels[0, :, 0, 0])  # channels of one pixel side by side
    weight = embed.kernel.permute(0, 2, 3, 1).flatten(1)
    torch.testing.assert_close(F.linear(patches, weight, embed.projection.bias), embed(pixels), atol=1e-5, rtol=1e-5)
    unordered = F.linear(patches, embed.projection.weight.flatten(1), embed.projection.bias)
    assert (unordered - embed(pixels)).abs().max() > 0.05


@pytest.mark.row("002.07")
def test_channels_last_pixels_by_the_adapter() -> None:
    model = ViT(tiny()).eval()
    torch.nn.init.normal_(model.head.classify.weight)
    pixels = torch.randn(2, 3, 8, 12)
    other = pixels.permute(0, 2, 3, 1).contiguous()  # (B, H, W, C)
    torch.testing.assert_close(model(channels_first(other)), model(pixels), atol=1e-6, rtol=1e-5)
    with pytest.raises(InputError, match="expected pixels .B, 3, H, W., got .2, 8, 12, 3.*channels_first"):
        model(other)
    with pytest.raises(InputError, match="expected pixels .B, H, W, C., got .8, 12, 3."):
        channels_first(other[0])


def test_patches_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="pixels 9x12 do not divide into patches of 4x4"):
        patchify(torch.zeros(1, 3, 9, 12), (4, 4))
    with pytest.raises(InputError, match="5 patches of 48 values do not fill a grid of 2x3 with patches of 4x4"):
        unpatchify(torch.zeros(1, 5, 48), (2, 3), (4, 4))
    with pytest.raises(InputError, match="6 patches of 47 values"):
        unpatchify(torch.zeros(1, 6, 47), (2, 3), (4, 4))


def test_patch_norms_normalise_pixels_then_token() -> None:
    embed = PatchEmbed(tiny(patch_norms=True))
    for parameter in embed.parameters():
        torch.nn.init.normal_(parameter)
    pixels = torch.randn(2, 3, 8, 12) * 5 + 3
    x = by_loop(pixels, 4, 4)
    x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-6).sqrt()
    x = x * embed.norm_before.weight + embed.norm_before.bias
    x = x @ embed.projection.weight.flatten(1).T + embed.projection.bias
    x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-6).sqrt()
    x = x * embed.norm_after.weight + embed.norm_after.bias
    torch.testing.assert_close(embed(pixels), x, atol=2e-5, rtol=1e-4)


POLICIES = [
    Resample(),
    Resample(antialias=False),
    Resample("bilinear"),
    Resample("bilinear", antialias=False, align_corners=True),
]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_resized_kernel_gives_resized_patches_the_same_tokens(policy: Resample) -> None:
    kernel = torch.randn(6, 3, 4, 4)
    patches = torch.randn(5, 3, 4, 4)
    larger = F.interpolate(
        patches, size=(7, 6), mode=policy.mode, align_corners=policy.align_corners, antialias=policy.antialias
    )
    resized = resize_kernel(kernel, (7, 6), policy)
    assert resized.shape == (6, 3, 7, 6)
    torch.testing.assert_close(
        larger.flatten(1) @ resized.flatten(1).T,
        patches.flatten(1) @ kernel.flatten(1).T,
        atol=1e-4,
        rtol=1e-4,
    )
    plain = F.interpolate(kernel, size=(7, 6), mode="bicubic")
    assert (larger.flatten(1) @ plain.flatten(1).T - patches.flatten(1) @ kernel.flatten(1).T).abs().max() > 1


def test_a_kernel_of_the_same_size_is_the_same() -> None:
    kernel = torch.randn(6, 3, 4, 4)
    assert torch.equal(resize_kernel(kernel, (4, 4)), kernel)
    half = resize_kernel(kernel.half(), (8, 8))
    assert half.dtype == torch.float16
    torch.testing.assert_close(half.float(), resize_kernel(kernel, (8, 8)), atol=2e-3, rtol=2e-3)


def test_a_smaller_kernel_is_the_least_squares_one() -> None:
    """Down-sampling loses information, so tokens cannot all be equal; the error is the smallest there is."""
    kernel = torch.randn(1, 1, 6, 6, dtype=torch.float64)
    smaller = resize_kernel(kernel, (3, 3), Resample("bilinear", antialias=False))
    basis = torch.eye(36, dtype=torch.float64).reshape(36, 1, 6, 6)
    matrix = F.interpolate(basis, size=(3, 3), mode="bilinear").flatten(1)  # every old value's share in the new
    best = torch.linalg.lstsq(matrix, kernel.flatten()[:, None]).solution
    torch.testing.assert_close(smaller.flatten(), best[:, 0])
