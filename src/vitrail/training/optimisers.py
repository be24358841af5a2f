"""Optimisers: a network's parameters in groups, each with its own rate, and the object that moves them.

Layer-wise decay stands in each group's `lr` itself, so any scheduler on top keeps it; the convention is BEiT's and
MAE's. With L blocks and a decay of d:

| parameters                                             | rate               |
|--------------------------------------------------------|--------------------|
| stem, patches, prefix tokens, positions, entry norm    | lr * d ** (L + 1)  |
| block b, from 0, with positions that are its own       | lr * d ** (L - b)  |
| final norm, attention pool                             | lr                 |
| head                                                   | lr * head_lr       |

timm differs in one place: it counts a final norm on tokens to the last block. Matrices and convolutions have weight
decay; vectors (biases, norms, LayerScale), prefix tokens, positions and the pool's probe have none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from vitrail.checks import join_limited
from vitrail.errors import CheckpointError, ConfigError
from vitrail.network.config import ViTConfig
from vitrail.network.vit import ViT
from vitrail.training.processes import Processes
from vitrail.training.recipe import Recipe

Group = dict[str, Any]

BY_MUON: Final = ("attention.qkv.weight", "attention.out.weight", "mlp.up.weight", "mlp.down.weight")
STATES: Final = {  # what each kind keeps for a parameter
    "adamw": ("step", "exp_avg", "exp_avg_sq"),
    "adam": ("step", "exp_avg", "exp_avg_sq"),
    "sgd": ("momentum_buffer",),
    "muon": ("momentum_buffer",),
}


class Rate(NamedTuple):
    """The rate of one group of parameters, as `--show-lr` prints it."""

    name: str
    parameters: int
    lr: float
    weight_decay: float


def parameter_groups(model: ViT, recipe: Recipe) -> list[Group]:
    """Groups for any torch optimiser, from the entry to the head: name, params (with names), lr, weight_decay, kind."""
    depth = model.config.depth
    layers = ["entry", *(f"block {number}" for number in range(depth)), "end", "head"]
    by_kind: dict[tuple[str, float, str], Group] = {}
    trained = [(name, each) for name, each in model.named_parameters() if each.requires_grad]
    if recipe.tune == "head":
        trained = [(name, each) for name, each in trained if name.startswith("head.")]
        if not trained:
            raise ConfigError("tune='head': this network has no head to train: give it classes, or set tune='all'")
    if not trained:
        raise ConfigError("no parameter is left to train: every one of them is frozen")
    for name, parameter in trained:
        layer = layer_of(name, model.config)
        decay = recipe.weight_decay if has_decay(name, parameter) else 0.0
        kind = recipe.optimiser
        if kind == "muon" and not is_for_muon(name, parameter):
            kind = "adamw"
        share = recipe.head_lr if layer == "head" else recipe.layer_decay ** (depth + 1 - layers.index(layer))
        lr = recipe.lr * share
        fresh = {"name": layer, "params": [], "lr": lr, "base": lr, "weight_decay": decay, "kind": kind}
        by_kind.setdefault((layer, decay, kind), fresh)["params"].append((name, parameter))
    return sorted(by_kind.values(), key=lambda group: layers.index(group["name"]))


def layer_of(name: str, config: ViTConfig) -> str:
    """The layer that a parameter's rate goes by: entry, block 0, block 1 …, end, head."""
    parts = name.split(".")
    if parts[0] == "head":
        return "head"
    if parts[0] in ("norm", "pool"):
        return "end"
    if parts[:2] == ["encoder", "blocks"]:
        return f"block {parts[2]}"
    if parts[:3] == ["tokens", "rotary", "mixed"]:  # frequencies that one block alone turns by
        return f"block {parts[3]}"
    if parts[:2] == ["tokens", "tables"] and config.positions.at == "every":  # a table for each block
        return f"block {parts[2]}"
    return "entry"


def is_for_muon(name: str, parameter: Tensor) -> bool:
    """The matrices of the blocks, and the convolutions of a stem, each as the matrix it flattens to."""
    in_block = name.startswith("encoder.blocks.") and name.endswith(BY_MUON)
    return in_block or (name.startswith("stem.") and parameter.ndim == 4)


def has_decay(name: str, parameter: Tensor) -> bool:
    """Whether weight decay acts on a parameter: on matrices and convolutions that are no tokens or positions."""
    tokens = name.startswith("tokens.") or name == "pool.probe" or name.endswith("attention.relative.table")
    return parameter.ndim > 1 and not tokens


def show_rates(model: ViT, recipe: Recipe) -> list[Rate]:
    """Every group with its number of parameters and its own rate at factor 1."""
    return [
        Rate(group["name"], sum(each.numel() for _, each in group["params"]), group["lr"], group["weight_decay"])
        for group in parameter_groups(model, recipe)
    ]


class Optimiser:
    """Moves the parameters by their gradients; its state is plain tensors under the parameters' names."""

    def __init__(self, optimisers: Mapping[str, torch.optim.Optimizer]) -> None:
        self.optimisers = dict(optimisers)  # by kind; Muon and AdamW share the work between them

    @property
    def groups(self) -> list[Group]:
        """Every group, with its rate `base` and the one in force, `lr`."""
        return [group for each in self.optimisers.values() for group in each.param_groups]

    def step(self, factor: float) -> None:
        """One step, every group at its own rate times the factor."""
        for group in self.groups:
            group["lr"] = group["base"] * factor
        for each in self.optimisers.values():
            each.step()

    def zero(self) -> None:
        """Forget the gradients."""
        for each in self.optimisers.values():
            each.zero_grad(set_to_none=True)

    def state_tensors(self) -> dict[str, Tensor]:
        """All there is to save: "exp_avg.head.classify.weight" and so on; the tensors themselves, no copies."""
        tensors: dict[str, Tensor] = {}
        for kind, name, parameter in self._parameters():
            state = self.optimisers[kind].state.get(parameter, {})
            for key in STATES[kind]:
                if state.get(key) is not None:  # a parameter that never had a gradient has none
                    tensors[f"{key}.{name}"] = state[key]
        return tensors

    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from what `state_tensors` gave: the next steps are the same to the bit."""
        left, wrong = dict(tensors), []
        fresh: list[tuple[torch.optim.Optimizer, Tensor, dict[str, Tensor]]] = []
        for kind, name, parameter in self._parameters():
            state = {key: left.pop(f"{key}.{name}") for key in STATES[kind] if f"{key}.{name}" in left}
            if state and len(state) < len(STATES[kind]):
                wrong.append(f"{name} has {', '.join(state)} of {', '.join(STATES[kind])}")
            for key, value in state.items():
                shape, kept = ((), torch.float32) if key == "step" else (tuple(parameter.shape), parameter.dtype)
                if tuple(value.shape) != shape or value.dtype != kept:
                    wrong.append(f"{key}.{name} is {tuple(value.shape)} {value.dtype}, not {shape} {kept}")
            copies = {key: value.detach().to(parameter.device, copy=True) for key, value in state.items()}
            fresh.append((self.optimisers[kind], parameter, copies))
        wrong += [f"{name} is of no parameter that is trained" for name in left]
        if wrong:
            raise CheckpointError(f"the saved optimiser does not fit this network and recipe: {join_limited(wrong)}")
        for optimiser, parameter, state in fresh:
            optimiser.state.pop(parameter, None)
            if state:
                optimiser.state[parameter] = state

    def _parameters(self) -> list[tuple[str, str, Tensor]]:
        """Kind, name and parameter of everything that is trained."""
        return [
            (kind, name, parameter)
            for kind, each in self.optimisers.items()
            for group in each.param_groups
            for name, parameter in zip(group["param_names"], group["params"], strict=True)
        ]


def build_optimiser(model: ViT, recipe: Recipe, shared_by: Processes | None = None) -> Optimiser:
    """The optimiser that a recipe asks for; what it does not train is frozen, so that no gradient is spent on it.

    `shared_by` are the processes that hold parts of every weight, where the network is sharded.

    The fused Adam of torch is three times as fast on a CPU as its loops (4 against 13 ms a step for 6 blocks of width
    192), and works value by value, so it gives the same bits every time. The fused SGD gains 3 ms, and fails where a
    parameter has its first gradient later than others.
    """
    parted: dict[str, list[Group]] = {}
    trained: set[str] = set()
    for group in parameter_groups(model, recipe):
        parted.setdefault(group["kind"], []).append(group)
        trained.update(name for name, _ in group["params"])
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in trained)
    optimisers: dict[str, torch.optim.Optimizer] = {}
    for kind, own in parted.items():
        if kind == "sgd":
            optimisers[kind] = torch.optim.SGD(own, lr=recipe.lr, momentum=recipe.momentum)
        elif kind == "muon":
            optimisers[kind] = Muon(own, lr=recipe.lr, shared_by=shared_by)
        else:
            adam = torch.optim.AdamW if kind == "adamw" else torch.optim.Adam
            optimisers[kind] = adam(own, lr=recipe.lr, betas=(0.9, recipe.beta2), fused=True)
    return Optimiser(optimisers)


# ---- Muon ----------------------------------------------------------------------------------------------------------

A, B, C = 3.4445, -4.7750, 2.0315  # the quintic of Keller Jordan's post
ITERATIONS: Final = 5
EPS: Final = 1e-7


def orthogonalise(stack: Tensor) -> Tensor:
    """Matrices (n, r, c) with their singular values brought near 1 by Newton-Schulz steps.

    A step is X <- Q X with Q = A + B G + C G² and G = X Xᵀ. All of them are polynomials of the first G, so they are
    multiplied up there, where the matrices are small, and meet X once: G <- Q G Q.
    """
    tall = stack.shape[1] > stack.shape[2]
    x = stack.mT if tall else stack
    x = x / x.flatten(1).norm(dim=1).clamp(min=EPS)[:, None, None]  # no singular value over 1
    gram = torch.bmm(x, x.mT)  # (n, r, r)
    product = gram.new_empty(0)
    for iteration in range(ITERATIONS):
        quintic = torch.baddbmm(gram, gram, gram, beta=B, alpha=C)
        quintic.diagonal(dim1=1, dim2=2).add_(A)
        product = torch.bmm(quintic, product) if iteration else quintic
        if iteration < ITERATIONS - 1:
            gram = torch.bmm(torch.bmm(quintic, gram), quintic)
    x = torch.bmm(product, x)
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Nesterov momentum made orthogonal, scaled to the size of AdamW's steps; for matrices (Jordan et al. 2024).

    A convolution is the matrix that its filters make, one a row.

    The method of torch.optim.Muon with adjust_lr_fn="match_rms_adamw", so the rates and weight decay of AdamW fit.
    torch iterates in bfloat16, which is slow on a CPU without units for it, and far off where the momentum is nearly
    of low rank. Here it is fp32 on the small Gram matrix, with matrices of one shape side by side: 5 times as fast on
    a CPU (72 against 390 ms for 6 blocks of width 192).

    A matrix can only be made orthogonal whole: of a sharded one, every process gathers the momentum, one matrix at a
    time, and keeps its own part of the result.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        shared_by: Processes | None = None,
    ) -> None:
        self.shared_by = shared_by  # those that hold parts of every matrix
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.ndim < 2:
                    raise ConfigError(f"Muon is for matrices, got a parameter of shape {tuple(parameter.shape)}")

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One step; there is no use for a closure."""
        alike: dict[torch.Size, list[tuple[Tensor, Tensor, float]]] = {}
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(parameter)
                buffer = state["momentum_buffer"].lerp_(parameter.grad, 1 - group["momentum"])
                update = parameter.grad.lerp(buffer, group["momentum"])
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                if self.shared_by is not None:
                    self._add_part(parameter, update, group["lr"], self.shared_by)
                    continue
                matrix = update.flatten(1)  # (out, in * kernel)
                alike.setdefault(matrix.shape, []).append((parameter, matrix, group["lr"]))
        for shape, rows in alike.items():
            updates = orthogonalise(torch.stack([matrix.float() for _, matrix, _ in rows]))
            for (parameter, _, lr), update in zip(rows, updates, strict=True):
                parameter.add_(update.reshape(parameter.shape), alpha=-lr * 0.2 * max(shape) ** 0.5)

    def _add_part(self, parameter: Tensor, update: Tensor, lr: float, processes: Processes) -> None:
        """What a whole matrix comes to, added to the part of it that this process holds."""
        matrix = processes.whole(update).flatten(1)
        change = orthogonalise(matrix[None].float())[0].reshape(parameter.shape)
        own = processes.own_values(processes.part_of(change, parameter))
        processes.own_values(parameter).add_(own, alpha=-lr * 0.2 * max(matrix.shape) ** 0.5)
