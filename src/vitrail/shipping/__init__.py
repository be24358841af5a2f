"""optimize and bench: the search over runtimes, precisions and token merging, and their speed on this machine.

They are imported when asked for: the command line lists runtimes without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitrail.shipping.benchmark import Bench, bench
    from vitrail.shipping.optimizer import Optimised, optimize
    from vitrail.shipping.steps import SearchStep

__all__ = ["Bench", "Optimised", "SearchStep", "bench", "optimize"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'vitrail.shipping' has no name {name!r}")
    from vitrail.shipping import benchmark, optimizer, steps

    return next(getattr(module, name) for module in (optimizer, benchmark, steps) if hasattr(module, name))
