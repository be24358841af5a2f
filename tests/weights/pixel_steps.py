"""Two photos, and how far two sets of pixels are apart in grey levels."""

from __future__ import annotations

from typing import Any

import numpy as np
import skimage.data
from PIL import Image

CAT = Image.fromarray(skimage.data.chelsea())  # 300 x 451
TALL = Image.fromarray(skimage.data.coffee()).transpose(Image.Transpose.ROTATE_90).crop((0, 0, 333, 500))


def apart(ours: np.ndarray[Any, Any], theirs: Any, std: tuple[float, ...]) -> float:
    """The largest difference of two sets of pixels, in grey levels of the image."""
    difference = np.abs(np.asarray(ours, np.float64) - np.asarray(theirs, np.float64))
    return float((difference * 255 * np.array(std).reshape(-1, 1, 1)).max())
