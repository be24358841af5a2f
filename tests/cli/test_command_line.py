"""The line itself: exit codes, one line for a mistake, streams."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cli.command_line import Line, process
from cli.pseudo_terminal import in_terminal
from vitrail.cli.application import VERBS
from vitrail.cli.terminal import SOME_UNREADABLE, WRONG_USAGE
from vitrail.errors import StoppedError


def test_mistyped_words_name_the_nearest(vit: Line) -> None:
    assert "no verb 'modles': did you mean 'models'?" in vit.mistake("modles")
    assert "models has no option --jsn: did you mean '--json'?" in vit.mistake("models", "--jsn")
    assert "CHECKPOINT" in vit.mistake("predict")
    assert "--top" in vit.mistake("predict", "a", "b", "--top", "x")


def test_help_and_nothing_at_all(vit: Line) -> None:
    for arguments in ((), ("--help",)):
        said = vit(*arguments)
        assert said.code == 0
        assert "predict" in said.out
    assert "--threshold" in vit("predict", "--help").out


def test_our_own_fault_is_exit_code_1(vit: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ZeroDivisionError("[red]oh[/red]\nno")

    monkeypatch.setattr("vitrail.cli.doctor.examine", fail)
    said = vit("doctor")
    assert (said.code, said.out) == (1, "")
    line = r"vitrail: internal error: ZeroDivisionError: [red]oh[/red]\nno (VITRAIL_DEBUG=1 shows where)"
    assert said.err == line + "\n"
    monkeypatch.setenv("VITRAIL_DEBUG", "1")
    assert "Traceback" in vit("doctor").err


def test_an_interrupt_is_130(vit: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("vitrail.cli.doctor.examine", interrupt)
    assert vit("doctor").code == 130


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_stopped_run_ends_with_the_code_of_its_signal(
    vit: Line, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    def stop() -> None:
        raise StoppedError("stopped at step 3", number)

    monkeypatch.setattr("vitrail.cli.doctor.examine", stop)
    said = vit("doctor")
    assert (said.code, said.out, said.err) == (128 + number, "", "vitrail: stopped at step 3\n")


def test_a_reader_that_leaves_early(file: Path, folder: Path) -> None:
    """`vitrail inspect … | head -0`: silent, and no failure."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "vitrail", "inspect", str(file)]
    with os.fdopen(write, "wb") as pipe:
        run = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, timeout=600, check=False)
    assert (run.returncode, run.stderr) == (0, b"")


@pytest.mark.parametrize("arguments", [("--help",), ("models",), ("inspect", "vit-ti16", "--json")])
def test_a_full_disk_behind_what_is_printed(arguments: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "vitrail", *arguments]
    with open("/dev/full", "wb") as full:
        run = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=600, check=False)
    assert run.stderr == b"vitrail: cannot write to standard output: No space left on device\n"
    assert run.returncode == WRONG_USAGE  # no fault of ours


def test_an_error_of_the_disk_elsewhere_is_not_laid_on_the_output(vit: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("vitrail.cli.doctor.examine", fail)
    assert "internal error: OSError" in vit("doctor").err


@pytest.mark.parametrize("name", ["x.csv", "x.json"])
def test_a_full_disk_behind_a_file(vit: Line, file: Path, folder: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / name).symlink_to("/dev/full")
    told = vit.mistake("predict", file, folder / "1.png", "--out", tmp_path / name)
    assert told == f"cannot write {tmp_path / name}: No space left on device"


def test_in_a_process_of_its_own(file: Path, folder: Path) -> None:
    """Exit code and streams are real ones, and a terminal that knows only ASCII does no harm."""
    (folder / "1.png").rename(folder / "été.png")
    run = process("predict", file, folder, "--json", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert run.returncode == SOME_UNREADABLE, run.stderr
    assert [Path(row["path"]).name for row in json.loads(run.stdout)["predictions"]] == ["2.png", "10.png", "été.png"]
    assert run.stderr.count(b"\n") == 2


@pytest.mark.parametrize(
    "arguments, says",
    [
        (("train", "{photos}", "--recipe", "nope"), "no recipe 'nope'"),
        (("train", "{photos}", "--epochs", "1", "--minutes", "1"), "epochs or minutes, not both"),
        (("train", "{photos}/nowhere"), "no data in"),
        (("train", "{photos}", "--resume", "nowhere"), "nowhere is no run"),
        (("train", "{photos}", "--model", "vit-x"), "no preset 'vit-x'"),
        (("train", "{photos}", "--device", "cpus"), "device: expected 'auto' or one that torch has"),
        (("train", "{photos}", "--exclude", "none.csv"), "none.csv"),
        (("evaluate", "vitrail:glass"), "does not know its data"),
        (("rerun", "{photos}"), "is no finished run"),
        (("audit", "{photos}/red/0.png"), "one image"),
    ],
)
def test_a_mistake_is_one_line_and_code_2(
    vit: Line, photos: Path, tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    given = [each.format(photos=photos) for each in arguments]
    extra = ["--out", tmp_path / "out"] if arguments[0] != "audit" else []
    said = vit(*given, *extra)
    assert said.code == 2
    assert said.out == ""
    assert says in said.err.splitlines()[-1]
    assert "Traceback" not in said.err


def test_a_verb_that_is_typed_is_the_only_one_imported() -> None:
    program = "import sys; from vitrail.cli import load_verbs; load_verbs(sys.argv[1]); print(*sys.modules)"
    for typed, verbs in (("predict", {"predict"}), ("predct", set(VERBS)), ("--help", set(VERBS))):
        run = subprocess.run([sys.executable, "-c", program, typed], capture_output=True, text=True, check=True)
        imported = set(run.stdout.split())
        assert {name for name in VERBS if f"vitrail.cli.{name}" in imported} == verbs
        assert not imported & {"torch", "numpy", "PIL"}


@pytest.mark.parametrize(
    "words, told",
    [
        ("tain photos", "no verb 'tain': did you mean 'train'? (`vitrail --help` lists the verbs)"),
        ("help", "no verb 'help': type `vitrail VERB --help` (`vitrail --help` lists the verbs)"),
        ("help train", "no verb 'help': type `vitrail VERB --help` (`vitrail --help` lists the verbs)"),
        ("version", "no verb 'version': type `vitrail --version` (`vitrail --help` lists the verbs)"),
        ("qqq", "no verb 'qqq' (`vitrail --help` lists the verbs)"),
        ("train", "train: DATA is missing: A folder for each class, a CSV, arrays, or vitrail:fashion {train}"),
        ("train photos --epoch 3", "train has no option --epoch: did you mean '--epochs'? {train}"),
        ("train photos --qqq", "train has no option --qqq {train}"),
        ("train photos --batch 0", "--batch: expected a number of images, or auto, got '0' {train}"),
        ("train photos --epochs -1", "--epochs: expected 0 or more {train}"),
        ("prune net --max-drop -1", "--max-drop: expected 0 or more (`vitrail prune --help` tells more)"),
        ("train photos --epochs many", "--epochs: expected a number {train}"),
        ("train photos --val 2", "--val: expected 0% to 90%, or 0 to 0.9, got '2': did you mean 2%? {train}"),
        ("train photos --name", "train: --name needs a value after it {train}"),
        ("models extra", "models: nothing is expected where 'extra' stands (`vitrail models --help` tells more)"),
        ("predict net image --top x", "--top: expected a whole number (`vitrail predict --help` tells more)"),
        ("--qqq", "vitrail has no option --qqq (`vitrail --help` lists the verbs)"),
    ],
)
def test_wrong_usage_says_what_is_wrong_and_where_more_is_told(vit: Line, words: str, told: str) -> None:
    assert vit.mistake(*words.split()) == told.format(train="(`vitrail train --help` tells more)")


@pytest.mark.parametrize("columns", [40, 80])
def test_a_mistake_is_the_same_line_at_a_terminal(vit: Line, columns: int) -> None:
    piped = vit("tain").err.splitlines()
    for environment in ({}, {"NO_COLOR": "1"}, {"TERM": "dumb"}):
        session = in_terminal("tain", columns=columns, **environment)
        assert (session.code, session.lines, "\x1b" in session.raw) == (2, piped, False)


def test_nothing_typed_at_a_terminal_shows_the_verbs() -> None:
    session = in_terminal()
    assert session.code == 0
    assert session.lines[0].startswith("Usage: vitrail VERB")
    assert "\x1b" not in session.raw
