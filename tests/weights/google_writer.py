"""Google's npz files written from plain arrays, and the same networks computed with numpy in float64.

Nothing here knows our tables: names, layouts and arithmetic follow the flax code of vit_jax and big_vision. A network
is a dict of arrays under big_vision's names without a prefix; the functions below spell it in every other way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

Array = np.ndarray
Arrays = dict[str, Array]


@dataclass(frozen=True)
class Network:
    """What to draw and how to compute it."""

    patch: int = 8  # in cells of the ResNet's output where there is one
    grid: int = 4
    channels: int = 3
    width: int = 64
    depth: int = 2
    heads: int = 4
    head_width: int = 16
    mlp: int = 96
    classes: int = 7  # 0: no head
    representation: int = 0
    pool: str = "tok"  # tok, gap or map
    slot: bool = True  # the table has a place for cls
    sincos: bool = False
    resnet: tuple[int, ...] | None = None  # units per stage


# ---- arrays ------------------------------------------------------------------------------------------------------


def draw(network: Network, seed: int = 0) -> Arrays:
    """Random arrays under big_vision's names: no zeros, no ones."""
    random = np.random.default_rng(seed)
    width, inside = network.width, network.channels
    arrays: Arrays = {}

    def put(name: str, *shape: int, centre: float = 0.0, spread: float = 0.3) -> None:
        arrays[name] = (centre + spread * random.standard_normal(shape)).astype(np.float32)

    def norm(name: str, size: int, *ones: int) -> None:
        put(f"{name}/scale", *ones, size, centre=1.0)
        put(f"{name}/bias", *ones, size)

    def dense(name: str, entering: int, leaving: int) -> None:
        put(f"{name}/kernel", entering, leaving, spread=1.5 / entering**0.5)
        put(f"{name}/bias", leaving)

    def attention(name: str) -> None:
        heads, each = network.heads, network.head_width
        for part in ("query", "key", "value"):
            put(f"{name}/{part}/kernel", width, heads, each, spread=1.5 / width**0.5)
            put(f"{name}/{part}/bias", heads, each)
        put(f"{name}/out/kernel", heads, each, width, spread=1.5 / (heads * each) ** 0.5)
        put(f"{name}/out/bias", width)

    def mlp(name: str) -> None:
        dense(f"{name}/Dense_0", width, network.mlp)
        dense(f"{name}/Dense_1", network.mlp, width)

    def convolution(name: str, size: int, entering: int, leaving: int) -> None:
        put(f"{name}/kernel", size, size, entering, leaving, spread=0.1)

    if network.resnet is not None:
        convolution("conv_root", 7, inside, 64)
        norm("gn_root", 64, 1, 1, 1)
        inside = 64
        for stage, units in enumerate(network.resnet):
            middle = 64 * 2**stage
            for unit in range(units):
                name = f"block{stage + 1}/unit{unit + 1}"
                if unit == 0:
                    convolution(f"{name}/conv_proj", 1, inside, 4 * middle)
                    norm(f"{name}/gn_proj", 4 * middle, 1, 1, 1)
                for number, size, leaving in ((1, 1, middle), (2, 3, middle), (3, 1, 4 * middle)):
                    convolution(f"{name}/conv{number}", size, inside, leaving)
                    norm(f"{name}/gn{number}", leaving, 1, 1, 1)
                    inside = leaving
    values = network.patch**2 * inside
    put("embedding/kernel", network.patch, network.patch, inside, width, spread=1.5 / values**0.5)
    put("embedding/bias", width)
    if network.pool == "tok":
        put("cls", 1, 1, width, spread=0.7)
    if not network.sincos:
        places = network.grid**2 + (1 if network.pool == "tok" and network.slot else 0)
        put("pos_embedding", 1, places, width, spread=0.7)
    for block in range(network.depth):
        name = f"Transformer/encoderblock_{block}"
        norm(f"{name}/LayerNorm_0", width)
        attention(f"{name}/MultiHeadDotProductAttention_0")
        norm(f"{name}/LayerNorm_1", width)
        mlp(f"{name}/MlpBlock_0")
    norm("Transformer/encoder_norm", width)
    if network.pool == "map":
        put("MAPHead_0/probe", 1, 1, width, spread=0.7)
        attention("MAPHead_0/MultiHeadDotProductAttention_0")
        norm("MAPHead_0/LayerNorm_0", width)
        mlp("MAPHead_0/MlpBlock_0")
    if network.representation:
        dense("pre_logits", width, network.representation)
    if network.classes:
        dense("head", network.representation or width, network.classes)
    return arrays


# ---- other spellings ---------------------------------------------------------------------------------------------


def vit_jax(arrays: Arrays) -> Arrays:
    """As the published files: one count for all layers of a block, the table in a layer of its own."""
    numbers = {"MultiHeadDotProductAttention_0": "MultiHeadDotProductAttention_1", "LayerNorm_1": "LayerNorm_2"}
    found: Arrays = {}
    for name, value in arrays.items():
        parts = name.split("/")
        if len(parts) > 2 and parts[1].startswith("encoderblock_"):
            parts[2] = {**numbers, "MlpBlock_0": "MlpBlock_3"}.get(parts[2], parts[2])
        found["/".join(parts)] = value
    found["Transformer/posembed_input/pos_embedding"] = found.pop("pos_embedding")
    return found


def positions_in_encoder(arrays: Arrays) -> Arrays:
    """As big_vision before 2022."""
    return {("Transformer/" if name == "pos_embedding" else "") + name: value for name, value in arrays.items()}


def map_head_at_top(arrays: Arrays) -> Arrays:
    """As big_vision while ViT-G was made."""
    return {name.removeprefix("MAPHead_0/"): value for name, value in arrays.items()}


def stacked(arrays: Arrays) -> Arrays:
    """Blocks in one array each, as nn.scan has them."""
    first = "Transformer/encoderblock_0/"
    depth = sum(name.endswith("LayerNorm_0/scale") and "encoderblock_" in name for name in arrays)
    found = {name: value for name, value in arrays.items() if "encoderblock_" not in name}
    for name in arrays:
        if name.startswith(first):
            rest = name.removeprefix(first)
            blocks = [arrays[f"Transformer/encoderblock_{block}/{rest}"] for block in range(depth)]
            found[f"Transformer/encoderblock/{rest}"] = np.stack(blocks)
    return found


def naflex(arrays: Arrays, grid: int) -> Arrays:
    """Patches as rows of values, the table as a grid."""
    kernel, table = arrays["embedding/kernel"], arrays["pos_embedding"]
    width = kernel.shape[-1]
    return arrays | {
        "embedding/kernel": kernel.reshape(-1, width),
        "pos_embedding": table.reshape(grid, grid, width),
    }


def prefixed(arrays: Arrays, before: str) -> Arrays:
    return {before + name: value for name, value in arrays.items()}


def save(path: Path, arrays: Arrays) -> Path:
    """Write an .npz as numpy does."""
    np.savez(path, **arrays)
    return path


def bfloat16(arrays: Arrays) -> Arrays:
    """The upper halves of float32, as blanks of two bytes: what numpy makes of jax's bfloat16."""
    return {name: (value.view(np.uint32) >> 16).astype(np.uint16).view("V2") for name, value in arrays.items()}


# ---- the network in float64 --------------------------------------------------------------------------------------


def forward(network: Network, arrays: Arrays, pixels: Array, resize: str = "zoom") -> Array:
    """Logits (B, K) of pixels (B, C, H, W); the table is resized to their grid."""
    weights = {name: value.astype(np.float64) for name, value in arrays.items()}
    x = pixels.astype(np.float64).transpose(0, 2, 3, 1)  # channels last
    if network.resnet is not None:
        x = _resnet(network.resnet, weights, x)
    count, height, width, channels = x.shape
    patch = network.patch
    grid = (height // patch, width // patch)
    cells = x.reshape(count, grid[0], patch, grid[1], patch, channels)
    x = np.einsum("bhpwqc,pqcd->bhwd", cells, weights["embedding/kernel"]) + weights["embedding/bias"]
    x = x.reshape(count, grid[0] * grid[1], -1)
    if network.sincos:
        table, slot = _sincos(grid, network.width), np.zeros(network.width)
    else:
        places = weights["pos_embedding"][0]
        slots = len(places) - network.grid**2
        slot = places[:slots].sum(axis=0)
        square = places[slots:].reshape(network.grid, network.grid, -1)
        table = {"zoom": zoom, "triangle": triangle}[resize](square, grid).reshape(grid[0] * grid[1], -1)
    x = x + table
    if network.pool == "tok":
        cls = np.broadcast_to(weights["cls"] + slot, (count, 1, network.width))
        x = np.concatenate([cls, x], axis=1)
    for block in range(network.depth):
        name = f"Transformer/encoderblock_{block}"
        y = _norm(x, weights, f"{name}/LayerNorm_0")
        x = x + _attention(y, y, weights, f"{name}/MultiHeadDotProductAttention_0")
        x = x + _mlp(_norm(x, weights, f"{name}/LayerNorm_1"), weights, f"{name}/MlpBlock_0")
    x = _norm(x, weights, "Transformer/encoder_norm")
    if network.pool == "map":
        probe = np.broadcast_to(weights["MAPHead_0/probe"], (count, 1, network.width))
        x = _attention(probe, x, weights, "MAPHead_0/MultiHeadDotProductAttention_0")
        x = x + _mlp(_norm(x, weights, "MAPHead_0/LayerNorm_0"), weights, "MAPHead_0/MlpBlock_0")
    x = x.mean(axis=1) if network.pool == "gap" else x[:, 0]
    if network.representation:
        x = np.tanh(_dense(x, weights, "pre_logits"))
    return _dense(x, weights, "head") if network.classes else x


def zoom(grid: Array, size: tuple[int, int]) -> Array:
    """scipy.ndimage.zoom of order 1: ends lie on ends, values between are mixed linearly."""
    for axis, new in enumerate(size):
        old = grid.shape[axis]
        at = np.arange(new) * ((old - 1) / (new - 1) if new > 1 else 0.0)
        low = np.minimum(np.floor(at).astype(int), old - 1)
        high = np.minimum(low + 1, old - 1)
        share = (at - low).reshape([-1 if each == axis else 1 for each in range(grid.ndim)])
        grid = grid.take(low, axis) * (1 - share) + grid.take(high, axis) * share
    return grid


def triangle(grid: Array, size: tuple[int, int]) -> Array:
    """jax.image.resize "bilinear" with antialias: a triangle as wide as what one new place covers."""
    for axis, new in enumerate(size):
        old = grid.shape[axis]
        reach = max(old / new, 1.0)
        centre = (np.arange(new) + 0.5) * (old / new) - 0.5
        share = np.maximum(0.0, 1 - np.abs(centre[:, None] - np.arange(old)) / reach)  # (new, old)
        share /= share.sum(axis=1, keepdims=True)
        grid = np.moveaxis(np.tensordot(share, grid, (1, axis)), 0, axis)
    return grid


def _sincos(grid: tuple[int, int], width: int) -> Array:
    quarter = width // 4
    omega = 1.0 / 10_000.0 ** (np.arange(quarter) / (quarter - 1))
    row, column = np.mgrid[: grid[0], : grid[1]]
    y, x = row.reshape(-1, 1) * omega, column.reshape(-1, 1) * omega
    return np.concatenate([np.sin(x), np.cos(x), np.sin(y), np.cos(y)], axis=1)


def _norm(x: Array, weights: Arrays, name: str) -> Array:
    mean = x.mean(axis=-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-6) * weights[f"{name}/scale"] + weights[f"{name}/bias"]


def _dense(x: Array, weights: Arrays, name: str) -> Array:
    return x @ weights[f"{name}/kernel"] + weights[f"{name}/bias"]


def _attention(x: Array, context: Array, weights: Arrays, name: str) -> Array:
    """Each head by itself, straight from its own slice of the kernels."""
    heads = weights[f"{name}/query/kernel"].shape[1]
    total = weights[f"{name}/out/bias"]
    for head in range(heads):
        query, key, value = (
            source @ weights[f"{name}/{part}/kernel"][:, head] + weights[f"{name}/{part}/bias"][head]
            for part, source in (("query", x), ("key", context), ("value", context))
        )
        scores = query @ key.transpose(0, 2, 1) / query.shape[-1] ** 0.5
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        scores /= scores.sum(axis=-1, keepdims=True)
        total = total + scores @ value @ weights[f"{name}/out/kernel"][head]
    return total


def _mlp(x: Array, weights: Arrays, name: str) -> Array:
    x = _dense(x, weights, f"{name}/Dense_0")
    x = 0.5 * x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))
    return _dense(x, weights, f"{name}/Dense_1")


def _resnet(layers: Iterable[int], weights: Arrays, x: Array) -> Array:
    x = np.maximum(_groups(_convolve(x, weights, "conv_root", 2), weights, "gn_root"), 0)
    x = _windows(x, 3, 2, -np.inf).max(axis=(-2, -1))
    for stage, units in enumerate(layers):
        for unit in range(units):
            name, stride = f"block{stage + 1}/unit{unit + 1}", 2 if stage > 0 and unit == 0 else 1
            skip = x
            if f"{name}/conv_proj/kernel" in weights:
                skip = _groups(_convolve(x, weights, f"{name}/conv_proj", stride), weights, f"{name}/gn_proj")
            y = np.maximum(_groups(_convolve(x, weights, f"{name}/conv1", 1), weights, f"{name}/gn1"), 0)
            y = np.maximum(_groups(_convolve(y, weights, f"{name}/conv2", stride), weights, f"{name}/gn2"), 0)
            y = _groups(_convolve(y, weights, f"{name}/conv3", 1), weights, f"{name}/gn3")
            x = np.maximum(skip + y, 0)
    return x


def _windows(x: Array, size: int, stride: int, fill: float) -> Array:
    """SAME padding, the odd cell at the end; (B, h, w, C, size, size)."""
    pads = []
    for side in x.shape[1:3]:
        total = max((-(-side // stride) - 1) * stride + size - side, 0)
        pads.append((total // 2, total - total // 2))
    x = np.pad(x, ((0, 0), *pads, (0, 0)), constant_values=fill)
    return sliding_window_view(x, (size, size), axis=(1, 2))[:, ::stride, ::stride]


def _convolve(x: Array, weights: Arrays, name: str, stride: int) -> Array:
    """A convolution whose filters have mean 0 and deviation 1."""
    kernel = weights[f"{name}/kernel"]
    kernel = kernel - kernel.mean(axis=(0, 1, 2))
    kernel = kernel / (kernel.std(axis=(0, 1, 2)) + 1e-5)
    windows = _windows(x, kernel.shape[0], stride, 0.0)
    return np.tensordot(windows, kernel.transpose(2, 0, 1, 3), 3)


def _groups(x: Array, weights: Arrays, name: str) -> Array:
    """Group norm with 32 groups."""
    count, height, width, channels = x.shape
    parts = x.reshape(count, height * width, 32, channels // 32)
    mean, variance = parts.mean(axis=(1, 3), keepdims=True), parts.var(axis=(1, 3), keepdims=True)
    x = ((parts - mean) / np.sqrt(variance + 1e-6)).reshape(x.shape)
    return x * weights[f"{name}/scale"].reshape(-1) + weights[f"{name}/bias"].reshape(-1)
