"""Probe: k-NN and a linear classifier on the features of a pretrained network, whose weights stay as they are.

    python recipes/probe.py sign_language_digits --from vit_tiny_patch16_224_in1k.safetensors --size 112

The network is timm's ViT-Ti/16 (ImageNet-1k), the images 2,062 photos of hands, 70 % of them to train on.

time      37 s on two threads
memory    0.59 GB
score     linear probe 79.8 %, k-NN 59.9 % of 411 test images
"""

from __future__ import annotations

import argparse

import vitrail


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("data")
    options.add_argument("--from", dest="start", required=True)
    options.add_argument("--size", type=int)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--out", default="runs")
    chosen = options.parse_args()
    run = vitrail.train(
        chosen.data, start=chosen.start, recipe="probe", size=chosen.size, seed=chosen.seed, out=chosen.out
    )
    for stage in run.stages:
        print(f"{stage.name:<14} {100 * stage.score.value:.1f} %")
    print(f"the probe as a checkpoint: {run.folder / 'best.safetensors'}")


if __name__ == "__main__":
    main()
