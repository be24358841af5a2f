"""Targets: one object and one line make a new kind of file known to export, open_model and the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitrail
from shipping import small
from vitrail.errors import InputError, MissingExtraError, import_extra
from vitrail.exporters import TARGETS, check_precision, file_names, is_exported, target_of
from vitrail.exporters.export_info import ExportInfo
from vitrail.exporters.target import Compute, Draft, Entries, Session, Target
from vitrail.inference import open_model
from vitrail.quantisation.quant_plan import QuantPlan, Range

Array = np.ndarray[Any, Any]


def write_toy(draft: Draft, path: Path) -> None:
    """The network as it is, and our words beside it."""
    torch.save(draft.graph, path.with_suffix(".toyweights"))
    path.write_text(json.dumps([draft.contents.to_json(), ""]))


def add_toy_notes(contents: ExportInfo, path: Path) -> None:
    path.write_text(json.dumps([contents.to_json(), contents.noted_json()]))


def start_toy(runtime: Any, path: Path, contents: ExportInfo, how: Session) -> Compute:
    graph = torch.load(path.with_suffix(".toyweights"), weights_only=False)

    def compute(img: Array, outputs: Sequence[str]) -> Sequence[Array]:
        with torch.inference_mode():
            results = dict(zip(graph.outputs, graph(torch.from_numpy(img)), strict=True))
        return [results[each].numpy() for each in outputs]

    return compute


TOY = Target(
    name="toy",
    suffix=".toy",
    runtime="a toy",
    precisions=("fp32",),
    beside=(".toyweights",),
    write=write_toy,
    add_notes=add_toy_notes,
    read=lambda path: Entries(*json.loads(path.read_text())),
    import_runtime=lambda: None,
    start=start_toy,
)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TARGETS, "toy", TOY)


@pytest.mark.usefixtures("toy")
def test_a_new_target_is_exported_verified_and_opened(tmp_path: Path) -> None:
    checkpoint = small.checkpoint()
    report = vitrail.export(checkpoint, tmp_path / "a.toy")
    assert report.format == "toy"
    assert report.largest_difference < 1e-5
    assert report.bytes == sum((tmp_path / name).stat().st_size for name in ("a.toy", "a.toyweights"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.toy", "a.toyweights"]
    opened = open_model(tmp_path / "a.toy")
    assert opened.classes == checkpoint.classes
    image = np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8)
    ours, theirs = (vitrail.predict(each, [image])[0] for each in (checkpoint, tmp_path / "a.toy"))
    assert ours.labels == theirs.labels
    np.testing.assert_allclose(ours.probabilities, theirs.probabilities, atol=1e-6)


@pytest.mark.usefixtures("toy")
def test_a_new_target_stands_in_lists_and_errors(tmp_path: Path) -> None:
    assert file_names() == "NAME.onnx, NAME.xml, NAME.pt2 or NAME.toy"
    assert file_names(opened=True) == "NAME.onnx, NAME.xml or NAME.toy"
    assert file_names("int8") == "NAME.onnx or NAME.xml"
    assert is_exported("a.toy")
    with pytest.raises(InputError, match="expected NAME.onnx, NAME.xml, NAME.pt2 or NAME.toy, got 'a.tflite'"):
        vitrail.export(small.checkpoint(), tmp_path / "a.tflite")
    plan = QuantPlan("fp32", {"encoder.blocks.0.mlp.up": Range(-1, 2)})
    with pytest.raises(InputError, match="int8 goes into NAME.onnx or NAME.xml, or a packed .*, not into NAME.toy"):
        vitrail.export(small.checkpoint(), tmp_path / "a.toy", plan=plan)
    with pytest.raises(InputError, match="`vitrail export vitrail:fashion NAME.toy` makes a file for toy"):
        open_model("vitrail:fashion", runtime="toy")


def test_a_new_target_stands_in_the_help() -> None:
    """In a fresh process, since the help is made when the verb is imported."""
    script = """
import sys
from exporters.test_target import TOY
from vitrail.exporters import TARGETS
TARGETS["toy"] = TOY
sys.argv = ["vitrail", "export", "--help"]
from vitrail.cli import main
main()
"""
    path = [str(Path(__file__).parents[1]), *sys.path]
    run = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {path!r}\n{script}"],
        capture_output=True,
        text=True,
        check=False,
        env={"COLUMNS": "200"},
    )
    assert run.returncode == 0, run.stderr
    words = " ".join(run.stdout.split())
    assert "NAME.onnx, NAME.xml, NAME.pt2 or NAME.toy" in words
    assert "onnx, openvino, torch, toy" in words


def test_what_each_target_says_of_itself() -> None:
    assert list(TARGETS) == ["onnx", "openvino", "torch"]
    assert {each.suffix: each.precisions for each in TARGETS.values()} == {
        ".onnx": ("fp32", "int8"),
        ".xml": ("fp32", "bf16", "int8"),
        ".pt2": ("fp32",),
    }
    assert [each.name for each in TARGETS.values() if not each.opens] == ["torch"]
    assert TARGETS["openvino"].files(Path("a.xml")) == [Path("a.bin"), Path("a.xml")]
    assert target_of("A.ONNX") is TARGETS["onnx"]
    assert target_of("a.safetensors") is None
    check_precision(TARGETS["openvino"], "bf16")
    with pytest.raises(InputError, match="bf16 goes into NAME.xml, or a packed NAME.safetensors, not into NAME.onnx"):
        check_precision(TARGETS["onnx"], "bf16")


def test_a_program_of_torch_is_not_opened(tmp_path: Path) -> None:
    vitrail.export(small.checkpoint(depth=1), tmp_path / "a.pt2")
    with pytest.raises(InputError, match="for torch.export.load, outside of Vitrail: predict with the checkpoint"):
        open_model(tmp_path / "a.pt2")


@pytest.mark.parametrize(
    "body, fault",
    [
        ("raise RuntimeError('a broken build\\nand more')", "RuntimeError: a broken build"),
        ("import no_such_thing", "ModuleNotFoundError: No module named 'no_such_thing'"),
        ("raise ImportError('libtoy.so: cannot open')", "ImportError: libtoy.so: cannot open"),
        ("import half_installed.native", "ModuleNotFoundError: No module named 'half_installed.native'"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
    ],
)
@pytest.mark.parametrize("others", [(), ("json",)])
def test_an_extra_that_does_not_load_is_told_apart_from_one_that_is_missing(
    others: tuple[str, ...], body: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "half_installed").mkdir()
    (tmp_path / "half_installed" / "__init__.py").write_text(body)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingExtraError) as told:
        import_extra("NAME.toy needs a toy", "toy", *others, "half_installed")
    assert str(told.value) == (
        f"NAME.toy needs a toy: half_installed is installed, but does not load ({fault}): "
        "pip install --force-reinstall half_installed"
    )


@pytest.mark.parametrize("names", [("no_such_toy",), ("json", "no_such_toy"), ("no_such_toy.inside",)])
def test_an_extra_that_is_missing_is_to_be_installed(names: tuple[str, ...]) -> None:
    assert import_extra("NAME.toy needs a toy", "toy", "json", "math") is json
    with pytest.raises(MissingExtraError) as told:
        import_extra("NAME.toy needs a toy", "toy", *names)
    assert str(told.value) == "NAME.toy needs a toy: pip install 'vitrail[toy]'"


@pytest.mark.parametrize("module, target", [("onnxruntime", "onnx"), ("openvino", "openvino")])
def test_a_broken_runtime_is_no_missing_one(
    module: str, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{module}.py").write_text("raise ImportError('libnone.so: cannot open')")
    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    words = rf": {module} is installed, but does not load \(ImportError: libnone.so: cannot open\): pip install --force"
    with pytest.raises(MissingExtraError, match=words):
        TARGETS[target].import_runtime()
