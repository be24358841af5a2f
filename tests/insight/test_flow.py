"""Attention flow against a linear programme, and against graphs whose flow is seen at once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from insight.small import build
from vitrail.errors import MissingExtraError
from vitrail.insight import Flow, explain_pixels, trace
from vitrail.insight.flow import patch_flows
from vitrail.insight.rollout import with_residual


def by_linear_programme(steps: list[np.ndarray], start: np.ndarray, sink: int) -> float:
    """The largest amount that can be sent, link by link, as much leaving every node as enters it."""
    tokens, depth = len(start), len(steps)
    links: list[tuple[int, int, float]] = []
    for layer, step in enumerate(steps, start=1):
        links += [
            (layer * tokens + to, (layer - 1) * tokens + given, step[to, given])
            for to in range(tokens)
            for given in range(tokens)
        ]
    source = (depth + 1) * tokens
    links += [(source, depth * tokens + token, start[token]) for token in range(tokens)]
    inner = [node for node in range(source) if node != sink]
    balance = np.zeros((len(inner), len(links)))
    for number, (given, taken, _) in enumerate(links):
        if taken in inner:
            balance[inner.index(taken), number] += 1
        if given in inner:
            balance[inner.index(given), number] -= 1
    arriving = np.array([-1.0 if taken == sink else 0.0 for _, taken, _ in links])
    limits = [(0, capacity) for _, _, capacity in links]
    return float(-linprog(arriving, A_eq=balance, b_eq=np.zeros(len(inner)), bounds=limits).fun)


@pytest.mark.row("VE.4")
@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_flow_is_the_optimum(pool: str) -> None:
    model = build(pool=pool)
    pixels = torch.randn(1, 3, 8, 12, generator=torch.Generator().manual_seed(1))
    seen = trace(model, pixels)
    steps = [with_residual(each.detach().mean(dim=1))[0].double().numpy() for each in seen.attention]
    start = seen.pool_weights[0].detach().double().numpy()
    [found] = explain_pixels(model, pixels, Flow(discard=0.0), 0, check=False)
    for patch in range(6):
        assert found.map.ravel()[patch] == pytest.approx(by_linear_programme(steps, start, 1 + patch), abs=1e-4)


@pytest.mark.row("VE.4")
def test_the_narrowest_link_decides() -> None:
    wide = np.array([[0.2, 0.5, 0.3], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    found = patch_flows([np.eye(3), wide, np.eye(3)], np.array([1.0, 0.0, 0.0]), 1)
    np.testing.assert_allclose(found, [0.5, 0.3], atol=1e-6)


def test_without_scipy_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "scipy.sparse", None)
    with pytest.raises(MissingExtraError, match=r"vitrail\[insight\]"):
        explain_pixels(build(), torch.randn(1, 3, 8, 12), "flow", 0, check=False)
