"""Merging tokens of ViT-Ti/16: how many answers stay, what it costs, and how much faster it is.

    python benchmarks/merging.py                          every schedule of the table
    python benchmarks/merging.py --only 4x14,0x8          from block 4 on 14 a block; in every block 8
    python benchmarks/merging.py --rounds 0               answers and cost alone
    python benchmarks/merging.py --by keys                pairs by the likeness of keys, as Bolya et al. do

The network is the real one of the fixtures; the images are photographs of scikit-image, fruits and hands, whole and
in order, so that every run sees the same. "same" is how often the merging network names the class that the whole one
names, and "divergence" the mean KL divergence of its answers from the whole one's. "cost" is the share of the
multiply-adds. "speed" is the time of the whole network
over that of the merging one, both packed in fp32, batch 16, in turn: the median over rounds.
"""

from __future__ import annotations

import argparse
import os
import statistics
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table

import vitrail
from network import interleave
from vitrail.insight.cost import estimate
from vitrail.network.surgery import with_merging
from vitrail.packed import Packed

ROOT = Path(__file__).resolve().parents[1]
FIXTURES = Path(os.environ.get("VITRAIL_FIXTURES", ROOT.parent / "shared" / "fixtures"))
PHOTOS = (
    "astronaut",
    "camera",
    "chelsea",
    "coffee",
    "coins",
    "rocket",
    "brick",
    "grass",
    "gravel",
    "moon",
    "page",
    "text",
)
SCHEDULES = "0x2,0x4,0x6,0x8,0x12,0x16,2x10,3x12,4x14,4x18,5x16,5x24,6x20,6x30,8x40"


def images() -> list[Image.Image]:
    """12 of scikit-image, 100 fruits, 99 hands."""
    import skimage.data

    found = [Image.fromarray(np.asarray(getattr(skimage.data, name)())).convert("RGB") for name in PHOTOS]
    fruits = sorted((FIXTURES / "fruits360_10" / "test").rglob("*.jpg"))[::4]
    hands = sorted(path for path in (FIXTURES / "sign_language_digits").rglob("*.*") if path.is_file())[::21]
    return found + [Image.open(path).convert("RGB") for path in (*fruits, *hands)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=SCHEDULES)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--by", choices=("tokens", "keys"), default="tokens")
    given = parser.parse_args()
    torch.set_num_threads(2)
    checkpoint = vitrail.load(FIXTURES / "vit_tiny_patch16_224_in1k.safetensors")
    pixels = torch.stack([torch.as_tensor(np.asarray(checkpoint.preprocess(each))) for each in images()])
    model = checkpoint.model.eval()

    def answers(network: Any) -> torch.Tensor:
        with torch.inference_mode():
            return torch.cat([network(part) for part in pixels.split(32)])

    whole = answers(model).log_softmax(1)
    own = whole.argmax(1)
    networks = {"whole": Packed(checkpoint).model}
    rows = []
    for schedule in given.only.split(","):
        first, count = map(int, schedule.split("x"))
        merging = with_merging(model, count, first, given.by)
        found = answers(merging)
        same = (found.argmax(1) == own).sum()
        apart = (whole.exp() * (whole - found.log_softmax(1))).sum(1).mean()
        among = (found.topk(5).indices == own[:, None]).any(1).sum()
        cost = estimate(merging.config).multiply_adds / estimate(model.config).multiply_adds
        networks[schedule] = Packed(vitrail.Checkpoint(merging, checkpoint.preprocess)).model
        rows.append((schedule, first, count, cost, int(same), int(among), float(apart)))
    speed = dict.fromkeys(networks, "")
    if given.rounds:
        with torch.inference_mode():
            seconds = interleave({name: partial(each, pixels[:16]) for name, each in networks.items()}, given.rounds)
        for name, took in seconds.items():
            each = statistics.median(a.wall / b.wall for a, b in zip(seconds["whole"], took, strict=True))
            speed[name] = f"{each:.2f}"
    table = Table(
        *(
            "from block",
            "merged in each",
            "cost",
            f"same, of {len(own)}",
            "among the first five",
            "divergence",
            "speed",
        ),
        box=None,
    )
    for schedule, first, count, cost, same, among, apart in rows:
        counts = (str(first), str(count), f"{cost:.2f}", str(same), str(among))
        table.add_row(*counts, f"{apart:.4f}", speed[schedule])
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
