"""Writes src/vitrail/data/fashion.npz: the first 600 training and 100 test images of each class of Fashion-MNIST.

    python tools/fashion.py            from Debian's package dataset-fashion-mnist
    python tools/fashion.py FOLDER     from a folder with its four idx files

The same files give the same arrays, and with the same zlib the same bytes.
"""

from __future__ import annotations

import io
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.fashion_mnist import FOLDER, NAMES
from vitrail.data.idx import read_idx

ROOT = Path(__file__).resolve().parents[1]
PARTS = {"train": ("train", 600), "test": ("t10k", 100)}  # split -> name of its files, images of each class

Array = np.ndarray[Any, Any]


def choose(folder: Path) -> dict[str, Array]:
    """The arrays of the built-in set, images in the order of the files."""
    arrays = {}
    for split, (name, count) in PARTS.items():
        images = read_idx(folder / f"{name}-images-idx3-ubyte.gz")
        labels = read_idx(folder / f"{name}-labels-idx1-ubyte.gz")
        kept = np.sort(np.concatenate([np.flatnonzero(labels == kind)[:count] for kind in range(len(NAMES))]))
        arrays[f"{split}_images"], arrays[f"{split}_labels"] = images[kept], labels[kept]
    return arrays


def write(path: Path, arrays: dict[str, Array]) -> None:
    """An .npz whose bytes do not depend on the clock."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            file = io.BytesIO()
            np.lib.format.write_array(file, array, version=(1, 0), allow_pickle=False)
            member = zipfile.ZipInfo(f"{name}.npy")  # of 1980
            member.external_attr = 0o600 << 16
            archive.writestr(member, file.getvalue(), zipfile.ZIP_DEFLATED, 9)


if __name__ == "__main__":
    place = ROOT / "src" / "vitrail" / "data" / "fashion.npz"
    write(place, choose(Path(sys.argv[1] if len(sys.argv) > 1 else FOLDER)))
    print(f"{place}: {place.stat().st_size:,} bytes")
