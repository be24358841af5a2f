"""What --help shows first: the verbs by what they are for; of each, a line, examples, and the options most people need.

Options that are named nowhere here stand under "Rarely needed".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

RARE: Final = "Rarely needed"


class VerbHelp(NamedTuple):
    """A verb in one line, how it is typed, and its common options by group."""

    summary: str
    examples: tuple[str, ...]
    groups: Mapping[str, tuple[str, ...]]


ABOUT: Final = "Vision transformers you can see through: train, judge, explain and ship them."
EXAMPLES: Final = (
    "vitrail demo                                a tour, with nothing to prepare",
    "vitrail train photos --minutes 10           photos/: a folder for each class",
    "vitrail predict runs/photos-1 image.jpg     what is on an image",
)
VERB_GROUPS: Final[dict[str, tuple[str, ...]]] = {
    "Train and judge": ("demo", "audit", "train", "evaluate", "compare"),
    "Use and understand": ("predict", "embed", "explain", "inspect"),
    "Ship": ("optimize", "export"),
    RARE: ("rerun", "recipes", "models", "convert", "shard", "prune", "bench", "doctor"),
}
EXIT_CODES: Final = {
    "0": "all is done",
    "1": "a fault of ours: please report it",
    "2": "wrong usage: one line says what to change",
    "3": "done, but some images could not be read; each is named",
    "130, 143": "stopped by Ctrl-C, or by the system; the same command goes on",
}

VERBS_HELP: Final[dict[str, VerbHelp]] = {
    "demo": VerbHelp(
        "A tour: an image through a network, then a training.",
        ("vitrail demo", "vitrail demo --image cat.jpg --epochs 0"),
        {"Options": ("--image", "--epochs", "--out")},
    ),
    "train": VerbHelp(
        "Train a classifier on your images.",
        ("vitrail train photos --minutes 10", "vitrail train photos --from weights.safetensors --epochs 10"),
        {
            "What is trained": ("--from", "--model", "--recipe", "--size", "--resize"),
            "How long": ("--epochs", "--minutes"),
            "Where it goes": ("--out", "--name"),
        },
    ),
    "rerun": VerbHelp(
        "Repeat a run; is the result the same, bit for bit?",
        ("vitrail rerun runs/photos-1",),
        {"Options": ("--out",)},
    ),
    "recipes": VerbHelp(
        "List the recipes for training, and what they reached.",
        ("vitrail recipes", "vitrail recipes finetune"),
        {},
    ),
    "audit": VerbHelp(
        "Check your images before training: broken, double, mislabelled.",
        ("vitrail audit photos", "vitrail audit photos --out checked"),
        {"Options": ("--out", "--checkpoint")},
    ),
    "evaluate": VerbHelp(
        "How good is a model? Metrics with intervals, worst errors.",
        ("vitrail evaluate runs/photos-1", "vitrail evaluate runs/photos-1 new-photos --out judged"),
        {"Options": ("--split", "--out")},
    ),
    "compare": VerbHelp(
        "Compare two models on the same images.",
        ("vitrail compare runs/photos-1 runs/photos-2 photos",),
        {"Options": ("--split", "--out")},
    ),
    "predict": VerbHelp(
        "Say what is on images: labels with probabilities.",
        ("vitrail predict runs/photos-1 image.jpg", "vitrail predict runs/photos-1 folder --out answers.csv"),
        {"Options": ("--top", "--threshold", "--out")},
    ),
    "embed": VerbHelp(
        "Turn images into vectors, to search or to group them.",
        ("vitrail embed runs/photos-1 folder --out vectors.npy",),
        {"Options": ("--out",)},
    ),
    "explain": VerbHelp(
        "Show where on an image an answer comes from.",
        ("vitrail explain runs/photos-1 image.jpg", "vitrail explain runs/photos-1 image.jpg --method all"),
        {"Options": ("--method", "--target", "--versus", "--out")},
    ),
    "inspect": VerbHelp(
        "Show what a network is made of, what it costs, how it was read.",
        ("vitrail inspect vit-b16", "vitrail inspect runs/photos-1 --figures figures"),
        {"Options": ("--size", "--figures", "--images")},
    ),
    "prune": VerbHelp(
        "Cut the attention heads that matter least; what does that cost?",
        ("vitrail prune runs/photos-1 --keep 0.75", "vitrail prune runs/photos-1 --max-drop 1 --tune 2"),
        {"Options": ("--keep", "--max-drop", "--tune", "--data", "--out")},
    ),
    "optimize": VerbHelp(
        "Find the fastest way to answer here that keeps the accuracy.",
        ("vitrail optimize runs/photos-1", "vitrail optimize runs/photos-1 --max-drop 1 --goal latency"),
        {"Options": ("--max-drop", "--goal", "--data", "--out")},
    ),
    "bench": VerbHelp(
        "Measure speed and memory of every runtime on this machine.",
        ("vitrail bench runs/photos-1", "vitrail bench vit-b16 --batch 1,8"),
        {"Options": ("--batch", "--runtimes", "--size")},
    ),
    "export": VerbHelp(
        "Write a file for another runtime (ONNX, OpenVINO), checked there.",
        ("vitrail export runs/photos-1 photos.onnx", "vitrail export runs/photos-1 photos.xml --int8"),
        {"Options": ("--int8", "--bf16", "--data", "--max-drop", "--dynamic-size")},
    ),
    "convert": VerbHelp(
        "Write weights of one family (timm, DINOv2, ...) as another does.",
        ("vitrail convert runs/photos-1 photos-timm --to timm",),
        {"Options": ("--to",)},
    ),
    "shard": VerbHelp(
        "Write a data set into tar files that are read without unpacking.",
        ("vitrail shard photos photos-shards", "vitrail train photos-shards --epochs 10"),
        {"Options": ("--shard-size", "--force")},
    ),
    "models": VerbHelp(
        "List presets with their sizes, or checkpoints to start from.",
        ("vitrail models", "vitrail models --pretrained"),
        {"Options": ("--pretrained",)},
    ),
    "doctor": VerbHelp("Say what this machine has, and what is missing.", ("vitrail doctor",), {}),
}
