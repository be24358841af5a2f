"""From file to prediction: our pipeline beside transformers' and timm's, same weights, same photographs.

    python benchmarks/pipeline.py                       500 JPEGs of 1600x1200, 3 rounds
    python benchmarks/pipeline.py --count 60 --rounds 1
    python benchmarks/pipeline.py --runtime pipeline:packed_bf16 --runtime pipeline:openvino     by other runtimes too
    python benchmarks/pipeline.py --int8                by a packed network in int8
    python benchmarks/pipeline.py --file fast.safetensors     and by what `vitrail optimize` or `export` wrote
    python benchmarks/pipeline.py --json

The photographs are made from those of the fixtures: cut, mirrored, lightened and darkened by a fixed seed. Every
candidate is a process of its own, started and warmed up before the first round; in a round each works alone through
all the photographs, in random order of candidates. "speed" is the time of timm's loader without workers divided by the
candidate's, the median over rounds: above 1 is faster. "processor" is the same of processor time, loader processes
included. "agreement" is the share of photographs on which the likeliest class is that of timm. "memory" is the peak of
the process, and after the plus that of its largest loader process.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests")]

SIZE = (1600, 1200)
FIRST = "timm, DataLoader, 0 workers"
Answer = Callable[[list[str]], list[int]]  # paths -> numbers of the likeliest classes


class Reply(NamedTuple):
    """What a candidate says of one round."""

    seconds: float
    processor: float
    answers: list[int]
    memory: int  # bytes at the peak
    child: int  # the same of its largest process


def make_photos(folder: Path, fixtures: Path, count: int, seed: int = 0) -> list[str]:
    """JPEGs of 1600x1200, each another part of one of the fixtures' photographs or scikit-image's."""
    import skimage.data

    shelf = Path(skimage.data.__file__).parent
    sources = [shelf / name for name in ("chelsea.png", "coffee.png", "astronaut.png", "rocket.jpg")]
    hands = sorted((fixtures / "sign_language_digits" / "7").iterdir(), key=lambda path: path.stat().st_size)
    sources += hands[-3:]  # the three that are 3024x3024
    dice = np.random.default_rng(seed)
    originals = [Image.open(path).convert("RGB") for path in sources]
    paths = []
    for number in range(count):
        original = originals[number % len(originals)]
        share = dice.uniform(0.6, 1.0)
        width = int(share * min(original.width, original.height * SIZE[0] / SIZE[1]))
        height = width * SIZE[1] // SIZE[0]
        left = int(dice.integers(0, original.width - width + 1))
        top = int(dice.integers(0, original.height - height + 1))
        part = original.resize(SIZE, Image.Resampling.BICUBIC, box=(left, top, left + width, top + height))
        if dice.random() < 0.5:
            part = part.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        light = dice.uniform(0.7, 1.3)
        part = part.point([min(255, round(value * light)) for value in range(256)] * 3)
        paths.append(str(folder / f"{number:05}.jpg"))
        part.save(paths[-1], quality=90)
    return paths


def converted(weights: str, folder: Path) -> str:
    """The same weights as transformers writes them."""
    import vitrail

    vitrail.convert(weights, folder, to="transformers")
    return str(folder)


# ---- candidates: each is made in its own process -----------------------------------------------------------------


def ours(weights: str, batch: int, threads: int, scaled: bool, runtime: str) -> Answer:
    import vitrail
    from vitrail.inference import open_model

    is_file = Path(runtime).is_file()
    loaded: Any = open_model(runtime) if is_file else vitrail.load(weights)
    if scaled:
        way = replace(loaded.preprocess, scaled_decoding=True)
        if is_file:
            loaded.about = replace(loaded.about, preprocess=way)
        else:
            loaded = replace(loaded, preprocess=way)
    if runtime and not is_file:
        module, _, name = runtime.partition(":")
        loaded = getattr(import_module(module), name)(loaded)
    number = {label: place for place, label in enumerate(loaded.classes)}

    def answer(paths: list[str]) -> list[int]:
        return [number[each.labels[0]] for each in vitrail.predict(loaded, paths, 1, batch, threads=threads)]

    return answer


# To be named by --runtime.


def packed_bf16(checkpoint: Any) -> Any:
    from vitrail.packed import Packed
    from vitrail.quantisation.quant_plan import QuantPlan

    return Packed(checkpoint, QuantPlan("bf16"))


KEPT = 12  # layers that are not int8: those of ViT-Ti/16 that move its answers most


def int8_file(weights: str, path: Path) -> str:
    """A packed network in int8, calibrated on whole images, the layers that do most harm left out."""
    import torch
    from merging import images

    import vitrail
    from vitrail.packed import Packed, save_packed
    from vitrail.quantisation.quantiser import plan_all_int8
    from vitrail.quantisation.range_calibration import rank_sensitivity

    checkpoint = vitrail.load(weights)
    pixels = torch.from_numpy(checkpoint.preprocess.batch(images()))
    evened, plan = plan_all_int8(checkpoint, list(pixels.split(32)))
    harmful = rank_sensitivity(evened.model, plan, pixels[::4])[:KEPT]
    save_packed(Packed(evened, plan.without({each.name for each in harmful})), evened, path)
    return str(path)


def openvino(checkpoint: Any, bf16: bool = False) -> Any:
    """The checkpoint exported to OpenVINO, bytes in."""
    from vitrail.exporters.exported import open_exported
    from vitrail.exporters.exporter import export
    from vitrail.quantisation.quant_plan import QuantPlan

    with tempfile.TemporaryDirectory() as place:
        export(checkpoint, Path(place) / "net.xml", pixels="bytes", plan=QuantPlan("bf16" if bf16 else "fp32"))
        return open_exported(Path(place) / "net.xml", threads=2)


def openvino_bf16(checkpoint: Any) -> Any:
    return openvino(checkpoint, bf16=True)


def timm_loader(weights: str, batch: int, workers: int) -> Answer:
    import torch
    from safetensors.torch import load_file

    import oracles

    timm = oracles.timm()
    model = timm.create_model("vit_tiny_patch16_224", pretrained=False).eval()
    model.load_state_dict(load_file(weights))
    data = import_module("timm.data")
    transform = data.create_transform(**data.resolve_model_data_config(model), is_training=False)

    def answer(paths: list[str]) -> list[int]:
        loader = torch.utils.data.DataLoader(Photos(paths, transform), batch, num_workers=workers)
        with torch.inference_mode():
            return [int(each) for pixels in loader for each in model(pixels).argmax(1)]

    return answer


class Photos:
    """A data set as timm's: a path is opened, made RGB and transformed."""

    def __init__(self, paths: list[str], transform: Any) -> None:
        self.paths, self.transform = paths, transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, row: int) -> Any:
        with Image.open(self.paths[row]) as image:
            return self.transform(image.convert("RGB"))


def transformers_pipeline(weights: str, batch: int) -> Answer:
    import oracles

    transformers = oracles.transformers()
    model = transformers.ViTForImageClassification.from_pretrained(weights).eval()
    half = [0.5] * 3
    # The processor of CLIP resizes the short side and cuts the centre, as these weights need; that of ViT squashes.
    processor = transformers.CLIPImageProcessor(
        size={"shortest_edge": 248}, crop_size=224, resample=3, image_mean=half, image_std=half
    )
    run = transformers.pipeline("image-classification", model=model, image_processor=processor, device="cpu")

    def answer(paths: list[str]) -> list[int]:
        return [int(model.config.label2id[found[0]["label"]]) for found in run(paths, top_k=1, batch_size=batch)]

    return answer


def candidates(runtimes: list[str]) -> dict[str, dict[str, Any]]:
    """A name, and what the process that plays it is told."""
    found: dict[str, dict[str, Any]] = {
        FIRST: {"kind": "timm", "workers": 0},
        "timm, DataLoader, 2 workers": {"kind": "timm", "workers": 2},
        "transformers, pipeline": {"kind": "transformers"},
    }
    for runtime in ("", *runtimes):
        for threads, scaled in ((2, False), (2, True)):
            who, more = Path(runtime).name or "eager", ", scaled decoding" * scaled
            name = f"vitrail, {who}, {threads} thread{'s' * (threads > 1)}{more}"
            found[name] = {"kind": "ours", "threads": threads, "scaled": scaled, "runtime": runtime}
    return found


# ---- processes ---------------------------------------------------------------------------------------------------


def work(told: dict[str, Any]) -> None:
    """Be one candidate: a line with a list of paths in, a line with a Reply out, until there are no more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libraries print is no answer
    import torch

    torch.set_num_threads(told.pop("torch_threads"))
    make = {"ours": ours, "timm": timm_loader, "transformers": transformers_pipeline}[told.pop("kind")]
    answer = make(**told)
    for line in sys.stdin:
        started, before = time.perf_counter(), _processor()
        found = answer(json.loads(line))
        seconds, processor = time.perf_counter() - started, _processor() - before
        child = 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        print(json.dumps(Reply(seconds, processor, found, _peak(), child)), file=answers, flush=True)


def _peak() -> int:
    """Bytes of memory at the peak; getrusage would count what the parent held when it started this process."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return 1024 * int(line.split()[1])


def _processor() -> float:
    """Seconds of processor time of this process and those it waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


class Candidate:
    """The process that plays a candidate."""

    def __init__(self, told: dict[str, Any]) -> None:
        command = [sys.executable, __file__, "--work", json.dumps(told)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, paths: list[str]) -> Reply:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(paths) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a candidate ended early: {self.process.args}")
        return Reply(*json.loads(line))

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def measure(paths: list[str], told: dict[str, dict[str, Any]], rounds: int) -> dict[str, list[Reply]]:
    playing = {name: Candidate(each) for name, each in told.items()}
    try:
        for each in playing.values():
            each.ask(paths[: max(32, len(paths) // 10)])
        found: dict[str, list[Reply]] = {name: [] for name in told}
        dice = random.Random(0)
        for _ in range(rounds):
            for name in dice.sample(list(playing), len(playing)):
                found[name].append(playing[name].ask(paths))
        return found
    finally:
        for each in playing.values():
            each.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0, help="of the photographs")
    parser.add_argument("--threads", type=int, default=2, help="of the networks")
    parser.add_argument("--runtime", action="append", default=[], metavar="MODULE:FUNCTION")
    parser.add_argument("--int8", action="store_true")
    parser.add_argument("--file", action="append", default=[], help="of a runtime; its photographs must be others")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.work:
        work(json.loads(chosen.work))
        return
    fixtures = Path(os.environ.get("VITRAIL_FIXTURES") or ROOT.parent / "shared" / "fixtures")
    weights = str(fixtures / "vit_tiny_patch16_224_in1k.safetensors")
    shared = {"weights": weights, "batch": chosen.batch, "torch_threads": chosen.threads}
    with tempfile.TemporaryDirectory() as place:
        files = [int8_file(weights, Path(place) / "int8.safetensors")] if chosen.int8 else []
        runtimes = [*chosen.runtime, *files, *map(os.path.abspath, chosen.file)]
        told = {name: each | shared for name, each in candidates(runtimes).items()}
        told["transformers, pipeline"]["weights"] = converted(weights, Path(place) / "transformers")
        found = measure(make_photos(Path(place), fixtures, chosen.count, chosen.seed), told, chosen.rounds)
    first = found[FIRST]
    rows = []
    for name, replies in found.items():
        same = np.mean(np.array(replies[-1].answers) == np.array(first[-1].answers))
        rows.append(
            {
                "candidate": name,
                "speed": statistics.median(a.seconds / b.seconds for a, b in zip(first, replies, strict=True)),
                "processor": statistics.median(a.processor / b.processor for a, b in zip(first, replies, strict=True)),
                "agreement": float(same),
                "memory": replies[-1].memory,
                "child": replies[-1].child if told[name].get("workers") else 0,
            }
        )
    if chosen.json:
        print(json.dumps({"count": chosen.count, "rounds": chosen.rounds, "threads": chosen.threads, "rows": rows}))
        return
    table = Table("candidate", "speed", "processor", "agreement", "memory", box=None, pad_edge=False)
    for row in rows:
        memory = f"{row['memory'] / 1e6:.0f}" + (f" + {row['child'] / 1e6:.0f}" if row["child"] else "") + " MB"
        shares = f"{row['speed']:.2f}", f"{row['processor']:.2f}", f"{100 * row['agreement']:.1f} %"
        table.add_row(str(row["candidate"]), *shares, memory)
    Console(width=120).print(table)
    print(f"{chosen.count} photographs of {SIZE[0]}x{SIZE[1]}, batch {chosen.batch}, {chosen.rounds} rounds")


if __name__ == "__main__":
    main()
