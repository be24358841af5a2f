"""Where a run computes, and by what: what its record keeps and its report shows, so that another can be like it."""

from __future__ import annotations

import platform

import torch

from vitrail import __version__
from vitrail.checkpoint.devices import describe_device
from vitrail.cores import usable_cores
from vitrail.training import plain_attention
from vitrail.training.recipe import Recipe

Rows = list[tuple[str, str]]


def describe_environment(device: torch.device, recipe: Recipe) -> Rows:
    """Names and values, in the order of the report."""
    return [
        ("vitrail", __version__),
        ("python", platform.python_version()),
        ("torch", torch.__version__),
        ("device", describe_device(device)),
        ("precision", recipe.precision),
        ("forward pass", "compiled by torch" if recipe.compile else "as it stands"),
        ("attention", attention_kernels(device)),
        ("determinism", determinism()),
        ("threads", str(torch.get_num_threads())),
        ("machine", f"{platform.machine()}, cores: {usable_cores()}"),
        ("system", platform.system()),
    ]


def attention_kernels(device: torch.device) -> str:
    """The kernels of attention that may be taken here; which of them fits, torch decides by the shapes."""
    cuda = torch.backends.cuda
    allowed = {"flash": cuda.flash_sdp_enabled(), "math": cuda.math_sdp_enabled()}
    if device.type == "cuda":
        allowed |= {"memory-efficient": cuda.mem_efficient_sdp_enabled(), "cudnn": cuda.cudnn_sdp_enabled()}
    fused = "torch's: " + (", ".join(sorted(name for name, is_on in allowed.items() if is_on)) or "none")
    most = plain_attention.MOST_TOKENS.get(torch.float32, 0)
    return f"plain matrices up to {most} tokens, then {fused}" if device.type == "cpu" and most else fused


def determinism() -> str:
    """What torch is held to: whether the same run may round otherwise on the same device."""
    words = [f"deterministic algorithms {_on(torch.are_deterministic_algorithms_enabled())}"]
    if torch.backends.cudnn.is_available():
        words.append(f"cudnn deterministic {_on(torch.backends.cudnn.deterministic)}")
        words.append(f"cudnn benchmark {_on(torch.backends.cudnn.benchmark)}")
    return ", ".join(words)


def _on(is_on: bool) -> str:
    return "on" if is_on else "off"
