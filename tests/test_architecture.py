"""docs/architecture.md: the walk from the command line to the printed answer, held against the calls that are made."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image

import vitrail

ROOT = Path(__file__).resolve().parents[1]
MOST = 16
NOT_ROOMS = (
    *("errors", "checks", "settings", "types", "files", "system_calls", "cores", "progress", "__init__", "__main__"),
)
# Plain properties and checks: a value is looked at, and no work goes over.
LOOKS = {
    *("Checkpoint.takes", "Checkpoint.resample", "Checkpoint.notes", "Checkpoint.provenance"),
    *("FoundImages.is_complete", "Prediction.remark"),
    *("ImageStream.count", "ImageStream.is_short", "check_image_stream", "ViTConfig.grid_for"),
}
WATCH = """
import json, sys, threading
root = sys.argv.pop(1)
edges = {}

def file_of(code):
    return code.co_filename[len(root):] if code.co_filename.startswith(root) else None

def watch(frame, event, _):
    code = frame.f_code
    if event != "call" or file_of(code) is None or code.co_name == "<module>":
        return
    caller = frame.f_back
    while caller is not None and file_of(caller.f_code) is None:
        caller = caller.f_back
    if caller is not None and caller.f_code.co_name != "<module>":
        edges[file_of(caller.f_code), file_of(code), code.co_qualname] = None

from vitrail.cli import main
threading.setprofile(watch)
sys.setprofile(watch)
try:
    main()
except SystemExit:
    pass
finally:
    sys.setprofile(None)
    print(json.dumps(list(edges)), file=sys.stderr)
"""


def room(file: str) -> str:
    return file.split("/")[0].removesuffix(".py")


def walked(tmp_path: Path) -> list[tuple[str, str, str]]:
    """Calls from one room into another: the file they come from, the file and the name they go to."""
    vitrail.save(vitrail.load("vitrail:fashion"), tmp_path / "own.safetensors")
    Image.fromarray(np.zeros((28, 28), np.uint8)).save(tmp_path / "a.png")
    package = f"{ROOT / 'src' / 'vitrail'}{os.sep}"
    run = subprocess.run(
        [sys.executable, "-c", WATCH, package, "predict", str(tmp_path / "own.safetensors"), str(tmp_path / "a.png")],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    crossings: dict[tuple[str, str, str], None] = {}
    for source, target, name in json.loads(run.stderr.splitlines()[-1]):
        rooms = room(source), room(target)
        if rooms[0] != rooms[1] and not set(rooms) & set(NOT_ROOMS) and name not in LOOKS:
            crossings[source, target, plain(name)] = None
    return list(crossings)


def plain(name: str) -> str:
    """What a reader calls it: a class by its name when it is made or called, a generator by who made it."""
    name = re.sub(r"\.(__init__|__post_init__|__call__|forward)$|\.<locals>.*", "", name)
    return name.removeprefix("_")


def test_the_walk_of_predict_is_the_one_on_the_page(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    rows = re.findall(r"^\| (\d+) \| `([^`]+)` \| `([^`]+)` `([^`]+)` \|", page, re.MULTILINE)
    assert [int(number) for number, *_ in rows] == list(range(1, len(rows) + 1))
    assert len(rows) <= MOST
    assert sorted(set(walked(tmp_path))) == sorted((source, target, name) for _, source, target, name in rows)
