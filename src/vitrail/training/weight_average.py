"""WeightAverage: an exponential moving average of a network's weights, which is often the better network."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from vitrail.checks import check_number, join_limited
from vitrail.errors import CheckpointError, InputError
from vitrail.network.vit import ViT
from vitrail.training.processes import ALONE, Processes


class WeightAverage:
    """average = decay * average + (1 - decay) * weights, after every step (Polyak; the paper takes 0.9999).

    Running statistics of batch norm are averaged as the weights are, since they belong together; whole numbers are
    copied. (torch's AveragedModel copies all of them, or with use_buffers averages even the whole numbers.)
    """

    def __init__(self, model: ViT, decay: float, shared_by: Processes | None = None) -> None:
        self.decay = check_number("ema", decay, 0.0, 1.0, below=True)
        self._local = (shared_by or ALONE).own_values  # of a network that some processes hold parts of
        self._model = None if shared_by else copy.deepcopy(model).eval().requires_grad_(False)
        if self._model is None:
            self._own = {name: value.detach().clone() for name, value in model.state_dict().items()}
        else:
            self._own = self._model.state_dict()  # the very tensors of the copy

    def decay_at(self, step: int) -> float:
        """The decay in force at a step, from 0: low at first, so that the start is forgotten.

        It never spans more than the last ninth of all steps so far: 1 - 9 / (10 + step).
        """
        return min(self.decay, (1 + step) / (10 + step))

    @torch.no_grad()
    def update(self, model: ViT, step: int) -> None:
        """Take in the weights as they are after a step."""
        theirs = model.state_dict()
        if theirs.keys() != self._own.keys():
            raise InputError("this average was made for another network: its tensors have other names")
        moving = [name for name, value in self._own.items() if value.is_floating_point()]
        ours = [self._local(self._own[name]) for name in moving]
        torch._foreach_lerp_(ours, [self._local(theirs[name]) for name in moving], 1 - self.decay_at(step))
        for name in self._own.keys() - set(moving):
            self._own[name].copy_(theirs[name])

    @contextmanager
    def applied_to(self, model: ViT) -> Iterator[ViT]:
        """Inside, a network with the averaged weights: the average itself; of a sharded one, it changes places."""
        if self._model is not None:
            yield self._model
            return
        self._change_places(model)
        try:
            yield model
        finally:
            self._change_places(model)

    @torch.no_grad()
    def _change_places(self, model: ViT) -> None:
        for name, value in model.state_dict().items():
            theirs, ours = self._local(value), self._local(self._own[name])
            kept = theirs.clone()
            theirs.copy_(ours)
            ours.copy_(kept)

    def tensors(self) -> dict[str, Tensor]:
        """All there is to save, under the names of the network's own tensors."""
        return dict(self._own)

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from what `tensors` gave."""
        wrong = sorted(self._own.keys() ^ tensors.keys())
        for name in sorted(self._own.keys() & tensors.keys()):
            own, given = self._own[name], tensors[name]
            if own.shape != given.shape or own.dtype != given.dtype:
                wrong.append(f"{name}: {tuple(given.shape)} {given.dtype}, not {tuple(own.shape)} {own.dtype}")
        if wrong:
            raise CheckpointError(f"the saved average is of another network: {join_limited(wrong)}")
        for name, value in tensors.items():
            self._own[name].copy_(value)
