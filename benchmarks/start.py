"""The first answer of a cold command line, one image, ViT-B/16: time and largest memory, as ratios to a timm script.

    python benchmarks/start.py --rounds 5

The timm script builds its network on the meta device and assigns tensors read by safetensors, as quick as timm goes.
Ours are `vitrail predict` with an exported file, a packed one, and our checkpoint. Each run is a process of its own,
all in turn; this program imports nothing heavy, since a child's memory is counted from its parent's.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

MAKE = """
import sys
sys.path[:0] = [sys.argv[2] + "/tests", sys.argv[2] + "/tests/network"]
import renames, torch, numpy, oracles, vitrail
from PIL import Image
from safetensors.torch import save_file
from vitrail.packed import Packed, save_packed
from vitrail.exporters.exporter import export
folder = sys.argv[1]
timm = oracles.timm()
theirs = timm.create_model("vit_base_patch16_224", pretrained=False).eval()
ours = vitrail.create("vit-b16").eval()
renames.to_ours(renames.TIMM, ours, theirs.state_dict())
save_file(theirs.state_dict(), folder + "/timm.safetensors")
made = vitrail.Checkpoint(ours, vitrail.Preprocess())
vitrail.save(made, folder + "/ours.safetensors")
save_packed(Packed(made), made, folder + "/packed.safetensors")
export(made, folder + "/ours.onnx")
export(made, folder + "/ours.xml")
Image.fromarray(numpy.random.default_rng(0).integers(0, 256, (375, 500, 3)).astype("uint8")).save(folder + "/a.jpg")
"""

TIMM = """
import sys
sys.path[:0] = [sys.argv[2] + "/tests"]
import oracles, torch
from PIL import Image
from safetensors.torch import load_file
timm = oracles.timm()
with torch.device("meta"):
    model = timm.create_model("vit_base_patch16_224", pretrained=False)
model.load_state_dict(load_file(sys.argv[1] + "/timm.safetensors"), assign=True)
model = model.eval()
import numpy
image = Image.open(sys.argv[1] + "/a.jpg").convert("RGB").resize((224, 224), Image.Resampling.BICUBIC)
pixels = torch.from_numpy(numpy.asarray(image).copy()).permute(2, 0, 1)[None].float().div_(127.5).sub_(1)
with torch.inference_mode():
    print(int(model(pixels).argmax()))
"""


def once(command: list[str]) -> tuple[float, int]:
    """Seconds on the clock, and the largest memory in bytes."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "NO_COLOR": "1"}
    started = time.perf_counter()
    child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stderr is not None
    out, err = child.stdout.read(), child.stderr.read()
    _, status, usage = os.wait4(child.pid, 0)
    took = time.perf_counter() - started
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode or not out:
        raise SystemExit(f"{command}: {err.decode()[-2000:]}")
    return took, usage.ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        once([sys.executable, "-W", "ignore", "-c", MAKE + "print('made')", folder, str(ROOT)])
        predict = [sys.executable, "-m", "vitrail", "predict"]
        commands = {
            "timm script": [sys.executable, "-W", "ignore", "-c", TIMM, folder, str(ROOT)],
            "exported, ONNX Runtime": [*predict, f"{folder}/ours.onnx", f"{folder}/a.jpg"],
            "exported, OpenVINO": [*predict, f"{folder}/ours.xml", f"{folder}/a.jpg"],
            "our checkpoint": [*predict, f"{folder}/ours.safetensors", f"{folder}/a.jpg"],
            "packed file": [*predict, f"{folder}/packed.safetensors", f"{folder}/a.jpg"],
        }
        found: dict[str, list[tuple[float, int]]] = {name: [] for name in commands}
        dice = random.Random(0)
        for turn in range(given.rounds + 1):
            for name in dice.sample(list(commands), len(commands)):
                result = once(commands[name])
                if turn:  # the first fills the system's cache of files
                    found[name].append(result)
    base = found["timm script"]
    rows = []
    for name, each in found.items():
        times = statistics.median(a[0] / b[0] for a, b in zip(each, base, strict=True))
        memory = statistics.median(a[1] for a in each) / statistics.median(b[1] for b in base)
        rows.append({"what": name, "time": round(times, 3), "memory": round(memory, 3)})
        print(f"{name:26} time {times:.2f}, memory {memory:.2f} of the timm script's")
    print(f"the timm script's memory: {statistics.median(b[1] for b in base) / 1e6:.0f} MB")
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
