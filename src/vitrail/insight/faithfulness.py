"""Does a map say what the network used? Deletion and insertion beside orders that know nothing of the network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitrail.insight.attribution import Ask
from vitrail.insight.occlusion import levels
from vitrail.insight.targets import Aim
from vitrail.types import Array

STEPS = 12  # pieces in which an image is taken away
ORDERS = 3  # random orders, of which the mean counts


class Curves(NamedTuple):
    """The aim's value while patches go away, or come, in an order: from the whole or the empty image to the other."""

    shares: tuple[float, ...]  # of the patches that are gone, or have come
    deletion: tuple[float, ...]
    insertion: tuple[float, ...]


class FaithfulnessScores(NamedTuple):
    """Areas under the curves, 0 to 1 for probabilities. A faithful map: deletion low, insertion high."""

    deletion: float
    insertion: float
    random_deletion: float
    random_insertion: float
    centre_deletion: float
    centre_insertion: float

    @property
    def gain(self) -> float:
        """How much better than chance: insertion minus deletion, less the same of random orders."""
        return (self.insertion - self.deletion) - (self.random_insertion - self.random_deletion)


def order_of(values: Array) -> Array:
    """Numbers of the patches, the most important first; equal ones in the order of the image."""
    return np.argsort(-values.ravel().astype(np.float64), kind="stable")


def centre_first(grid: tuple[int, int]) -> Array:
    """Numbers of the patches from the middle outwards."""
    h, w = grid
    rows, columns = np.mgrid[0:h, 0:w]
    away = ((rows - (h - 1) / 2) / h) ** 2 + ((columns - (w - 1) / 2) / w) ** 2
    return order_of(-away)


def random_orders(count: int, patches: int, seed: int = 0) -> list[Array]:
    dice = np.random.default_rng(seed)
    return [dice.permutation(patches) for _ in range(count)]


def curves(ask: Ask, pixels: Tensor, grid: tuple[int, int], orders: Sequence[Array], aim: Aim) -> list[Curves]:
    """Deletion and insertion for every order, of one image (C, H, W); its ends are asked for once."""
    patches = grid[0] * grid[1]
    stops = sorted({round(patches * step / STEPS) for step in range(STEPS + 1)})
    inner = stops[1:-1]
    masks = [np.zeros(patches, bool), np.ones(patches, bool)]
    for order in orders:
        for stop in inner:
            gone = np.zeros(patches, bool)
            gone[order[:stop]] = True
            masks += [gone, ~gone]
    values = levels(ask, pixels, torch.from_numpy(np.stack(masks).reshape(-1, *grid)), aim.level).tolist()
    full, empty = values[:2]
    shares = tuple(stop / patches for stop in stops)
    pairs_of_curves = []
    for number in range(len(orders)):
        first = 2 + 2 * len(inner) * number
        part = values[first : first + 2 * len(inner)]
        pairs_of_curves.append(Curves(shares, (full, *part[0::2], empty), (empty, *part[1::2], full)))
    return pairs_of_curves


def area(shares: Sequence[float], curve: Sequence[float]) -> float:
    """Under a curve over 0 to 1, by trapezoids."""
    heights, places = np.asarray(curve), np.asarray(shares)
    return float(((heights[1:] + heights[:-1]) / 2 * np.diff(places)).sum())


def scores_of(
    ask: Ask, pixels: Tensor, maps: Sequence[Array], aim: Aim, seed: int = 0
) -> tuple[list[FaithfulnessScores], list[Curves]]:
    """The scores of several maps of one image, beside the same random orders and the same centre."""
    grid = maps[0].shape
    chance = random_orders(ORDERS, maps[0].size, seed)
    measured = curves(ask, pixels, grid, [*map(order_of, maps), *chance, centre_first(grid)], aim)
    areas = np.array([[area(each.shares, each.deletion), area(each.shares, each.insertion)] for each in measured])
    random, centre = areas[len(maps) : -1].mean(axis=0), areas[-1]
    scores = [FaithfulnessScores(*map(float, (*areas[row], *random, *centre))) for row in range(len(maps))]
    return scores, measured[: len(maps)]
