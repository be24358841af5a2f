"""Method: a way to explain an answer, a name and its options with the maps that it makes -> Attribution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import ClassVar, NamedTuple, Self, TypeAlias

from torch import Tensor

from vitrail.insight.activations import Answer
from vitrail.insight.targets import Aim
from vitrail.network.vit import ViT
from vitrail.types import Array

Ask: TypeAlias = Callable[[Tensor], Answer]  # pixels (n, C, H, W) -> what a network or runtime says


class Attribution(NamedTuple):
    """A map (h, w), not yet scored, and what its method has to say about it."""

    map: Array
    pixel_map: Array | None = None
    warning: str = ""


class Method:
    """What every method has. A new one is a frozen dataclass with `maps`, and a line in `methods.METHODS`."""

    name: ClassVar[str]
    reads_tokens: ClassVar[bool] = True  # so outlying tokens may distort its maps
    needs_network: ClassVar[bool] = True  # any runtime will do where answers are enough

    @property
    def words(self) -> str:
        """The name, with the options that are not as usual."""
        changed = [
            f"{each.name} {getattr(self, each.name)}"
            for each in fields(self)  # type: ignore[arg-type]
            if getattr(self, each.name) != each.default
        ]
        return f"{self.name} ({', '.join(changed)})" if changed else self.name

    def maps(self, model: ViT, pixels: Tensor, aims: Sequence[Aim]) -> Tensor:
        """The maps of a batch: pixels (B, C, H, W) -> (B, h, w), the higher, the more a patch speaks for its aim."""
        raise NotImplementedError

    def attribute(self, model: ViT, pixels: Tensor, aims: Sequence[Aim]) -> list[Attribution]:
        """The same with all that is known beside the maps."""
        return [Attribution(each.cpu().numpy()) for each in self.maps(model, pixels, aims)]

    def attribute_answers(self, ask: Ask, pixels: Tensor, grid: tuple[int, int], aim: Aim) -> Attribution:
        """The map (h, w) of one image (C, H, W) by answers alone, of methods that do not need the network."""
        raise NotImplementedError

    def candidates(self) -> Sequence[Method]:
        """The methods of which the most faithful map is taken: itself alone."""
        return [self]

    def quicker(self) -> Self:
        """The same for weights that mean nothing, where the last digit is not worth its time."""
        return self
