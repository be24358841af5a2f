"""Images in memory for tests of the audit."""

from __future__ import annotations

from typing import Any

import numpy as np

from vitrail.data.samples import Dataset, Sample


def array_dataset(images: np.ndarray[Any, Any], *samples: tuple[str, str, str]) -> Dataset:
    """Images in memory with (label, split, group) each."""
    rows = tuple(Sample(str(place), (label,), part, group) for place, (label, part, group) in enumerate(samples))
    return Dataset("memory", rows, images, tuple(sorted({each[0] for each in samples})))
