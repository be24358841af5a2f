"""What verbs print and write with: names as they are, files that are whole, sizes."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

import vitrail
from cli.command_line import Line, process
from cli.pseudo_terminal import Screen, in_terminal
from vitrail.checkpoint import Checkpoint
from vitrail.cli import terminal

ODD_NAMES = (
    "with space.png",
    "[red]brackets[bold].png",
    "[bold].png",
    "party 🎉.png",
    ":tada:.png",
    "été.png",
    "tab\there.png",
    "back\\slash.png",
    "x" * 200 + ".png",
)


def test_a_table_is_there_only_when_all_of_it_is(
    vit: Line, file: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows go to the disk as they come, under another name; where it goes wrong, the old table stays."""
    table = tmp_path / "out.csv"
    table.write_text("the old one")
    sizes: list[int] = []
    run = Checkpoint.run

    def watched(self: Checkpoint, pixels: Any) -> Any:
        [part] = tmp_path.glob(".out.csv.*.tmp")
        sizes.append(part.stat().st_size)
        assert table.read_text() == "the old one"
        if len(sizes) > 60:
            raise vitrail.VitrailError("stop here")
        return run(self, pixels)

    monkeypatch.setattr(Checkpoint, "run", watched)
    images = [folder / "1.png"] * 80
    assert vit.mistake("predict", file, *images, "--batch", "1", "--out", table, "--force") == "stop here"
    assert sizes[0] == 0
    assert sizes[-1] > 0  # a buffer of it was written
    assert table.read_text() == "the old one"
    assert list(tmp_path.glob(".*")) == []
    monkeypatch.setattr(Checkpoint, "run", run)
    assert vit("predict", file, *images, "--batch", "16", "--out", table, "--force").code == 0
    assert len(table.read_text().splitlines()) == 1 + 3 * 80
    link = tmp_path / "link.csv"
    link.symlink_to(table)
    assert vit("predict", file, folder / "2.png", "--out", link, "--force").code == 0
    assert link.is_symlink()
    assert len(table.read_text().splitlines()) == 4


@pytest.mark.parametrize("name", ODD_NAMES)
def test_names_print_as_they_are(vit: Line, file: Path, folder: Path, name: str) -> None:
    path = folder / name
    (folder / "1.png").rename(path)
    said = vit("predict", file, path, "--top", "3")
    assert said.code == 0
    assert said.out.startswith(f"{path}: ")
    assert said.out.count("\n") == 1
    assert "[dog] " in said.out
    assert vit("predict", file, path, "--json").json["predictions"][0]["path"] == str(path)
    path.write_bytes(b"no image")
    assert str(path) in vit("predict", file, path).err or repr(str(path)) in vit("predict", file, path).err


def test_a_line_break_in_a_name(vit: Line, file: Path, folder: Path) -> None:
    path = folder / "line\nbreak.png"
    (folder / "1.png").rename(path)
    assert vit("predict", file, path).out.startswith(f"{path}: ")
    assert vit("predict", file, path, "--json").json["predictions"][0]["path"] == str(path)
    assert r"line\nbreak" in vit.mistake("predict", file, folder / "no\nline\nbreak.png")


def test_a_name_that_is_not_text(file: Path, folder: Path, tmp_path: Path) -> None:
    path = os.fsencode(folder) + b"/\xff\xfe.png"
    try:
        os.rename(os.fsencode(folder / "1.png"), path)
    except OSError as error:
        if error.errno != errno.EILSEQ:
            raise
        pytest.skip("this file system takes only names that are text")
    name = os.fsdecode(path)
    run = process("predict", file, name, "--json", "--out", tmp_path / "x.csv")
    assert (run.returncode, run.stderr) == (0, b"")
    assert json.loads(run.stdout)["predictions"][0]["path"] == name
    run = process("predict", file, name)
    assert (run.returncode, run.stderr) == (0, b"")
    assert rb"\udcff\udcfe.png: " in run.stdout
    assert path in (tmp_path / "x.csv").read_bytes()


def test_sizes_in_units_of_a_thousand() -> None:
    sizes = (999, 1000, 1_024, 1_500_000, 2e9, 3e12, 4e15)
    told = ["999 bytes", "1 KB", "1.024 KB", "1.5 MB", "2 GB", "3 TB", "4000 TB"]
    assert [terminal.size_of(each) for each in sizes] == told


def test_a_table_that_is_too_wide_cuts_neither_numbers_nor_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = terminal.table_of("way", "times\neager", "of the limit")
    table.add_row("openvino int8, merged", "1.50", "12 %")
    table.add_row("eager", "1,000.00", "100 %")

    def shown(columns: int) -> list[str]:
        monkeypatch.setattr(terminal, "PIPED", columns)
        terminal.show(table)
        return [line.rstrip() for line in capsys.readouterr().out.splitlines()]

    wide = ["                          times", "way                       eager  of the limit"]
    assert shown(80)[:3] == [*wide, "openvino int8, merged      1.50          12 %"]
    closer = ["way                      eager of the limit", "openvino int8, merged     1.50         12 %"]
    assert shown(44)[1:3] == closer
    broken = ["way         eager of the limit", "openvino     1.50         12 %", "int8,", "merged"]
    assert shown(30)[1:5] == shown(5)[1:5] == broken


def test_tables_of_networks_fit_a_terminal() -> None:
    for words in (("models",), ("models", "--pretrained")):
        session = in_terminal(*words)
        body = session.lines[:-2]
        assert max(map(len, body)) <= 80
        assert "…" not in "".join(body)
    biggest = next(line for line in in_terminal("models").lines if line.startswith("vit-gigantic14 "))
    assert biggest.split() == ["vit-gigantic14", "1844.44", "M", "1664/48/16/8192", "14", "224", "257", "1000"]


def test_a_message_stands_above_the_bar_and_whole(file: Path, folder: Path, tmp_path: Path) -> None:
    """Thirty images, one of them unreadable, at a real terminal: nothing of the bar stays, nothing is cut."""
    for number in range(27):
        (folder / f"more {number}.png").write_bytes((folder / "1.png").read_bytes())
    session = in_terminal("predict", file, folder, "--out", tmp_path / "answers.csv", columns=60)
    drawn = "/31 images"
    assert drawn in session.raw  # there was a bar
    broken = f"vitrail: {folder / '3 broken.png'}: "
    complaints = [line for line in session.lines if line.startswith(broken)]
    assert len(complaints) == 1
    assert not [line for line in session.lines if drawn in line or "\u2501" in line]
    assert len((tmp_path / "answers.csv").read_text().splitlines()) == 1 + 3 * 30
    others = [line for line in session.lines if line not in complaints]
    (tmp_path / "answers.csv").unlink()
    piped = process("predict", file, folder, "--out", tmp_path / "answers.csv")
    told = (piped.stdout + piped.stderr).decode().splitlines()
    assert complaints[0] in told
    assert sorted(others) == sorted(line for line in told if line not in complaints)
    assert session.code == piped.returncode == terminal.SOME_UNREADABLE


def test_lines_and_messages_share_a_terminal_with_a_bar(file: Path, folder: Path, tmp_path: Path) -> None:
    """explain prints a line an image, complains in between, and has a bar: each line comes out as if piped."""
    words = ("explain", file, folder, "--out", tmp_path / "maps")
    session = in_terminal(*words)
    assert "/4 images" in session.raw
    piped = process(*words, stderr_to_stdout=True)
    assert session.lines == piped.stdout.decode().splitlines()


def test_where_nobody_can_move_the_cursor_there_is_no_bar(file: Path, folder: Path, tmp_path: Path) -> None:
    session = in_terminal("predict", file, folder, "--out", tmp_path / "a.csv", TERM="dumb")
    assert "\x1b" not in session.raw
    assert "/4 images" not in session.raw
    assert len(session.lines) == 3


def test_the_screen_of_these_tests_does_what_terminals_do() -> None:
    screen = Screen(columns=5)
    screen.feed("abc\r\n12345678\r\nbar\r\x1b[2Know\r\n\x1b[1A\x1b[2Kover\x1b[1mX\x1b[0m")
    assert screen.lines() == ["abc", "12345678", "overX"]
