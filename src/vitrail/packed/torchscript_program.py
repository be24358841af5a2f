"""A plain network as one program, run by torch's interpreter: pixels in, tokens out, no Python between the kernels.

A small network spends a good part of its time between its kernels: a call from Python costs several times what one from
torch's own interpreter (TorchScript) does. Here is the plain network again in the few words which that understands. All
other networks, maps, masks and hooks go by the network's own forward; so does everything where there is no interpreter.
"""

import warnings
from collections.abc import Callable
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn

from vitrail.network.merging import cls_attention, join, join_counts, match, most_joined
from vitrail.packed.onednn_kernels import Product, multiply, multiply_add
from vitrail.packed.packed_attention import scaled_attention
from vitrail.packed.packed_layers import MIDDLE

# Values of tokens that a block takes at once: those of 8 images for ViT-B/16 at 224.
AT_ONCE: Final = 8 * 197 * 768

# No postponed annotations in this file: the interpreter reads the types of what the program holds.


class Norm(NamedTuple):
    """A layer norm."""

    weight: Tensor
    bias: Tensor
    eps: float


class BlockStep(NamedTuple):
    """What a plain block does, in its order."""

    norm1: Norm
    qkv: Product
    out: Product
    norm2: Norm
    up: Product
    down: Product
    heads: int
    scaled: bool  # whether queries come divided by sqrt(d) already
    merged: int  # tokens joined after attention
    by_tokens: bool  # by the likeness of tokens, otherwise of keys
    by_cls: bool  # and by how much the first token attends to each


class ProgramOutput(NamedTuple):
    """Tokens (B, T, D) in fp32; of merged ones counts (B, T) and patch_to_token (B, N), empty where none are."""

    tokens: Tensor
    counts: Tensor
    patch_to_token: Tensor


Run = Callable[[Tensor, Tensor, int, int], ProgramOutput]


def _normed(x: Tensor, norm: Norm) -> Tensor:
    return torch.layer_norm(x, [x.size(-1)], norm.weight, norm.bias, norm.eps)


def _merged(
    x: Tensor, before: ProgramOutput, metric: Tensor, count: int, prefix: int, weights: Tensor | None
) -> ProgramOutput:
    """Tokens x (B, T, D) with so many of them joined, and what was known of them brought up to date."""
    matching = match(metric, count, prefix, weights)
    counts = before.counts if before.counts.numel() > 0 else torch.ones([x.size(0), x.size(1)])
    counts, share = join_counts(counts, matching)
    patch_to_token = matching.target[:, prefix:] - prefix
    if before.patch_to_token.numel() > 0:
        patch_to_token = patch_to_token.gather(1, before.patch_to_token)
    return ProgramOutput(join(x, matching, share), counts, patch_to_token)


def _at_once(images: int, values: int, limit: int) -> int:
    """How many images of so many values of tokens a block takes at once: as few pieces as may be, of one size."""
    most = max(1, limit // max(1, values))
    pieces = max(1, (images + most - 1) // most)
    return max(1, (images + pieces - 1) // pieces)


def _joined(pieces: list[ProgramOutput]) -> ProgramOutput:
    """Pieces of a batch -> the batch, in fp32."""
    if len(pieces) == 1:
        return ProgramOutput(pieces[0].tokens.float(), pieces[0].counts, pieces[0].patch_to_token)
    tokens = torch.cat([each.tokens for each in pieces]).float()
    return ProgramOutput(
        tokens, torch.cat([each.counts for each in pieces]), torch.cat([each.patch_to_token for each in pieces])
    )


class Program(nn.Module):
    """A packed network from pixels to the tokens that leave its last block. To be compiled, never called as it is."""

    projection: Product
    raw: Product
    steps: list[BlockStep]

    def __init__(
        self,
        patch: tuple[int, int],
        projection: Product,
        raw: Product,
        steps: list[BlockStep],
        head_width: int,
        products: bool,
    ) -> None:
        super().__init__()
        self.patch, self.projection, self.raw, self.middle = patch, projection, raw, MIDDLE
        self.steps, self.head_width, self.at_once = steps, head_width, AT_ONCE
        self.products = products  # attention by products, or else by torch's fused kernel

    def forward(self, pixels: Tensor, empty: Tensor, prefix: int, pooled: int) -> ProgramOutput:
        """Pixels, or bytes, (B, C, H, W); `empty` (T, D) are the tokens of nothing: prefix and positions.

        Or tokens (B, T, D), where a network makes them in its own way. Of the last block come the `pooled`, or all.
        A block takes a large batch in pieces: what it makes on the way stays in the cache then, and so do its weights.
        """
        pieces: list[ProgramOutput] = []
        for some in pixels.split(_at_once(pixels.size(0), empty.size(0) * empty.size(1), self.at_once)):
            x = some.contiguous() if some.dim() == 3 else self._tokens(some, empty, prefix)
            pieces.append(ProgramOutput(x, torch.empty([0]), torch.empty([0], dtype=torch.int64)))
        for number, step in enumerate(self.steps):
            last = number == len(self.steps) - 1
            for index in range(len(pieces)):
                pieces[index] = self._block(pieces[index], step, prefix, pooled if last else 0)
        return _joined(pieces)

    def _block(self, known: ProgramOutput, step: BlockStep, prefix: int, pooled: int) -> ProgramOutput:
        """What a block makes of some images' tokens (B, T, D); of the first `pooled` alone, or of all."""
        x = known.tokens
        b, t, width, heads, d = x.size(0), x.size(1), x.size(2), step.heads, self.head_width
        x, queries = x.view(b * t, width), t  # rows, to the end
        qkv = multiply(_normed(x, step.norm1), step.qkv).view(b, t, 3, heads, d)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # (B, A, T, d) each
        if pooled > 0:
            queries = pooled
            q = q[:, :, :pooled]
            # side by side: to rows apart oneDNN adds by a path far slower
            x = x.view(b, t, width)[:, :pooled].reshape(b * pooled, width).contiguous()
        bias: Tensor | None = None
        if known.counts.numel() > 0:
            bias = known.counts.log().to(q.dtype).view(b, 1, 1, t)
        scale = 1.0 if step.scaled else d**-0.5
        count = most_joined(t - prefix, step.merged) if queries == t else 0
        weights: Tensor | None = None
        if count > 0 and step.by_cls:
            weights = cls_attention(q, k, bias, scale)
        gathered = scaled_attention(q, k, v, bias, step.scaled, self.products)
        rows = torch.empty([b, queries, heads, d], dtype=x.dtype)
        rows.copy_(gathered.transpose(1, 2))
        x = multiply_add(rows.view(b * queries, heads * d), step.out, x)
        if count > 0:
            tokens = x.view(b, t, width)
            known = _merged(tokens, known, tokens if step.by_tokens else k.mean(1), count, prefix, weights)
            queries -= count
            x = known.tokens.view(b * queries, width)
        x = multiply_add(multiply(_normed(x, step.norm2), step.up), step.down, x)
        return ProgramOutput(x.view(b, queries, width), known.counts, known.patch_to_token)

    def _tokens(self, pixels: Tensor, empty: Tensor, prefix: int) -> Tensor:
        """Pixels (B, C, H, W) -> tokens (B, T, D)."""
        b, c, h, w = pixels.size(0), pixels.size(1), pixels.size(2) // self.patch[0], pixels.size(3) // self.patch[1]
        patches = pixels.reshape(b, c, h, self.patch[0], w, self.patch[1]).permute(0, 2, 4, 1, 3, 5)
        patches = patches.reshape(b * h * w, c * self.patch[0] * self.patch[1])
        if pixels.dtype == torch.uint8:
            patches = multiply(patches.to(self.raw.dtype).sub_(self.middle), self.raw)
        else:
            patches = multiply(patches, self.projection)
        tokens = empty.repeat(b, 1, 1)  # a copy for each, which patches are added to
        tokens[:, prefix:].add_(patches.view(b, h * w, empty.size(1)))
        return tokens


class CompiledProgram(NamedTuple):
    """The program for torch's interpreter, or why there is none."""

    run: Run | None
    why: str = ""


def compile_program(program: Program) -> CompiledProgram:
    """Make a program ready to run."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says that it may go one day
            script: object = torch.jit.script(program.eval())
    except (RuntimeError, AttributeError, OSError) as error:  # OSError: an installation without source files
        return CompiledProgram(None, (str(error).strip() or type(error).__name__).splitlines()[0][:200])
    if not isinstance(script, torch.jit.ScriptModule):
        return CompiledProgram(None, "it is switched off")
    return CompiledProgram(script.forward)
