"""doctor: what it says of this machine is so."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import tomllib
from pathlib import Path

import pytest
import torch

import vitrail
from cli.command_line import Line
from vitrail.cli import doctor, openmp
from vitrail.cores import Cores, usable_cores


def test_versions_are_those_installed() -> None:
    versions = doctor.examine()["versions"]
    assert versions["vitrail"] == vitrail.__version__
    assert versions["python"] == platform.python_version()
    for name in ("torch", "numpy", "pillow", "safetensors", "typer", "rich"):
        assert versions[name] == importlib.metadata.version(name)


def test_the_machine() -> None:
    report = doctor.examine()
    machine = report["machine"]
    assert machine["cores"] == str(usable_cores())
    assert machine["torch threads"].split(", ")[0] == str(torch.get_num_threads())
    assert report["devices"]["cpu"] == "fp32, fp16, bf16, fp64"
    assert any("cuda" in name for name in report["devices"]) == torch.cuda.is_available()


def test_threads_are_told_with_their_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "usable_cores", lambda: Cores(64, 8, 2.5, "/sys/fs/cgroup/cpu.max"))
    monkeypatch.setattr(openmp, "ours", {})
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MKL_NUM_THREADS", "1")
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    machine = doctor.examine()["machine"]
    assert machine["cores"] == "8 of 64, by the affinity of this process; the time of 2.5, by /sys/fs/cgroup/cpu.max"
    assert machine["torch threads"] == f"{torch.get_num_threads()}, set by MKL_NUM_THREADS=1"
    assert machine["they wait"] == "OMP_WAIT_POLICY=passive (yours)"


def test_extras_name_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    needs = [
        "torch>=2.10",
        "onnx>=1.18; extra == 'onnx'",
        'onnxruntime>=1.22; python_version > "3" and extra == "onnx"',
        "fastapi>=0.115; extra == 'serve'",
        "vitrail[onnx]; extra == 'web'",
    ]
    installed = {"torch": "2", "onnx": "1", "fastapi": "1"}
    monkeypatch.setattr(doctor, "_requirements", lambda: needs)
    monkeypatch.setattr(doctor, "_version", installed.get)
    report = doctor.examine()
    assert report["extras"] == {
        "onnx": "missing onnxruntime: pip install 'vitrail[onnx]'",
        "serve": "complete",
    }
    assert report["versions"]["rich"] == "missing: pip install vitrail"


def test_an_extra_that_does_not_load_is_told_and_the_rest_goes_on(
    vit: Line, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Installed, but a library of the system is missing, or it breaks on import in any other way."""
    faults = {
        "brokenlib": "OSError('libnone.so: cannot open')",
        "oddlib": "SystemError('a\\nb')",
        "leaver": "SystemExit(2)",
    }
    for package, fault in faults.items():
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(f"print('hello')\nraise {fault}\n")
        about = tmp_path / f"{package}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (about / "RECORD").write_text(f"{package}/__init__.py,,\n{about.name}/METADATA,,\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    needs = ["brokenlib; extra == 'one'", "oddlib; extra == 'two'", "rich; extra == 'two'", "rich; extra == 'three'"]
    needs.append("leaver; extra == 'four'")
    monkeypatch.setattr(doctor, "_requirements", lambda: needs)
    said = vit("doctor", "--json")
    assert (said.code, said.err) == (0, "")
    assert said.json["extras"] == {
        "one": "broken: brokenlib is installed but does not load (OSError: libnone.so: cannot open): "
        "pip install --force-reinstall brokenlib",
        "two": "broken: oddlib is installed but does not load (SystemError: a): pip install --force-reinstall oddlib",
        "three": "complete",
        "four": "broken: leaver is installed but does not load (SystemExit: 2): pip install --force-reinstall leaver",
    }


def test_from_source_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str) -> list[str]:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", unknown)
    assert doctor.examine()["extras"] == {}


def test_doctor(vit: Line) -> None:
    report = vit("doctor", "--json").json
    assert list(report) == ["versions", "machine", "devices", "extras"]
    assert report["versions"]["vitrail"] == vitrail.__version__
    assert report["versions"]["torch"].startswith(torch.__version__.split("+")[0])
    text = vit("doctor").out
    assert text.startswith("versions\n")
    assert "'vitrail[" in text or "complete" in text


def test_something_stands_behind_every_extra() -> None:
    """Every library that an extra brings is imported somewhere in the package; `all` names every extra."""
    root = Path(__file__).resolve().parents[2]
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    sources = "".join(path.read_text() for path in (root / "src").rglob("*.py"))
    own = {name: needs for name, needs in extras.items() if name not in ("all", *doctor.TOOLS)}
    assert extras["all"] == [f"vitrail[{','.join(own)}]"]
    modules = {"resvg-py": "resvg_py", "pillow-heif": "pillow_heif"}
    for name, needs in own.items():
        assert needs, f"the extra {name} brings nothing"
        for library in (re.split(r"[\[>=]", need)[0] for need in needs):
            found = re.search(rf"(import|from) {modules.get(library, library)}\b", sources)
            found = found or re.search(rf'(find_spec|import_extra)\([^()]*"{library}"', sources)
            assert found, f"{library} of the extra {name} is never imported"


SAFE = {"pillow": (12, 3), "onnx": (1, 21), "pillow-heif": (1, 3), "pytest": (9, 0, 3), "transformers": (5, 3)}


def test_no_floor_is_a_version_with_known_holes() -> None:
    """Wherever a library is named, its lowest version is one without a known hole, and the pinned one is no older."""
    root = Path(__file__).resolve().parents[2]
    listed = tomllib.loads((root / "pyproject.toml").read_text())
    groups = [
        listed["project"]["dependencies"],
        *listed["project"]["optional-dependencies"].values(),
        *listed.get("dependency-groups", {}).values(),
        (root / "constraints.txt").read_text().splitlines(),
    ]
    named = set()
    for need in (str(each) for group in groups for each in group):
        found = re.match(r"([\w-]+)(?:\[\w+\])?[>=]=(\d+(?:\.\d+)*)", need)
        if found is not None:
            assert tuple(map(int, found[2].split("."))) >= SAFE.get(found[1], ()), need
            named.add(found[1])
    assert named >= set(SAFE)
