"""Attention as one kernel: q, k, v (B, A, T, d) -> what oneDNN's graph compiler makes of the formula for their shape.

torch hands TorchScript graphs to that compiler where it is asked to. A kernel is for one shape; it is made when the
shape first comes, in a few milliseconds, run against plain torch, and kept. What cannot be made, or is not right, is
None, and other ways are taken.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

MOST = 1 << 21  # scores of a head: the kernel holds those of one for each thread, 12 MB at most
KEPT = 1024  # kernels
ROWS = 16  # queries that are compared with plain torch
WITHIN = {torch.float32: 1e-4, torch.bfloat16: 0.03}  # of the largest value: further from plain torch, it is not used
_compiling = threading.Lock()


class Laid(NamedTuple):
    """How a tensor lies in memory."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @classmethod
    def of(cls, x: Tensor) -> Laid:
        return cls(tuple(x.shape), x.stride())

    def random(self, kind: torch.dtype, seed: int) -> Tensor:
        """A tensor that lies so, of normal numbers."""
        size = 1 + sum((length - 1) * step for length, step in zip(self.shape, self.stride, strict=True))
        values = torch.randn(size, generator=torch.Generator().manual_seed(seed)).to(kind)
        return values.as_strided(self.shape, self.stride)


class _Formula(nn.Module):
    """softmax(q k' * scale + bias) v."""

    def __init__(self, scale: float, biased: bool) -> None:
        super().__init__()
        self.scale, self.biased = scale, biased

    def forward(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        scores = torch.matmul(q, k.transpose(-2, -1))
        scores = scores * self.scale if self.scale != 1 else scores
        scores = scores + bias if self.biased else scores
        return torch.matmul(scores.softmax(-1), v)


def fused(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float) -> torch.jit.ScriptModule | None:
    """The kernel for tensors that lie like these; called with q, k, v and the bias, or any tensor where there is none.

    For few queries among many keys there is none: they are as fast in other ways.
    """
    if not q.numel() or q.shape != k.shape or q.shape[-2] ** 2 > MOST:
        return None
    laid = (Laid.of(q), Laid.of(k), Laid.of(v), None if bias is None else Laid.of(bias))
    return _made(*laid, q.dtype, scale, torch.get_num_threads())


@lru_cache(KEPT)
def _made(
    q: Laid, k: Laid, v: Laid, bias: Laid | None, kind: torch.dtype, scale: float, threads: int
) -> torch.jit.ScriptModule | None:
    if kind not in WITHIN or not hasattr(torch.jit, "enable_onednn_fusion"):
        return None
    given = [each.random(kind, seed) for seed, each in enumerate((q, k, v, bias or Laid((1,), (1,))))]
    given[0].mul_(q.shape[-1] ** -0.5 / scale)  # scores as large as those of a network
    formula = _Formula(scale, bias is not None).eval()
    try:
        with warnings.catch_warnings(), torch.inference_mode(), _asking():
            warnings.simplefilter("ignore")  # torch says that TorchScript may go one day
            made = torch.jit.trace(formula, given, check_trace=False)
            for _ in range(3):  # seen, compiled, run
                found = made(*given)
            graph = str(torch.jit.last_executed_optimized_graph())  # type: ignore[attr-defined]
    except (RuntimeError, AttributeError):
        return None
    if "oneDNNFusionGroup" not in graph or not isinstance(made, torch.jit.ScriptModule):
        return None
    return made if _right(found, given, scale, bias is not None) else None


@contextmanager
def _asking() -> Iterator[None]:
    """Graphs that are compiled meanwhile go through oneDNN's compiler; then as it was before."""
    with _compiling:
        before = torch.jit.onednn_fusion_enabled()
        torch.jit.enable_onednn_fusion(True)
        try:
            yield
        finally:
            torch.jit.enable_onednn_fusion(before)


def _right(found: Tensor, given: list[Tensor], scale: float, biased: bool) -> bool:
    """Whether some of the rows are those of plain torch."""
    some = slice(None, None, max(1, found.shape[-2] // ROWS))
    q, k, v, bias = (each.float() for each in given)
    scores = q[..., some, :] @ k.mT * scale
    if biased:
        scores = scores + (bias[..., some, :] if bias.shape[-2] > 1 else bias)
    plain = scores.softmax(-1) @ v
    apart = (found[..., some, :].float() - plain).abs().max() / plain.abs().max()
    return bool(apart <= WITHIN[found.dtype])
