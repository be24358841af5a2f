"""The encoder of a packed network, and its whole way from pixels to tokens as a program, where the network is plain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.modules import module

from vitrail.network.attention import Attention
from vitrail.network.encoder import Block, Encoder, Passed, Tape
from vitrail.network.positions import Grid, RotaryPositions
from vitrail.network.tokens import Place
from vitrail.network.vit import Encoded, ViT
from vitrail.shipping.fusing import Kernel, fused
from vitrail.shipping.gathering import suits
from vitrail.shipping.kernels import FUSED
from vitrail.shipping.layers import MIDDLE, ByteLinear, PackedLinear, PackedMlp, PackedPatches, refuse_gradients
from vitrail.shipping.program import Norm, Product, Program, Run, Step, compiled, name_of

GRIDS = 16  # whose positions are kept
WAYS = 256  # sizes of batches and pictures whose kernels are


class PackedEncoder(Encoder):
    """The same blocks; tokens leave it in fp32, whatever they were inside, for what comes after is fp32."""

    def __init__(self, encoder: Encoder, kind: torch.dtype) -> None:
        nn.Module.__init__(self)  # the blocks are there already
        self.kind = kind  # of tokens inside
        self.note = ""  # why there is no short way, where there should be one
        self.like(encoder)
        self.blocks = encoder.blocks

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
        passed = super().forward(x, place, additions, rotary, head_mask, tape, first)
        return passed._replace(tokens=passed.tokens.float())


class ShortWay:
    """Pixels to the tokens that leave the last block by one program, without the modules around the kernels.

    Who listens at a module, trains, or wants gradients goes the usual way. Layers are those that were there when it was
    made, prefix tokens and positions those when a size of picture first came.
    """

    def __init__(self, model: ViT, program: Program, run: Run) -> None:
        self.program, self.run = program, run
        self._kind = cast(PackedEncoder, model.encoder).kind
        self._from_pixels = _plain_ends(model)
        parts = [each for part in model.children() for each in part.modules()]
        self._hooks = [hooks for each in parts for hooks in (each._forward_hooks, each._forward_pre_hooks)]
        self._empty: dict[Grid, Tensor] = {}
        self._kernels: dict[tuple[int, ...], dict[int, Kernel]] = {}

    def __call__(self, model: ViT, pixels: Tensor, grid: Grid, first: int) -> Encoded | None:
        heard = any(self._hooks) or module._global_forward_hooks or module._global_forward_pre_hooks
        if heard or model.training or _learning(model):
            return None
        refuse_gradients(pixels)
        place = Place(grid, model.config.prefix)
        empty = self._tokens_of_nothing(model, grid)
        kernels = self._kernels_for(len(pixels), len(empty), empty.shape[1], place.prefix, first)
        given = pixels if self._from_pixels else _tokens(model, pixels, grid)
        ran = self.run(given, empty, place.prefix, first, kernels)
        if len(ran.sizes):
            place = place._replace(sizes=ran.sizes, sources=ran.sources)
        return Encoded(ran.tokens, place)

    def _kernels_for(self, *way: int) -> dict[int, Kernel]:
        """Kernels of attention for a way, with so many threads; made when it is gone for the first time."""
        key = (*way, torch.get_num_threads())
        found = self._kernels.get(key)
        if found is None:
            if len(self._kernels) >= WAYS:
                self._kernels.clear()
            found = self._kernels[key] = self._made(*way)
        return found

    def _made(self, *way: int) -> dict[int, Kernel]:
        d, found = self.program.head_width, {}
        for pictures, tokens, heads, biased, scaled, kind in self.program.attentions(*way):
            q, k, v = torch.empty(pictures, tokens, 3, heads, d, dtype=kind).permute(2, 0, 3, 1, 4).unbind(0)
            bias = torch.empty(pictures, 1, 1, tokens, dtype=kind) if biased else None
            kernel = fused(q, k, v, bias, 1.0 if scaled else d**-0.5)
            if kernel is not None:
                found[name_of(pictures, tokens, heads, biased, scaled)] = kernel
        return found

    def _tokens_of_nothing(self, model: ViT, grid: Grid) -> Tensor:
        """Prefix tokens and positions (T, D): what patches are added to."""
        found = self._empty.get(grid)
        if found is None:
            if len(self._empty) >= GRIDS:
                self._empty.clear()
            nothing = torch.zeros(1, grid[0] * grid[1], model.config.width, dtype=self._kind)
            with torch.no_grad():
                found = self._empty[grid] = model.tokens(nothing, grid)[0][0]
        return found


def _learning(model: ViT) -> bool:
    """Whether gradients are wanted of the network itself, which the usual way refuses."""
    return torch.is_grad_enabled() and any(each.requires_grad for each in model.parameters())


def _tokens(model: ViT, pixels: Tensor, grid: Grid) -> Tensor:
    """Tokens (B, T, D) as they enter the first block, by the modules of the network."""
    x = pixels if model.stem is None else model.stem(pixels)
    tokens: Tensor = model.tokens(model.patches(x), grid)[0]
    return tokens if model.embedding_norm is None else cast(Tensor, model.embedding_norm(tokens))


def take_short_way(model: ViT) -> None:
    """Give a packed network its short way, if its blocks are plain; or else a note, if torch does not take it."""
    if not is_plain(model):
        return
    program = _program(model)
    run, why = compiled(program)
    if run is None:
        cast(
            PackedEncoder, model.encoder
        ).note = f"kernels are called from Python, slower for small networks: torch's interpreter is not there ({why})"
    else:
        model.short = ShortWay(model, program, run)


def is_plain(model: ViT) -> bool:
    """Whether the blocks of a packed network are ones that the program can say."""
    plain = all(_plain(cast(Block, each)) for each in model.encoder.blocks)
    return plain and model.tokens.rotary is None and (model.tokens.at_stem or not len(model.tokens.tables))


def _program(model: ViT) -> Program:
    """What a packed network does from pixels, or tokens, to the tokens that leave its last block."""
    blocks = [cast(Block, each) for each in model.encoder.blocks]
    patches, attention = cast(PackedPatches, model.patches), blocks[0].attention
    projection = _product(patches.projection)
    raw = projection if patches.raw is None else _product(patches.raw)
    size = cast(tuple[int, int], tuple(patches.patch_size))
    steps = [_step(each) for each in blocks]
    return Program(size, projection, raw, MIDDLE, steps, attention.head_width, suits(steps[0].qkv.kind))


def _plain_ends(model: ViT) -> bool:
    """Whether patches are cut, projected and added to the tokens of nothing, before the first block."""
    patches = cast(PackedPatches, model.patches)
    extras = (model.stem, patches.norm_before, patches.norm_after, model.embedding_norm)
    return all(each is None for each in extras)


def _plain(block: Block) -> bool:
    """Whether a block is two norms, attention of all to all and an MLP whose activation its layer does."""
    attention, mlp = block.attention, cast(PackedMlp, block.mlp)
    norms = all(type(norm) is nn.LayerNorm for norm in (block.norm1, block.norm2))
    return norms and _all_to_all(attention) and not (mlp.gated or mlp.activation)


def _all_to_all(attention: Attention) -> bool:
    extras = (attention.query_bias, attention.query_norm, attention.relative)
    return all(each is None for each in extras) and not (attention.line or attention.causal)


def _step(block: Block) -> Step:
    attention, mlp = block.attention, cast(PackedMlp, block.mlp)
    qkv, out, up, down = (_product(each) for each in (attention.qkv, attention.out, mlp.up, mlp.down))
    scale = attention.head_width**-0.5
    scaled = qkv.in_bytes and math.frexp(scale)[0] == 0.5  # a power of two moves no bit: it can go into the steps
    if scaled:
        factors = torch.ones_like(qkv.steps)
        factors[: len(factors) // 3] = scale
        qkv = qkv._replace(steps=qkv.steps * factors, bias=qkv.bias * factors)
    merging = (block.merged, block.by_tokens, block.heeds)
    return Step(_norm(block.norm1), qkv, out, _norm(block.norm2), up, down, attention.heads, scaled, *merging)


def _norm(norm: nn.Module | None) -> Norm:
    norm = cast(nn.LayerNorm, norm)
    return Norm(norm.weight, norm.bias, norm.eps)


def _product(layer: nn.Module) -> Product:
    layer = cast(PackedLinear | ByteLinear, layer)
    bias = torch.zeros(layer.out_features, dtype=torch.float32 if isinstance(layer, ByteLinear) else layer.kind)
    shared = (layer.packed, bias if layer.bias is None else layer.bias, *FUSED[layer.activation])
    if isinstance(layer, PackedLinear):
        nothing = torch.empty(0)
        return Product(*shared, layer.kind, False, 1.0, 0, nothing, nothing, 1.0, 0)
    kind, (step, zero) = (layer.kind, (1.0, 0)) if layer.out is None else (torch.uint8, layer.out)
    return Product(*shared, kind, True, *layer.scale, layer.steps, layer.zeros, step, zero)
