"""What optimize and bench can try: runtimes, and the precisions of each, by the table of export targets."""

from __future__ import annotations

from typing import Final

from vitrail.exporters import TARGETS
from vitrail.quantisation.cpu_features import has_bf16_units

PRECISIONS: Final = ("fp32", "bf16", "int8")


def runtime_names() -> tuple[str, ...]:
    """Runtimes beside eager: packed, and the targets whose files can be opened."""
    return ("packed", *(name for name, target in TARGETS.items() if target.opens))


def precisions_of(runtime: str) -> tuple[str, ...]:
    """Of "packed" all, of a target its own."""
    return PRECISIONS if runtime == "packed" else TARGETS[runtime].precisions


def precisions_here() -> tuple[str, ...]:
    """Those that make sense on this processor: without units for bf16 it is slower than fp32."""
    return tuple(each for each in PRECISIONS if each != "bf16" or has_bf16_units())


def bench_kinds() -> tuple[str, ...]:
    """Every runtime in every precision: "eager", "packed fp32", …"""
    return ("eager", *(f"{name} {precision}" for name in runtime_names() for precision in precisions_of(name)))
