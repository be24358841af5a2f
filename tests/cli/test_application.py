"""The application: -h and --help of every verb, the version, and what lets a shell complete."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any, get_args

import pytest
import typer

import vitrail
from cli.command_line import Line
from cli.pseudo_terminal import in_terminal
from vitrail.cli import load_verbs, terminal
from vitrail.cli.application import SHELLS, VERBS
from vitrail.cli.completion import preset_names, recipe_names
from vitrail.cli.explain import METHOD_NAMES
from vitrail.cli.help_texts import EXAMPLES, EXIT_CODES, RARE, VERBS_HELP
from vitrail.cli.options import RESIZES
from vitrail.images.preprocess import Resize
from vitrail.insight import METHODS
from vitrail.network.presets import PRESETS
from vitrail.training.published import RECIPES

GROUP: Any = typer.main.get_command(load_verbs())
SEEN = 25  # lines that a reader sees at once


def lines_of(vit: Line, *words: str) -> list[str]:
    said = vit(*words)
    assert (said.code, said.err) == (0, "")
    return said.out.splitlines()


@pytest.mark.parametrize("verb", VERBS)
def test_what_most_people_need_of_a_verb_is_seen_at_once(vit: Line, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = lines_of(vit, verb, "--help")
    assert lines == lines_of(vit, verb, "-h")
    assert max(map(len, lines)) <= 80
    rare = lines.index(f"{RARE}:")
    assert len("\n".join(lines[:rare]).rstrip().splitlines()) <= SEEN
    above = "\n".join(lines[:rare])
    for example in VERBS_HELP[verb].examples:
        assert f"\n  {example}" in above
    for title, names in VERBS_HELP[verb].groups.items():
        assert f"\n{title}:\n" in above
        assert all(f"  {name}" in above for name in names)
    assert not [line for line in lines[rare + 1 :] if line.endswith(":") and not line.startswith(" ")]  # the last group
    assert all(
        f"  {param.opts[-1]}" in "\n".join(lines) for param in GROUP.commands[verb].params if param.opts[0][0] == "-"
    )
    assert "<" not in "\n".join(lines).replace("(?P<label>...)", "")  # no types of a library


def test_the_verbs_most_people_need_are_seen_at_once(vit: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = lines_of(vit, "--help")
    assert lines == lines_of(vit, "-h") == lines_of(vit)
    assert max(map(len, lines)) <= 80
    assert len("\n".join(lines[: lines.index(f"{RARE}:")]).rstrip().splitlines()) <= SEEN
    assert all(f"  {example}" in lines[:SEEN] for example in EXAMPLES)
    for verb in VERBS:
        assert f"  {verb:<10}  {VERBS_HELP[verb].summary}" in lines  # whole, on one line
    codes = lines[lines.index("Exit codes:") + 1 :]
    assert [line.split("  ")[1] for line in codes if line[2] != " "] == list(EXIT_CODES)


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_help_fits_the_terminal(columns: int) -> None:
    session = in_terminal("rerun", "--help", columns=columns, NO_COLOR="1", TERM="dumb")
    assert session.code == 0
    assert "\x1b" not in session.raw
    assert max(map(len, session.lines)) <= min(columns, 80)
    assert "--out FOLDER" in " ".join(session.lines)
    assert "The folder for the new run. [default: that of RUN]" in " ".join(" ".join(session.lines).split())


def test_a_default_is_shown_as_such_and_ranges_are_not(vit: Line) -> None:
    text = " ".join(vit("train", "--help").out.split())
    assert "[default: runs]" in text
    assert "[default: a small network]" in text
    assert "0 leaves it out. [default: 20]" in " ".join(vit("demo", "--help").out.split())
    assert "x>=" not in text
    assert "usual:" not in text


def test_the_version(vit: Line) -> None:
    assert vit("--version").out == f"vitrail {vitrail.__version__}\n"


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_is_told_how_to_complete(vit: Line, shell: str) -> None:
    said = vit("--show-completion", shell)
    assert said.code == 0
    assert "_VITRAIL_COMPLETE" in said.out
    assert "vitrail" in said.out


def test_completion_offers_verbs_and_options() -> None:
    """What the shell's script asks for when the Tab key is pressed, answered without torch."""
    program = (
        "import sys; sys.argv = ['vitrail']; from vitrail.cli import main\n"
        "try: main()\nfinally: print('torch' in sys.modules)"
    )
    for words, offered in (
        *(("vitrail tr", {"train"}), ("vitrail train --ep", {"--epochs"})),
        *(("vitrail inspect vit-mini", {"vit-mini8-64"}), ("vitrail train x --recipe sc", {"scratch"})),
        *(("vitrail train x --from hf:facebook/dinov3", {"hf:facebook/dinov3-vits16-pretrain-lvd1689m"}),),
    ):
        environment = {"_VITRAIL_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        run = subprocess.run(
            [sys.executable, "-c", program], env=os.environ | environment, capture_output=True, text=True, check=False
        )
        *found, torch = run.stdout.split()
        assert (set(found), torch) == (offered, "False"), run


@pytest.mark.parametrize(
    "words, offered",
    [
        ("train photos --resize p", {"pad"}),
        ("train photos --recipe paper-finetune-c", {"paper-finetune-cifar"}),
        ("train photos --model mae-", {"mae-b16", "mae-l16", "mae-h14"}),
        ("train photos --from hf:facebook/dinov2", {"hf:facebook/dinov2-small", "hf:facebook/dinov2-base"}),
        ("train photos --balance w", {"weights"}),
        ("recipes fi", {"finetune"}),
        ("explain net image --method r", {"rollout", "relevance"}),
        ("inspect vit-ti", {"vit-ti16", "vit-ti16-384"}),
        ("bench dinov2-g", {"dinov2-g14", "dinov2-g14-registers"}),
        ("inspect ", set()),  # files are taken, too: they are the shell's
        ("export net out --to on", {"onnx"}),
        ("convert net out --to deit", {"deit"}),
        ("evaluate net --split t", {"train", "test"}),
        ("prune net --way a", {"ablation"}),
        ("optimize net --goal l", {"latency"}),
        ("predict net image --runtime packed-", {"packed-bf16"}),
    ],
)
def test_completion_offers_names(vit: Line, monkeypatch: pytest.MonkeyPatch, words: str, offered: set[str]) -> None:
    line = f"vitrail {words}"
    monkeypatch.setenv("_VITRAIL_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(line.count(" ")))
    assert set(vit().out.split()) == offered


def test_the_names_that_are_offered_are_those_that_are_known() -> None:
    assert preset_names() == list(PRESETS)
    assert recipe_names() == list(RECIPES)
    assert list(METHOD_NAMES) == list(METHODS)
    assert set(RESIZES) == set(get_args(Resize))


def test_completion_for_an_unknown_shell(vit: Line) -> None:
    assert "expected one of bash, zsh, fish, powershell, got 'ksh'" in vit.mistake("--show-completion", "ksh")


def test_exit_codes_are_those_that_help_names(vit: Line) -> None:
    assert (terminal.WRONG_USAGE, terminal.SOME_UNREADABLE) == (2, 3)
    assert EXIT_CODES["2"].startswith("wrong usage")
    assert EXIT_CODES["3"] == "done, but some images could not be read; each is named"
    text = vit("--help").out
    assert all(f"\n  {code:<10}  {words}"[:79] in text for code, words in EXIT_CODES.items() if len(words) < 60)


def test_the_names_of_options_are_pinned() -> None:
    """Of the line itself, and beside the first names, which tests/cli/test_flags.py has."""
    assert {name for param in GROUP.params for name in param.opts} == {"--version", "--show-completion"}
    beside = {
        (verb, name)
        for verb, command in GROUP.commands.items()
        for param in command.params
        for name in (*param.opts[1:], *param.secondary_opts)
    }
    assert beside == {("explain", "--no-check"), ("optimize", "--no-merging"), ("train", "--no-exact")}
    assert GROUP.context_settings["help_option_names"] == ["-h", "--help"]
