"""Logistic regression on features that lie in memory: full batches, float64 or float32, the same bits every time.

The loss is the mean cross entropy + l2 / 2 * |weight|² on standardised features; the bias goes free. That is
scikit-learn's with C = 1 / (n * l2). Features are turned into their principal axes and scaled there by about the
curvature of the loss, so that L-BFGS needs tens of steps where raw features would need hundreds; neither changes
where the lowest point lies.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitrail.types import Array

EXACT: Final = 1 << 22  # up to so many numbers are fitted in float64
NEVER: Final = 1e-6  # highest probability, on the images it was fitted to, of a class that none of them shows
_STAGES: Final = (8, 400)  # steps with the curvature at the start, then with that found


class Basis(NamedTuple):
    """Standardised features along their principal axes, and the way back."""

    features: Tensor  # (n, D)
    variances: Tensor  # (D,) along each axis, float64
    axes: Tensor  # (D, D) float64, a column each
    mean: Array  # (D,) of the raw features
    std: Array


class Fit(NamedTuple):
    """Weight (K, D) for standardised features and bias (K,), float64."""

    weight: Array
    bias: Array


def basis_of(features: Array, dtype: torch.dtype | None = None) -> Basis:
    """Raw features (n, D) -> their basis; a feature that never changes is left at zero."""
    raw = tensor_of(features)
    kind = dtype or (torch.float64 if raw.numel() <= EXACT else torch.float32)
    mean = raw.mean(dim=0, dtype=torch.float64)
    # In two passes: the variance of values far from zero is lost in one.
    std = torch.stack([(part - mean).square().sum(dim=0) for part in raw.split(8192)]).sum(dim=0).div(len(raw)).sqrt()
    std = torch.where(std > 1e-12 * mean.abs().clamp_min(1e-12), std, torch.ones_like(std))
    placed = torch.cat([((part - mean) / std).to(kind) for part in raw.split(8192)])
    variances, axes = torch.linalg.eigh((placed.T @ placed).double() / len(placed))
    return Basis(placed @ axes.to(kind), variances.clamp_min(0), axes, mean.numpy(), std.numpy())


def tensor_of(values: Array) -> Tensor:
    """The same numbers as a tensor; copied where they may not be written to, as in a file that is mapped."""
    return torch.from_numpy(np.require(values, requirements=["C", "W"]))


def fit(basis: Basis, targets: Array, classes: int, l2: float, rows: Array | None = None, change: float = 0.0) -> Fit:
    """The lowest loss on the images of these rows, all by default; targets (n,) or (n, K) are of all.

    It ends when a step lowers the loss by less than `change`; 0 is as near as the numbers allow.
    """
    features = basis.features if rows is None else basis.features[torch.from_numpy(rows)]
    kept = targets if rows is None else targets[rows]
    if kept.ndim == 1:
        present = np.unique(kept)
        problem: _Problem = _Softmax(features, torch.from_numpy(np.searchsorted(present, kept)), len(present))
    else:
        present = np.flatnonzero((kept > 0).any(axis=0) & ~(kept > 0).all(axis=0))
        problem = _Logistic(features, torch.from_numpy((kept[:, present] > 0).astype(np.float64)), len(present))
    exact = features.dtype == torch.float64
    solution, free = _descend(problem, basis.variances, l2, change or (1e-12 if exact else 1e-9))
    weight, bias = np.zeros((classes, features.shape[1])), np.zeros(classes)
    weight[present] = (solution @ basis.axes.T).numpy()
    bias[present] = free.numpy()
    rest = np.setdiff1d(np.arange(classes), present)
    if kept.ndim == 2:  # a label that every image has, or none
        bias[rest] = np.where(kept[:, rest].any(axis=0), -math.log(NEVER), math.log(NEVER))
    elif len(rest):
        bias[rest] = float(problem.logits(solution, free).logsumexp(dim=1).min()) + math.log(NEVER)
    return Fit(weight, bias)


class _Problem:
    """The mean loss of features (n, D) under a weight (K, D) and a bias (K,), its slope and its curvature."""

    def __init__(self, features: Tensor, targets: Tensor, classes: int) -> None:
        self.features, self.targets, self.classes = features, targets, classes

    def logits(self, weight: Tensor, bias: Tensor) -> Tensor:
        kind = self.features.dtype
        return torch.addmm(bias.to(kind), self.features, weight.T.to(kind))  # (n, K)

    def parts(self, logits: Tensor) -> tuple[float, Tensor]:
        """The loss, and probability minus truth (n, K)."""
        raise NotImplementedError

    def shares(self, logits: Tensor) -> Tensor:
        """Probabilities (n, K)."""
        raise NotImplementedError

    def slopes(self, weight: Tensor, bias: Tensor) -> tuple[float, Tensor, Tensor]:
        """The loss, and its derivatives by weight and bias."""
        loss, away = self.parts(self.logits(weight, bias))
        count = len(self.features)
        return loss, (away.T @ self.features).double() / count, away.sum(dim=0, dtype=torch.float64) / count

    def curvature(self, weight: Tensor, bias: Tensor) -> Tensor:
        """About the second derivative of the loss along a feature of variance 1: (K,)."""
        shares = self.shares(self.logits(weight, bias))
        return (shares * (1 - shares)).mean(dim=0, dtype=torch.float64).clamp_min(1e-6)


class _Softmax(_Problem):
    def parts(self, logits: Tensor) -> tuple[float, Tensor]:
        own = self.targets[:, None]
        logs = logits.log_softmax(dim=1)
        loss = -float(logs.gather(1, own).mean(dtype=torch.float64))
        return loss, logs.exp_().scatter_add_(1, own, torch.full_like(own, -1, dtype=logs.dtype))

    def shares(self, logits: Tensor) -> Tensor:
        return logits.softmax(dim=1)


class _Logistic(_Problem):
    def parts(self, logits: Tensor) -> tuple[float, Tensor]:
        truth = self.targets.to(logits.dtype)
        losses = torch.nn.functional.softplus(logits) - truth * logits
        return float(losses.sum(dtype=torch.float64) / len(logits)), logits.sigmoid().sub_(truth)

    def shares(self, logits: Tensor) -> Tensor:
        return logits.sigmoid()


def _descend(problem: _Problem, variances: Tensor, l2: float, change: float) -> tuple[Tensor, Tensor]:
    """Weight and bias of the lowest loss."""
    weight = torch.zeros(problem.classes, len(variances), dtype=torch.float64)
    bias = torch.zeros(problem.classes, dtype=torch.float64)
    if not problem.classes:
        return weight, bias
    for steps in _STAGES:
        curve = problem.curvature(weight, bias)[:, None]
        scale = torch.cat([(curve * variances + l2).rsqrt(), curve.rsqrt()], dim=1)  # (K, D + 1)
        point = torch.cat([weight, bias[:, None]], dim=1) / scale
        point.grad = torch.zeros_like(point)
        search = torch.optim.LBFGS(
            [point],
            max_iter=steps,
            max_eval=10 * steps,
            history_size=10,
            tolerance_grad=1e-10,
            tolerance_change=change,
            line_search_fn="strong_wolfe",
        )

        def loss(point: Tensor = point, scale: Tensor = scale) -> float:
            at = point * scale
            value, by_weight, by_bias = problem.slopes(at[:, :-1], at[:, -1])
            point.grad = torch.cat([by_weight + l2 * at[:, :-1], by_bias[:, None]], dim=1) * scale
            return value + l2 / 2 * float(at[:, :-1].square().sum())

        search.step(loss)
        weight, bias = (point * scale)[:, :-1], (point * scale)[:, -1]
    return weight, bias
