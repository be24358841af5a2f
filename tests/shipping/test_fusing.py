"""Attention as one kernel of oneDNN's compiler: the numbers of the formula, for each shape, or none at all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from shipping.packs import checkpoint
from vitrail.shipping import encoder, fusing, program
from vitrail.shipping.fusing import fused
from vitrail.shipping.packed import Packed
from vitrail.shipping.packing import Plan


@pytest.fixture(autouse=True)
def _nothing_kept() -> Iterator[None]:
    fusing._made.cache_clear()
    yield
    fusing._made.cache_clear()


def views(pictures: int, tokens: int, heads: int, kind: torch.dtype) -> tuple[Tensor, ...]:
    """q, k and v as a qkv layer gives them: views into one table."""
    return torch.randn(pictures, tokens, 3, heads, 16).to(kind).permute(2, 0, 3, 1, 4).unbind(0)


@pytest.mark.parametrize("kind, within", [(torch.bfloat16, 0.03), (torch.float32, 1e-5)])
@pytest.mark.parametrize("pictures, tokens, heads", [(1, 29, 3), (1, 1, 1), (8, 29, 3), (2, 197, 4)])
@pytest.mark.parametrize("biased", ["", "row", "all"])
@pytest.mark.parametrize("scale", [0.25, 1.0])
def test_it_gives_what_the_formula_gives(
    kind: torch.dtype, within: float, pictures: int, tokens: int, heads: int, biased: str, scale: float
) -> None:
    q, k, v = views(pictures, tokens, heads, kind)
    q.mul_(0.25 / scale)
    bias = {"": None, "row": torch.randn(pictures, 1, 1, tokens), "all": torch.randn(pictures, heads, tokens, tokens)}
    added = None if bias[biased] is None else bias[biased].to(kind)
    kernel = fused(q, k, v, added, scale)
    assert kernel is not None
    found = kernel(q, k, v, q if added is None else added)
    logits = q.double() @ k.double().mT * scale
    expected = (logits if added is None else logits + added.double()).softmax(-1) @ v.double()
    assert found.dtype == kind
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=within)
    assert fused(q, k, v, added, scale) is kernel  # kept
    assert "oneDNNFusionGroup" in str(torch.jit.last_executed_optimized_graph())


def test_others_are_left_to_other_ways() -> None:
    q, k, v = views(1, 29, 3, torch.float32)
    assert fused(q[:, :, :1], k, v, None, 0.25) is None  # one query
    assert fused(*(each[:0] for each in (q, k, v)), None, 0.25) is None  # no picture
    assert fused(*(each.double() for each in (q, k, v)), None, 0.25) is None
    tokens = int(fusing.MOST**0.5) + 1
    assert fused(*views(1, tokens, 1, torch.float32), None, 0.25) is None  # memory would grow with the square of tokens


def test_asking_the_compiler_changes_nothing_for_others() -> None:
    assert not torch.jit.onednn_fusion_enabled()
    assert fused(*views(1, 29, 3, torch.float32), None, 0.25) is not None
    assert not torch.jit.onednn_fusion_enabled()


def test_a_kernel_that_is_not_right_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    given = views(2, 29, 3, torch.float32)
    monkeypatch.setattr(fusing._Formula, "forward", lambda self, q, k, v, bias: (q @ k.mT).softmax(-1) @ v + 1e-3 * v)
    assert fused(*given, None, 1.0) is None


def test_without_the_compiler_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.jit, "enable_onednn_fusion")
    assert fused(*views(2, 29, 3, torch.float32), None, 1.0) is None
    fusing._made.cache_clear()
    monkeypatch.undo()
    monkeypatch.setattr(torch.jit, "enable_onednn_fusion", lambda wanted: None)  # there, and to no avail
    assert fused(*views(2, 29, 3, torch.float32), None, 1.0) is None


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_program_has_kernels_for_every_shape_on_its_way(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, ...]] = []
    made = fusing.fused
    monkeypatch.setattr(encoder, "fused", lambda q, *rest: (asked.append(tuple(q.shape)), made(q, *rest))[1])
    monkeypatch.setattr(program, "AT_ONCE", 3 * 17 * 48)  # pieces of three pictures
    packed = Packed(checkpoint(merge_per_block=2, merge_by="tokens"), Plan(precision)).model
    assert packed.short is not None
    asked.clear()
    kind = next(packed.parameters()).dtype
    with torch.inference_mode():
        packed(torch.randn(7, 3, 32, 32).to(kind))
        # of 7 pictures 3, 3 and 1; 17 tokens in the first block, two fewer in the next, and the last is of one query
        assert sorted(asked) == [(1, 4, 15, 12), (1, 4, 17, 12), (3, 4, 15, 12), (3, 4, 17, 12)]
        asked.clear()
        packed(torch.randn(7, 3, 32, 32).to(kind))
        assert asked == []
        threads = torch.get_num_threads()
        try:
            torch.set_num_threads(threads + 1)
            packed(torch.randn(7, 3, 32, 32).to(kind))
        finally:
            torch.set_num_threads(threads)
        assert len(asked) == 4
