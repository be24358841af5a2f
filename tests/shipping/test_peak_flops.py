"""The limit of a machine: the faster of plain torch and packed kernels, in every precision."""

from __future__ import annotations

from vitrail.shipping.peak_flops import limits


def test_the_limit_is_the_faster_of_plain_and_packed() -> None:
    found = limits(rounds=1, shape=(64, 32, 48))
    assert set(found) - {"bf16"} == {"fp32", "int8"}
    assert all(rate > 0 for rate in found.values())
