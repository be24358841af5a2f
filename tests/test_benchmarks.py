"""The benchmarks run, and compare what they say they compare."""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import vitrail
from vitrail.network import ViT, ViTConfig

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.mark.row("003.19")
def test_batch_norm_is_timed_beside_layer_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[ViT] = []
    ran: list[str] = []

    def create(name: str, **changes: Any) -> ViT:
        config = ViTConfig(
            image_size=224, patch_size=56, width=16, depth=1, heads=2, mlp_width=16, classes=3, **changes
        )
        made.append(ViT(config))
        made[-1].register_forward_hook(lambda model, *_: ran.append(model.config.norm))
        return made[-1]

    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(sys, "argv", ["network.py"])
    module = runpy.run_path(str(BENCHMARKS / "network.py"))
    monkeypatch.setattr(vitrail, "create", create)
    (row,) = module["norm_kinds"](2)
    assert row["what"] == "S batch 8: batch norm / layer norm"
    assert row["ratio"] > 0
    kinds = [
        {type(each) for each in model.modules() if isinstance(each, nn.LayerNorm | nn.BatchNorm1d)} for model in made
    ]
    assert kinds[0] == {nn.LayerNorm}
    assert all(issubclass(kind, nn.BatchNorm1d) for kind in kinds[1])
    assert min(ran.count("layer"), ran.count("batch")) >= 2
    assert not torch.is_inference_mode_enabled()


def test_every_way_of_the_packed_runtime_is_raced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Quickly, on a tiny network: rows for each batch, precision and way, as ratios to the modules alone."""
    threads = torch.get_num_threads()
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(sys, "argv", ["packed_ways.py", "--quick", "--json", str(tmp_path / "rows.json")])
    timing = SimpleNamespace(**runpy.run_path(str(BENCHMARKS / "network.py")))
    monkeypatch.setitem(sys.modules, "network", timing)  # which other tests know as a folder of tests
    try:
        runpy.run_path(str(BENCHMARKS / "packed_ways.py"), run_name="__main__")
    finally:
        torch.set_num_threads(threads)
    rows = json.loads((tmp_path / "rows.json").read_text())
    precisions = list(dict.fromkeys(each["precision"] for each in rows))
    assert precisions in (["fp32", "bf16", "int8"], ["fp32", "int8"])
    assert [(each["batch"], each["precision"], each["way"]) for each in rows] == [
        (batch, precision, way) for batch in (1, 16) for precision in precisions for way in ("modules", "program")
    ]
    assert {each["ratio"] for each in rows if each["way"] == "modules"} == {1.0}
    assert {each["rounds"] for each in rows} == {1}


def test_a_tree_is_raced_against_another(tmp_path: Path) -> None:
    """Quickly, a tiny network against the very same code: a row for each call."""
    command = [sys.executable, str(BENCHMARKS / "two_trees.py"), str(BENCHMARKS.parent), "--quick"]
    rows = tmp_path / "rows.json"
    for only, count in (("eager", 2), ("packed ti", 6)):
        run = subprocess.run(
            [*command, "--only", only, "--json", str(rows)], capture_output=True, text=True, timeout=600
        )
        assert run.returncode == 0, run.stderr
        found = json.loads(rows.read_text())
        assert len(found) == count
        assert all(row["call"].startswith(only) and row["ratio"] > 0 and row["rounds"] == 1 for row in found)


def busy_ones(parent: int) -> list[int]:
    """The processes that this script keeps busy, by what they were started with."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[-2:-1] == [str(parent).encode()] and b"os.getppid() == parent" in b"".join(words):
            found.append(int(folder.name))
    return found


def until(condition: Any) -> None:
    """Half a minute for what takes a moment."""
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError


def test_ways_to_wait_are_timed_alone_and_beside_busy_processes(tmp_path: Path) -> None:
    """Any command; every way has its own settings, and nothing of those around it."""
    note = tmp_path / "notes"
    own = "os.getsid(0) == os.getpid()"
    program = f"import os; open({str(note)!r}, 'a').write(str([os.environ.get('GOMP_SPINCOUNT'), {own}]))"
    flags = ["--ways", "none,spin:100", "--rounds", "2", "--busy", "1", "--json", str(tmp_path / "rows.json")]
    command = [sys.executable, str(BENCHMARKS / "shared_machine.py"), *flags, "--command"]
    environment = os.environ | {"GOMP_SPINCOUNT": "7"}
    run = subprocess.run(
        [*command, f'{sys.executable} -c "{program}"'], capture_output=True, text=True, env=environment, timeout=600
    )
    assert run.returncode == 0, run.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert [(row["way"], row["rounds"]) for row in rows] == [("none", 2), ("spin:100", 2)]
    assert rows[0]["alone"]["median"] == 1.0
    assert all(row["beside"]["median"] > 0 for row in rows)
    assert note.read_text().count("[None, True]") == note.read_text().count("['100', True]") == 4
    failed = subprocess.run([*command, "false"], capture_output=True, text=True, timeout=600)
    assert failed.returncode == 1
    assert "false failed" in failed.stderr


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="processes are found in /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_no_busy_process_outlives_its_script(number: signal.Signals) -> None:
    command = [sys.executable, str(BENCHMARKS / "shared_machine.py"), "--rounds", "1", "--busy", "2", "--command"]
    script = subprocess.Popen([*command, "sleep 1"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: len(busy_ones(script.pid)) == 2)
        assert len({os.getsid(each) for each in busy_ones(script.pid)} | {os.getsid(0)}) == 3  # a session each
        script.send_signal(number)
        script.wait()
        until(lambda: not busy_ones(script.pid))
    finally:
        script.kill()
        script.wait()


def test_a_large_set_is_measured_small(tmp_path: Path) -> None:
    """60 images and 500 rows: every row of the table is there."""
    command = [sys.executable, str(BENCHMARKS / "large_set.py"), "--quick", "--json", str(tmp_path / "rows.json")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr
    found = json.loads((tmp_path / "rows.json").read_text())
    whats = ["imports", "first run, to its first step", "second run, to its first step", "manifest of 500 rows"]
    assert [each["what"] for each in found["rows"]] == whats
    assert all(each["seconds"] > 0 and each["megabytes"] > 50 for each in found["rows"])
    assert len(run.stdout.splitlines()) == 5


def test_a_device_is_measured_beside_others(tmp_path: Path) -> None:
    """Quickly, a tiny network on the CPU: a row for each job and library, and where it was measured."""
    command = [sys.executable, str(BENCHMARKS / "device.py"), "--device", "cpu", "--quick", "--peers", "timm"]
    path = tmp_path / "figures.json"
    ran = subprocess.run(
        [*command, "--precision", "bf16", "--json", str(path)], capture_output=True, text=True, timeout=600
    )
    assert ran.returncode == 0, ran.stderr
    figures = json.loads(path.read_text())
    assert figures["environment"]["device"] == "cpu"
    assert [(row["job"], row["library"]) for row in figures["rows"]] == [
        (job, library) for job in ("training step", "inference") for library in ("vitrail", "timm")
    ]
    for row in figures["rows"]:
        assert (row["network"], row["batch"], row["precision"], row["rounds"]) == ("tiny", 4, "bf16", 1)
        assert min(row["images_per_second"], row["memory_mb"], row["ours_by_theirs"]) > 0
        assert f"{row['images_per_second']} images/s" in ran.stdout
