"""Precision of a training: autocast to bf16 or fp16, fp16's loss scale, and the switch that torch has for TF32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final, NamedTuple

import torch

from vitrail.errors import InputError

AUTOCAST: Final = {"bf16": torch.bfloat16, "fp16": torch.float16}
TF32_DEVICES: Final = ("cuda", "xpu")  # others have no such mode, or none that torch can ask for

FIRST_SCALE: Final = 2.0**16
LEAST_SCALE: Final = 2.0**-14
MOST_SCALE: Final = 2.0**24
GROWTH_STEPS: Final = 2000  # steps without overflow before the scale is doubled


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """Inside, the products of the network are in this precision; its weights stay in fp32."""
    if precision not in AUTOCAST:
        return nullcontext()
    return torch.autocast(device.type, AUTOCAST[precision])


class LossScale(NamedTuple):
    """What fp16 multiplies the loss by, so that small gradients do not vanish: a power of two, so nothing is rounded.

    As torch's GradScaler: halved where a gradient overflows, and that step is left out; doubled after 2,000 good
    steps. It is two numbers, which stand in the state of a run.
    """

    factor: float = FIRST_SCALE
    good_steps: int = 0

    @property
    def is_least(self) -> bool:
        """Whether it cannot be halved again: then it is not the scale that overflows."""
        return self.factor <= LEAST_SCALE

    def after(self, *, overflow: bool) -> LossScale:
        """What follows a step."""
        if overflow:
            return LossScale(self.factor / 2)
        if self.good_steps + 1 < GROWTH_STEPS:
            return LossScale(self.factor, self.good_steps + 1)
        return LossScale(min(2 * self.factor, MOST_SCALE))


def check_precision(precision: str, device: torch.device) -> None:
    """Refuse a precision that would be another one on this device, in silence."""
    if precision == "tf32" and device.type not in TF32_DEVICES:
        raise InputError(
            f"precision: tf32 is a mode of {' and '.join(TF32_DEVICES)} devices, and {device.type} has none: "
            "take fp32, or bf16"
        )


def precision_notes(precision: str, device: torch.device) -> list[str]:
    """What is told of a run that goes on where its precision is another one."""
    if precision != "tf32" or device.type in TF32_DEVICES:
        return []
    return [f"the run was started in tf32, which {device.type} does not have: products are in full fp32 from here on"]


@contextmanager
def float32_products(precision: str, device: torch.device) -> Iterator[None]:
    """Inside, products of float32 are in TF32 where the precision says so, else in full; then torch is as it was.

    torch rounds convolutions to TF32 unless it is told otherwise, so fp32 is said too.
    """
    if device.type not in TF32_DEVICES:
        yield
        return
    cudnn: Any = torch.backends.cudnn
    switches = (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn)
    before = [each.fp32_precision for each in switches]
    # By the older names: torch keeps the newer ones in step with them, and not the other way round. What cannot be
    # asked for by them was set by the newer ones, and is put back by these.
    try:
        older = (torch.get_float32_matmul_precision(), bool(cudnn.allow_tf32))
    except RuntimeError:
        older = ("highest", True)
    _set_older("high" if precision == "tf32" else "highest", precision == "tf32")
    try:
        yield
    finally:
        _set_older(*older)
        for each, value in zip(switches, before, strict=True):
            if each.fp32_precision != value:
                each.fp32_precision = value


def _set_older(matmul: str, convolutions: bool) -> None:
    torch.set_float32_matmul_precision(matmul)
    torch.backends.cudnn.allow_tf32 = convolutions
