"""Settings that carry their checks: each is refused by name, and kept in the form that its check gives back."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass
from typing import Annotated, Any

import pytest

from vitrail.errors import ConfigError
from vitrail.settings import Count, Counts, Factor, Flag, Number, Pair, Share, between, checks_of, one_of, settle


@dataclass(frozen=True)
class Inner:
    rate: Share = 0.0

    def __post_init__(self) -> None:
        settle(self, "inner ")


@dataclass(frozen=True)
class Settings:
    width: Count = 8
    classes: Number = 0
    size: Pair = (4, 4)
    layers: Counts = (1, 2)
    has_bias: Flag = True
    stretch: Factor = 1.0
    mode: Annotated[str, one_of("plain", "gated")] = "plain"
    scale: Annotated[float, between(0.0, 2.0)] | None = None
    inner: Inner = Inner()
    other: Inner | dict | None = None  # type: ignore[type-arg]

    def __post_init__(self) -> None:
        settle(self)


def test_settings_are_kept_as_their_checks_give_them_back() -> None:
    settings = Settings(size=6, layers=[3, 4], scale=1, stretch=2)  # type: ignore[arg-type]
    assert settings == Settings(size=(6, 6), layers=(3, 4), scale=1.0, stretch=2.0)
    assert (type(settings.scale), type(settings.stretch), type(settings.layers)) == (float, float, tuple)
    assert Settings(other={}).other == {}
    assert Settings(other=Inner(0.5)).other == Inner(0.5)
    assert set(checks_of(Settings)) == set(Settings.__dataclass_fields__)
    with pytest.raises(FrozenInstanceError):
        settings.width = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    "wrong, words",
    [
        ({"width": 0}, "width: expected a whole number from 1"),
        ({"width": True}, "width: expected a whole number from 1 to 1048576, got True"),
        ({"width": None}, "width: expected a whole number"),
        ({"classes": -1}, "classes: expected a whole number from 0"),
        ({"size": (1, 2, 3)}, "size: expected one whole number or a pair"),
        ({"layers": 3}, "layers: expected whole numbers, got 3"),
        ({"has_bias": 1}, "has_bias: expected True or False, got 1"),
        ({"stretch": 0.5}, "stretch: expected a number from 1.0 to 100.0, got 0.5"),
        ({"mode": "plane"}, "mode 'plane' is unknown: did you mean 'plain'"),
        ({"scale": 2.5}, "scale: expected a number from 0.0 to 2.0, got 2.5"),
        ({"inner": None}, "inner: expected Inner, got None"),
        ({"inner": 0.5}, "inner: expected Inner, got 0.5"),
        ({"other": 0.5}, "other: expected Inner or dict, got 0.5"),
    ],
)
def test_a_wrong_setting_is_named_with_what_was_expected_and_what_came(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings(**wrong)
    assert str(caught.value).startswith(words)


def test_settings_inside_others_say_whose_they_are() -> None:
    with pytest.raises(ConfigError, match="^inner rate: expected a number from 0.0 to under 1.0, got 1.0"):
        Inner(rate=1.0)
