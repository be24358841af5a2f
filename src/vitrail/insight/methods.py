"""The ways to explain an answer, each a name or a small frozen dataclass with its options."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar, Final

from vitrail.checks import check_choice, check_int, check_number
from vitrail.errors import InputError

FUSIONS: Final = ("mean", "max", "min")


class Method:
    """What every method has: the name it goes by, and what it asks of a network."""

    name: ClassVar[str]
    inside: ClassVar[bool] = True  # looks at tokens, so it needs the network itself and every token in its place

    @property
    def words(self) -> str:
        """The name, with the options that are not as usual."""
        changed = [
            f"{each.name} {getattr(self, each.name)}"
            for each in fields(self)  # type: ignore[arg-type]
            if getattr(self, each.name) != each.default
        ]
        return f"{self.name} ({', '.join(changed)})" if changed else self.name


@dataclass(frozen=True)
class Attention(Method):
    """What one block looks at: the weights of its attention, nothing added."""

    name: ClassVar[str] = "attention"
    block: int = -1
    head: int | None = None  # by its original number; None: the mean of all
    query: int | tuple[int, int] | None = None  # a patch, by number or (row, column); None: what the pool reads

    def __post_init__(self) -> None:
        check_int("block", self.block, least=-1024)
        if self.head is not None:
            check_int("head", self.head, least=0)
        if self.query is not None:
            for each in self.query if isinstance(self.query, tuple) else (self.query,):
                check_int("query", each, least=0)
            if isinstance(self.query, tuple) and len(self.query) != 2:
                raise InputError(f"query: expected the number of a patch or (row, column), got {self.query}")


@dataclass(frozen=True)
class Rollout(Method):
    """Attention followed through all blocks (Abnar and Zuidema 2020)."""

    name: ClassVar[str] = "rollout"
    fusion: str = "mean"  # of the heads: mean, max or min
    discard: float = 0.9  # share of the weakest links between patches that are cut, in every block
    blocks: int | None = None  # so many of them, from the first: how far attention has come by then; None: all

    def __post_init__(self) -> None:
        check_choice("fusion", self.fusion, FUSIONS)
        check_number("discard", self.discard, 0.0, 1.0, below=True)
        if self.blocks is not None:
            check_int("blocks", self.blocks, 1, 1024)


@dataclass(frozen=True)
class Flow(Method):
    """The most that attention lets through from each patch to the pool (Abnar and Zuidema 2020): slow."""

    name: ClassVar[str] = "flow"
    fusion: str = "mean"
    discard: float = 0.9

    def __post_init__(self) -> None:
        check_choice("fusion", self.fusion, FUSIONS)
        check_number("discard", self.discard, 0.0, 1.0, below=True)


@dataclass(frozen=True)
class GradientRollout(Method):
    """Rollout of attention times its gradient: what speaks for the target."""

    name: ClassVar[str] = "gradient-rollout"
    discard: float = 0.9

    def __post_init__(self) -> None:
        check_number("discard", self.discard, 0.0, 1.0, below=True)


@dataclass(frozen=True)
class Relevance(Method):
    """Attention weighted by its gradient, head by head, added up through all blocks (Chefer et al. 2021)."""

    name: ClassVar[str] = "relevance"


@dataclass(frozen=True)
class GradCam(Method):
    """The tokens that enter a block, weighted by the mean gradient of each of their values (Selvaraju et al. 2017)."""

    name: ClassVar[str] = "grad-cam"
    block: int = -1

    def __post_init__(self) -> None:
        check_int("block", self.block, least=-1024)


@dataclass(frozen=True)
class IntegratedGradients(Method):
    """Gradients at the pixels, gathered on the way from an empty image (Sundararajan et al. 2017)."""

    name: ClassVar[str] = "integrated-gradients"
    inside: ClassVar[bool] = False
    steps: int = 0  # points on the way; 0: as many as it takes for the sum to be right within 1 %
    batch: int = 8

    def __post_init__(self) -> None:
        check_int("steps", self.steps, 0, 4096)
        check_int("batch", self.batch, 1)


@dataclass(frozen=True)
class Occlusion(Method):
    """How much is lost when a piece of the image is covered; asks for answers only, so any runtime will do."""

    name: ClassVar[str] = "occlusion"
    inside: ClassVar[bool] = False
    window: int = 0  # side of the piece, in patches; 0: a seventh of the grid's shorter side
    batch: int = 16

    def __post_init__(self) -> None:
        check_int("window", self.window, 0, 1024)
        check_int("batch", self.batch, 1)


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
