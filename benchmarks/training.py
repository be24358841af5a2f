"""Training throughput beside others, as ratios: the same network and batch, each in a process of its own, interleaved.

    python benchmarks/training.py                 small (6 blocks, width 192, 28 px) and ViT-Ti/16 at 224; fp32 and bf16
    python benchmarks/training.py --only small --rounds 3
    python benchmarks/training.py --compiled      by torch.compile instead

A step is forward, cross entropy, backward, AdamW, on random pixels. The ratio is our images a second by theirs, the
median over rounds, so above 1 means ours is faster; peak memory is of the whole process. Absolute speed differs from
machine to machine and is not printed.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

CASES: dict[str, dict[str, int]] = {
    "small": {"size": 28, "patch": 4, "channels": 1, "width": 192, "depth": 6, "heads": 3, "batch": 128, "steps": 4},
    "Ti/16": {"size": 224, "patch": 16, "channels": 3, "width": 192, "depth": 12, "heads": 3, "batch": 16, "steps": 4},
}
PEERS = ("vitrail", "timm", "transformers", "vit-pytorch")


def build(name: str, case: dict[str, int]) -> nn.Module:
    """The same network by each library."""
    if name == "vitrail":
        from vitrail.network.config import ViTConfig
        from vitrail.network.vit import ViT

        return ViT(
            ViTConfig(
                image_size=(case["size"],) * 2,
                patch_size=(case["patch"],) * 2,
                channels=case["channels"],
                width=case["width"],
                depth=case["depth"],
                heads=case["heads"],
                mlp_width=4 * case["width"],
                classes=10,
            )
        )
    if name == "timm":
        import oracles

        oracles.timm()
        from timm.models.vision_transformer import VisionTransformer

        model: nn.Module = VisionTransformer(
            img_size=case["size"],
            patch_size=case["patch"],
            in_chans=case["channels"],
            num_classes=10,
            embed_dim=case["width"],
            depth=case["depth"],
            num_heads=case["heads"],
        )
        return model
    if name == "transformers":
        import oracles

        library = oracles.transformers()
        config = library.ViTConfig(
            image_size=case["size"],
            patch_size=case["patch"],
            num_channels=case["channels"],
            hidden_size=case["width"],
            num_hidden_layers=case["depth"],
            num_attention_heads=case["heads"],
            intermediate_size=4 * case["width"],
            num_labels=10,
        )
        return _Logits(library.ViTForImageClassification(config))
    import oracles

    oracles.torchvision()  # it asks for it
    from vit_pytorch import ViT as Theirs

    theirs: nn.Module = Theirs(
        image_size=case["size"],
        patch_size=case["patch"],
        channels=case["channels"],
        num_classes=10,
        dim=case["width"],
        depth=case["depth"],
        heads=case["heads"],
        dim_head=case["width"] // case["heads"],
        mlp_dim=4 * case["width"],
    )
    return theirs


class _Logits(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: torch.Tensor) -> Any:
        return self.model(pixel_values=pixels).logits


def worker(name: str, case: dict[str, int], bf16: bool, compiled: bool) -> None:
    """Steps on demand: a line on stdin asks for a round, a line on stdout gives its images a second."""
    torch.set_num_threads(2)
    torch.manual_seed(0)
    model = build(name, case).train()
    called = torch.compile(model) if compiled else model
    if name == "vitrail":  # as `vitrail train` does it
        from vitrail.training.optimisers import build_optimiser
        from vitrail.training.recipe import Recipe

        own = build_optimiser(model, Recipe(lr=1e-3, clip=0.0))  # type: ignore[arg-type]
        step, zero = (lambda: own.step(1.0)), own.zero
    else:
        theirs = torch.optim.AdamW(model.parameters(), lr=1e-3)
        step, zero = theirs.step, theirs.zero_grad
    pixels = torch.randn(case["batch"], case["channels"], case["size"], case["size"])
    labels = torch.randint(10, (case["batch"],))

    def learn() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            logits = called(pixels)
        F.cross_entropy(logits.float(), labels).backward()
        step()
        zero()

    for _ in range(2):
        learn()
    print("ready", flush=True)
    for _ in sys.stdin:
        started = time.perf_counter()
        for _ in range(case["steps"]):
            learn()
        rate = case["steps"] * case["batch"] / (time.perf_counter() - started)
        print(json.dumps([rate, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]), flush=True)


def compare(case: str, bf16: bool, compiled: bool, rounds: int) -> dict[str, tuple[float, float]]:
    """Ratio of our speed to each peer's, and its peak memory in MB."""
    command = [sys.executable, __file__, "--worker", case, "--bf16" if bf16 else "--fp32"]
    command += ["--compiled"] if compiled else []
    pipes = {
        name: subprocess.Popen([*command, "--peer", name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for name in PEERS
    }
    for pipe in pipes.values():
        assert pipe.stdout is not None
        assert pipe.stdout.readline() == "ready\n"
    found: dict[str, list[list[float]]] = {name: [] for name in PEERS}
    for _ in range(rounds):
        for name, pipe in pipes.items():
            assert pipe.stdin is not None
            assert pipe.stdout is not None
            print("go", file=pipe.stdin, flush=True)
            found[name].append(json.loads(pipe.stdout.readline()))
    for pipe in pipes.values():
        assert pipe.stdin is not None
        pipe.stdin.close()
        pipe.wait()
    ratios = {}
    for name in PEERS:
        each = [ours[0] / theirs[0] for ours, theirs in zip(found["vitrail"], found[name], strict=True)]
        ratios[name] = (statistics.median(each), max(row[1] for row in found[name]))
    return ratios


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", choices=list(CASES))
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--compiled", action="store_true")
    options.add_argument("--precision", choices=("fp32", "bf16"))
    options.add_argument("--worker", help=argparse.SUPPRESS)
    options.add_argument("--peer", help=argparse.SUPPRESS)
    options.add_argument("--bf16", action="store_true", help=argparse.SUPPRESS)
    options.add_argument("--fp32", action="store_true", help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.worker:
        worker(chosen.peer, CASES[chosen.worker], chosen.bf16, chosen.compiled)
        return
    print(f"{'':<22}" + "".join(f"{name:>20}" for name in PEERS[1:]))
    for case in [chosen.only] if chosen.only else CASES:
        for bf16 in [chosen.precision == "bf16"] if chosen.precision else (False, True):
            found = compare(case, bf16, chosen.compiled, chosen.rounds)
            label = f"{case} {'bf16' if bf16 else 'fp32'}{' compiled' if chosen.compiled else ''}"
            own = found["vitrail"][1]
            cells = "".join(f"{ratio:>11.2f} {memory / own:>5.2f} mem" for ratio, memory in list(found.values())[1:])
            print(f"{label:<22}{cells}", flush=True)


if __name__ == "__main__":
    main()
