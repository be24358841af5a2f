"""Every small network of the export tests at any size, to every runtime, compared at sizes that the export did not see.

    python stress/exporting.py

The tests export one of them at any size, since torch takes seconds for each; this takes them all.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests")]

from exporters.graph_networks import NETWORKS  # noqa: E402
from shipping import small  # noqa: E402
from vitrail.exporters import TARGETS  # noqa: E402
from vitrail.exporters.exported import start_exported  # noqa: E402
from vitrail.exporters.exporter import export  # noqa: E402


def main() -> None:
    torch.manual_seed(0)
    worst = 0.0
    for name, changes in NETWORKS.items():
        checkpoint = small.checkpoint(**changes)
        for target in TARGETS.values():
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / f"a{target.suffix}"
                export(checkpoint, path, dynamic_size=True)
                opened = start_exported(path, target)
                for batch, height, width in ((1, 32, 32), (2, 8, 48), (16, 64, 24)):
                    pixels = torch.randn(batch, 3, height, width).numpy()
                    found, expected = opened.run(pixels)[0], checkpoint.run(pixels)[0]
                    apart = float(np.abs(found - expected).max() / np.abs(expected).max())
                    worst = max(worst, apart)
                    print(f"{name}, {target.suffix}, {batch} of {height}x{width}: {apart:.1e}", flush=True)
                    if not apart <= 1e-4:
                        raise SystemExit("more than 1e-4 of the largest value")
    print(f"all within 1e-4, at most {worst:.1e}")


if __name__ == "__main__":
    main()
