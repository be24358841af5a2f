"""Numbers, pairs, choices and flags of settings are checked, and refused by their name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from network.refusals import HUGE, INFINITY, NAN, refusal, tiny
from vitrail.checks import (
    check_choice,
    check_fields,
    check_int,
    check_ints,
    check_number,
    check_type,
    join_limited,
    short_repr,
)
from vitrail.errors import ConfigError, InputError
from vitrail.network import Rotary

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


def test_values_in_messages_are_short_and_on_one_line() -> None:
    assert (short_repr("a"), short_repr(np.zeros((2, 2)))) == ("'a'", "a ndarray")
    long = short_repr("x" * 100)
    assert (len(long), long[:4], long[-4:]) == (80, "'xxx", "x...")
    assert short_repr("x" * 78) == repr("x" * 78)


def test_many_parts_are_cut_and_counted() -> None:
    names = [str(number) for number in range(10)]
    assert join_limited(names) == "0; 1; 2; 3; 4; 5; 6; 7 and 2 more"
    assert join_limited(names[:8], ", ") == "0, 1, 2, 3, 4, 5, 6, 7"
    assert join_limited(names, ",", most=1) == "0 and 9 more"


def test_numbers_come_back_as_plain_ones_from_both_ends_of_their_range() -> None:
    whole, number = check_int("n", np.int64(3), 3, 5), check_number("x", np.float32(0.5), 0.5, 1)
    assert (whole, type(whole), number, type(number)) == (3, int, 0.5, float)
    assert (check_int("n", 5, 3, 5), check_number("x", 1, 0.5, 1)) == (5, 1.0)
    with pytest.raises(ConfigError, match="x: expected a number from 0.5 to under 1, got 1"):
        check_number("x", 1, 0.5, 1, below=True)
    assert check_ints("n", [np.int64(1), 2]) == (1, 2)
    with pytest.raises(ConfigError, match="n: expected whole numbers, got '12'"):
        check_ints("n", "12")
    with pytest.raises(InputError, match="n: expected a whole number from 1 to 9, got 10"):
        check_int("n", 10, 1, 9, InputError)


def test_a_part_may_be_what_was_meant() -> None:
    assert check_type("model", 3, int, str) == 3
    holder = SimpleNamespace(model=4)
    with pytest.raises(ConfigError, match=r"model: expected int or str, got .*: pass its \.model$"):
        check_type("model", holder, int, str)
    with pytest.raises(ConfigError, match=r"model: expected int, got 'x'$"):
        check_type("model", "x", int)


def test_only_settings_that_there_are_come_through() -> None:
    plain = {"kind": "axial", "theta": 3.0}
    assert check_fields(Rotary, plain) == plain
    assert check_fields(Rotary, plain) is not plain
    with pytest.raises(ConfigError, match="Rotary has no setting 'tetha': .*theta"):
        check_fields(Rotary, {"tetha": 3.0})
    with pytest.raises(ConfigError, match="Rotary: expected a mapping of settings, got 3"):
        check_fields(Rotary, 3)


def test_one_is_not_true() -> None:
    assert check_choice("c", True, [True, "all"]) is True
    with pytest.raises(ConfigError, match="c 1 is unknown"):
        check_choice("c", 1, [True, "all"])
