"""The packed runtime: a checkpoint -> the same answers, faster, by plain torch on a CPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.checkpoint import Checkpoint, Provenance, answers
from vitrail.checks import check_type
from vitrail.errors import InputError, VitrailError
from vitrail.images import Resample
from vitrail.images.model_info import ModelInfo
from vitrail.inference.runtime import RuntimeBase, Takes
from vitrail.inference.settling import near_ties
from vitrail.network.surgery import eval_mode, with_merging
from vitrail.network.vit import ViT
from vitrail.packed import torch_resize as resampling
from vitrail.packed.onednn_kernels import has_bf16_units, probe
from vitrail.packed.packed_layers import ByteLinear, PackedLinear
from vitrail.packed.packed_vit import PackedViT
from vitrail.packed.packing import Plan, pack, unmerged

Array = np.ndarray[Any, Any]

WITHIN = {"fp32": 1e-4, "bf16": 0.1}  # of the largest logit: further from eager, the network is not used
LOOSELY = 0.3  # where rounding decides which tokens of random pixels are merged


class Packed(RuntimeBase):
    """A network packed for this machine. `model` is a ViT, so that `vitrail.trace` and head masks work on it; no
    gradients do, so it is explained by occlusion, and its checkpoint by every method.

    `notes` says what could not be done as asked: kernels that this torch or this processor lacks.
    """

    model: ViT
    plan: Plan | None  # None: not packed at all
    notes: tuple[str, ...]
    measurements: Mapping[str, Any]  # of the file that it was opened from
    clear: float = 1.0  # as the plan says
    difference: float | None = None  # from eager, of the largest logit, on random pixels; None: opened from a file

    def __init__(self, checkpoint: Checkpoint, plan: Plan | None = None) -> None:
        """Packs, and compares with the eager network on random pixels before anything is answered."""
        check_type("checkpoint", checkpoint, Checkpoint, error=InputError)
        device = next(checkpoint.model.parameters()).device
        if device.type != "cpu":
            raise InputError(f"packed networks run on the CPU, this one is on {device}: checkpoint.model.cpu() first")
        self.about, self._provenance, self.measurements = checkpoint.about, checkpoint.provenance, {}
        plan = Plan() if plan is None else plan
        merging = bool(checkpoint.model.config.merge_per_block)
        if plan.clear > 1 and (not (merging or plan.doubled) or checkpoint.task != "single-label"):
            raise InputError(
                f"clear={plan.clear:g} gives unclear answers again without merging tokens, without int8 and in the "
                "precision `again`, so it needs a network that merges (with_merging), a plan with int8, or one less "
                "precise than that; and one label an image"
            )
        self.plan, self.notes = possible(plan)
        coarse = merging or (self.plan is not None and self.plan.doubled)
        self.clear = plan.clear if coarse else 1.0  # otherwise all answers are exact already
        if self.plan is None:
            self.model, self.difference = checkpoint.model.eval(), 0.0
            return
        self.model = pack(checkpoint.model, self.plan, checkpoint.preprocess)
        self.notes += notes_of(self.model)
        if self.clear > 1 and self.plan.doubled:
            self.whole = pack(with_merging(checkpoint.model, 0), self.plan.exact, checkpoint.preprocess)
        self.difference = self._compare(checkpoint.model, self.plan)

    @classmethod
    def of(
        cls,
        model: ViT,
        about: ModelInfo,
        plan: Plan | None,
        notes: tuple[str, ...],
        provenance: Provenance,
        measurements: Mapping[str, Any],
        clear: float = 1.0,
        whole: ViT | None = None,
    ) -> Packed:
        """A runtime of a network that is packed already; the whole one, where it has layers of its own, beside it."""
        made = cls.__new__(cls)
        if whole is not None:
            made.whole = whole
        made.model, made.about, made.plan, made.notes = model, about, plan, notes
        made.clear = clear
        made._provenance, made.measurements = provenance, measurements
        return made

    def _compare(self, eager: ViT, plan: Plan) -> float:
        """How far from the eager network, which is refused if it is too far; so is the one without merging."""
        kind = next(eager.parameters()).dtype
        within = WITHIN["fp32" if kind == torch.float32 else "bf16"]  # a coarse network is no finer packed
        within = max(within, WITHIN[plan.precision])
        if self.clear > 1:
            exact = max(WITHIN["fp32" if kind == torch.float32 else "bf16"], WITHIN[plan.exact.precision])
            self._apart(self.whole, with_merging(eager, 0), exact, plan.exact)
        within = LOOSELY if within == WITHIN["bf16"] and eager.config.merge_per_block else within
        return self._apart(self.model, eager, within, plan)

    def _apart(self, packed: ViT, eager: ViT, within: float, plan: Plan) -> float:
        kind = next(eager.parameters()).dtype
        with torch.inference_mode(), eval_mode(eager):
            expected = torch.cat([eager(each.to(kind)).float() for each in _noise(self)])
        difference = float((proof(self, packed) - expected).abs().max() / expected.abs().max().clamp(min=1e-12))
        if not plan.int8 and not difference <= within:
            raise VitrailError(
                f"the packed network differs from the eager one by {difference:.2g} of the largest logit, expected at "
                f"most {within:g}: use the eager runtime, and report this processor and torch version"
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
        if self.plan is None:
            return "eager"
        return "int8" if self.plan.int8 else self.plan.precision

    @property
    def takes(self) -> Takes:
        return "uint8"

    @property
    def resample(self) -> Resample:
        return resampling.resample

    def run(self, pixels: Array) -> tuple[Array, Array]:
        """Pixels (B, C, H, W) -> logits (B, K) and embedding (B, D), as arrays."""
        if not isinstance(pixels, np.ndarray) or pixels.dtype.kind != "f":
            got = getattr(pixels, "dtype", type(pixels).__name__)
            raise InputError(f"expected pixels as a float array, got {got}: images go through .preprocess")
        return self._answers(torch.from_numpy(_plain(pixels)))

    def run_uint8(self, values: Array) -> tuple[Array, Array]:
        """The same of 8-bit values (B, H, W, C), as `preprocess.bytes` gives them; normalised on the way."""
        if not isinstance(values, np.ndarray) or values.dtype != np.uint8 or values.ndim != 4:
            got = getattr(values, "dtype", type(values).__name__)
            raise InputError(f"expected 8-bit values (B, H, W, C), got {got} {getattr(values, 'shape', '')}")
        if not self.model.patches.takes_bytes:
            return self.run(self.preprocess.normalise(values))
        return self._answers(torch.from_numpy(_plain(values)).permute(0, 3, 1, 2))

    def _answers(self, pixels: Tensor) -> tuple[Array, Array]:
        logits, embedding = answers(self.model, _as_it_takes(pixels, self.model), self._modules)
        if self.clear > 1:
            rows = np.flatnonzero(near_ties(logits, self.task, self.clear))
            if len(rows):
                again = _as_it_takes(pixels[torch.from_numpy(rows)], self.whole)
                logits[rows], embedding[rows] = answers(self.whole, again)
        return logits, embedding

    @cached_property
    def whole(self) -> ViT:
        """The network with all its tokens and nothing in int8: what gives unclear answers again.

        It has the same layers; where those are int8 or less precise, its own (but in files of format 2, where it is
        int8 as well). To see how an unclear answer came about, look into this one, not into `model`.
        """
        return unmerged(cast(PackedViT, self.model))

    @property
    def quick(self) -> Packed:
        """The network that answers first, by itself: unclear answers stay as they are."""
        return self._by(self.model, self.plan)

    @property
    def sure(self) -> Packed:
        """The one that gives unclear answers again, by itself."""
        return self._by(self.whole, None if self.plan is None else self.plan.exact)

    def _by(self, model: ViT, plan: Plan | None) -> Packed:
        return Packed.of(model, self.about, plan, self.notes, self.provenance, self.measurements)

    @cached_property
    def _modules(self) -> tuple[nn.Module, ...]:
        return tuple(self.model.modules())


def notes_of(model: ViT) -> tuple[str, ...]:
    """What could not be done as it should when a network was packed."""
    note = getattr(model.encoder, "note", "")
    return (note,) if note else ()


def _as_it_takes(pixels: Tensor, model: ViT) -> Tensor:
    """Pixels in the kind of the network's own numbers; bytes as they are."""
    return pixels.to(next(model.parameters()).dtype) if pixels.is_floating_point() else pixels


def _plain(values: Array) -> Array:
    """As torch wants arrays: in order, and writable."""
    values = np.ascontiguousarray(values)
    return values if values.flags.writeable else values.copy()


def _noise(runtime: Packed) -> list[Tensor]:
    """Two images of fixed random pixels; and two of random bytes, normalised, where the network takes bytes."""
    generator = torch.Generator().manual_seed(0)
    way = runtime.preprocess
    found = [torch.randn(2, way.channels, *way.size, generator=generator)]
    if runtime.model.patches.takes_bytes:
        found.append(torch.from_numpy(way.normalise(_byte_noise(runtime))))
    return found


def _byte_noise(runtime: Packed) -> Array:
    way = runtime.preprocess
    return np.random.default_rng(0).integers(0, 256, (2, *way.size, way.channels), np.uint8)


def proof(runtime: Packed, model: ViT | None = None) -> Tensor:
    """Logits of fixed random pixels and bytes, float32: what a network answers says whether it is still the same.

    Of the runtime's network, or another like it.
    """
    model = runtime.model if model is None else model
    kind = next(model.parameters()).dtype
    with torch.inference_mode():
        found = [model(_noise(runtime)[0].to(kind)).float()]
        if model.patches.takes_bytes:
            values = torch.from_numpy(_byte_noise(runtime)).permute(0, 3, 1, 2)
            found.append(model(values).float())
    return torch.cat(found)


def possible(plan: Plan) -> tuple[Plan | None, tuple[str, ...]]:
    """The plan as far as this torch and processor go, and what was changed; None: not packed at all."""
    notes: list[str] = []
    int8, precision = dict(plan.int8), plan.precision
    for name in ("int8",) if int8 else ():
        found = probe(name)
        if not found.works:
            notes.append(f"int8 is not available ({found.why}): {precision} is used instead")
            int8 = {}
    if precision == "bf16":
        found = probe("bf16")
        if not found.works:
            notes.append(f"packed bf16 is not available ({found.why}): fp32 is used instead")
            precision = "fp32"
        elif not has_bf16_units():
            notes.append("this processor has no bf16 units: bf16 halves the memory here, but is slower than fp32")
    if "fp32" in (precision, plan.again):
        found = probe("fp32")
        if not found.works:
            notes.append(f"packed layers are not available ({found.why}): the network runs eager")
            return None, tuple(notes)
    found = resampling.probe()
    if not found.works:
        notes.append(f"images are resized by Pillow, with scaled decoding too ({found.why})")
    again = plan.again if precision == plan.precision else ""  # all is fp32 then
    return replace(plan, precision=precision, int8=int8, again=again), tuple(notes)


def weight_bytes(model: ViT) -> int:
    """Memory that the weights of a network take, packed or not."""
    own = sum(each.nbytes for each in (*model.parameters(), *model.buffers()))
    return own + sum(_layer_bytes(each) for each in model.modules() if isinstance(each, PackedLinear | ByteLinear))


def _layer_bytes(layer: PackedLinear | ByteLinear) -> int:
    width = 1 if isinstance(layer, ByteLinear) else layer.kind.itemsize
    per_output = 8 if isinstance(layer, ByteLinear) else 0  # a step and a zero
    bias = 0 if layer.bias is None else layer.bias.nbytes
    return layer.out_features * (layer.in_features * width + per_output) + bias
