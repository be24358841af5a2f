"""Inference beside others, same weights, outputs checked, all in turn in one process: ratios to timm eager in fp32.

    python benchmarks/inference.py                        # Ti, S and B, batch 1 and 16
    python benchmarks/inference.py --sizes B --batches 1 --rounds 9 --json table.json
    python benchmarks/inference.py --merge 8,13           # and with so many tokens merged in each block
    python benchmarks/inference.py --growth               # time per FLOP and memory from 224 to 1024 px, batch 1 to 64

Peers: timm and transformers as they are, timm's network exported by torch to ONNX and run by ONNX Runtime, and the same
file in OpenVINO. Ours: eager, packed in fp32, bf16 and int8, and our own exports. int8 is calibrated on random pixels
here: it says speed, not accuracy; so does merging. bf16 is timed only where the processor has units for it, or with
--bf16. Absolute times differ from machine to machine and are not printed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from network import SIZES, interleave

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "network")]

import renames  # noqa: E402

import oracles  # noqa: E402
import vitrail  # noqa: E402
from vitrail.errors import VitrailError  # noqa: E402
from vitrail.exporters.exported import open_exported  # noqa: E402
from vitrail.exporters.exporter import export  # noqa: E402
from vitrail.insight.cost import estimate  # noqa: E402
from vitrail.network.surgery import with_merging  # noqa: E402
from vitrail.packed import Packed  # noqa: E402
from vitrail.packed.packing import QuantPlan  # noqa: E402
from vitrail.quantisation.cpu_features import has_bf16_units  # noqa: E402
from vitrail.quantisation.range_calibration import calibrate  # noqa: E402
from vitrail.shipping.peak_flops import products, rates  # noqa: E402

Call = Callable[[], Any]
THREADS = 2


def peer_files(theirs: torch.nn.Module, folder: Path) -> Path:
    """timm's network as torch writes it to ONNX, the batch free."""
    path = folder / "timm.onnx"
    pixels = torch.randn(2, 3, 224, 224)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batch = torch.export.Dim("batch", min=1, max=256)
        torch.onnx.export(
            theirs, (pixels,), str(path), dynamo=True, dynamic_shapes=({0: batch},), external_data=False, verbose=False
        )
    return path


def onnx_call(path: Path, pixels: np.ndarray[Any, Any]) -> Call:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda: session.run(None, {name: pixels})[0]


def openvino_call(path: Path, pixels: np.ndarray[Any, Any], precision: str) -> Call:
    import openvino

    settings = {"INFERENCE_NUM_THREADS": THREADS, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": precision}
    request = openvino.Core().compile_model(str(path), "CPU", settings).create_infer_request()
    return lambda: request.infer([pixels])[0]


def candidates(
    size: str, batch: int, folder: Path, bf16: bool, merge: Sequence[int]
) -> tuple[dict[str, Call], vitrail.ViT]:
    """Every way to answer the same pixels, and our network."""
    timm, transformers = oracles.timm(), oracles.transformers()
    ours_name, timm_name = SIZES[size]
    torch.manual_seed(0)
    ours = vitrail.create(ours_name).eval()
    theirs = timm.create_model(timm_name, pretrained=False).eval()
    renames.to_ours(renames.TIMM, ours, theirs.state_dict())
    config = ours.config
    hf = transformers.ViTForImageClassification(
        transformers.ViTConfig(
            hidden_size=config.width,
            num_hidden_layers=config.depth,
            num_attention_heads=config.heads,
            intermediate_size=config.mlp_width,
            num_labels=config.classes,
        )
    ).eval()
    checkpoint = vitrail.Checkpoint(ours, vitrail.Preprocess(size=224))
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randn(batch, 3, 224, 224, generator=generator)
    array = pixels.numpy()
    ranges = calibrate(ours, [pixels[:4]])
    packed = {"packed fp32": QuantPlan(), "packed int8": QuantPlan("bf16" if has_bf16_units() else "fp32", ranges)}
    if bf16:
        packed["packed bf16"] = QuantPlan("bf16")
    runtimes = {name: Packed(checkpoint, plan) for name, plan in packed.items()}
    peer = peer_files(theirs, folder)
    calls: dict[str, Call] = {
        "timm": lambda: theirs(pixels),
        "transformers": lambda: hf(pixels).logits,
        "eager": lambda: ours(pixels),
        "timm, ONNX Runtime fp32": onnx_call(peer, array),
        "timm, OpenVINO fp32": openvino_call(peer, array, "f32"),
    }
    if bf16:
        small = pixels.bfloat16()
        lower = timm.create_model(timm_name, pretrained=False).eval()
        lower.load_state_dict(theirs.state_dict())
        lower = lower.bfloat16()
        calls["timm bf16"] = lambda: lower(small)
        calls["timm, OpenVINO bf16"] = openvino_call(peer, array, "bf16")
    for name, runtime in runtimes.items():
        calls[name] = lambda runtime=runtime: runtime.run(array)[0]
    for suffix, name in ((".onnx", "ours, ONNX Runtime"), (".xml", "ours, OpenVINO")):
        half = bf16 and suffix == ".xml"
        export(checkpoint, folder / f"ours{suffix}")
        export(checkpoint, folder / f"ours8{suffix}", plan=QuantPlan("bf16" if half else "fp32", ranges))
        if half:
            export(checkpoint, folder / "ours16.xml", plan=QuantPlan("bf16"))
        for stem, precision in (("ours", "fp32"), *((("ours16", "bf16"),) if half else ()), ("ours8", "int8")):
            opened = open_exported(folder / f"{stem}{suffix}", threads=THREADS)
            calls[f"{name} {precision}"] = lambda opened=opened: opened.run(array)[0]
    for count in merge:
        merging = replace(checkpoint, model=with_merging(ours, count))
        ranges = calibrate(merging.model, [pixels[:4]])
        tokens = Packed(merging, QuantPlan("bf16" if has_bf16_units() else "fp32", ranges))
        calls[f"packed int8, {count} merged"] = lambda runtime=tokens: runtime.run(array)[0]
        try:
            export(merging, folder / f"merging{count}.xml", plan=QuantPlan("bf16" if bf16 else "fp32", ranges))
        except VitrailError as error:  # random weights and pixels: which tokens are most alike is a matter of rounding
            print(f"OpenVINO int8, {count} merged: {error}")
            continue
        opened = open_exported(folder / f"merging{count}.xml", threads=THREADS)
        calls[f"ours, OpenVINO int8, {count} merged"] = lambda opened=opened: opened.run(array)[0]
    return calls, ours


def ratios(size: str, batch: int, rounds: int, bf16: bool, merge: Sequence[int]) -> list[dict[str, Any]]:
    """A row a candidate: timm's time over its own, median and quartiles of the rounds, and its share of the limit.

    The limit is a large product of the same precision, timed in turn with the candidates.
    """
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        calls, ours = candidates(size, batch, Path(folder), bf16, merge)
        expected = np.asarray(calls["timm"]())
        large = products()
        seconds = interleave(calls | large, rounds)
        limit = rates({name: statistics.median(each.wall for each in seconds.pop(name)) for name in large})
        print(f"{size}, batch {batch}: GFLOP/s of a large product", {name: round(rate) for name, rate in limit.items()})
        work = 2 * estimate(ours.config).multiply_adds * batch / 1e9
        rows = []
        for name, took in seconds.items():
            out = torch.as_tensor(calls[name]()).float().numpy()
            apart = None if name == "transformers" else float(np.abs(out - expected).max() / np.abs(expected).max())
            low, middle, high = quartiles([a.wall / b.wall for a, b in zip(seconds["timm"], took, strict=True)])
            precision = next((each for each in ("int8", "bf16") if each in name), "fp32")
            share = work / statistics.median(each.wall for each in took) / limit[precision]
            rows.append(
                {
                    "size": size,
                    "batch": batch,
                    "candidate": name,
                    "ratio": round(middle, 3),
                    "quartiles": [round(low, 3), round(high, 3)],
                    "of_limit": round(share, 3),
                    "difference": apart,
                }
            )
    return rows


def quartiles(values: list[float]) -> tuple[float, float, float]:
    low, middle, high = statistics.quantiles(values, n=4)
    return low, middle, high


SIDES = ((224, 1), (384, 1), (512, 1), (1024, 1), (224, 4), (224, 16), (224, 64), (384, 4))  # pixels, batch
GROWN = """
import sys, torch, vitrail
from vitrail.packed import Packed
torch.set_num_threads(2)
side, batch = int(sys.argv[1]), int(sys.argv[2])
runtime = Packed(vitrail.Checkpoint(vitrail.create("vit-b16").eval(), vitrail.Preprocess(size=224)))
pixels = torch.randn(batch, 3, side, side)
def status(name):
    with open("/proc/self/status") as file:
        return 1024 * int(dict(line.split(":", 1) for line in file)[name].split()[0])
before = status("VmRSS")
open("/proc/self/clear_refs", "w").write("5")
with torch.inference_mode():
    runtime.model(pixels)
print(status("VmHWM") - before)
"""


def growth(rounds: int) -> list[dict[str, Any]]:
    """Time per FLOP, as a ratio to 224 px at batch 1, all in turn; and memory beyond the weights, each by itself."""
    model = vitrail.create("vit-b16").eval()
    packed = Packed(vitrail.Checkpoint(model, vitrail.Preprocess(size=224))).model
    calls = {f"{side} {batch}": partial(packed, torch.randn(batch, 3, side, side)) for side, batch in SIDES}
    with torch.inference_mode():
        seconds = interleave(calls, rounds, least=0.5)
    work = {(side, batch): estimate(model.config, side).multiply_adds * batch for side, batch in SIDES}
    first = seconds["224 1"]
    rows = []
    for side, batch in SIDES:
        ran = subprocess.run(
            [sys.executable, "-c", GROWN, str(side), str(batch)], capture_output=True, text=True, check=True
        )
        memory = int(ran.stdout.splitlines()[-1])
        more = work[side, batch] / work[224, 1]
        low, middle, high = quartiles(
            [a.wall / b.wall / more for a, b in zip(seconds[f"{side} {batch}"], first, strict=True)]
        )
        tokens = estimate(model.config, side).tokens * batch
        rows.append(
            {
                "side": side,
                "batch": batch,
                "per_flop": round(middle, 3),
                "quartiles": [round(low, 3), round(high, 3)],
                "memory": memory,
                "memory_per_token": memory / tokens,
            }
        )
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    table = Table("size", "batch", "candidate", "times timm", "quartiles", "of the limit", "difference", box=None)
    for row in rows:
        low, high = row["quartiles"]
        apart = "other weights" if row["difference"] is None else f"{row['difference']:.1e}"
        table.add_row(
            *(row["size"], str(row["batch"]), row["candidate"], f"{row['ratio']:.2f}", f"{low:.2f} to {high:.2f}"),
            *(f"{100 * row['of_limit']:.0f} %", apart),
        )
    Console(width=120).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="Ti,S,B")
    parser.add_argument("--batches", default="1,16")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--merge", default="", help="tokens merged in each block: another row for each")
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(THREADS)
    if given.growth:
        rows = growth(given.rounds)
        for row in rows:
            print(
                f"{row['side']} px, batch {row['batch']}: time per FLOP {row['per_flop']:.2f} "
                f"({row['quartiles'][0]:.2f} to {row['quartiles'][1]:.2f}) of 224 px at batch 1; "
                f"{row['memory'] / 1e6:.0f} MB, {row['memory_per_token'] / 1e3:.0f} KB a token"
            )
    else:
        merge = [int(each) for each in given.merge.split(",") if each]
        rows = []
        for size in given.sizes.split(","):
            for batch in map(int, given.batches.split(",")):
                rows += ratios(size, batch, given.rounds, given.bf16 or has_bf16_units(), merge)
        show(rows)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
