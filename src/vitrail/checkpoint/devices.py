"""A device by name -> torch's own; "auto" is an accelerator where there is one. And where a network lies."""

from __future__ import annotations

import torch
from torch import nn

from vitrail.errors import InputError

AUTO = "auto"


def find_device(name: str | torch.device) -> torch.device:
    """The device of a name, with its number, known to hold a tensor; "auto": an accelerator, else the cpu."""
    if name == AUTO:
        found = torch.accelerator.current_accelerator(check_available=True)
        return torch.device("cpu") if found is None else find_device(found)
    try:
        wanted = torch.zeros(0).to(torch.device(name)).device if torch.device(name).type != "meta" else None
    except (RuntimeError, AssertionError, TypeError, ValueError, NotImplementedError, ImportError) as error:
        there, why = ", ".join(device_names()), str(error).splitlines()[0]
        raise InputError(
            f"device: expected 'auto' or one that torch has, here {there}, got {name!r:.80}: {why:.120}"
        ) from None
    if wanted is None:
        raise InputError("device 'meta' holds no weights: expected one that computes, such as 'cpu'")
    return wanted


def device_names() -> list[str]:
    """Every device of this machine: cpu, and cuda:0, cuda:1 or mps where there are."""
    kind = torch.accelerator.current_accelerator(check_available=True)
    if kind is None:
        return ["cpu"]
    count = torch.accelerator.device_count()
    return ["cpu", *([kind.type] if count == 1 else [f"{kind.type}:{number}" for number in range(count)])]


def device_of(model: nn.Module) -> torch.device:
    """Where a network lies."""
    return next(model.parameters()).device


def describe_device(device: torch.device) -> str:
    """What a device is, whatever its number: "cuda (NVIDIA A100)"; the cpu is only the cpu."""
    name = getattr(torch.get_device_module(device), "get_device_name", None)
    return f"{device.type} ({name(device)})" if callable(name) else device.type


def seed_device(device: torch.device, seed: int) -> None:
    """Start the generators that dropout draws from."""
    # torch.manual_seed would also note the call for every absent device, each time.
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        module = torch.get_device_module(device)
        getattr(module, "manual_seed_all", module.manual_seed)(seed)  # the other is for the current one alone


def number_kinds(device: torch.device) -> tuple[str, ...]:
    """What its numbers may be: fp32 everywhere, and those of the shorter and longer kinds that it computes with."""
    kinds = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "fp64": torch.float64}
    return tuple(name for name, kind in kinds.items() if _holds(device, kind))


def _holds(device: torch.device, kind: torch.dtype) -> bool:
    """Whether a device computes with a kind of number, seen by trying."""
    try:
        one = torch.ones(1, 1).to(device, kind)
        return float((one @ one).sum()) == 1.0
    except (RuntimeError, TypeError, NotImplementedError):
        return False


def wait_for(device: torch.device) -> None:
    """Until it has done what it was given: an accelerator answers before it has."""
    torch.get_device_module(device).synchronize()
