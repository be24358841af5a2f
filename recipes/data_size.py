"""Data size: a vision transformer against a residual CNN on 1, 3, 10, 30 and 100 % of Fashion-MNIST. (row P.15)

    python recipes/data_size.py --data vitrail:fashion-full --out results

The paper: ResNets win on middle-sized sets, ViT with more data. Both get the same number of steps of the same batch,
and are judged by the full test set. The transformer is plain (patches of 4, no convolutions), so that the question is
the paper's; `ours` is Vitrail's default with its few convolutions.

command   OMP_NUM_THREADS=1 python recipes/data_size.py --data vitrail:fashion-full --steps 400 --seeds 1 --out results
time      1,437 s on one busy core
memory    0.77 GB
score     of 10,000 test images, from 600 to 60,000 training ones: ViT 76.4 to 80.6 %, ours 80.9 to 84.8, CNN 82.3 to
          86.6: the CNN stays ahead, for 400 steps of 64 images see most of the larger sets less than once
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import torch
from residual import ResidualCNN
from study import Scored, accuracy, options, show, told
from torch.nn import functional as F

from vitrail.data import Dataset, read_data
from vitrail.training import RECIPES
from vitrail.training.model_choice import small_network

SHARES = (0.01, 0.03, 0.1, 0.3, 1.0)


def cut(data: Dataset, share: float) -> Dataset:
    """A share of the training images of every class, and all of the test."""
    labels = np.array([each.labels[0] for each in data.samples])
    train = np.array([each.split == "train" for each in data.samples])
    rows = [np.flatnonzero(~train)]
    for name in data.classes:
        own = np.flatnonzero(train & (labels == name))
        rows.append(own[: max(1, round(share * len(own)))])
    return data.select(np.sort(np.concatenate(rows)))


def cnn(data: Dataset, steps: int, seed: int, batch: int = 64) -> float:
    """Test accuracy of the residual CNN: SGD with one cycle, shifts by one pixel."""
    torch.manual_seed(seed)
    train, test = data.part("train"), data.part("test")
    images, labels = torch.from_numpy(np.asarray(train.images)[:, None]), torch.from_numpy(train.targets())
    model = ResidualCNN(1, len(data.classes)).train()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    for step in range(steps):
        part = step / steps
        optimiser.param_groups[0]["lr"] = 0.1 * (part / 0.2 if part < 0.2 else (1 - part) / 0.8)
        rows = torch.randint(len(images), (batch,))
        down, right = torch.randint(-1, 2, (2,)).tolist()
        pixels = torch.roll(images[rows].float() / 127.5 - 1, (down, right), (2, 3))
        loss = F.cross_entropy(model(pixels), labels[rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    model.eval()
    with torch.inference_mode():
        held = torch.from_numpy(np.asarray(test.images)[:, None]).float() / 127.5 - 1
        said = torch.cat([model(each).argmax(1) for each in held.split(500)]).numpy()
    return float((said == test.targets()).mean())


def convolved(data: Dataset, batch: int, seeds: int, steps: int, name: str) -> Scored:
    """The CNN as a variant of the study."""
    started = time.monotonic()
    scores = [cnn(data, steps, seed, batch) for seed in range(seeds)]
    return told(Scored(name, scores, time.monotonic() - started))


def main() -> None:
    chosen = options(__doc__ or "", seeds=1)
    data = read_data(chosen.data)
    plain = replace(small_network((28, 28), 1, 10), stem=None, patch_size=(4, 4))
    recipe = RECIPES["scratch"].recipe
    found: list[Scored] = []
    for share in SHARES:
        part = cut(data, share)
        count = len(part.part("train"))
        batch = min(recipe.batch, count)
        own = replace(recipe, batch=batch)
        rows = [
            accuracy(part, plain, own, chosen.seeds, chosen.steps, f"ViT, {count:,}"),
            accuracy(part, None, own, chosen.seeds, chosen.steps, f"ours, {count:,}"),
            convolved(part, batch, chosen.seeds, chosen.steps, f"residual CNN, {count:,}"),
        ]
        found += [each._replace(line=each.name.split(",")[0], at=count) for each in rows]
    show(f"Data size: test accuracy on {chosen.data}", found, chosen.out, across="training images")


if __name__ == "__main__":
    main()
