"""Steps of long work, by a clock that stands in for the machine's."""

from __future__ import annotations

import pytest

from vitrail.shipping.steps import SearchCounter, SearchStep, about


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


@pytest.mark.parametrize(
    "seconds, words",
    [(1, "about 5 seconds"), (42, "about 40 seconds"), (91, "about 2 minutes"), (3599, "about 60 minutes")],
)
def test_times_are_rounded(seconds: float, words: str) -> None:
    assert about(seconds) == words
