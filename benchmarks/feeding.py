"""Does the network wait for its images? The share of training time spent waiting, by where the images are.

    python benchmarks/feeding.py              900 JPEGs of 100x100 (fruits360_10 of the fixtures), the default network
    python benchmarks/feeding.py --steps 40

`decoded every time` is what a set too large for memory gets without a cache: each image is opened, decoded, resized
and augmented again whenever its turn comes.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path

from vitrail.data.cache import Views
from vitrail.training.job import Job, Part
from vitrail.training.loop import fit
from vitrail.training.model_choice import ModelRequest, build_model
from vitrail.training.options import Options, resolve
from vitrail.training.planning import make_plan
from vitrail.training.runs import prepare_model

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=120)
    chosen = options.parse_args()
    fixtures = Path(os.environ.get("VITRAIL_FIXTURES") or ROOT.parent / "shared" / "fixtures")
    asked = Options(steps=chosen.steps)
    prepared, _ = prepare_model(fixtures / "fruits360_10", resolve(asked), asked)
    part = prepared.dataset.part("train")
    digests = {each.name: each.digest for each in prepared.entries}
    print(f"{len(part)} images to train on, {chosen.steps} steps")
    with tempfile.TemporaryDirectory() as temporary:
        cache = (Path(temporary) / "cache", [digests[each.name] for each in part.samples])
        ways = {
            "in memory": ({}, 1),
            "in a cache on disk": ({"limit": 0, "cache": cache}, 1),
            "decoded every time": ({"limit": 0}, 1),
            "the same, 2 threads": ({"limit": 0}, 2),
        }
        for row, (name, (how, threads)) in enumerate(ways.items()):
            network = build_model(ModelRequest.of(resolve(asked), asked), prepared, resolve(asked).recipe, asked.seed)
            plan = make_plan(prepared, network, resolve(asked), asked)
            views = Views(part, plan.preprocess, **how)  # type: ignore[arg-type]
            folder = Path(temporary) / f"{row}"
            folder.mkdir()
            job = Job(plan, network.model, Part(views, part.targets(plan.classes)), None, folder, threads=threads)
            fit(replace(job, save_seconds=1e9, save_share=1e-9))
            rows = [json.loads(line) for line in (folder / "times.jsonl").read_text().splitlines()]
            waited, worked = (sum(row[key] for row in rows[1:]) for key in ("data_seconds", "compute_seconds"))
            share = waited / (waited + worked)
            print(f"{name:<22} {100 * share:5.1f} % of the time waiting for {plan.preprocess.size[0]} px", flush=True)


if __name__ == "__main__":
    main()
