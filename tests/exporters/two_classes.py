"""A network of two fruits that is sure of its images and nearly silent on random pixels, as fine-tuned ones are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import vitrail
from vitrail.checkpoint import Checkpoint
from vitrail.data.samples import Dataset, Sample
from vitrail.network.surgery import rebuild
from vitrail.weights.adaptation import with_classes


def two_fruits(fixtures: Path, depth: int = 3) -> tuple[Checkpoint, Dataset]:
    """The first blocks of ViT-Ti, at 112 px: a head fitted to two fruits by least squares; and its images."""
    a, b = "Kiwi", "Blueberry"
    path = fixtures / "vit_tiny_patch16_224_in1k.safetensors"
    checkpoint = vitrail.load(path, override={"image_size": 112})
    config = replace(checkpoint.model.config, depth=depth)
    later = tuple(f"encoder.blocks.{number}." for number in range(depth, 12))
    state = {name: each for name, each in checkpoint.model.state_dict().items() if not name.startswith(later)}
    checkpoint = replace(checkpoint, model=rebuild(checkpoint.model, config, state).eval())
    files = [each for name in (a, b) for each in sorted((fixtures / "fruits360_10" / "train" / name).iterdir())[:40]]
    _, embedding = checkpoint.run(checkpoint.preprocess.batch(files))
    fitted = with_classes(checkpoint, (a, b))
    fit_head(fitted, torch.from_numpy(embedding), torch.arange(80) // 40)
    noise = np.random.default_rng(0).standard_normal((16, 3, 112, 112), np.float32)
    bias = fitted.model.state_dict()["head.classify.bias"]
    bias -= torch.from_numpy(fitted.run(noise)[0]).mean(dim=0)  # random pixels lie between the two
    samples = tuple(Sample(str(each), (each.parent.name,)) for each in files)
    return fitted, Dataset("two fruits", samples, files, (a, b))


def fit_head(checkpoint: Checkpoint, embedding: torch.Tensor, labels: torch.Tensor) -> None:
    """A ridge regression with logits of -4 and 4."""
    signs = 2.0 * torch.nn.functional.one_hot(labels, 2) - 1
    mean = embedding.mean(dim=0)
    centred = embedding - mean
    weight = 4 * torch.linalg.solve(centred.T @ centred + 1000 * torch.eye(len(mean)), centred.T @ signs).T
    checkpoint.model.load_state_dict(
        {"head.classify.weight": weight, "head.classify.bias": -weight @ mean}, strict=False
    )
