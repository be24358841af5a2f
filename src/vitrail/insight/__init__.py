"""A look inside: what a network computed on the way, and which of its heads it can do without."""

from vitrail.insight.pruning import prune_heads
from vitrail.insight.trace import Trace, trace

__all__ = ["Trace", "prune_heads", "trace"]
