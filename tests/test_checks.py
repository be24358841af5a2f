"""Numbers, pairs, choices and flags of settings are checked, and refused by their name."""

from __future__ import annotations

from typing import Any

import pytest

from network.refusals import HUGE, INFINITY, NAN, refusal, tiny
from vitrail.checks import short_repr

WHOLE = [
    *[(name, value) for name in ("width", "heads", "depth", "mlp_width", "channels") for value in (0, -1)],
    *[(name, -1) for name in ("head_width", "classes", "registers", "representation_width", "merge_per_block")],
    *[("width", value) for value in (16.0, "16", None, True, NAN, INFINITY, HUGE, [16], (1 << 20) + 1)],
    ("depth", 1025),
    ("classes", 1.5),
    ("registers", True),
    ("merge_per_block", HUGE),
]


@pytest.mark.parametrize("name, value", WHOLE)
def test_whole_numbers(name: str, value: Any) -> None:
    message = refusal(tiny, **{name: value})
    assert message.startswith(f"{name}: expected a whole number from ")
    assert message.endswith(f"got {short_repr(value)}")


SHARES = ("dropout", "attention_dropout", "drop_path", "patch_dropout")
NUMBERS = [
    *[(name, value) for name in SHARES for value in (-0.1, 1.0, 1, NAN, "0.1", None, True)],
    *[(name, value) for name in ("norm_eps", "layer_scale") for value in (-1e-9, NAN, INFINITY, "1e-6", True)],
    ("norm_eps", None),
    ("norm_eps", 1.5),
    ("layer_scale", 1e7),
    ("head_bias_init", -1e7),
    ("head_bias_init", -INFINITY),
    ("dropout", HUGE),
    ("head_bias_init", -HUGE),
]


@pytest.mark.parametrize("name, value", NUMBERS)
def test_numbers(name: str, value: Any) -> None:
    message = refusal(tiny, **{name: value})
    assert message.startswith(f"{name}: expected a number from ")
    assert message.endswith(f"got {short_repr(value)}")


CHOICES = [
    ("activation", "gleu", "gelu"),
    ("mlp", "swigl", "swiglu"),
    ("qkv_bias", "no_key", "no-key"),
    ("norm", "layr", "layer"),
    ("final_norm", "token", "tokens"),
    ("pool", "clss", "cls"),
    ("initialisation", "papr", "paper"),
    ("merge_by", "token", "tokens"),
]


@pytest.mark.parametrize("name, value, known", CHOICES)
def test_choices_name_the_nearest(name: str, value: str, known: str) -> None:
    message = refusal(tiny, **{name: value})
    assert f"{name} {value!r} is unknown" in message
    assert repr(known) in message


@pytest.mark.parametrize("name", [each[0] for each in CHOICES])
@pytest.mark.parametrize("value", [None, 3, ["gelu"], {}, NAN])
def test_choices_of_another_kind(name: str, value: Any) -> None:
    message = refusal(tiny, **{name: value})
    assert f"{name} {value!r} is unknown: " in message
    assert "expected one of: " in message or "did you mean" in message


FLAGS = ("patch_bias", "patch_norms", "cls_token", "distillation_token", "qk_norm", "parallel", "axial")


@pytest.mark.parametrize("name", [*FLAGS, "embedding_norm", "head_bias", "fixed_size"])
@pytest.mark.parametrize("value", [1, "yes", None])
def test_flags(name: str, value: Any) -> None:
    assert refusal(tiny, **{name: value}) == f"{name}: expected True or False, got {value!r}"


@pytest.mark.parametrize("name", ["image_size", "patch_size"])
@pytest.mark.parametrize("value", [None, "16", 4.0, True, (4,), (4, 4, 4), (4, 4.0), (0, 4), (-4, 4), HUGE])
def test_sizes(name: str, value: Any) -> None:
    message = refusal(tiny, **{name: value})
    assert message.startswith(f"{name}: expected ")
    assert "got " in message


@pytest.mark.parametrize("name", ["positions", "rotary", "stem"])
@pytest.mark.parametrize("value", ["learned", 3, {}])
def test_parts_of_another_kind(name: str, value: Any) -> None:
    message = refusal(tiny, **{name: value})
    assert message.startswith(f"{name}: expected ")
    assert message.endswith(f"got {value!r}")


def test_a_number_too_long_to_print_is_refused_all_the_same() -> None:
    assert refusal(tiny, width=10**5000).endswith("got a huge int")
