"""A text model learns to spell, character by character: `python examples/characters.py`, or with a file of your own.

Without a file it brings its own text: small sentences made by a grammar. About a quarter of a minute on one core, no
downloads.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from vitrail import TextConfig, TextDecoder

WHO = ("the glazier", "an old crow", "the miller's cat", "a quiet child", "the north wind", "my neighbour")
DOES = ("cuts", "carries", "counts", "hides", "paints", "forgets", "polishes")
WHAT = ("the blue pane", "seven lead strips", "a jar of sand", "the tall window", "every red shard")
WHERE = ("by the river", "under the stairs", "before noon", "in the cold chapel", "while it rains")


class Outcome(NamedTuple):
    """What a run hands back."""

    losses: list[float]  # of every step
    sample: str


def invented_text(sentences: int = 2000, seed: int = 0) -> str:
    """Sentences of a small grammar: who does what, and sometimes where."""
    chance = random.Random(seed)
    lines = []
    for _ in range(sentences):
        words = [chance.choice(WHO), chance.choice(DOES), chance.choice(WHAT)]
        if chance.random() < 0.5:
            words.append(chance.choice(WHERE))
        lines.append(" ".join(words).capitalize() + ".")
    return "\n".join(lines) + "\n"


def batch(ids: Tensor, size: int, length: int, generator: torch.Generator) -> Tensor:
    """Random pieces of the text, one token longer than the context: the last is only foretold."""
    starts = torch.randint(0, len(ids) - length, (size, 1), generator=generator)
    return ids[starts + torch.arange(length + 1)]  # (B, T + 1)


def train(text: str, steps: int, block_size: int, width: int, depth: int, seed: int) -> Outcome:
    """Train on the text, say how it goes, and write a little."""
    letters = sorted(set(text))
    ids = torch.tensor([letters.index(letter) for letter in text])
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    config = TextConfig(vocabulary=len(letters), block_size=block_size, width=width, depth=depth, heads=4)
    model = TextDecoder(config)
    count = sum(parameter.numel() for parameter in model.parameters())
    print(f"{len(text):,} characters, {len(letters)} different ones; {count:,} parameters")

    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=max(steps, 2))
    losses = []
    for step in range(steps):
        loss = model.loss(batch(ids, 16, block_size, generator))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step:4d}  loss {losses[-1]:.3f}")

    prompt = ids[:1][None]
    written = model.generate(prompt, 4 * block_size, temperature=0.7, top_k=10, seed=seed)  # past the block size
    return Outcome(losses, "".join(letters[each] for each in written[0].tolist()))


def main(arguments: Sequence[str] | None = None) -> Outcome:
    parser = argparse.ArgumentParser(description="Train a small text model on characters.")
    parser.add_argument("file", type=Path, nargs="?", help="a text to learn from (default: an invented one)")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--block-size", type=int, default=48, help="characters the model sees at once")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="one is enough for a network this small")
    options = parser.parse_args(arguments)
    text = options.file.read_text("utf-8") if options.file else invented_text(seed=options.seed)
    if len(text) <= options.block_size:
        parser.error(f"expected a text of more than {options.block_size} characters, got {len(text)}")
    if options.steps < 1 or options.threads < 1:
        parser.error(f"expected at least 1 step and thread, got {options.steps} and {options.threads}")
    torch.set_num_threads(options.threads)
    outcome = train(text, options.steps, options.block_size, options.width, options.depth, options.seed)
    print(f"\nIt writes:\n{outcome.sample}")
    return outcome


if __name__ == "__main__":
    main()
