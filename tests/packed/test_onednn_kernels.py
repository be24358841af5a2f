"""Kernels are probed before they are used: wrong numbers are found out, and so is one far slower than plain torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from vitrail.packed import onednn_kernels as kernels
from vitrail.packed.onednn_kernels import KernelProbe


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


def changed(change: Callable[..., Any]) -> Callable[..., Any]:
    """int8_linear, with what it gives changed where that is asked for."""
    true = kernels.int8_linear

    def other(*given: Any) -> Any:
        activation, out, kind = (*given[2:], *("", None, torch.float32)[len(given) - 2 :])
        return change(true(*given), activation, out, kind)

    return other


@pytest.mark.usefixtures("unprobed")
@pytest.mark.parametrize(
    "change, why",
    [
        (lambda x, activation, out, kind: x, ""),
        (lambda x, activation, out, kind: x + 2 if out else x, "bytes out differ from plain torch by more than a step"),
        (lambda x, activation, out, kind: x * 1.05 if kind == torch.bfloat16 else x, "bf16 out of int8 differs"),
        (lambda x, activation, out, kind: x * 1.005 if activation == "silu" else x, "results differ from plain torch"),
    ],
)
def test_wrong_numbers_out_of_int8_are_found_out(
    change: Callable[..., Any], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "_seconds", lambda call: 1.0)
    monkeypatch.setattr(kernels, "int8_linear", changed(change))
    found = kernels.probe("int8")
    assert found.works == (not why)
    assert why in found.why


@pytest.mark.usefixtures("unprobed")
@pytest.mark.parametrize("precision, name, works", [("fp32", 2e-4, False), ("bf16", 0.01, True), ("bf16", 0.2, False)])
def test_a_sum_with_the_residual_is_probed_too(
    precision: str, name: float, works: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = kernels.linear_residual
    monkeypatch.setattr(kernels, "linear_residual", lambda *given: true(*given) * (1 + name))
    assert kernels.probe(precision).works == works


def test_without_onednn_nothing_works(monkeypatch: pytest.MonkeyPatch, unprobed: None) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert kernels.probe("fp32") == KernelProbe(False, "this torch has no oneDNN")


def test_every_kernel_here_was_probed() -> None:
    for precision in ("fp32", "bf16", "int8"):
        assert kernels.probe(precision) == KernelProbe(True)


def test_a_wrong_kernel_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    true = kernels.linear
    kernels.probe.cache_clear()
    monkeypatch.setattr(kernels, "linear", lambda *given: true(*given) * 1.01)
    try:
        found = kernels.probe("fp32")
    finally:
        kernels.probe.cache_clear()
    assert not found.works
    assert "differ from plain torch by 0.01" in found.why
