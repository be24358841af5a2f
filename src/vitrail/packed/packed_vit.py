"""PackedViT: the same network on packed layers; plain ones run from pixels to tokens as one compiled program."""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.modules import module

from vitrail.network.attention import Kernel
from vitrail.network.encoder import Block, BlockOutput, Observer
from vitrail.network.merging import KeepKeys, MergingBlock, merge
from vitrail.network.positions import Grid
from vitrail.network.tokens import TokenLayout
from vitrail.network.vit import ViT
from vitrail.packed.packed_attention import packed_kernel, prefers_products
from vitrail.packed.packed_layers import PackedLinear, PackedMlp, PackedPatches, refuse_gradients
from vitrail.packed.torchscript_program import BlockStep, Norm, Program, Run, compile_program
from vitrail.quantisation.pooled_block import FirstQueries

MOST_GRIDS = 16  # whose positions are kept


class PackedBlock(nn.Module):
    """A block on packed layers: the last one of each branch adds to the tokens itself."""

    mlp_chunk = 0

    def __init__(self, block: Block, mlp: PackedMlp) -> None:
        super().__init__()
        self.norm1, self.norm2, self.attention, self.mlp = block.norm1, block.norm2, block.attention, mlp
        self.out = block.attention.out
        setattr(block.attention, "out", nn.Identity())  # noqa: B010  (what heads gathered comes as it is)
        self.merged, self.by_tokens, self.by_cls = 0, False, False
        if isinstance(block, MergingBlock):
            self.merged, self.by_tokens, self.by_cls = block.merged, block.by_tokens, block.by_cls

    def forward(
        self, x: Tensor, layout: TokenLayout, head_mask: Tensor | None = None, kernel: Kernel | None = None
    ) -> BlockOutput:
        """Tokens after the block; where the kernel gathers for the first ones alone, those."""
        normed = self.norm1(x)
        kept = KeepKeys(kernel or self.attention.kernel, self.by_cls, head_mask) if self.merged else None
        gathered = self.attention(normed, layout=layout, head_mask=head_mask, kernel=kept or kernel)  # (B, T, A*d)
        count = gathered.shape[1]
        x, merges = self.out(gathered, x[:, :count]), kept is not None and count == x.shape[1]
        if self.norm2 is None:  # side by side
            x = self.mlp(normed[:, :count], x)
        if kept is not None and merges:
            metric = x if self.by_tokens else kept.mean_keys(self.attention, normed, layout)
            x, layout = merge(x, layout, metric, self.merged, kept.cls_attention)
        return BlockOutput(x if self.norm2 is None else self.mlp(self.norm2(x), x), layout)


class PackedViT(ViT):
    """A network whose linear layers are packed for this machine; it answers, and learns nothing."""

    patches: PackedPatches  # type: ignore[assignment]

    def __init__(self, model: ViT, dtype: torch.dtype) -> None:
        nn.Module.__init__(self)
        vars(self).update(vars(model))  # its parts, which nobody else has a use for
        self.dtype = dtype  # of tokens between blocks
        self.compiled: CompiledForward | None = None
        self.note = ""  # why nothing is compiled, where it should be

    def embed(self, pixels: Tensor, head_mask: Tensor | None = None) -> Tensor:
        """As the network's own; the last block computes the tokens that the pool reads, and no others."""
        pooled = self.config.pooled_tokens
        last = self.config.depth - 1
        kernel = FirstQueries(packed_kernel, pooled)

        def observer(block: int, x: Tensor, layout: TokenLayout) -> Kernel | None:
            return kernel if block == last else None

        compiled = self._compiled(pixels, pooled) if head_mask is None else None
        return self.summarise(*(compiled or self.encode(pixels, head_mask, observer if pooled else None)))

    def encode(self, pixels: Tensor, head_mask: Tensor | None = None, observer: Observer | None = None) -> BlockOutput:
        """Tokens leave it in fp32, whatever they were inside, for what comes after is fp32."""
        compiled = self._compiled(pixels, 0) if head_mask is None and observer is None else None
        if compiled is not None:
            return compiled
        encoded = super().encode(pixels, head_mask, observer)
        return encoded._replace(tokens=encoded.tokens.float())

    def check_dtype(self, pixels: Tensor) -> None:
        if pixels.dtype != torch.uint8 or not self.patches.takes_bytes:  # which the patches normalise themselves
            super().check_dtype(pixels)

    def _compiled(self, pixels: Tensor, pooled: int) -> BlockOutput | None:
        return None if self.compiled is None else self.compiled(self, pixels, self.grid_of(pixels), pooled)


class CompiledForward:
    """Pixels to the tokens that leave the last block by one program, without the modules around the kernels.

    Who listens at a module, trains, or wants gradients goes the usual way. Layers are those that were there when it was
    made, prefix tokens and positions those when a size of image first came.
    """

    def __init__(self, model: PackedViT, run: Run) -> None:
        self.run, self._from_pixels = run, _plain_ends(model)
        parts = [inner for part in model.children() for inner in part.modules()]
        self._hooks = [hooks for part in parts for hooks in (part._forward_hooks, part._forward_pre_hooks)]
        self._empty: dict[Grid, Tensor] = {}

    def __call__(self, model: PackedViT, pixels: Tensor, grid: Grid, pooled: int) -> BlockOutput | None:
        listened = any(self._hooks) or module._global_forward_hooks or module._global_forward_pre_hooks
        if listened or model.training or _learning(model):
            return None
        refuse_gradients(pixels)
        layout = TokenLayout(grid, model.config.prefix)
        empty = self._tokens_of_nothing(model, grid)
        given = pixels if self._from_pixels else model.tokenise(pixels, grid).tokens
        output = self.run(given, empty, layout.prefix, pooled)
        if len(output.counts):
            layout = layout._replace(counts=output.counts, patch_to_token=output.patch_to_token)
        return BlockOutput(output.tokens, layout)

    def _tokens_of_nothing(self, model: PackedViT, grid: Grid) -> Tensor:
        """Prefix tokens and positions (T, D): what patches are added to."""
        if grid not in self._empty:
            if len(self._empty) >= MOST_GRIDS:
                self._empty.clear()
            nothing = torch.zeros(1, grid[0] * grid[1], model.config.width, dtype=model.dtype)
            with torch.no_grad():
                self._empty[grid] = model.tokens(nothing, grid)[0][0]
        return self._empty[grid]


def _learning(model: PackedViT) -> bool:
    """Whether gradients are wanted of the network itself, which the usual way refuses."""
    return torch.is_grad_enabled() and any(each.requires_grad for each in model.parameters())


def compile_forward(model: PackedViT) -> None:
    """Compile the way of a packed network, if its blocks are plain; or else leave a note, if torch does not take it."""
    plain = all(_plain(cast(PackedBlock, each)) for each in model.encoder.blocks)
    if not plain or model.tokens.rotary is not None or (len(model.tokens.tables) and not model.tokens.at_stem):
        return
    run, why = compile_program(_program(model))
    if run is None:
        model.note = (
            f"kernels are called from Python, slower for small networks: torch's interpreter is not there ({why})"
        )
    else:
        model.compiled = CompiledForward(model, run)


def _program(model: PackedViT) -> Program:
    """What a packed network does from pixels, or tokens, to the tokens that leave its last block."""
    steps = [_step(cast(PackedBlock, each)) for each in model.encoder.blocks]
    patches, projection = model.patches, model.patches.projection.product
    raw = projection if patches.raw is None else patches.raw.product
    head_width = cast(PackedBlock, model.encoder.blocks[0]).attention.head_width
    size = cast(tuple[int, int], tuple(patches.patch_size))
    return Program(size, projection, raw, steps, head_width, prefers_products(steps[0].qkv.dtype))


def _plain_ends(model: PackedViT) -> bool:
    """Whether patches are cut, projected and added to the tokens of nothing, before the first block."""
    patches = model.patches
    extras = (model.stem, patches.norm_before, patches.norm_after, model.embedding_norm)
    return all(each is None for each in extras)


def _plain(block: PackedBlock) -> bool:
    """Whether a block is two norms, attention of all to all and an MLP whose activation its layer does."""
    attention, mlp = block.attention, block.mlp
    norms = all(type(norm) is nn.LayerNorm for norm in (block.norm1, block.norm2))
    extras = (attention.query_bias, attention.query_norm, attention.relative)
    return norms and all(each is None for each in extras) and not (attention.axis or mlp.gated or mlp.activation)


def _step(block: PackedBlock) -> BlockStep:
    attention, mlp = block.attention, block.mlp
    qkv, out = (cast(PackedLinear, each).product for each in (attention.qkv, block.out))
    scale = attention.head_width**-0.5
    scaled = qkv.int8 and math.frexp(scale)[0] == 0.5  # a power of two moves no bit: it can go into the scales
    if scaled:
        factors = torch.ones_like(qkv.scales)
        factors[: len(factors) // 3] = scale
        bias = None if qkv.bias is None else qkv.bias * factors
        qkv = qkv._replace(scales=qkv.scales * factors, bias=bias)
    return BlockStep(
        *(_norm(block.norm1), qkv, out, _norm(block.norm2), mlp.up.product, mlp.down.product),
        *(attention.heads, scaled, block.merged, block.by_tokens, block.by_cls),
    )


def _norm(norm: nn.Module | None) -> Norm:
    norm = cast(nn.LayerNorm, norm)
    return Norm(norm.weight, norm.bias, norm.eps)
