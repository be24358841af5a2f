"""The packed runtime: a checkpoint -> the same answers, faster, by plain torch on a CPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.checkpoint import Checkpoint, Provenance, answers
from vitrail.checks import check_type
from vitrail.errors import InputError, VitrailError
from vitrail.images import Resample
from vitrail.images.model_info import ModelInfo
from vitrail.inference.runtime import RuntimeBase, Takes
from vitrail.network.surgery import eval_mode
from vitrail.network.vit import ViT
from vitrail.packed import torch_resize
from vitrail.packed.onednn_kernels import Product, probe
from vitrail.packed.packed_layers import PackedLinear
from vitrail.packed.packed_vit import PackedViT
from vitrail.packed.packing import pack
from vitrail.quantisation.cpu_features import has_bf16_units
from vitrail.quantisation.output_distance import distance, head_scale, largest, typical
from vitrail.quantisation.quant_plan import QuantPlan
from vitrail.types import Array

WITHIN = {"fp32": 1e-4, "bf16": 0.08}  # of the logits' scale: further from eager, the network is not used
LOOSELY = 0.3  # where rounding decides which tokens of random pixels are merged


class Packed(RuntimeBase):
    """A network packed for this machine. `model` is a ViT, so that `vitrail.trace` and head masks work on it; no
    gradients do, so it is explained by occlusion, and its checkpoint by every method.

    `notes` says what could not be done as asked: kernels that this torch or this processor lacks.
    """

    model: ViT
    plan: QuantPlan | None  # None: not packed at all
    notes: tuple[str, ...]
    measurements: Mapping[str, Any]  # of the file that it was opened from
    difference: float | None = None  # from eager, by `logits_apart` on random pixels; None: opened from a file

    def __init__(self, checkpoint: Checkpoint, plan: QuantPlan | None = None) -> None:
        """Packs, and compares with the eager network on random pixels before anything is answered."""
        check_type("checkpoint", checkpoint, Checkpoint, error=InputError)
        device = next(checkpoint.model.parameters()).device
        if device.type != "cpu":
            raise InputError(f"packed networks run on the CPU, this one is on {device}: give checkpoint.to('cpu')")
        self.about, self._provenance, self.measurements = checkpoint.about, checkpoint.provenance, {}
        self.plan, self.notes = possible_plan(QuantPlan() if plan is None else plan)
        if self.plan is None:
            self.model, self.difference = checkpoint.model.eval(), 0.0
            return
        self.model = pack(checkpoint.model, self.plan, checkpoint.preprocess)
        self.notes += notes_of(self.model)
        self.difference = self._compare(checkpoint.model, self.plan)

    @classmethod
    def of(
        cls,
        model: ViT,
        about: ModelInfo,
        plan: QuantPlan | None,
        notes: tuple[str, ...],
        provenance: Provenance,
        measurements: Mapping[str, Any],
    ) -> Packed:
        """A runtime of a network that is packed already."""
        runtime = cls.__new__(cls)
        runtime.model, runtime.about, runtime.plan, runtime.notes = model, about, plan, notes
        runtime._provenance, runtime.measurements = provenance, measurements
        return runtime

    def _compare(self, eager: ViT, plan: QuantPlan) -> float:
        """How far from the eager network, which is refused if it is too far."""
        dtype = next(eager.parameters()).dtype
        within = WITHIN["fp32" if dtype == torch.float32 else "bf16"]  # a coarse network is no finer packed
        within = max(within, WITHIN[plan.precision])
        within = LOOSELY if within == WITHIN["bf16"] and eager.config.merge_per_block else within
        with torch.inference_mode(), eval_mode(eager):
            embedding = [eager.embed(each.to(dtype)) for each in _noise(self)]
            expected = torch.cat([eager.head(each).float() for each in embedding])
        scale = head_scale(eager.head, torch.cat(embedding).float().numpy())
        difference = logits_apart(proof(self), expected, scale, rounds=within > WITHIN["fp32"] or bool(plan.int8))
        if not plan.int8 and not difference <= within:
            raise VitrailError(
                f"the packed network differs from the eager one: its logits on random pixels are "
                f"{100 * difference:.2g} % of their usual size away, expected at most {100 * within:g} %: use the "
                "eager runtime, and report this processor and torch version"
            )
        if not np.isfinite(difference):
            raise VitrailError("the packed network gives NaN on random pixels: use the eager runtime")
        return difference

    @property
    def provenance(self) -> Provenance:
        return self._provenance

    @property
    def precision(self) -> str:
        """What most of the work is done in."""
        return "eager" if self.plan is None else self.plan.name

    @property
    def takes(self) -> Takes:
        return "uint8"

    @property
    def resample(self) -> Resample:
        return torch_resize.resample

    def run(self, pixels: Array) -> tuple[Array, Array]:
        """Pixels (B, C, H, W) -> logits (B, K) and embedding (B, D), as arrays."""
        if not isinstance(pixels, np.ndarray) or pixels.dtype.kind != "f":
            got = getattr(pixels, "dtype", type(pixels).__name__)
            raise InputError(f"expected pixels as a float array, got {got}: images go through .preprocess")
        return self._answers(_tensor(pixels).to(next(self.model.parameters()).dtype))

    def run_uint8(self, values: Array) -> tuple[Array, Array]:
        """The same of 8-bit values (B, H, W, C), as `preprocess.to_uint8` gives them; normalised on the way."""
        if not isinstance(values, np.ndarray) or values.dtype != np.uint8 or values.ndim != 4:
            got = getattr(values, "dtype", type(values).__name__)
            raise InputError(f"expected 8-bit values (B, H, W, C), got {got} {getattr(values, 'shape', '')}")
        if not self._takes_bytes:
            return self.run(self.preprocess.normalise(values))
        return self._answers(_tensor(values).permute(0, 3, 1, 2))

    @property
    def weight_bytes(self) -> int:
        """Memory that the weights take."""
        own = sum(each.nbytes for each in (*self.model.parameters(), *self.model.buffers()))
        return own + sum(_product_bytes(each.product) for each in self._modules if isinstance(each, PackedLinear))

    def _answers(self, pixels: Tensor) -> tuple[Array, Array]:
        return answers(self.model, pixels, self._modules)

    @property
    def _takes_bytes(self) -> bool:
        return isinstance(self.model, PackedViT) and self.model.patches.takes_bytes

    @cached_property
    def _modules(self) -> tuple[nn.Module, ...]:
        return tuple(self.model.modules())


def pack_checkpoint(checkpoint: Checkpoint, plan: QuantPlan) -> Packed:
    """A checkpoint packed as the plan says, and in no other way: where this machine cannot, that is an error."""
    packed = Packed(checkpoint, plan)
    if packed.plan != plan:
        raise InputError("; ".join(packed.notes))
    return packed


def notes_of(model: ViT) -> tuple[str, ...]:
    """What could not be done as it should when a network was packed."""
    return (model.note,) if isinstance(model, PackedViT) and model.note else ()


def _tensor(values: Array) -> Tensor:
    return torch.from_numpy(np.require(values, requirements=("C", "W")))  # in order, and writable, as torch wants it


def _noise(runtime: Packed) -> list[Tensor]:
    """Two images of fixed random pixels; and two of random bytes, normalised, where the network takes bytes."""
    generator = torch.Generator().manual_seed(0)
    preprocess = runtime.preprocess
    pixels = torch.randn(2, preprocess.channels, *preprocess.size, generator=generator)
    if not runtime._takes_bytes:
        return [pixels]
    return [pixels, torch.from_numpy(preprocess.normalise(_byte_noise(runtime)))]


def _byte_noise(runtime: Packed) -> Array:
    preprocess = runtime.preprocess
    return np.random.default_rng(0).integers(0, 256, (2, *preprocess.size, preprocess.channels), np.uint8)


def proof(runtime: Packed) -> Tensor:
    """Logits of fixed random pixels and bytes, float32: what a network answers says whether it is still the same."""
    model = runtime.model
    with torch.inference_mode():
        logits = [model(_noise(runtime)[0].to(next(model.parameters()).dtype)).float()]
        if runtime._takes_bytes:
            logits.append(model(torch.from_numpy(_byte_noise(runtime)).permute(0, 3, 1, 2)).float())
    return torch.cat(logits)


def logit_scale(runtime: Packed) -> float:
    """The size of the logits that its head gives for embeddings such as that of a random image."""
    model = runtime.model
    with torch.inference_mode():
        embedding = model.embed(_noise(runtime)[0][:1].to(next(model.parameters()).dtype))
    return head_scale(model.head, embedding.float().numpy())


def logits_apart(logits: Tensor, expected: Tensor, scale: float, rounds: bool) -> float:
    """As a share of the logits, or of the scale where they are smaller. Two networks that round differ a little
    everywhere, others nowhere."""
    return distance(expected.numpy(), logits.numpy(), typical if rounds else largest, scale)


def possible_plan(plan: QuantPlan) -> tuple[QuantPlan | None, tuple[str, ...]]:
    """The plan as far as this torch and processor go, and what was changed; None: not packed at all."""
    notes: list[str] = []
    int8, precision = dict(plan.int8), plan.precision
    if int8 and not probe("int8").works:
        notes.append(f"int8 is not available ({probe('int8').why}): {precision} is used instead")
        int8 = {}
    if precision == "bf16":
        if not probe("bf16").works:
            notes.append(f"packed bf16 is not available ({probe('bf16').why}): fp32 is used instead")
            precision = "fp32"
        elif not has_bf16_units():
            notes.append("this processor has no bf16 units: bf16 halves the memory here, but is slower than fp32")
    if precision == "fp32" and not probe("fp32").works:
        notes.append(f"packed layers are not available ({probe('fp32').why}): the network runs eager")
        return None, tuple(notes)
    resize = torch_resize.probe()
    if not resize.works:
        notes.append(f"images are resized by Pillow, with scaled decoding too ({resize.why})")
    return replace(plan, precision=precision, int8=int8), tuple(notes)


def _product_bytes(product: Product) -> int:
    beside = (product.bias, product.scales, product.zero_points)
    return product.weight.numel() * product.weight.element_size() + sum(
        each.nbytes for each in beside if each is not None
    )
