"""The checked files of a NAME.pt2 -> its program in torch, as a function: img and names in, those outputs out.

The one place of this room that imports torch, and only to run what torch alone can run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from vitrail.errors import CheckpointError, InputError
from vitrail.inference.quiet import quietly
from vitrail.inference.torch_file import GRAPH, packed

Array = np.ndarray[Any, Any]
NAMES: Final = ("logits", "embedding", "probs")  # of a program's outputs, in order; without a head no probs


def bring_torch() -> Any:
    import torch

    return torch


def program(
    torch: Any, path: Path, entries: Mapping[str, memoryview]
) -> Callable[[Array, Sequence[str]], Sequence[Array]]:
    """The program of files that `torch_file.entries` has looked at."""
    try:
        with quietly():  # it warns of errors that it then raises
            loaded = torch.export.load(packed(entries))
            module = loaded.module()
    except Exception as error:  # of many kinds, from deep inside
        written = json.loads(bytes(entries[GRAPH])).get("torch_version")
        raise CheckpointError(
            f"torch {torch.__version__} refuses {path}, written by torch {written}: {_first(error)} "
            "Export the checkpoint again with the torch that is to run it"
        ) from None
    inputs, outputs = loaded.graph_signature.user_inputs, loaded.graph_signature.user_outputs
    if list(inputs) != ["img"] or len(outputs) not in (2, 3):
        raise CheckpointError(f"{path}: expected the input img and 2 or 3 outputs, got {inputs!s:.80}, {len(outputs)}")

    def compute(img: Array, names: Sequence[str]) -> Sequence[Array]:
        try:
            with torch.inference_mode():
                found = dict(zip(NAMES, module(torch.from_numpy(img)), strict=False))
            return [found[each].numpy() for each in names]
        except Exception as error:
            raise InputError(f"torch could not run {path.name} on {img.shape}: {_first(error)}") from None

    return compute


def _first(error: Exception) -> str:
    """The first line of what torch says, which may be long."""
    return f"{str(error).strip().partition(chr(10))[0] or type(error).__name__:.300}"
