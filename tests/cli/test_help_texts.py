"""What --help shows first: examples that can be typed, lines that are whole, every verb in one group."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import typer

from vitrail.cli import load_verbs
from vitrail.cli.application import VERBS
from vitrail.cli.help_texts import EXAMPLES, VERB_GROUPS, VERBS_HELP

GROUP: Any = typer.main.get_command(load_verbs())


def test_every_verb_stands_in_one_group() -> None:
    assert sorted(verb for verbs in VERB_GROUPS.values() for verb in verbs) == sorted(VERBS) == sorted(VERBS_HELP)


@pytest.mark.parametrize("example", [*(line for texts in VERBS_HELP.values() for line in texts.examples), *EXAMPLES])
def test_examples_can_be_typed(example: str) -> None:
    """Every word is understood: verbs, options, and as many arguments as there are."""
    program, verb, *words = shlex.split(example.partition("   ")[0])
    assert program == "vitrail"
    command = GROUP.commands[verb]
    context = command.make_context(verb, words)  # raises where it is not
    assert context.command is command


@pytest.mark.parametrize("verb", VERBS)
def test_common_options_are_named_once(verb: str) -> None:
    there = {param.opts[-1] for param in GROUP.commands[verb].params} | {"--help"}
    named = [name for names in VERBS_HELP[verb].groups.values() for name in names]
    assert set(named) <= there - {"--json"}  # for programs: it stands below, in every verb
    assert len(named) == len(set(named))
    assert bool(named) == any(name.startswith("--") for name in there - {"--json", "--help"})
