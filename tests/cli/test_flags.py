"""Every flag of every verb: what is typed arrives where the work is done, and changes nothing else there.

What the verbs call is replaced by stand-ins that note what they are given, so that each verb runs to its end at once.
A flag's row says what is noted without it, and what with it; all else noted must stay the same.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import typer
from PIL import Image

import vitrail
from vitrail.checkpoint import Checkpoint, Mapped, Provenance
from vitrail.cli import demo, doctor, load_verbs
from vitrail.cli import embed as embed_verb
from vitrail.cli import export as export_verb
from vitrail.cli import models as models_verb
from vitrail.cli import optimize as optimize_verb
from vitrail.cli import predict as predict_verb
from vitrail.cli import prune as prune_verb
from vitrail.data.samples import Dataset, Sample
from vitrail.evaluation import Score
from vitrail.exporters.export_info import Check
from vitrail.exporters.exporter import ExportReport
from vitrail.images import Preprocess
from vitrail.inference import FoundImages, Prediction
from vitrail.inference import rows as row_functions
from vitrail.insight import cost as cost_module
from vitrail.insight.image_tour import Tour
from vitrail.insight.model_figures import Portrait
from vitrail.network import ViT, ViTConfig, presets
from vitrail.quantisation.quant_plan import QuantPlan, Range
from vitrail.scale import batch_inference
from vitrail.scale.batch_inference import BatchReport
from vitrail.shipping.benchmark import Bench
from vitrail.training.dry_run import DryRun
from vitrail.weights import ParityReport

COMMAND: Any = typer.main.get_command(load_verbs())  # made once: it takes a tenth of a second
CONFIG = ViTConfig(image_size=16, patch_size=8, width=8, depth=1, heads=1, mlp_width=16, classes=2)
HALF = Score(0.5, 0.4, 0.6)
NET, SHOTS = "net.safetensors", "a.gif"

# A verb with no more than it needs; its flags are typed after this.
TYPED: dict[str, tuple[str, ...]] = {
    "audit": ("photos",),
    "bench": (NET,),
    "compare": (NET, "other", "photos"),
    "convert": (NET, "out", "--to", "timm"),
    "demo": (),
    "doctor": (),
    "embed": (NET, SHOTS, "--out", "v.csv"),
    "evaluate": (NET, "photos"),
    "explain": (NET, SHOTS),
    "export": (NET, "a.xml"),
    "inspect": (NET,),
    "models": (),
    "optimize": (NET,),
    "predict": (NET, SHOTS),
    "prune": (NET,),
    "recipes": (),
    "rerun": ("runs/old",),
    "shard": ("photos", "shards"),
    "train": ("photos",),
}


class Flag(NamedTuple):
    """What is typed, and what is noted without it and with it; `beside` is typed both times."""

    words: str
    usual: dict[str, Any]
    given: dict[str, Any]
    beside: tuple[str, ...] = ()


def plain(words: str, name: str, usual: Any, given: Any, *beside: str) -> Flag:
    """A flag of which one thing depends."""
    return Flag(words, {name: usual}, {name: given}, beside)


def strangers_file() -> dict[str, Flag]:
    """--set and --leave-out, where weights are loaded once."""
    return {
        "--set": plain("--set heads=4", "override", [{}], [{"heads": 4}]),
        "--leave-out": plain("--leave-out text", "leave_out", [()], [("text",)]),
    }


def placed() -> Flag:
    """--device, where one checkpoint is loaded."""
    return plain("--device cuda:1", "placed", ["auto"], ["cuda:1"])


def packed(precision: str, words: str) -> Flag:
    """--runtime, which computes on the cpu."""
    return Flag(words, {"runtime": None, "placed": ["auto"]}, {"runtime": precision, "placed": ["cpu"]})


def engine() -> dict[str, Flag]:
    """Where any number of images is answered for."""
    to = ("--out", "there.parquet")
    local = {"engine": None, "written": ["there.parquet"], "placed": ["auto"]}
    ray = {"engine": "ray", "written": [], "placed": ["cpu"]}  # workers choose theirs
    return {
        "--engine": Flag("--engine ray", local, ray, to),
        "--address": plain("--address here:1", "address", None, "here:1", "--engine", "ray", *to),
        "--workers": plain("--workers 3", "workers", None, 3, "--engine", "ray", *to),
    }


OWN = ("--int8", "--data", "photos")  # what `export` needs to be judged
METHODS = [("rollout", 0.9), ("rollout", 0.5)]  # and the share that is discarded

VERBS: dict[str, dict[str, Flag]] = {
    "audit": {
        "--checkpoint": Flag(
            f"--checkpoint {NET}",
            {"weights": None, "override": None, "leave_out": None, "has_network": False},
            {"weights": [NET], "override": [{}], "leave_out": [()], "placed": ["auto"], "has_network": True},
        ),
        "--device": plain("--device cuda:1", "placed", ["auto"], ["cuda:1"], "--checkpoint", NET),
        "--out": plain("--out there", "out", None, Path("there")),
    },
    "bench": {
        "--batch": plain("--batch 2,5", "batches", (1, 16), (2, 5)),
        "--runtimes": plain("--runtimes eager,packed", "runtimes", (), ("eager", "packed")),
        "--rounds": plain("--rounds 3", "rounds", 7, 3),
        "--size": plain("--size 32,64", "sizes", (), (32, 64)),
        "--device": placed(),
    },
    "compare": {
        "--split": plain("--split val", "split", "", "val"),
        "--out": plain("--out there", "out", None, Path("there")),
        "--batch": plain("--batch 3", "batch", 64, 3),
        "--device": plain("--device cuda:1", "placed", ["auto"] * 2, ["cuda:1"] * 2),
    },
    "convert": {
        "--to": plain("--to dinov2", "to", "timm", "dinov2"),
        "--set": plain("--set heads=4", "override", {}, {"heads": 4}),
        "--leave-out": plain("--leave-out text", "leave_out", (), ("text",)),
    },
    "demo": {
        "--out": Flag(
            "--out there",
            {"tour": Path("demo"), "out": Path("demo"), "explained": Path("demo")},
            {"tour": Path("there"), "out": Path("there"), "explained": Path("there")},
        ),
        "--seed": plain("--seed 3", "window", 12, 3),
        "--image": plain("--image a.png", "shown", "a window", "a.png"),
        "--epochs": plain("--epochs 0.5", "epochs", 20.0, 0.5),
    },
    "doctor": {},
    "embed": {
        "--out": plain("--out w.npy", "written", ["v.csv"], ["w.npy", "w.txt"]),
        "--force": plain("--force", "force", None, True),
        "--batch": plain("--batch 3", "batch", 16, 3),
        "--threads": plain("--threads 5", "threads", 2, 5),
        "--scaled-decoding": plain("--scaled-decoding", "scaled", False, True),
        "--runtime": packed("bf16", "--runtime packed-bf16"),
        "--device": placed(),
        **engine(),
        **strangers_file(),
    },
    "evaluate": {
        "--split": plain("--split val", "split", "", "val"),
        "--out": plain("--out there", "out", None, Path("there")),
        "--batch": plain("--batch 3", "batch", 64, 3),
        "--runtime": packed("fp32", "--runtime packed"),
        "--device": placed(),
    },
    "explain": {
        "--method": Flag(
            "--method rollout",
            {"methods": [("relevance", None)], "drawn": ["explained/a-relevance.png", "explained/a-card.png"]},
            {"methods": [METHODS[0]], "drawn": ["explained/a-rollout.png", "explained/a-card.png"]},
        ),
        "--target": plain("--target cat", "aim", None, "cat"),
        "--versus": plain("--versus dog", "aim", "cat", "Versus(a='cat', b='dog')", "--target", "cat"),
        "--option": plain("--option discard=0.5", "methods", METHODS[:1], METHODS[1:], "--method", "rollout"),
        "--out": plain(
            "--out there",
            "drawn",
            ["explained/a-relevance.png", "explained/a-card.png"],
            ["there/a-relevance.png", "there/a-card.png"],
        ),
        "--heads": plain(
            "--heads",
            "drawn",
            ["explained/a-relevance.png", "explained/a-card.png"],
            ["explained/a-relevance.png", "explained/a-card.png", "explained/a-heads.png"],
        ),
        "--film": plain(
            "--film",
            "drawn",
            ["explained/a-relevance.png", "explained/a-card.png"],
            ["explained/a-relevance.png", "explained/a-card.png", "explained/a-blocks.gif"],
        ),
        "--check": plain("--no-check", "check", True, False),
        "--device": placed(),
        **strangers_file(),
    },
    "export": {
        "--to": plain("--to onnx", "to", "", "onnx"),
        "--dynamic-size": plain("--dynamic-size", "dynamic_size", False, True),
        "--bytes": plain("--bytes", "pixels", "float", "bytes"),
        "--resize-inside": Flag(
            "--resize-inside",
            {"resize_inside": False, "pixels": "float"},
            {"resize_inside": True, "pixels": "bytes"},
        ),
        "--int8": Flag(
            "--int8 --data photos",
            {"precision": None, "max_drop": None, "judged": None, "int8": None, "measured": False},
            {"precision": "int8", "max_drop": 0.5, "judged": "photos", "int8": {"head": (0.0, 1.0)}, "measured": True},
        ),
        "--bf16": Flag(
            "--bf16 --data photos",
            {"precision": None, "max_drop": None, "judged": None, "bf16": False, "measured": False},
            {"precision": "bf16", "max_drop": 0.5, "judged": "photos", "bf16": True, "measured": True},
        ),
        "--data": plain("--data others", "judged", "photos", "others", *OWN),
        "--max-drop": plain("--max-drop 2.5", "max_drop", 0.5, 2.5, *OWN),
        "--symmetric": plain("--symmetric", "symmetric", False, True, *OWN),
        "--unlabelled": plain("--unlabelled", "judged", "photos", "its own answers on 1.png", *OWN),
        "--force": plain("--force", "force", None, True),
        **strangers_file(),
    },
    "inspect": {
        "--size": plain("--size 32x64", "size", (16, 16), (32, 64)),
        "--tensors": plain("--tensors", "mapping", [], ["cls_token"], "--json"),
        "--figures": Flag(
            "--figures there",
            {"figures": None, "weights": [NET], "labelled": None, "shown": None},
            {"figures": Path("there"), "weights": [NET], "labelled": 0, "shown": [], "moved": "auto"},
        ),
        "--images": plain("--images a.png", "shown", [], ["a.png"], "--figures", "there"),
        "--data": Flag(
            "--data photos",
            {"judged": None, "labelled": 0, "shown": []},
            {"judged": "photos", "labelled": 1, "shown": ["array"] * 2},
            ("--figures", "there"),
        ),
        "--device": plain("--device cuda:1", "moved", "auto", "cuda:1", "--figures", "there"),
        **strangers_file(),
    },
    "models": {"--pretrained": plain("--pretrained", "pretrained", None, True)},
    "optimize": {
        "--data": plain("--data photos", "judged", "", "photos"),
        "--max-drop": plain("--max-drop 2.5", "max_drop", 0.5, 2.5),
        "--out": plain("--out there", "out", Path("net-fast"), Path("there")),
        "--goal": plain("--goal latency", "goal", "throughput", "latency"),
        "--batch": plain("--batch 2,5", "batches", (1, 8, 16), (2, 5)),
        "--merging": plain("--no-merging", "merging", True, False),
        "--plot": plain("--plot there.png", "plots", None, ["checked there.png", "drawn there.png"]),
        "--unlabelled": plain("--unlabelled", "judged", "photos", "its own answers on 1.png", "--data", "photos"),
        "--seed": plain("--seed 7", "seed", 0, 7),
        "--force": plain("--force", "force", None, True),
        **strangers_file(),
    },
    "predict": {
        "--top": plain("--top 2", "top", 5, 2),
        "--threshold": plain("--threshold 0.5", "told", "a.gif: cat 75.0 %, dog 25.0 %\n", "a.gif: cat 75.0 %\n"),
        "--decline": plain("--decline", "decline", False, True),
        "--trust": plain("--trust", "trust", False, True),
        "--batch": plain("--batch 3", "batch", 16, 3),
        "--threads": plain("--threads 5", "threads", 2, 5),
        "--every": plain("--every 2", "images", ["a.gif"], ["a.gif#0", "a.gif#2"]),
        "--out": Flag(
            "--out there.csv",
            {"written": [], "told": "a.gif: cat 75.0 %, dog 25.0 %\n"},
            {"written": ["there.csv"], "told": "1 prediction written to there.csv\n"},
        ),
        "--force": plain("--force", "force", None, True, "--out", "there.csv"),
        "--scaled-decoding": plain("--scaled-decoding", "scaled", False, True),
        "--runtime": packed("fp32", "--runtime packed"),
        "--device": placed(),
        **engine(),
        **strangers_file(),
    },
    "prune": {
        "--data": plain("--data photos", "judged", "", "photos"),
        "--keep": plain("--keep 0.5", "keep", None, 0.5),
        "--max-drop": plain("--max-drop 2.5", "max_drop", None, 2.5),
        "--channels": plain("--channels", "channels", False, True),
        "--way": plain("--way ablation", "way", "gradient", "ablation"),
        "--tune": plain("--tune 1.5", "tune", 0.0, 1.5),
        "--out": plain("--out there.safetensors", "saved", "net-pruned.safetensors", "there.safetensors"),
        "--split": plain("--split val", "split", "", "val"),
        "--seed": plain("--seed 7", "seed", 0, 7),
        "--device": placed(),
        "--force": plain("--force", "force", None, True),
    },
    "recipes": {},
    "rerun": {"--out": plain("--out there", "out", None, Path("there"))},
    "shard": {
        "--shard-size": plain("--shard-size 2.5", "shard_bytes", 500_000_000, 2_500_000),
        "--pattern": plain("--pattern (?P<label>.)", "pattern", None, "(?P<label>.)"),
        "--unreadable": plain("--unreadable stop", "unreadable", "skip", "stop"),
        "--force": plain("--force", "force", False, True),
    },
    "train": {
        "--model": plain("--model vit-ti16", "model", None, "vit-ti16"),
        "--from": plain(f"--from {NET}", "start", None, NET),
        "--recipe": plain("--recipe probe", "recipe", "", "probe"),
        "--epochs": plain("--epochs 1.5", "epochs", None, 1.5),
        "--minutes": plain("--minutes 2.5", "minutes", None, 2.5),
        "--batch": plain("--batch 3", "batch", None, 3),
        "--size": plain("--size 32x64", "size", None, (32, 64)),
        "--resize": plain("--resize pad", "resize", None, "pad"),
        "--limit": plain("--limit 12", "limit", None, 12),
        "--lr": plain("--lr 0.003", "lr", None, 0.003),
        "--patience": plain("--patience 4", "patience", None, 4),
        "--balance": plain("--balance sampling", "balance", None, "sampling"),
        "--seed": Flag("--seed 7", {"seed": 0, "runs": [("", 0)]}, {"seed": 7, "runs": [("", 7)]}),
        "--seeds": Flag(
            "--seeds 2",
            {"runs": [("", 5)], "name": "", "seed": 5, "finished": False},
            {"runs": [("photos-seed5", 5), ("photos-seed6", 6)], "name": "photos-seed6", "seed": 6, "finished": True},
            ("--seed", "5"),
        ),
        "--val": plain("--val 0.3", "val", 0.1, 0.3),
        "--test": plain("--test 0.3", "test", 0.2, 0.3),
        "--pattern": plain("--pattern (?P<label>.)", "pattern", None, "(?P<label>.)"),
        "--exclude": plain("--exclude these.csv", "exclude", None, Path("these.csv")),
        "--unreadable": plain("--unreadable stop", "unreadable", "skip", "stop"),
        "--workers": plain("--workers 2", "workers", 0, 2),
        "--cache": plain("--cache there", "cache", None, Path("there")),
        "--device": plain("--device gpu", "device", "auto", "gpu"),
        "--precision": plain("--precision fp16", "precision", None, "fp16"),
        "--compile": plain("--compile", "compile", None, True),
        "--elsewhere": plain("--elsewhere", "elsewhere", False, True),
        "--processes": plain("--processes 1", "runs", [("", 0)], [("", 0)]),  # more start others, which have the flags
        "--exact": plain("--no-exact", "exact", None, False),
        "--shard": plain("--shard", "shard", False, True),
        "--out": plain("--out there", "out", Path("runs"), Path("there")),
        "--name": Flag("--name mine", {"name": "", "runs": [("", 0)]}, {"name": "mine", "runs": [("mine", 0)]}),
        "--resume": Flag(
            "--resume mine/old",
            {"name": "", "out": Path("runs"), "runs": [("", 0)]},
            {"name": "old", "out": Path("mine"), "runs": [("old", 0)]},
        ),
        "--fresh": plain("--fresh", "fresh", False, True),
        "--tensorboard": plain("--tensorboard", "tensorboard", False, True),
        "--show-lr": Flag("--show-lr", {"tried": None, "runs": [("", 0)]}, {"tried": (True, False), "runs": None}),
        "--find-lr": Flag("--find-lr", {"tried": None, "runs": [("", 0)]}, {"tried": (False, True), "runs": None}),
        "--check": Flag("--check", {"tried": None, "runs": [("", 0)]}, {"tried": (False, False), "runs": None}),
    },
}
FLAGS = {(verb, name): flag for verb, flags in VERBS.items() for name, flag in flags.items()}
FLAGS |= {(verb, "--json"): Flag("--json", {"is_json": False}, {"is_json": True}) for verb in VERBS}

# What stands before the flags: where it arrives.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "audit": {"data": "photos"},
    "bench": {"weights": [NET]},
    "compare": {"weights": [NET, "other"], "judged": (NET, "other", "photos")},
    "convert": {"source": NET, "made": "out"},
    "demo": {"data": "vitrail:fashion", "weights": ["vitrail:glass", "run"]},
    "doctor": {},
    "embed": {"weights": [NET], "images": [SHOTS]},
    "evaluate": {"weights": [NET], "judged": "photos"},
    "explain": {"weights": [NET], "images": [SHOTS]},
    "export": {"weights": [NET], "made": "a.xml"},
    "inspect": {"weights": [NET]},
    "models": {},
    "optimize": {"weights": [NET]},
    "predict": {"weights": [NET], "images": [SHOTS]},
    "prune": {"weights": [NET]},
    "recipes": {},
    "rerun": {"run": Path("runs/old")},
    "shard": {"data": "photos", "made": "shards"},
    "train": {"data": "photos"},
}


class Stage:
    """A folder to stand in, and stand-ins for all that verbs call; `seen` is what these were given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.patch, self.folder = monkeypatch, folder
        self.seen: dict[str, Any] = {}
        torch.manual_seed(0)
        provenance = Provenance(mapping=(Mapped("cls_token", ("cls",), (8,), "as it is"),))
        self.net = Checkpoint(ViT(CONFIG).eval(), Preprocess(size=16), ("cat", "dog"), provenance)
        samples = tuple(Sample(str(row), (self.net.classes[row],)) for row in range(2))
        self.data = Dataset("made", samples, np.zeros((2, 16, 16, 3), np.uint8), self.net.classes)
        self._weights()
        self._answers()
        self._judging()
        self._training()
        self._insight()
        self._shipping()
        self.patch.setattr(presets, "PRESETS", {"vit-ti16": presets.PRESETS["vit-ti16"]})  # all take seconds
        self.patch.setattr(doctor, "examine", lambda: {"versions": {"vitrail": vitrail.__version__}})

    def __call__(self, *words: str) -> dict[str, Any]:
        """What was noted of a verb, with what it printed and wrote."""
        self.seen = {}
        before = set(self.folder.rglob("*"))
        self.patch.setattr(sys, "argv", ["vitrail", *words])
        with redirect_stdout(io.StringIO()) as stdout:
            code = COMMAND(list(words), standalone_mode=False)
        printed = stdout.getvalue()
        assert code in (0, None)
        assert printed
        found = json.loads(printed) if printed.startswith("{") else None
        told = {"told": printed, "mapping": [each["ours"] for each in (found or {}).get("mapping", ())]}
        new = sorted(set(self.folder.rglob("*")) - before)
        for path in new:
            path.unlink()
        written = [str(path.relative_to(self.folder)) for path in new]
        return self.seen | told | {"is_json": found is not None, "written": written}

    def stand_in(self, owner: Any, name: str, answer: Callable[..., Any]) -> None:
        self.patch.setattr(owner, name, answer)

    def add(self, name: str, value: Any) -> None:
        self.seen.setdefault(name, []).append(value)

    def _weights(self) -> None:
        def load(
            path: Any, *, override: Any = None, leave_out: Sequence[str] = (), header: Any = None, device: Any = "cpu"
        ) -> Checkpoint:
            for name, value in (("weights", str(path)), ("override", override or {}), ("leave_out", tuple(leave_out))):
                self.add(name, value)
            self.add("placed", device)
            return self.net

        def to(checkpoint: Checkpoint, device: str) -> Checkpoint:
            self.seen["moved"] = device
            return checkpoint

        def convert(source: str, out: Path, *, to: str, override: Any, leave_out: Sequence[str]) -> ParityReport:
            self.seen |= {"source": source, "made": str(out), "to": to}
            self.seen |= {"override": override, "leave_out": tuple(leave_out)}
            return ParityReport(source, str(out), to, 1, 1, 0.0, 0.0, 1.0, True, True, (), ())

        def packed(loaded: Checkpoint, plan: QuantPlan) -> Any:
            self.seen["runtime"] = plan.precision
            return SimpleNamespace(notes=(), preprocess=loaded.preprocess, temperature=None, classes=loaded.classes)

        self.stand_in(Checkpoint, "to", to)
        self.stand_in(vitrail.weights, "load", load)
        self.stand_in(vitrail.checkpoint, "load", load)
        self.stand_in(vitrail.weights, "convert", convert)
        self.stand_in(vitrail.packed, "Packed", packed)
        self.stand_in(vitrail.checkpoint, "save", lambda saved, place: self.seen.update(saved=str(place)))

    def _answers(self) -> None:
        def predictions(
            runtime: Any,
            images: Any,
            top: int,
            batch: int,
            skip: Any,
            done: Any,
            threads: int,
            decline: bool,
            trust: bool,
        ) -> Iterator[Prediction]:
            named = [str(getattr(each, "name", each)) for each in images]
            self.seen |= {"images": named, "top": top, "batch": batch, "threads": threads, "decline": decline}
            self.seen["trust"] = trust
            self.seen["scaled"] = runtime.preprocess.scaled_decoding
            yield Prediction(SHOTS, ("cat", "dog"), (0.75, 0.25))

        def embed(runtime: Any, images: Any, batch: int, skip: Any, done: Any, threads: int) -> Any:
            self.seen |= {"images": images, "batch": batch, "threads": threads}
            self.seen["scaled"] = runtime.preprocess.scaled_decoding
            return np.zeros((1, 2), np.float32)

        def rows(runtime: Any, images: Any, columns: Any, rows_of: Any, **ways: Any) -> Iterator[dict[str, Any]]:
            self.seen |= {"images": [str(each) for each in images], "batch": ways["batch"], "threads": ways["threads"]}
            self.seen["scaled"] = runtime.preprocess.scaled_decoding
            yield {name: SHOTS if name == "path" else [] if name == "labels" else None for name in columns} | (
                {"embedding": np.zeros(2, np.float32)} if "embedding" in columns else {"probabilities": []}
            )

        def job(checkpoint: Any, data: Any, out: Path, question: Any, **ways: Any) -> BatchReport:
            self.seen |= {"images": [str(each) for each in data], "engine": "ray", "out": None}
            self.seen |= {name: ways[name] for name in ("batch", "threads", "workers")}
            self.seen["address"] = ways["address"] or None
            self.seen["scaled"] = ways["opened"].preprocess.scaled_decoding
            return BatchReport(out, 1, 1, (), 0, FoundImages(()), 1)

        self.stand_in(batch_inference, "run_batch_job", job)
        self.stand_in(row_functions, "rows_in_order", rows)
        self.stand_in(vitrail.inference, "predictions", predictions)
        self.stand_in(vitrail.inference, "embed", embed)
        self.stand_in(
            models_verb, "_list_pretrained", lambda as_json: print("listed") or self.seen.update({"pretrained": True})
        )
        for verb in (predict_verb, embed_verb, export_verb, optimize_verb, prune_verb):
            self.stand_in(
                verb, "refuse_overwrite", lambda force, *_: self.seen.update({"force": True} if force else {})
            )

    def _judging(self) -> None:
        from vitrail.auditing import audit_page, auditor, findings_table, next_step
        from vitrail.data import readers, shard_writing
        from vitrail.evaluation import report_files, seen_images

        def data_for(checkpoint: str, data: str = "", classes: Any = None) -> Dataset:
            self.seen["judged"] = data
            return self.data

        def both(first: str, second: str, data: str, classes: Any) -> Dataset:
            self.seen["judged"] = (first, second, data)
            return self.data

        def read(data: str) -> Dataset:
            self.seen["data"] = data
            return self.data

        def evaluate(runtime: Any, data: Any, *, split: str, batch: int, done: Any) -> Any:
            self.seen |= {"split": split, "batch": batch}
            return self._evaluation()

        def compare(one: Any, other: Any, data: Any, *, split: str, batch: int) -> Any:
            self.seen |= {"split": split, "batch": batch}
            made = {"both_right": 1, "only_a": 0, "only_b": 0, "both_wrong": 0, "difference": HALF, "p_value": 1.0}
            return SimpleNamespace(
                a=self._evaluation(), b=self._evaluation(), caveat="", unlike_words="", to_dict=dict, **made
            )

        def sharded(data: str, out: Path, **options: Any) -> Any:
            self.seen |= {"data": data, "made": str(out), **options}
            return shard_writing.ShardReport(out, 1, (), (), ())

        def written(found: Any, to: Path, *rest: Any) -> list[Path]:
            self.seen["out"] = to
            if rest[-1:] and isinstance(rest[-1], str):
                self.seen["command"] = rest[-1]
            return [to / "report.html"]

        def audited(data: Any, *, checkpoint: Any, done: Any) -> Any:
            self.seen["has_network"] = checkpoint is not None
            about = {"images": 1, "source": "made", "unreadable": (), "left_out": {}, "left_out_names": {}}
            about["sizes"] = SimpleNamespace(suggestion=SimpleNamespace(resize="crop", size=(32, 32)))
            return SimpleNamespace(**about, balance=SimpleNamespace(counts={"cat": 1}), notes=(), to_dict=dict)

        self.stand_in(shard_writing, "shard", sharded)
        self.stand_in(next_step, "obstacle", lambda found, table, images: "nothing can be trained")
        self.stand_in(vitrail.auditing, "audit", audited)
        self.stand_in(seen_images, "data_for", data_for)
        self.stand_in(vitrail.evaluation, "data_for", data_for)
        self.stand_in(seen_images, "data_for_both", both)
        self.stand_in(vitrail.data, "read_data", read)
        self.stand_in(readers, "read_data", read)
        self.stand_in(vitrail.evaluation, "evaluate", evaluate)
        self.stand_in(vitrail.evaluation, "compare", compare)
        self.stand_in(report_files, "write_evaluation", written)
        self.stand_in(report_files, "write_comparison", written)
        self.stand_in(auditor, "audit", audited)
        self.stand_in(audit_page, "write_audit", written)
        self.stand_in(findings_table, "verdicts", lambda found: [])

    def _evaluation(self) -> Any:
        class Evaluation(SimpleNamespace):
            def __len__(self) -> int:
                return 1

        about = {"names": ("a",), "source": "made", "split": "test", "scores": {"top1": HALF}}
        return Evaluation(**about, per_class=(), skipped=(), caveat="", unlike_words="", to_dict=dict)

    def _training(self) -> None:
        from vitrail.training import dry_run as dry_runs

        def note(data: Any, options: Any) -> None:
            self.seen["data"] = data
            noted = {each.name: getattr(options, each.name) for each in fields(options)}
            self.seen |= {name: value for name, value in noted.items() if name != "callbacks"}

        def run(data: Any, options: Any) -> Any:
            note(data, options)
            self.add("runs", (options.name, options.seed))
            return self._run(options.seed)

        def rerun(run: Path, to: Path | None, callbacks: Any) -> Any:
            self.seen |= {"run": run, "out": to}
            return SimpleNamespace(same=True, differences=(), run=self._run())

        def run_dry(data: Any, options: Any, *, rates: bool, search: bool) -> DryRun:
            note(data, options)
            self.seen["tried"] = (rates, search)
            return DryRun((), suggested=0.01)

        self.stand_in(vitrail.training, "run", run)
        self.stand_in(vitrail.training, "rerun", rerun)
        self.stand_in(dry_runs, "run_dry", run_dry)

    def _run(self, seed: int = 0) -> Any:
        about = {
            "steps": 1,
            "seconds": 1.0,
            "resumed": False,
            "best": Path("best"),
            "folder": Path("run"),
            "best_epoch": None,
        }
        return SimpleNamespace(
            evaluation=self._evaluation(), stages=(), to_dict=dict, plan=SimpleNamespace(seed=seed), **about
        )

    def _insight(self) -> None:
        from vitrail.data import glass
        from vitrail.insight import cards, explanation_page, image_tour, model_figures, pruning_run

        def explain(runtime: Any, path: Path, method: Any, aim: Any, *, check: bool) -> Any:
            self.add("images", str(path))
            self.add("methods", (method.name, getattr(method, "discard", None)))
            self.seen |= {"aim": aim if aim is None else str(aim), "check": check}
            about = {"method": method.name, "target": "cat", "warnings": (), "remark": "", "to_dict": dict}
            return SimpleNamespace(save=lambda place: self.add("drawn", str(place)), **about)

        def drawn(*given: Any) -> Any:
            return SimpleNamespace(save=lambda place: self.add("drawn", str(place)))

        def prune(loaded: Any, data: Any, *, log: Any, **options: Any) -> Any:
            self.seen |= options
            state = SimpleNamespace(accuracy=HALF, parameters=1, multiply_adds=1)
            about = {"speed": 1.0, "heads": {}, "split": "test", "ranked_by": "train", "checkpoint": self.net}
            return SimpleNamespace(before=state, cut=state, after=state, channels=0, to_dict=dict, **about)

        def paint(loaded: Any, to: Path, images: Any, labelled: Any, name: str) -> Portrait:
            shown = [str(each) if isinstance(each, Path) else "array" for each in images]
            self.seen |= {"figures": to, "shown": shown, "labelled": len(labelled)}
            return Portrait(to / "index.html", [], [])

        def estimate(config: Any, size: tuple[int, int]) -> Any:
            self.seen["size"] = size
            return counted(config, size)

        def walk(loaded: Any, image: Any, out: Path) -> Tour:
            self.seen |= {"tour": out, "shown": str(image) if isinstance(image, Path) else "a window"}
            return Tour(Prediction("a", ("cat",), (1.0,)), [], [], out / "index.html")

        def window(seed: int, size: int) -> Any:
            self.seen["window"] = seed
            return SimpleNamespace(image=Image.new("RGB", (8, 8)), label=0)

        def why(run: Any, to: Path, images: list[str]) -> Path:
            self.seen["explained"] = to
            return to / "explained" / "index.html"

        counted = cost_module.estimate
        self.stand_in(vitrail.insight, "explain", explain)
        self.stand_in(cards, "card", drawn)
        self.stand_in(cards, "heads_sheet", drawn)
        self.stand_in(cards, "film", drawn)
        self.stand_in(cards, "save_film", lambda frames, place: self.add("drawn", str(place)))
        self.stand_in(cards, "value_of", lambda found: "1.00")
        self.stand_in(cards, "words_of", lambda found: found.method)
        self.stand_in(cards, "numbers_of", lambda found: [])
        self.stand_in(explanation_page, "explained_image", lambda name, found: name)
        self.stand_in(explanation_page, "gallery_page", lambda name, shown, command: command)
        self.stand_in(explanation_page, "write_explanation_page", lambda to, content: to / "index.html")
        self.stand_in(vitrail.insight, "prune", prune)
        self.stand_in(pruning_run, "batches_of", lambda loaded, data: [data])
        self.stand_in(model_figures, "portrait", paint)
        self.stand_in(cost_module, "estimate", estimate)
        self.stand_in(image_tour, "tour", walk)
        self.stand_in(glass, "window", window)
        self.stand_in(demo, "_try", lambda run, to: [Prediction("a", ("cat",), (1.0,))])
        self.stand_in(demo, "_explain", why)
        self.stand_in(demo, "_link", lambda run, to, explained: None)

    def _shipping(self) -> None:
        from vitrail.exporters import exporter
        from vitrail.quantisation import accuracy_budget, quantiser
        from vitrail.shipping import benchmark, optimizer
        from vitrail.shipping import search_plot as plots

        def own_answers(loaded: Any, images: list[Path]) -> Dataset:
            self.seen["judged"] = f"its own answers on {', '.join(each.name for each in images)}"
            return self.data

        def quantise(loaded: Any, data: Any, *, precision: str, max_drop: float, log: Any) -> Any:
            self.seen |= {"precision": precision, "max_drop": max_drop}
            plan = QuantPlan("bf16") if precision == "bf16" else QuantPlan("fp32", {"head": Range(0.0, 1.0)})
            found = SimpleNamespace(checkpoint=loaded, plan=plan, choosing=SimpleNamespace(images=self.data))
            found.carry_out = lambda make, log: make(found)
            return found

        def export(loaded: Any, out: Path, *, measure: Any, plan: Any, images: Any, **options: Any) -> ExportReport:
            self.seen |= {"made": str(out), "measured": measure is not None, **options}
            self.seen |= {
                "int8": (plan.int8 or None) if plan else None,
                "bf16": plan is not None and plan.precision == "bf16",
            }
            return ExportReport(str(out), "onnx", 1, {}, (), (Check(1, 16, 16, 0.0),), "", "", None, 1.0)

        def optimize(loaded: Any, data: Any, out: Path, *, log: Any, progress: Any, **options: Any) -> Any:
            self.seen |= {"out": out, **options}
            judged = SimpleNamespace(drop=HALF, agreement=1.0, images=1)
            best = SimpleNamespace(way="eager", batch=1, threads=1, rate=1.0, judged=judged, within=True)
            about = {"best": best, "eager": best, "tried": (best,), "reported": judged, "speed": 1.0, "words": "all"}
            return SimpleNamespace(out=out, to_dict=dict, **about)

        def bench(loaded: Any, *, log: Any, progress: Any, **options: Any) -> Bench:
            self.seen |= options
            return Bench((), {}, 1, ())

        self.stand_in(accuracy_budget, "self_labelled", own_answers)
        self.stand_in(quantiser, "quantise", quantise)
        self.stand_in(exporter, "export", export)
        self.stand_in(optimizer, "optimize", optimize)
        self.stand_in(benchmark, "bench", bench)
        self.stand_in(plots, "check_plot", lambda place: self.add("plots", f"checked {place}"))
        self.stand_in(plots, "save_plot", lambda found, place: self.add("plots", f"drawn {place}"))


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Stage:
    """A folder with a run, weights, an image, a short animation and a folder of one image."""
    for folder in ("runs/old", "mine/old", "photos"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "config.json").touch()
    (tmp_path / NET).touch()
    shots = [Image.new("RGB", (8, 8), (80 * row, 0, 0)) for row in range(3)]
    shots[0].save(tmp_path / "a.png")
    shots[0].save(tmp_path / "photos" / "1.png")
    shots[0].save(tmp_path / SHOTS, save_all=True, append_images=shots[1:])
    monkeypatch.chdir(tmp_path)
    return Stage(monkeypatch, tmp_path)


def test_every_flag_of_every_verb_has_its_row() -> None:
    commands = COMMAND.commands
    options = {(verb, each.opts[0]) for verb, command in commands.items() for each in command.params}
    there = {(verb, name) for verb, name in options if name.startswith("-")}
    assert set(FLAGS) == there
    assert set(TYPED) == set(ARGUMENTS) == set(commands)


@pytest.mark.parametrize("verb", TYPED)
def test_what_stands_before_the_flags_arrives(verb: str, stage: Stage) -> None:
    seen = stage(verb, *TYPED[verb])
    assert {name: seen.get(name) for name in ARGUMENTS[verb]} == ARGUMENTS[verb]


@pytest.mark.row("EVA.1")
@pytest.mark.parametrize("verb, name", FLAGS, ids=[" ".join(each) for each in FLAGS])
def test_a_flag_arrives_and_changes_nothing_else(verb: str, name: str, stage: Stage) -> None:
    flag = FLAGS[verb, name]
    base = (verb, *TYPED[verb], *flag.beside)
    usual, given = stage(*base), stage(*base, *flag.words.split())
    assert {each: usual.get(each) for each in flag.usual} == flag.usual
    assert {each: given.get(each) for each in flag.given} == flag.given
    others = {*usual, *given} - {*flag.given, "command", "told"}
    assert {each: given.get(each) for each in others} == {each: usual.get(each) for each in others}


@pytest.mark.parametrize("verb", ["train", "demo", "evaluate", "compare"])
def test_what_was_typed_is_handed_on(verb: str, stage: Stage) -> None:
    words = (verb, *TYPED[verb], "--out", "over there")
    assert stage(*words)["command"] == f"vitrail {' '.join(words[:-1])} 'over there'"
