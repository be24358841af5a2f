"""What convert and export return says what was written and how it was compared: in a REPL, and in a notebook."""

from __future__ import annotations

from pathlib import Path

import pytest

import vitrail


@pytest.fixture(scope="module")
def parity(tmp_path_factory: pytest.TempPathFactory) -> vitrail.ParityReport:
    return vitrail.convert("vitrail:fashion", tmp_path_factory.mktemp("parity") / "copy.safetensors", to="vitrail")


def test_a_conversion_says_what_was_compared(parity: vitrail.ParityReport) -> None:
    lines = repr(parity).splitlines()
    assert lines[0].startswith("ParityReport: ")
    assert f"{parity.tensors:,} tensors; {parity.identical:,} read back, bit for bit the same" in lines[1]
    assert "differ by at most 0 on random pixels; 100 % same answers" in lines[2]
    assert lines[3].split() == ["carried", "preprocessing", "and", "class", "names"]
    assert len(lines) == 4


def test_what_a_conversion_leaves_behind_stands_in_it(parity: vitrail.ParityReport) -> None:
    from dataclasses import replace

    poorer = replace(parity, classes_carried=False, not_carried=("resample: bilinear",))
    assert repr(poorer).splitlines()[3].split() == ["carried", "preprocessing"]
    assert repr(poorer).splitlines()[4].strip() == "not carried  class names (keep by hand); resample: bilinear"
    assert "<dd>class names (keep by hand); resample: bilinear</dd>" in poorer._repr_html_()


def test_an_export_says_what_was_compared(tmp_path: Path) -> None:
    report = vitrail.export("vitrail:fashion", tmp_path / "net.onnx")
    lines = repr(report).splitlines()
    assert lines[0].startswith("ExportReport: ")
    assert lines[1].split()[1:] == [f"{report.bytes / 1e6:.4g}", "MB"]
    assert lines[2].strip() == "input img  float32 (batch, 1, 32, 32)"
    assert lines[4].split()[1] == str(len(report.checks))
    assert f"at most {report.largest_difference:.1e} of the largest value away" in lines[4]
    assert "float32 (batch, 1, 32, 32)" in report._repr_html_()
