"""Checkpoint = model + preprocess + classes + provenance: a network with all that its use needs, in memory.

Its methods are the public verbs, by the same names. The rooms they stand in are right of this one: they are imported
inside the methods, here and in no other file.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.checkpoint.devices import device_of, find_device
from vitrail.checkpoint.provenance import Provenance, expect
from vitrail.checkpoint.safetensors_io import check_storable
from vitrail.checks import check_type
from vitrail.errors import CheckpointError, InputError
from vitrail.images import Preprocess
from vitrail.images.model_info import ModelInfo
from vitrail.images.ood_detector import OodDetector
from vitrail.network.masked import MaskedDecoder
from vitrail.network.surgery import eval_mode
from vitrail.network.vit import ViT
from vitrail.types import Array, Device, ProgressCallback, Source

if TYPE_CHECKING:
    from vitrail.checkpoint.transform import Transform
    from vitrail.inference import Prediction
    from vitrail.inference.image_inputs import ManyImages
    from vitrail.inference.image_reader import Skip
    from vitrail.insight import Explanation
    from vitrail.insight.attribution import Method
    from vitrail.insight.targets import Target

FORMAT: Final = 3  # of what `describe` says
DECODER: Final = "decoder."  # before the names of its tensors
EXTRAS: Final = "extras."


@dataclass(frozen=True)
class Checkpoint:
    """A network with all that its use needs; also a runtime that `predict` and `embed` take."""

    model: ViT
    preprocess: Preprocess
    classes: tuple[str, ...] = ()  # empty: numbers stand for names
    provenance: Provenance = field(default_factory=Provenance)
    task: str = "single-label"  # or "multi-label": labels independent of each other
    temperature: float | None = None  # fitted on held-out data; None: probabilities are not calibrated
    thresholds: tuple[float, ...] | None = None  # per class, for several labels
    reject: float | None = None  # the minimum confidence: answers less sure are marked, or declined
    decoder: MaskedDecoder | None = None  # of masked pre-training
    extras: Mapping[str, Tensor] = field(default_factory=dict)  # came with the weights; the network has no use for them
    ood: OodDetector | None = None  # tells images unlike the training ones; belongs to this network and preprocessing

    def __post_init__(self) -> None:
        for name, kind in (("model", ViT), ("preprocess", Preprocess), ("provenance", Provenance)):
            check_type(name, getattr(self, name), kind, error=CheckpointError)
        count = self.model.config.classes
        given: Any = self.classes
        if not isinstance(given, str) and isinstance(given, Iterable):
            classes = tuple(given) or tuple(str(number) for number in range(count))
            if len(classes) != count:
                raise CheckpointError(f"expected {count} class names, as the head has, got {len(classes)}")
            object.__setattr__(self, "classes", classes)
        about = self.about
        object.__setattr__(self, "classes", about.classes)
        object.__setattr__(self, "thresholds", about.thresholds)
        self._validate_pixels()
        self._validate_decoder()
        self._validate_extras()
        self._validate_ood()

    @property
    def about(self) -> ModelInfo:
        """All but the network: how images become pixels, and logits answers."""
        return ModelInfo(
            self.preprocess, self.classes, self.task, self.temperature, self.thresholds, self.reject, self.ood
        )

    def _validate_pixels(self) -> None:
        config, size = self.model.config, self.preprocess.size
        if self.preprocess.channels != config.channels:
            raise CheckpointError(
                f"the network takes {config.channels} channels, the preprocessing gives {self.preprocess.channels}"
            )
        config.grid_for(size)
        if config.fixed_size and size != config.image_size:
            raise CheckpointError(f"the network takes only {config.image_size}, the preprocessing gives {size}")

    def _validate_decoder(self) -> None:
        if self.decoder is None:
            return
        check_type("decoder", self.decoder, MaskedDecoder, error=CheckpointError)
        width = self.model.config.width
        if self.decoder.entering != width:
            raise CheckpointError(
                f"the decoder takes tokens of width {self.decoder.entering}, the network gives {width}"
            )

    def _validate_ood(self) -> None:
        if self.ood is None:
            return
        width = self.model.config.representation_width or self.model.config.pooled_width
        if self.ood.width != width:
            raise CheckpointError(
                f"the out-of-distribution detector knows embeddings of width {self.ood.width}, the network gives "
                f"{width}: ood=None, or one fitted to it"
            )

    def _validate_extras(self) -> None:
        expect(isinstance(self.extras, Mapping), "extras", "tensors under names", self.extras)
        for name in self.extras:
            expect(isinstance(name, str) and name != "" and _is_unicode(name), "extras", "names of text", name)
        check_storable({f"extras: {name}": value for name, value in self.extras.items()})
        object.__setattr__(self, "extras", dict(self.extras))

    def run(self, pixels: Array) -> tuple[Array, Array]:
        """Pixels (B, C, H, W) -> logits (B, K) and embedding (B, D), as arrays: the eager runtime."""
        if not isinstance(pixels, np.ndarray) or pixels.dtype.kind != "f":
            got = getattr(pixels, "dtype", type(pixels).__name__)
            raise InputError(f"expected pixels as a float array, got {got}: images go through .preprocess")
        parameter = next(self.model.parameters())
        return answers(self.model, torch.from_numpy(pixels).to(parameter.device, parameter.dtype))

    @property
    def notes(self) -> tuple[str, ...]:
        """What a stranger's file left open, so that nothing is assumed in silence."""
        family, words = self.provenance.family, self.provenance.left_open
        return (f"read as {family} with {words} (`vitrail inspect` says why)",) if family and words else ()

    @property
    def takes(self) -> Literal["pixels"]:
        """What `run_batches` gives it."""
        return "pixels"

    @property
    def resample(self) -> None:
        """No way of its own to resize images."""
        return None

    def run_uint8(self, values: Array) -> tuple[Array, Array]:
        """8-bit values (B, H, W, C), as `preprocess.to_uint8` gives them -> the same."""
        return self.run(self.preprocess.normalise(values))

    def with_preprocess(self, preprocess: Preprocess) -> Checkpoint:
        """The same network, reading images in another way."""
        return replace(self, preprocess=preprocess, ood=self.about.with_preprocess(preprocess).ood)

    @property
    def transform(self) -> Transform:
        """For a DataLoader: an image -> the pixels (C, H, W) that the network takes."""
        from vitrail.checkpoint.transform import Transform

        return Transform(self.preprocess)

    def to(self, device: Device) -> Checkpoint:
        """The same on a device, such as "cuda": a copy; this one stays where it is."""
        wanted = find_device(device)
        tensors = (*self.model.parameters(), *self.model.buffers())
        if all(each.device == wanted for each in tensors):
            return self
        try:
            model = copy.deepcopy(self.model).to(wanted)
            decoder = None if self.decoder is None else copy.deepcopy(self.decoder).to(wanted)
        except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:  # no room, or no such numbers
            raise InputError(
                f"this network cannot be put on device {str(wanted)!r}: {str(error).splitlines()[0]}"
            ) from None
        return replace(self, model=model, decoder=decoder, ood=self.ood)  # extras compute nothing: they stay

    def predict(
        self,
        images: ManyImages,
        top: int = 5,
        batch: int = 16,
        skip: Skip | None = None,
        done: ProgressCallback | None = None,
        threads: int = 2,
        decline: bool = False,
        trust: bool = False,
        progress: bool | None = None,
        device: Device | None = None,
    ) -> list[Prediction]:
        """The likeliest classes of every image: `vitrail.predict` of this checkpoint, with the same options."""
        from vitrail.inference import predict

        return predict(self, images, top, batch, skip, done, threads, decline, trust, progress, device)

    def embed(
        self,
        images: ManyImages,
        batch: int = 16,
        skip: Skip | None = None,
        done: ProgressCallback | None = None,
        threads: int = 2,
        progress: bool | None = None,
        device: Device | None = None,
    ) -> Array:
        """What the head receives for every image (n, D): `vitrail.embed` of this checkpoint, with the same options."""
        from vitrail.inference import embed

        return embed(self, images, batch, skip, done, threads, progress, device)

    def explain(
        self,
        image: Source,
        method: str | Method = "relevance",
        target: Target = None,
        *,
        check: bool = True,
        seed: int = 0,
        device: Device | None = None,
    ) -> Explanation:
        """Where on an image the answer comes from: `vitrail.explain` of this checkpoint, with the same options."""
        from vitrail.insight import explain

        return explain(self, image, method, target, check=check, seed=seed, device=device)

    def __repr__(self) -> str:
        from vitrail.checkpoint.checkpoint_summary import checkpoint_card

        return checkpoint_card(self).as_text()

    def _repr_html_(self) -> str:
        from vitrail.checkpoint.checkpoint_summary import checkpoint_card

        return checkpoint_card(self).as_html()

    def describe(self) -> dict[str, Any]:
        """All but the tensors, as plain values for JSON."""
        return {
            "format": FORMAT,
            "config": self.model.config.to_dict(),
            "decoder": None if self.decoder is None else self.decoder.config.to_dict(),
            **self.about.to_dict(),
            "provenance": self.provenance.to_dict(),
        }

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor under the name it has in the file: the network's own, `decoder.` and `extras.`."""
        decoder = {} if self.decoder is None else self.decoder.state_dict(prefix=DECODER)
        return {**self.model.state_dict(), **decoder, **{EXTRAS + name: value for name, value in self.extras.items()}}


def answers(model: ViT, pixels: Tensor, modules: Iterable[nn.Module] = ()) -> tuple[Array, Array]:
    """Logits (B, K) and embedding (B, D) of a network in evaluation, as arrays; its `modules` may be given, too."""
    with eval_mode(model, modules), torch.inference_mode():  # a network in training would answer by chance
        embedding = model.embed(pixels.to(device_of(model)))
        logits = model.head(embedding)
    if embedding.ndim == 3:
        if model.config.pool == "none":
            raise InputError("this network has no pool: use vitrail.trace or model.features for its tokens")
        embedding = embedding.mean(dim=1)  # of the cls and the distillation token
    return logits.float().cpu().numpy(), embedding.float().cpu().numpy()


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= each <= "\udfff" for each in text)
