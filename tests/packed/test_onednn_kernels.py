"""Kernels are probed before they are used: wrong numbers are found out, and so is one far slower than plain torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from vitrail.packed import onednn_kernels as kernels
from vitrail.packed.onednn_kernels import KernelProbe, Product


@pytest.fixture
def unprobed() -> Iterator[None]:
    kernels.probe.cache_clear()
    yield
    kernels.probe.cache_clear()


@pytest.mark.usefixtures("unprobed")
@pytest.mark.parametrize("slow, plain, works", [(0.0209, 0.001, True), (0.0211, 0.001, False), (1.0, 0.06, True)])
def test_a_kernel_far_slower_than_plain_torch_is_not_used(
    slow: float, plain: float, works: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty times, and a thousandth of a second that a small product may vary by."""
    took = iter((slow, plain))
    monkeypatch.setattr(kernels, "_seconds", lambda call: next(took))
    found = kernels.probe("int8")
    assert found.works == works
    assert works or found.why == "the kernel takes 21 times as long as plain fp32"


def test_a_busy_machine_makes_no_kernel_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """What counts is this thread's own time, and of three runs the shortest."""
    spent = iter((0.0, 5.0, 10.0, 12.0, 20.0, 23.0))
    monkeypatch.setattr(kernels.time, "thread_time", lambda: next(spent))
    monkeypatch.setattr(kernels.time, "perf_counter", lambda: pytest.fail("the clock on the wall was asked"))
    calls: list[int] = []
    assert kernels._seconds(lambda: calls.append(1)) == 2.0
    assert len(calls) == 4  # the first is not timed


@pytest.mark.usefixtures("unprobed")
@pytest.mark.parametrize(
    "change, why",
    [
        (lambda out, layer: out, ""),
        (lambda out, layer: out + 2 if out.dtype == torch.uint8 else out, "bytes out differ from plain torch by more"),
        (lambda out, layer: out * 1.05 if out.dtype == torch.bfloat16 else out, "bf16 out of int8 differs"),
        (lambda out, layer: out * 1.005 if layer.activation == "swish" else out, "results differ from plain torch"),
    ],
)
def test_wrong_numbers_out_of_int8_are_found_out(
    change: Callable[[Tensor, Product], Tensor], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = kernels.multiply
    monkeypatch.setattr(kernels, "_seconds", lambda call: 1.0)
    monkeypatch.setattr(kernels, "multiply", lambda x, layer: change(true(x, layer), layer))
    found = kernels.probe("int8")
    assert found.works == (not why)
    assert why in found.why


@pytest.mark.usefixtures("unprobed")
@pytest.mark.parametrize("precision, name, works", [("fp32", 2e-4, False), ("bf16", 0.01, True), ("bf16", 0.2, False)])
def test_a_sum_with_the_residual_is_probed_too(
    precision: str, name: float, works: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = kernels.multiply_add
    monkeypatch.setattr(kernels, "multiply_add", lambda *given: true(*given) * (1 + name))
    assert kernels.probe(precision).works == works


def test_without_onednn_nothing_works(monkeypatch: pytest.MonkeyPatch, unprobed: None) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert kernels.probe("fp32") == KernelProbe(False, "this torch has no oneDNN")


def test_every_kernel_here_was_probed() -> None:
    for precision in ("fp32", "bf16", "int8"):
        assert kernels.probe(precision) == KernelProbe(True)


def test_a_wrong_kernel_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    true = kernels.multiply
    kernels.probe.cache_clear()
    monkeypatch.setattr(kernels, "multiply", lambda *given: true(*given) * 1.01)
    try:
        found = kernels.probe("fp32")
    finally:
        kernels.probe.cache_clear()
    assert not found.works
    assert "differ from plain torch by 0.01" in found.why
