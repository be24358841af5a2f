"""A tiny config to vary, numbers that no setting may have, and the message of a refusal."""

from __future__ import annotations

from typing import Any

import pytest

from vitrail.errors import ConfigError, VitrailError
from vitrail.network import ViTConfig

NAN, INFINITY, HUGE = float("nan"), float("inf"), 10**400


def tiny(**changes: Any) -> ViTConfig:
    sizes = {"image_size": (8, 12), "patch_size": 4, "width": 16, "depth": 2, "heads": 4, "mlp_width": 24}
    return ViTConfig(**{**sizes, "classes": 5, **changes})


def refusal(build: Any, **settings: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        build(**settings)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, VitrailError)
    return str(caught.value)
