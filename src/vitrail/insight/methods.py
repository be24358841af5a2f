"""The ways to explain an answer by name: a line for each, in the order in which people are told of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from vitrail.errors import InputError
from vitrail.insight.attention_methods import Attention, GradientRollout, Relevance, Rollout
from vitrail.insight.attribution import Method
from vitrail.insight.flow import Flow
from vitrail.insight.gradients import GradCam, IntegratedGradients
from vitrail.insight.occlusion import Occlusion


@dataclass(frozen=True)
class Best(Method):
    """Of several methods the one whose map is the most faithful on this image."""

    name: ClassVar[str] = "best"
    among: tuple[str, ...] = ("relevance", "gradient-rollout", "grad-cam", "rollout", "attention")

    def __post_init__(self) -> None:
        if not isinstance(self.among, tuple) or not self.among:
            raise InputError(f"among: expected the names of methods, got {self.among!r:.80}")
        for each in self.among:
            if named(each).name == self.name:
                raise InputError("among: 'best' chooses between the other methods: leave it out")

    def candidates(self) -> Sequence[Method]:
        return [named(each) for each in self.among]


METHODS: Final[dict[str, type[Method]]] = {
    each.name: each
    for each in (
        Attention,
        Rollout,
        GradientRollout,
        Relevance,
        GradCam,
        IntegratedGradients,
        Occlusion,
        Flow,
        Best,
    )
}


def named(method: str | Method) -> Method:
    """The method of a name, with its usual options; or the method itself."""
    if isinstance(method, Method):
        return method
    if not isinstance(method, str) or method not in METHODS:
        raise InputError(f"method {method!r:.80} is unknown: expected one of {', '.join(METHODS)}")
    return METHODS[method]()
