"""Attention among few tokens: the same numbers as the fused kernel, there and back."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import vitrail
from training import tiny
from vitrail.network.attention import Attention, causal_kernel, fused_kernel
from vitrail.network.vit import ViT
from vitrail.training import Callbacks, plain_attention
from vitrail.training.loop import fit
from vitrail.training.plain_attention import is_faster, plain_kernel, plain_kernels


def _qkv(*shape: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for _ in range(3)]


@pytest.fixture(autouse=True)
def any_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in double precision, where numbers can be compared to the last digits."""
    monkeypatch.setitem(plain_attention.MOST_TOKENS, torch.float64, 128)


def gather(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return plain_kernel(q, k, v, None, 0.0)


def test_equals_the_fused_kernel_there_and_back() -> None:
    ours, theirs = _qkv(2, 3, 7, 8), _qkv(2, 3, 7, 8)
    mine, fused = gather(*ours), F.scaled_dot_product_attention(*theirs)
    torch.testing.assert_close(mine, fused, atol=1e-12, rtol=0)
    weights = torch.randn(mine.shape, dtype=torch.float64)
    (mine * weights).sum().backward()
    (fused * weights).sum().backward()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad, atol=1e-12, rtol=0)


def test_its_gradient_is_the_one_of_finite_differences() -> None:
    assert torch.autograd.gradcheck(gather, _qkv(1, 2, 4, 3))


def test_other_counts_of_keys_than_of_queries() -> None:
    q, k, v = _qkv(2, 3, 2, 8)[0], *_qkv(2, 3, 7, 8)[1:]
    torch.testing.assert_close(gather(q, k, v), F.scaled_dot_product_attention(q, k, v), atol=1e-12, rtol=0)


def test_a_second_derivative_is_refused_rather_than_wrong() -> None:
    q, k, v = _qkv(1, 1, 3, 2)
    (first,) = torch.autograd.grad(gather(q, k, v).square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


def test_gradients_of_every_image_by_vmap() -> None:
    q, k, v = (each.detach() for each in _qkv(5, 2, 4, 3))
    single = torch.func.grad(lambda a, b, c: gather(a, b, c).square().sum())
    fused = torch.func.grad(lambda a, b, c: F.scaled_dot_product_attention(a, b, c).square().sum())
    torch.testing.assert_close(torch.func.vmap(single)(q, k, v), torch.func.vmap(fused)(q, k, v))


def test_half_precision_is_near_the_full() -> None:
    q, k, v = (each.detach().bfloat16().requires_grad_() for each in _qkv(2, 3, 7, 8))
    gathered = gather(q, k, v)
    gathered.sum().backward()
    assert gathered.dtype == torch.bfloat16
    full = [each.detach().float().requires_grad_() for each in (q, k, v)]
    exact = F.scaled_dot_product_attention(*full)
    torch.testing.assert_close(gathered.float(), exact, atol=0.03, rtol=0)
    exact.sum().backward()
    for half, exact_one in zip((q, k, v), full, strict=True):
        assert half.grad is not None
        torch.testing.assert_close(half.grad.float(), exact_one.grad, atol=0.05, rtol=0)


@pytest.mark.parametrize("config", [{"qkv_bias": "no-key"}, {"qk_norm": True}])
def test_half_precision_learns_where_biases_and_norms_are_in_full(config: dict[str, Any]) -> None:
    """They make queries and values of another precision than the product before them."""
    model = ViT(replace(tiny.CONFIG, **config))
    with plain_kernels(model), torch.autocast("cpu", torch.bfloat16):
        logits = model(torch.randn(2, 1, 8, 8))
    logits.float().square().sum().backward()
    assert all(each.grad is None or each.grad.isfinite().all() for each in model.parameters())


@pytest.mark.parametrize("tokens, training, used", [(16, True, True), (16, False, False), (200, True, False)])
def test_only_training_among_few_tokens_takes_it(
    tokens: int, training: bool, used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    apply = plain_attention._PlainAttention.apply
    monkeypatch.setattr(plain_attention._PlainAttention, "apply", lambda *qkv: (calls.append(1), apply(*qkv))[1])
    torch.manual_seed(0)
    attention = Attention(32, 2, 16).train(training)
    x = torch.randn(2, tokens, 32)
    fused = attention(x)
    assert not calls  # nobody asked for it
    with plain_kernels(attention) if training else nullcontext():
        torch.testing.assert_close(attention(x), fused, atol=1e-6, rtol=0)
        assert bool(calls) == used
        calls.clear()
        with torch.no_grad():
            attention(x)
        assert not calls
    assert attention.kernel is fused_kernel


def test_dropout_a_bias_and_other_kernels_are_left_to_the_fused_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_attention._PlainAttention, "apply", None)  # a call would fail
    q, k, v = _qkv(2, 3, 7, 8)
    bias = torch.randn(7, 7, dtype=torch.float64)
    assert torch.equal(plain_kernel(q, k, v, bias, 0.0), fused_kernel(q, k, v, bias, 0.0))
    assert plain_kernel(q, k, v, None, 0.5).shape == q.shape
    causal, axial = Attention(8, 2, 4), Attention(8, 2, 4, axis="row")
    causal.kernel = causal_kernel
    with plain_kernels(nn.ModuleList([causal, axial])):
        assert (causal.kernel, axial.kernel) == (causal_kernel, fused_kernel)


@pytest.mark.parametrize(
    "dtype, queries, keys, few_enough",
    [
        (torch.float32, 128, 128, True),
        (torch.float32, 129, 129, False),
        (torch.float32, 1, 129, False),
        (torch.float32, 129, 1, False),
        (torch.bfloat16, 256, 256, True),
        (torch.bfloat16, 257, 257, False),
        (torch.float16, 2, 2, False),
    ],
)
def test_how_many_are_few_depends_on_the_precision(
    dtype: torch.dtype, queries: int, keys: int, few_enough: bool
) -> None:
    q = torch.zeros(1, 1, queries, 4, dtype=dtype, requires_grad=True)
    k = torch.zeros(1, 1, keys, 4, dtype=dtype)
    assert is_faster(q, k) is few_enough
    assert not is_faster(q.detach(), k)
    with torch.no_grad():
        assert not is_faster(q, k)


# ---- while a training runs, and no longer ------------------------------------------------------------------------


def kernels(model: nn.Module) -> set[object]:
    return {part.kernel for part in model.modules() if isinstance(part, Attention)}


@pytest.mark.parametrize("ema", [0.0, 0.5])
def test_it_is_there_in_every_step_and_gone_afterwards(tmp_path: Path, ema: float) -> None:
    job = tiny.job(tmp_path, 3, replace(tiny.RECIPE, ema=ema))
    seen: list[set[object]] = []
    step = Callbacks(step=lambda step, steps, loss: seen.append(kernels(job.model)))
    assert kernels(job.model) == {fused_kernel}
    fit(replace(job, callbacks=step))
    assert seen == [{plain_kernel}] * 3
    assert kernels(job.model) == {fused_kernel}
    for name in ("best", "last"):
        assert kernels(vitrail.load(tmp_path / f"{name}.safetensors").model) == {fused_kernel}


def test_it_is_gone_after_an_error_too(tmp_path: Path) -> None:
    job = tiny.job(tmp_path, 3)

    def fail(step: int, steps: int, loss: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(replace(job, callbacks=Callbacks(step=fail)))
    assert kernels(job.model) == {fused_kernel}


def test_a_kernel_that_somebody_chose_stays_theirs(tmp_path: Path) -> None:
    job = tiny.job(tmp_path, 2)
    first = next(part for part in job.model.modules() if isinstance(part, Attention))
    first.kernel = causal_kernel
    fit(job)
    assert first.kernel is causal_kernel
    assert kernels(job.model) <= {causal_kernel, fused_kernel}
