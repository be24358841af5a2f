"""The race: the same images, the same threads, the same seconds of training; test accuracy in one table.

    python benchmarks/race.py                     6,000 images of vitrail:fashion, 120 s each, 2 threads
    python benchmarks/race.py --data digits       sign_language_digits of the fixtures at 64 px, a split of our own
    python benchmarks/race.py --seconds 10        a quick look
    python benchmarks/race.py --only vitrail

Peers train a 6-block ViT of width 192 on the settings that their users meet first; their learning rates run down over
the time they are given. Vitrail trains by its default recipe, `vitrail train DATA --minutes 1.8`, without a
validation part, since the others have none. Every contestant starts in a process of its own, one after the other.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "recipes")]

Array = np.ndarray[Any, Any]


class Images(NamedTuple):
    """uint8 images (n, C, H, W) and class numbers, to train on and to be judged by."""

    train: Array
    train_labels: Array
    test: Array
    test_labels: Array
    patch: int  # of the peers


def fashion() -> Images:
    from vitrail.data import read_data

    data = read_data("vitrail:fashion")
    train, test = data.part("train"), data.part("test")
    return Images(train.images[:, None], train.targets(), test.images[:, None], test.targets(), 4)


def digits(size: int = 64) -> Images:
    """Photos of hands: 80 % to train on, 20 % to be judged by."""
    from vitrail.data.cache import Views
    from vitrail.images import Preprocess

    data = _digits()
    views = {part: Views(data.part(part), Preprocess(size=size, crop=1.0)).get for part in ("train", "test")}
    train, test = (views[part](range(len(data.part(part)))).numpy() for part in ("train", "test"))
    return Images(train, data.part("train").targets(), test, data.part("test").targets(), 8)


def _digits() -> Any:
    import os

    from vitrail.data import read_data
    from vitrail.data.splits import split

    folder = Path(os.environ.get("VITRAIL_FIXTURES") or ROOT.parent / "shared" / "fixtures")
    return split(read_data(folder / "sign_language_digits"), val=0.0, test=0.2, seed=0).dataset


# ---- contestants -------------------------------------------------------------------------------------------------


def of_transformers(data: Images, seconds: float, seed: int) -> float:
    """transformers' ViT with the Trainer's defaults: AdamW 5e-5, linear, batch 8."""
    import oracles

    library = oracles.transformers()
    config = library.ViTConfig(
        image_size=data.train.shape[-1],
        patch_size=data.patch,
        num_channels=data.train.shape[1],
        hidden_size=192,
        num_hidden_layers=6,
        num_attention_heads=3,
        intermediate_size=768,
        num_labels=int(data.train_labels.max()) + 1,
    )
    model = library.ViTForImageClassification(config)
    optimiser = torch.optim.AdamW(model.parameters(), lr=5e-5, weight_decay=0.0)
    return learn(model, lambda x: model(pixel_values=x).logits, optimiser, data, seconds, 8, lambda part: 1 - part)


def of_vit_pytorch(data: Images, seconds: float, seed: int) -> float:
    """vit-pytorch with its example's settings: Adam 3e-5, batch 64."""
    import oracles

    oracles.torchvision()  # it asks for it
    from vit_pytorch import ViT

    model = ViT(
        image_size=data.train.shape[-1],
        patch_size=data.patch,
        channels=data.train.shape[1],
        num_classes=int(data.train_labels.max()) + 1,
        dim=192,
        depth=6,
        heads=3,
        dim_head=64,
        mlp_dim=768,
        dropout=0.1,
        emb_dropout=0.1,
    )
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-5)
    return learn(model, model, optimiser, data, seconds, 64, lambda part: 1.0)


def of_timm(data: Images, seconds: float, seed: int) -> float:
    """timm's ViT with AdamW 5e-4, cosine, batch 128."""
    model = _timm_model(data)
    optimiser = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.05)
    return learn(model, model, optimiser, data, seconds, 128, _cosine)


def of_timm_augmented(data: Images, seconds: float, seed: int) -> float:
    """timm's ViT with AdamW 1e-3, cosine, flips, crops, smoothing, batch 128."""
    model = _timm_model(data)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    return learn(model, model, optimiser, data, seconds, 128, _cosine, augment=True, smoothing=0.1)


def of_residual_cnn(data: Images, seconds: float, seed: int) -> float:
    """A small residual CNN with SGD, one cycle, flips and shifts, batch 128."""
    from residual import ResidualCNN

    model = ResidualCNN(data.train.shape[1], int(data.train_labels.max()) + 1)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    return learn(model, model, optimiser, data, seconds, 128, _one_cycle, augment=True)


def of_logistic_regression(data: Images, seconds: float, seed: int) -> float:
    """scikit-learn's logistic regression on pixels."""
    from sklearn.linear_model import LogisticRegression

    train, test = _flat(data)
    return float(LogisticRegression(max_iter=300, C=0.05).fit(train, data.train_labels).score(test, data.test_labels))


def of_neighbours(data: Images, seconds: float, seed: int) -> float:
    """scikit-learn's k-NN on pixels, k = 5."""
    from sklearn.neighbors import KNeighborsClassifier

    train, test = _flat(data)
    return float(KNeighborsClassifier(5).fit(train, data.train_labels).score(test, data.test_labels))


def of_vitrail(data: Images, seconds: float, seed: int) -> float:
    """Vitrail's default recipe."""
    from vitrail.training import train

    source: Any = "vitrail:fashion" if data.patch == 4 else _digits()
    size = data.train.shape[-1] if data.patch == 8 else None
    with tempfile.TemporaryDirectory() as place:
        # The steps are fixed by the speed of its first seconds: a tenth is kept for a machine that slows down later.
        run = train(source, minutes=0.9 * seconds / 60, val=0.0, size=size, seed=seed, out=place, check=False)
        trained = sum(
            row["data_seconds"] + row["compute_seconds"]
            for row in map(json.loads, (run.folder / "times.jsonl").read_text().splitlines())
        )
        print(f"  {run.steps} steps, trained {trained:.1f} s", file=sys.stderr)
        return run.evaluation.scores["top1"].value


CONTESTANTS: dict[str, tuple[str, Callable[[Images, float, int], float]]] = {
    "transformers": ("AdamW 5e-5 linear, batch 8", of_transformers),
    "vit-pytorch": ("Adam 3e-5, batch 64", of_vit_pytorch),
    "timm": ("AdamW 5e-4 cosine, batch 128", of_timm),
    "timm augmented": ("AdamW 1e-3, flips, crops, smoothing", of_timm_augmented),
    "residual CNN": ("SGD one cycle, flips, shifts, batch 128", of_residual_cnn),
    "logistic regression": ("on pixels, no time limit", of_logistic_regression),
    "k-NN": ("on pixels, k = 5", of_neighbours),
    "vitrail": ("the default recipe", of_vitrail),
}
SEEDED = ("vitrail", "residual CNN")  # run with three seeds


# ---- how the peers learn -----------------------------------------------------------------------------------------


def learn(
    model: nn.Module,
    logits: Callable[[Tensor], Tensor],
    optimiser: torch.optim.Optimizer,
    data: Images,
    seconds: float,
    batch: int,
    rate: Callable[[float], float],
    augment: bool = False,
    smoothing: float = 0.0,
) -> float:
    """A plain loop until the time is up; the learning rate follows the share of the time that is gone."""
    images, labels = torch.from_numpy(np.ascontiguousarray(data.train)), torch.from_numpy(data.train_labels)
    base = [group["lr"] for group in optimiser.param_groups]
    started = time.perf_counter()
    steps = 0
    model.train()
    while (part := (time.perf_counter() - started) / seconds) < 1:
        for group, lr in zip(optimiser.param_groups, base, strict=True):
            group["lr"] = lr * rate(part)
        rows = torch.randint(len(images), (batch,))
        pixels = images[rows].float() / 127.5 - 1
        pixels = moved(pixels) if augment else pixels
        loss = F.cross_entropy(logits(pixels), labels[rows], label_smoothing=smoothing)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        steps += 1
    print(f"  {steps} steps", file=sys.stderr)
    model.eval()
    test = torch.from_numpy(np.ascontiguousarray(data.test)).float() / 127.5 - 1
    with torch.inference_mode():
        said = torch.cat([logits(part).argmax(1) for part in test.split(250)])
    return float((said.numpy() == data.test_labels).mean())


def moved(pixels: Tensor) -> Tensor:
    """Flips, and crops of the image padded by an eighth."""
    side = pixels.shape[-1]
    pad = max(side // 8, 1)
    flipped = torch.where(torch.rand(len(pixels), 1, 1, 1) < 0.5, pixels.flip(3), pixels)
    padded = F.pad(flipped, (pad,) * 4, mode="reflect")
    tops, lefts = torch.randint(2 * pad + 1, (2, len(pixels)))
    rows = (tops[:, None] + torch.arange(side))[:, None, :, None]
    columns = (lefts[:, None] + torch.arange(side))[:, None, None, :]
    image = torch.arange(len(pixels))[:, None, None, None]
    channel = torch.arange(pixels.shape[1])[None, :, None, None]
    return padded[image, channel, rows, columns]


def _timm_model(data: Images) -> nn.Module:
    import oracles

    oracles.timm()
    from timm.models.vision_transformer import VisionTransformer

    model: nn.Module = VisionTransformer(
        img_size=data.train.shape[-1],
        patch_size=data.patch,
        in_chans=data.train.shape[1],
        num_classes=int(data.train_labels.max()) + 1,
        embed_dim=192,
        depth=6,
        num_heads=3,
    )
    return model


def _cosine(part: float) -> float:
    return min(1.0, part / 0.05) * 0.5 * (1 + math.cos(math.pi * part))


def _one_cycle(part: float) -> float:
    return part / 0.2 if part < 0.2 else (1 - part) / 0.8


def _flat(data: Images) -> tuple[Array, Array]:
    return tuple(each.reshape(len(each), -1).astype(np.float32) / 255 for each in (data.train, data.test))  # type: ignore[return-value]


# ---- the table ---------------------------------------------------------------------------------------------------


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", choices=("fashion", "digits"), default="fashion")
    options.add_argument("--seconds", type=float, default=120.0)
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--only", nargs="*", choices=list(CONTESTANTS))
    options.add_argument("--one", help=argparse.SUPPRESS)
    options.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    options.add_argument("--json", action="store_true")
    chosen = options.parse_args()
    if chosen.one:
        torch.set_num_threads(2)
        torch.manual_seed(chosen.seed)
        data = fashion() if chosen.data == "fashion" else digits()
        print(json.dumps({"accuracy": CONTESTANTS[chosen.one][1](data, chosen.seconds, chosen.seed)}))
        return
    rows = []
    for name in chosen.only or CONTESTANTS:
        scores = []
        for seed in range(chosen.seeds if name in SEEDED else 1):
            command = [sys.executable, __file__, "--one", name, "--data", chosen.data, "--seed", str(seed)]
            command += ["--seconds", str(chosen.seconds)]
            run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            scores.append(json.loads(run.stdout.splitlines()[-1])["accuracy"])
        rows.append({"name": name, "settings": CONTESTANTS[name][0], "accuracy": scores})
        words = ", ".join(f"{100 * each:.1f}" for each in scores)
        line = f"{name:<20} {100 * np.mean(scores):5.1f} %   ({words})   {CONTESTANTS[name][0]}"
        print(line, file=sys.stderr, flush=True)
    if chosen.json:
        print(json.dumps({"data": chosen.data, "seconds": chosen.seconds, "rows": rows}))


if __name__ == "__main__":
    main()
