"""Lint: what is known to go wrong with a recipe, before it has cost a night; the rules are in lint_rules.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from vitrail.checks import check_int, check_pair
from vitrail.errors import InputError
from vitrail.network.config import ViTConfig
from vitrail.training.lint_rules import RULES, LintCase
from vitrail.training.recipe import Recipe


class Finding(NamedTuple):
    """Something to know before training."""

    level: str  # error, warning or advice
    name: str
    message: str


def lint(
    config: ViTConfig,
    recipe: Recipe,
    *,
    images: int,
    classes: int,
    size: int | tuple[int, int],
    pretrained: bool,
    names: Sequence[str] = (),
    sizes: Sequence[tuple[int, int]] | None = None,
    device: str = "cpu",
) -> list[Finding]:
    """What is known to go wrong, the worst first.

    `images`: images to train on; `size`: pixels (H, W) that the network sees; `names`: of the classes, and `sizes`:
    (H, W) of the images as they are, where known.
    """
    case = LintCase(
        config,
        recipe,
        check_int("images", images, 1, 1 << 40, InputError),
        check_int("classes", classes, 0, error=InputError),
        check_pair("size", size),
        pretrained,
        tuple(names),
        tuple(sizes or ()),
        device,
    )
    complaints = ((name, rule(case)) for name, rule in RULES.items())
    findings = [Finding(each.level, name, each.message) for name, each in complaints if each is not None]
    return sorted(findings, key=lambda each: ("error", "warning", "advice").index(each.level))
