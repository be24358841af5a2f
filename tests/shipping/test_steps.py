"""Steps of long work, by a clock that stands in for the machine's."""

from __future__ import annotations

import pytest

from vitrail import progress
from vitrail.errors import InputError
from vitrail.shipping.steps import SearchCallback, SearchCounter, SearchStep, about, with_bar


def test_each_step_says_what_it_is_how_many_there_are_and_how_long_they_take() -> None:
    now = [100.0]
    told: list[SearchStep] = []
    step = SearchCounter(4, told.append, lambda: now[0])
    for what in ("a", "b", "c"):
        step(what)
        now[0] += 60
    assert told == [SearchStep("a", 1, 4, None), SearchStep("b", 2, 4, 180.0), SearchStep("c", 3, 4, 120.0)]
    assert [str(each) for each in told] == [
        "a (step 1 of 4)",
        "b (step 2 of 4, about 3 minutes left)",
        "c (step 3 of 4, about 2 minutes left)",
    ]


def test_the_number_of_steps_may_change_on_the_way_and_is_never_less_than_those_begun() -> None:
    now = [0.0]
    told: list[SearchStep] = []
    step = SearchCounter(2, told.append, lambda: now[0])
    step("a")
    now[0] = 10.0
    step.left(5)
    step("b")
    assert told[-1] == SearchStep("b", 2, 6, 50.0)
    step.left(0)
    step("c")
    assert told[-1][:3] == ("c", 3, 3)


def test_a_step_may_take_as_long_as_several() -> None:
    now = [0.0]
    told: list[SearchStep] = []
    step = SearchCounter(0, told.append, lambda: now[0])
    step.left(3, length=8)  # two short ones, then one as long as six
    for length in (1, 1, 6):
        step("a", length)
        now[0] += 10.0 * length
    assert [each.seconds_left for each in told] == [None, 70.0, 60.0]
    assert [(each.number, each.total) for each in told] == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize(
    "seconds, words",
    [(1, "about 5 seconds"), (42, "about 40 seconds"), (91, "about 2 minutes"), (3599, "about 60 minutes")],
)
def test_times_are_rounded(seconds: float, words: str) -> None:
    assert about(seconds) == words


def stepping(*, progress: SearchCallback | bool | None = None) -> None:
    step = SearchCounter(2, progress)
    step("onnx int8")
    step("packed")


def test_a_bar_shows_the_steps_where_it_is_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setattr(progress, "PAUSE", 0.0)
    with_bar(stepping)(progress=True)
    assert "0/2 steps onnx int8" in capsys.readouterr().err
    for quiet in (False, None):  # nobody watches
        with_bar(stepping)(progress=quiet)
        assert capsys.readouterr().err == ""


def test_who_is_told_of_steps_sees_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    told: list[SearchStep] = []
    with_bar(stepping)(progress=told.append)
    assert [each.what for each in told] == ["onnx int8", "packed"]
    assert capsys.readouterr().err == ""


def test_a_wish_that_is_none_is_told() -> None:
    with pytest.raises(InputError, match="progress: expected True, False, None or a function, got 'yes'"):
        with_bar(stepping)(progress="yes")  # type: ignore[arg-type]
