"""Fashion-MNIST by Zalando: a part of it that is built in, and the whole of it where it is installed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Final

from vitrail.data.arrays import has_idx, read_idx_folder, read_npz_file
from vitrail.data.classes import build_dataset
from vitrail.data.samples import Dataset
from vitrail.errors import InputError

# By the number that the set gives them; in a Dataset they stand in natural order, as classes always do.
NAMES: Final = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
FOLDER: Final = "/usr/share/datasets/fashion-mnist"  # where Debian's package puts it
VARIABLE: Final = "VITRAIL_FASHION"


def fashion(classes: Sequence[str] | None = None) -> Dataset:
    """6,000 images to train and 1,000 to test, 28x28 and grey: the first 600 and 100 of each class."""
    with resources.as_file(resources.files("vitrail") / "data" / "fashion.npz") as path:
        return build_dataset("vitrail:fashion", read_npz_file(path, NAMES), classes)


def fashion_full(classes: Sequence[str] | None = None) -> Dataset:
    """All 60,000 and 10,000, from the idx files of Debian's package or of the folder that VITRAIL_FASHION names."""
    folder = Path(os.environ.get(VARIABLE) or FOLDER)
    if not folder.is_dir() or not has_idx(folder):
        raise InputError(
            f"vitrail:fashion-full: no Fashion-MNIST in {folder}: install the package dataset-fashion-mnist "
            f"(Debian, Ubuntu), or set {VARIABLE} to a folder with its four files (train-images-idx3-ubyte.gz and so "
            "on); vitrail:fashion, a tenth of it, is built in"
        )
    return build_dataset("vitrail:fashion-full", read_idx_folder(folder, NAMES), classes)
