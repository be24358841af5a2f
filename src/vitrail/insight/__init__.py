"""A look inside: what a network computed on the way, why it answers as it does, and which heads it can do without."""

from vitrail.insight.explain import explain, explain_pixels
from vitrail.insight.explanation import Explanation
from vitrail.insight.methods import (
    METHODS,
    Attention,
    Best,
    GradCam,
    GradientRollout,
    IntegratedGradients,
    Method,
    Occlusion,
    Relevance,
    Rollout,
)
from vitrail.insight.pruning import prune_heads
from vitrail.insight.targets import Likeness, Versus
from vitrail.insight.trace import Trace, trace

__all__ = [
    "METHODS",
    "Attention",
    "Best",
    "Explanation",
    "GradCam",
    "GradientRollout",
    "IntegratedGradients",
    "Likeness",
    "Method",
    "Occlusion",
    "Relevance",
    "Rollout",
    "Trace",
    "Versus",
    "explain",
    "explain_pixels",
    "prune_heads",
    "trace",
]
