"""The few aliases that everyone uses: arrays, what an image may come as, and what long work tells its caller."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    import torch

Array: TypeAlias = np.ndarray[Any, Any]
Source: TypeAlias = str | os.PathLike[str] | bytes | bytearray | memoryview | Image.Image | Array  # of one image
ProgressCallback: TypeAlias = Callable[[int], None]  # told how many more images are done
LogCallback: TypeAlias = Callable[[str], None]  # told what happens, one line at a time
Device: TypeAlias = "str | torch.device"  # "auto", "cpu", "cuda", "cuda:1", "mps", "xpu", or torch's own
