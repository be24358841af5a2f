"""Attention as one kernel: q, k, v (B, A, T, d) -> what oneDNN's graph compiler makes of the formula for their shape.

torch hands TorchScript graphs to that compiler where it is asked to. A kernel is for one shape; it is made when the
shape first comes, in a few milliseconds, run against plain torch, and kept. What cannot be made, or is not right, is
None, and other ways are taken.

torch never frees a kernel, so only so many shapes get them. Whether a shape does is decided once in a process, for
every scale of its queries: two ways through one network, or two networks, never take different ones for it.
"""

from __future__ import annotations

import io
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

MOST_SCORES = 1 << 22  # scores in all: while a kernel is made, and by few heads, they are held at once
MOST_SHAPES = 128  # shapes with kernels, about 2 MB for each scale of queries
WITHIN = {torch.float32: 1e-4, torch.bfloat16: 0.03}  # of the largest value: further from plain torch, it is not used
Kernel = torch.jit.ScriptModule
_lock = threading.RLock()


class MemoryLayout(NamedTuple):
    """How a tensor lies in memory."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @classmethod
    def of(cls, x: Tensor) -> MemoryLayout:
        return cls(tuple(x.shape), x.stride())

    def random(self, dtype: torch.dtype, seed: int) -> Tensor:
        """A tensor that lies so, of normal numbers."""
        size = 1 + sum((length - 1) * step for length, step in zip(self.shape, self.stride, strict=True))
        values = torch.randn(size, generator=torch.Generator().manual_seed(seed)).to(dtype)
        return values.as_strided(self.shape, self.stride)


class KernelSpec(NamedTuple):
    """What a kernel is for."""

    q: MemoryLayout
    k: MemoryLayout
    v: MemoryLayout
    bias: MemoryLayout | None
    dtype: torch.dtype
    scale: float
    threads: int


_kernels: dict[KernelSpec, Kernel | None] = {}
_shapes: set[KernelSpec] = set()  # that get kernels, each with no scale


class _Formula(nn.Module):
    """softmax(q k' * scale + bias) v, in words that TorchScript has."""

    __constants__ = ("scale", "biased")

    def __init__(self, scale: float, biased: bool) -> None:
        super().__init__()
        self.scale, self.biased = scale, biased

    def forward(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        scores = torch.matmul(q, k.transpose(-2, -1))
        if self.scale != 1.0:
            scores = scores * self.scale
        if self.biased:
            scores = scores + bias
        return torch.matmul(scores.softmax(-1), v)


def count_scores(q: Tensor) -> int:
    """How many scores there are for queries (B, A, T, d) among as many keys."""
    return q.shape[0] * q.shape[1] * q.shape[2] ** 2


def graph_kernel(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float) -> Kernel | None:
    """The kernel for tensors that lie like these; its `forward` takes q, k, v and the bias, or any tensor without one.

    For few queries among many keys there is none: they are as fast in other ways.
    """
    if not q.numel() or q.shape != k.shape or count_scores(q) > MOST_SCORES:
        return None
    layouts = (
        MemoryLayout.of(q),
        MemoryLayout.of(k),
        MemoryLayout.of(v),
        None if bias is None else MemoryLayout.of(bias),
    )
    spec = KernelSpec(*layouts, q.dtype, scale, torch.get_num_threads())
    if spec not in _kernels:
        with _lock:
            if spec not in _kernels and _gets_kernels(spec._replace(scale=0.0)):
                _kernels[spec] = _make(spec)
    return _kernels.get(spec)


def _gets_kernels(shape: KernelSpec) -> bool:
    """Whether a shape is one of those with kernels: the first so many are."""
    if len(_shapes) < MOST_SHAPES:
        _shapes.add(shape)
    return shape in _shapes


def _make(spec: KernelSpec) -> Kernel | None:
    q, k, v, bias, dtype, scale, _ = spec
    if dtype not in WITHIN or not hasattr(torch.jit, "enable_onednn_fusion"):
        return None
    given = [each.random(dtype, seed) for seed, each in enumerate((q, k, v, bias or MemoryLayout((1,), (1,))))]
    given[0].mul_(q.shape[-1] ** -0.5 / scale)  # scores as large as those of a network
    formula = _Formula(scale, bias is not None).eval()
    try:
        with _asking(), warnings.catch_warnings(), torch.inference_mode(), torch.autocast("cpu", enabled=False):
            warnings.simplefilter("ignore")  # torch says that TorchScript may go one day
            # Written and read back: modules scripted alike share their kernels, and one is for one shape.
            kernel = torch.jit.load(io.BytesIO(torch.jit.script(formula).save_to_buffer()))
            for _ in range(3):  # seen, compiled, run
                gathered = kernel.forward(*given)  # not by a call, which hooks on all modules would hear
            graph = str(torch.jit.last_executed_optimized_graph())  # type: ignore[attr-defined]
            right = gathered.dtype == dtype and _right(gathered, given, scale, bias is not None)
    except (RuntimeError, AttributeError, OSError):  # OSError: an installation without source files
        return None
    usable = right and "oneDNNFusionGroup" in graph and isinstance(kernel, Kernel)
    return kernel if usable else None


@contextmanager
def _asking() -> Iterator[None]:
    """Graphs that are compiled meanwhile go through oneDNN's compiler; then as it was before."""
    before = torch.jit.onednn_fusion_enabled()
    torch.jit.enable_onednn_fusion(True)
    try:
        yield
    finally:
        torch.jit.enable_onednn_fusion(before)


def _right(gathered: Tensor, given: list[Tensor], scale: float, biased: bool) -> bool:
    """Whether it gave what plain torch gives."""
    q, k, v, bias = (each.float() for each in given)
    scores = q @ k.mT * scale
    plain = (scores + bias if biased else scores).softmax(-1) @ v
    apart = (gathered.float() - plain).abs().max() / plain.abs().max()
    return bool(apart <= WITHIN[gathered.dtype])
