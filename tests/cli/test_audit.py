"""The verb audit."""

from __future__ import annotations

from pathlib import Path

from cli.command_line import Line


def test_audit(vit: Line, photos: Path, tmp_path: Path) -> None:
    said = vit("audit", photos, "--out", tmp_path)
    assert said.code == 0, said.err
    assert "Copies of others, pixel for pixel: 1 image" in said.out
    assert "Unreadable: 1 file" in said.out
    assert {"audit.html", "audit.csv", "audit.json"} == {path.name for path in tmp_path.iterdir()}
    assert vit("audit", photos, "--json").json["counts"]["exact_copies"] == 1
    flags = ("--epochs", "0.1", "--batch", "8", "--out", tmp_path / "runs", "--exclude", tmp_path / "audit.csv")
    told = vit("train", photos, *flags)
    assert told.code == 0, told.err
    assert f"2 left out, as {tmp_path / 'audit.csv'} asks" in told.err  # the copy, and the one that cannot be read
