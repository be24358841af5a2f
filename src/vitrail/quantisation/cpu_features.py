"""What this processor multiplies by itself, as torch tells it; torch is imported when someone asks."""

from __future__ import annotations


def has_bf16_units() -> bool:
    """Whether the processor multiplies bf16 itself; without, bf16 is slower than fp32."""
    return _has("_is_avx512_bf16_supported") or has_tiles()


def has_tiles() -> bool:
    """Whether the processor multiplies whole tiles of matrices (AMX)."""
    return _has("_is_amx_tile_supported")


def _has(name: str) -> bool:
    import torch

    ask = getattr(torch.cpu, name, None)  # private to torch: it may go
    return ask is not None and bool(ask())
