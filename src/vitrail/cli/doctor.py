"""The verb doctor: what this machine has, and what is missing."""

from __future__ import annotations

import importlib
import importlib.metadata
import platform
import re
from typing import Final

from vitrail import __version__
from vitrail.cli.application import app
from vitrail.cli.openmp import waiting_settings, why_threads
from vitrail.cli.options import AsJson
from vitrail.cli.terminal import print_json, say
from vitrail.cores import usable_cores
from vitrail.errors import first_line

TOOLS: Final = ("dev", "docs")  # extras that vitrail itself never imports


@app.command("doctor")
def report_machine(as_json: AsJson = False) -> None:
    """Say what this machine has: versions, devices, what is missing."""
    report = examine()
    if as_json:
        print_json(report)
        return
    for section, values in report.items():
        say(section)
        for name, value in values.items():
            say(f"  {name:<16} {value}")


def examine() -> dict[str, dict[str, str]]:
    """Versions, processor and devices, and which extras are complete."""
    return {"versions": _versions(), "machine": _machine(), "devices": _devices(), "extras": _extras()}


def _versions() -> dict[str, str]:
    versions = {"vitrail": __version__, "python": platform.python_version()}
    for name in ("torch", "numpy", "pillow", "safetensors", "typer", "rich"):
        versions[name] = _version(name) or "missing: pip install vitrail"
    return versions


def _machine() -> dict[str, str]:
    import torch

    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cores": str(usable_cores()),
        "torch threads": f"{torch.get_num_threads()}, {why_threads()}",
        "they wait": waiting_settings(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "oneDNN": "yes" if torch.backends.mkldnn.is_available() else "no",
    }


def _devices() -> dict[str, str]:
    """Every device with its own name, and the numbers that it takes."""
    from vitrail.checkpoint.devices import describe_device, device_names, find_device, number_kinds

    described = {}
    for name, device in ((name, find_device(name)) for name in device_names()):
        own_name = describe_device(device).partition(" (")[2].rstrip(")")
        described[name] = "; ".join(filter(None, (own_name, ", ".join(number_kinds(device)))))
    return described


def _extras() -> dict[str, str]:
    """For each extra of the package: complete, or what is missing and the command that installs it."""
    needed: dict[str, list[str]] = {}
    for requirement in _requirements():
        name, _, condition = requirement.partition(";")
        extra_of = re.search(r"extra\s*==\s*['\"]([\w-]+)['\"]", condition)
        package = re.match(r"[\w.-]+", name.strip())
        if extra_of and package and package[0] != "vitrail":
            needed.setdefault(extra_of[1], []).append(package[0])
    return {extra: _state_of(extra, packages) for extra, packages in needed.items()}


def _state_of(extra: str, packages: list[str]) -> str:
    """Complete; or what is missing, or is there and does not load, with the command that mends it."""
    missing = [package for package in packages if not _version(package)]
    if missing:
        return f"missing {', '.join(missing)}: pip install 'vitrail[{extra}]'"
    used = packages if extra not in TOOLS else []
    faults = {package: fault for package in used if (fault := _import_fault(package))}
    if not faults:
        return "complete"
    words = "; ".join(f"{package} is installed but does not load ({fault})" for package, fault in faults.items())
    return f"broken: {words}: pip install --force-reinstall {' '.join(faults)}"


def _import_fault(package: str) -> str:
    """Why an installed package cannot be used; empty where it can."""
    name = _module_of(package)
    if not name:
        return ""
    from vitrail.exporters.quiet import quietly

    try:
        with quietly():
            importlib.import_module(name)
    except (Exception, SystemExit) as error:  # a library that lacks another, or is for another machine, raises anything
        return first_line(error)
    return ""


def _module_of(package: str) -> str:
    """What a package is imported as: the module of its name, or the first that it brings."""
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        return ""
    names = dict.fromkeys(path.parts[0] for path in files if path.name == "__init__.py" and len(path.parts) == 2)
    likely = package.replace("-", "_").lower()
    return likely if likely in names else next((name for name in names if not name.startswith("_")), "")


def _requirements() -> list[str]:
    try:
        return importlib.metadata.requires("vitrail") or []
    except importlib.metadata.PackageNotFoundError:  # run from its source, not installed
        return []


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
