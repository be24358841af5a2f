"""A look inside: what a network computed on the way, why it answers as it does, and which heads it can do without."""

from vitrail.insight.attention_methods import Attention, GradientRollout, Relevance, Rollout
from vitrail.insight.attribution import Method
from vitrail.insight.explainer import explain, explain_pixels
from vitrail.insight.explanation import Explanation
from vitrail.insight.flow import Flow
from vitrail.insight.gradients import GradCam, IntegratedGradients
from vitrail.insight.head_importance import Importance, importance
from vitrail.insight.methods import METHODS, Best
from vitrail.insight.occlusion import Occlusion
from vitrail.insight.pruning import prune_channels, prune_heads
from vitrail.insight.pruning_run import Pruned, prune
from vitrail.insight.targets import Likeness, Versus
from vitrail.insight.tracing import Trace, trace

__all__ = [
    "METHODS",
    "Attention",
    "Best",
    "Explanation",
    "Flow",
    "GradCam",
    "GradientRollout",
    "Importance",
    "IntegratedGradients",
    "Likeness",
    "Method",
    "Occlusion",
    "Pruned",
    "Relevance",
    "Rollout",
    "Trace",
    "Versus",
    "explain",
    "explain_pixels",
    "importance",
    "prune",
    "prune_channels",
    "prune_heads",
    "trace",
]
