"""Resampling as matrices equals torch's own, and Pillow's."""

from __future__ import annotations

import itertools

import pytest
import torch

from vitrail.exporters.resample_matrices import weights
from vitrail.network import Resample
from vitrail.network.positions import resample

POLICIES = [
    Resample(mode, antialias, align, offset)
    for mode, antialias, align, offset in itertools.product(
        ("nearest", "bilinear", "bicubic"), (False, True), (False, True), (0.0, 0.1)
    )
    if not ((antialias and align) or (mode == "nearest" and (antialias or align)) or (offset and align))
]


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_matrices_resample_as_torch_does(policy: Resample) -> None:
    for old, new in itertools.product(
        ((14, 14), (3, 5), (1, 4), (16, 16)), ((14, 14), (7, 20), (1, 1), (5, 3), (37, 37), (32, 30), (16, 17), (1, 9))
    ):
        table = torch.randn(old[0] * old[1], 6)
        keep = torch.tensor(float(old == new))
        rows, columns = (weights(a, b, policy, keep) for a, b in zip(old, new, strict=True))
        found = torch.einsum("ih,hwd,jw->ijd", rows, table.reshape(*old, 6), columns).flatten(0, 1)
        expected = resample(table, old, new, policy)
        assert torch.allclose(found, expected, atol=1e-4), (old, new)
        if old == new:
            assert torch.equal(found, table)
