"""What is read out of the text of options."""

from __future__ import annotations

from typing import Any

import pytest
import typer

from vitrail.cli import load_verbs
from vitrail.cli.options import parse_numbers, parse_share
from vitrail.errors import InputError


def test_numbers_are_whole_and_from_1_and_no_number_twice() -> None:
    assert parse_numbers("--batch", "1, 16,1,99999") == (1, 16, 99_999)
    for wrong in ("0", "1,0", "", "1,,2", "-1", "1.5", "100000", "²"):
        with pytest.raises(InputError, match="--batch: expected whole numbers like 1,16, got"):
            parse_numbers("--batch", wrong)


def test_a_share_is_taken_as_it_is_printed_and_as_a_number() -> None:
    assert [parse_share(text) for text in ("60%", "7 %", "0.6", "0", "1", "100%")] == [0.6, 0.07, 0.6, 0.0, 1.0, 1.0]
    for wrong in ("120%", "-5%", "5%x", "nan", "inf", "half", ""):
        with pytest.raises(typer.BadParameter) as error:
            parse_share(wrong)
        assert error.value.message == f"expected 0% to 100%, or 0 to 1, got {wrong!r}"
    with pytest.raises(typer.BadParameter, match=r"expected 0% to 90%, or 0 to 0\.9, got '95%'$"):
        parse_share("95%", most=0.9)
    with pytest.raises(typer.BadParameter, match=r"got '60': did you mean 60%\?$"):
        parse_share("60")


@pytest.mark.parametrize(
    "words, name",
    [
        ("predict net image --threshold", "threshold"),
        ("prune net --keep", "keep"),
        ("train photos --val", "val"),
        ("train photos --test", "test"),
    ],
)
def test_every_share_is_taken_in_percent_and_its_default_is_told(words: str, name: str) -> None:
    verb, *more = words.split()
    command = verb_named(verb)
    assert command.make_context(verb, [*more, "60%"]).params[name] == 0.6
    [option] = [param for param in command.params if param.name == name]
    told = option.show_default
    assert parse_share(told) == option.default if told else option.default is None


def verb_named(verb: str) -> Any:
    group: Any = typer.main.get_command(load_verbs())
    return group.commands[verb]
