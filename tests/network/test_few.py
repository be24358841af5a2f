"""Attention among few tokens: the same numbers as the fused kernel, there and back."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from vitrail.network import few
from vitrail.network.attention import Attention


def _qkv(*shape: int, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for _ in range(3)]


def test_equals_the_fused_kernel_there_and_back() -> None:
    ours, theirs = _qkv(2, 3, 7, 8), _qkv(2, 3, 7, 8)
    mine, fused = few.gather(*ours), F.scaled_dot_product_attention(*theirs)
    torch.testing.assert_close(mine, fused, atol=1e-12, rtol=0)
    weights = torch.randn(mine.shape, dtype=torch.float64)
    (mine * weights).sum().backward()
    (fused * weights).sum().backward()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad, atol=1e-12, rtol=0)


def test_its_gradient_is_the_one_of_finite_differences() -> None:
    assert torch.autograd.gradcheck(few.gather, _qkv(1, 2, 4, 3))


def test_other_counts_of_keys_than_of_queries() -> None:
    q, k, v = _qkv(2, 3, 2, 8)[0], *_qkv(2, 3, 7, 8)[1:]
    torch.testing.assert_close(few.gather(q, k, v), F.scaled_dot_product_attention(q, k, v), atol=1e-12, rtol=0)


def test_a_second_derivative_is_refused_rather_than_wrong() -> None:
    q, k, v = _qkv(1, 1, 3, 2)
    (first,) = torch.autograd.grad(few.gather(q, k, v).square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


def test_gradients_of_every_image_by_vmap() -> None:
    q, k, v = (each.detach() for each in _qkv(5, 2, 4, 3))
    single = torch.func.grad(lambda a, b, c: few.gather(a, b, c).square().sum())
    fused = torch.func.grad(lambda a, b, c: F.scaled_dot_product_attention(a, b, c).square().sum())
    torch.testing.assert_close(torch.func.vmap(single)(q, k, v), torch.func.vmap(fused)(q, k, v))


def test_half_precision_is_near_the_full() -> None:
    q, k, v = (each.detach().bfloat16().requires_grad_() for each in _qkv(2, 3, 7, 8))
    gathered = few.gather(q, k, v)
    gathered.sum().backward()
    assert gathered.dtype == torch.bfloat16
    full = [each.detach().float().requires_grad_() for each in (q, k, v)]
    exact = F.scaled_dot_product_attention(*full)
    torch.testing.assert_close(gathered.float(), exact, atol=0.03, rtol=0)
    exact.sum().backward()
    for half, whole in zip((q, k, v), full, strict=True):
        assert half.grad is not None
        torch.testing.assert_close(half.grad.float(), whole.grad, atol=0.05, rtol=0)


@pytest.mark.parametrize("tokens, training, used", [(16, True, True), (16, False, False), (200, True, False)])
def test_only_training_among_few_tokens_takes_it(
    tokens: int, training: bool, used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    gather = few.gather
    monkeypatch.setattr(few, "gather", lambda *qkv: (calls.append(1), gather(*qkv))[1])
    torch.manual_seed(0)
    attention = Attention(32, 2, 16).train(training)
    x = torch.randn(2, tokens, 32)
    here = attention(x)
    assert bool(calls) == used
    torch.testing.assert_close(here, attention.attend(x, explicit=True).output, atol=1e-6, rtol=0)
    with torch.no_grad():
        calls.clear()
        attention(x)
    assert not calls


@pytest.mark.parametrize(
    "dtype, queries, keys, few_enough",
    [
        (torch.float32, 128, 128, True),
        (torch.float32, 129, 129, False),
        (torch.float32, 1, 129, False),
        (torch.float32, 129, 1, False),
        (torch.bfloat16, 256, 256, True),
        (torch.bfloat16, 257, 257, False),
        (torch.float64, 2, 2, False),
        (torch.float16, 2, 2, False),
    ],
)
def test_how_many_are_few_depends_on_the_precision(
    dtype: torch.dtype, queries: int, keys: int, few_enough: bool
) -> None:
    q = torch.zeros(1, 1, queries, 4, dtype=dtype, requires_grad=True)
    k = torch.zeros(1, 1, keys, 4, dtype=dtype)
    assert few.suits(q, k) is few_enough
    assert not few.suits(q.detach(), k)
    with torch.no_grad():
        assert not few.suits(q, k)
