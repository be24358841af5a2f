"""train: a folder of images -> a run: checkpoint, honest numbers, report; the same call goes on after a kill."""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch

from vitrail import __version__
from vitrail.checkpoint import Checkpoint, content_hash
from vitrail.checks import check_int, check_number, join_limited
from vitrail.data.cache import Views
from vitrail.data.manifest import Manifest, differences, record
from vitrail.data.samples import Dataset
from vitrail.errors import InputError, nearest
from vitrail.evaluation.results import Evaluation, Score
from vitrail.evaluation.training_sections import count_data
from vitrail.network.config import ViTConfig
from vitrail.network.presets import PRESETS
from vitrail.training.autotune import measure_speed, overfits, scaled, steps_for
from vitrail.training.final_evaluation import Told, judge, training_part, write_everything
from vitrail.training.lock import locked
from vitrail.training.loop import Job, Part, Watch, fit
from vitrail.training.model_choice import Chosen, choose
from vitrail.training.plan import Plan, plan_differences
from vitrail.training.preparation import Prepared, prepare
from vitrail.training.probing import Stage, probe, start_head
from vitrail.training.published import RECIPES, Preset
from vitrail.training.recipe import Recipe
from vitrail.training.recipe_lint import Finding, lint
from vitrail.training.run_folder import CONFIG, DATA, RESULT, find_run, make_folder, read_json, write_json, write_text
from vitrail.training.state import has_state
from vitrail.training.tensorboard import boarded, need_tensorboard

ENDS: tuple[str, ...] = ("pool", "final_norm")  # what a recipe may change of a network that is there already
LONG: int = 500  # steps from which a run is long enough to be tried on one batch first


@dataclass(frozen=True)
class Run:
    """A finished training: its folder, and what it reached."""

    folder: Path
    plan: Plan
    best: Path  # the checkpoint to use
    evaluation: Evaluation  # on images it never saw, where there are any
    stages: tuple[Stage, ...]  # what came before: k-NN, probe
    steps: int
    seconds: float  # since it was started, or last went on
    warnings: tuple[str, ...] = ()
    resumed: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The result for machines."""
        return {
            "run": str(self.folder),
            "best": str(self.best),
            "evaluation": self.evaluation.to_dict(),
            "split": self.evaluation.split,
            "stages": [each._asdict() for each in self.stages],
            "steps": self.steps,
            "seconds": round(self.seconds, 2),
            "resumed": self.resumed,
            "warnings": list(self.warnings),
        }


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a user may ask of a training; None leaves it to the recipe or the data."""

    model: str | ViTConfig | None = None
    start: str | os.PathLike[str] | Checkpoint | None = None  # weights to start from
    recipe: str | Recipe = ""  # empty: scratch, or finetune where there are weights to start from
    epochs: float | None = None
    minutes: float | None = None
    steps: int | None = None  # instead of either
    batch: int | None = None
    size: int | tuple[int, int] | None = None
    limit: int | None = None  # images of each split, drawn class by class; None: as the recipe says, or all
    lr: float | None = None
    patience: int | None = None
    balance: str | None = None
    seed: int = 0
    val: float = 0.1
    test: float = 0.2
    pattern: str | None = None
    exclude: str | os.PathLike[str] | None = None
    unreadable: str = "skip"
    workers: int = 0
    cache: str | os.PathLike[str] | None = None  # a folder for resized images that memory cannot hold
    threads: int = 1  # that prepare batches
    device: str = "cpu"
    out: str | os.PathLike[str] = "runs"
    name: str = ""
    fresh: bool = False
    finished: bool = False  # whether a finished run of that name and plan is taken as it is, rather than refused
    check: bool = True  # refuse recipes that are known to fail
    report: bool = True  # write the report, the figures and the predictions
    tensorboard: bool = False  # write the log as TensorBoard's events too
    command: str = ""  # that repeats it
    save_seconds: float = 60.0
    watch: Watch = field(default_factory=Watch)

    def to_dict(self, data: Any) -> dict[str, Any]:
        """What `rerun` needs; what was given as an object cannot be repeated from a file, and is left out."""
        plain = {each.name: getattr(self, each.name) for each in fields(self)}
        plain |= {"data": data.source if isinstance(data, Dataset) else os.fspath(data)}
        for name in ("recipe", "model"):
            if isinstance(plain[name], Recipe | ViTConfig):
                plain[name] = plain[name].to_dict()
        for name in ("start", "exclude", "out", "cache"):
            if isinstance(plain[name], os.PathLike):
                plain[name] = os.fspath(plain[name])
        if isinstance(plain["start"], Checkpoint):
            plain["start"] = None
        del plain["watch"]
        return plain


def train(data: str | os.PathLike[str] | Dataset, **options: Any) -> Run:
    """Train a classifier on images; see Options for what can be asked."""
    return run(data, Options(**options))


def run(data: str | os.PathLike[str] | Dataset, options: Options) -> Run:
    """The whole way: prepare, plan, train, evaluate, report."""
    started = time.monotonic()
    tell = options.watch.tell
    if options.tensorboard:
        need_tensorboard()
    folder_of_runs = Path(options.out)
    make_folder(folder_of_runs)
    preset = resolve(options)
    prepared = prepare_data(data, preset, options)
    for note in prepared.notes:
        tell(note)
    chosen = choose_network(prepared, preset, options)
    for note in fitted_to(preset, chosen, options):
        tell(note)
    plan = make_plan(prepared, chosen, preset, options)
    warnings = check(plan, prepared, options)
    for text in warnings:
        tell(text)
    manifest = record(prepared.dataset, prepared.entries)

    def wrong(folder: Path) -> list[str]:
        before = read_json(folder / CONFIG)["plan"]
        wanted = plan.to_dict()
        if options.minutes is not None and before["minutes"] == options.minutes:  # measured once, for good
            wanted |= {"steps": before["steps"]}
            wanted["recipe"] |= {"epochs": before["recipe"]["epochs"]}
        found = plan_differences(before, wanted)
        return found + differences(Manifest.from_json((folder / DATA).read_text("utf-8")), manifest)

    base = Path(prepared.dataset.source.removeprefix("vitrail:")).stem or "run"
    found = find_run(
        folder_of_runs, base, name=options.name, fresh=options.fresh, finished=options.finished, differences=wrong
    )
    make_folder(found.folder)
    with locked(found.folder):
        if found.resumes:
            plan = Plan.from_dict(read_json(found.folder / CONFIG)["plan"])
            tell(f"going on with {found.folder}")
        parts = make_parts(plan, prepared.dataset, manifest, options)
        watch = boarded(options.watch, found.folder) if options.tensorboard else options.watch
        job = Job(
            plan=plan,
            model=chosen.model.to(options.device),
            train=parts["train"],
            val=parts.get("val"),
            folder=found.folder,
            threads=options.threads,
            save_seconds=options.save_seconds,
            watch=logged(watch, found.folder / "log.txt"),
        )
        stages = probe_first(job, parts, prepared.dataset) if chosen.start is not None else ()
        if not found.resumes:
            job = measured(job, options)
            if options.check:
                _try_one_batch(job)
            write_text(found.folder / DATA, manifest.to_json())
            write_json(found.folder / CONFIG, {"plan": job.plan.to_dict(), "options": options.to_dict(data)})
        at = fit(job)
        finished = judge(job, at, prepared.dataset, parts.get("test"))
        if options.report:
            facts = count_data(prepared.dataset, prepared.bad)
            told = Told(stages, (*prepared.notes, *warnings), facts, environment(), options.command)
            write_everything(job, finished, prepared.dataset, told)
        result = Run(
            found.folder,
            job.plan,
            found.folder / "best.safetensors",
            finished.evaluation,
            stages,
            at.step,
            time.monotonic() - started,
            warnings,
            found.resumes,
        )
        write_json(found.folder / RESULT, result.to_dict())
    return result


def resolve(options: Options) -> Preset:
    """The recipe by name or as given, with what the options change in it."""
    preset = options.recipe
    if isinstance(preset, Recipe):
        found = Preset(recipe=preset)
    else:
        name = preset or ("scratch" if options.start is None else "finetune")
        if name not in RECIPES:
            raise InputError(f"no recipe {name!r}: {nearest(name, RECIPES)}")
        found = RECIPES[name]
        if found.objective != "classify":
            raise InputError(
                f"{name} learns by {found.objective}, which cannot be trained here yet: an ordinary classifier would "
                "come out of it under that name"
            )
    if options.epochs is not None and options.minutes is not None:
        raise InputError("give epochs or minutes, not both")
    if options.minutes is not None:
        check_number("minutes", options.minutes, 1e-3, 1e6)
    check_int("seed", options.seed, 0, 2**62, InputError)
    limit = found.limit if options.limit is None else check_int("limit", options.limit, 1, 2**62, InputError)
    if options.device != "cpu":
        raise InputError(f"device: training runs on the cpu and nowhere else yet, got {options.device!r}")
    names = ("epochs", "batch", "lr", "patience", "balance")
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    if options.batch is not None:
        given["pieces"] = min(found.recipe.pieces, max(options.batch, 1))  # they are for memory alone
    steps = None if "epochs" in given or options.minutes is not None else found.steps
    return replace(found, recipe=replace(found.recipe, **given), steps=options.steps or steps, limit=limit)


def prepare_data(data: str | os.PathLike[str] | Dataset, preset: Preset, options: Options) -> Prepared:
    return prepare(
        data,
        pattern=options.pattern,
        exclude=options.exclude,
        unreadable=options.unreadable,
        val=options.val,
        test=options.test,
        limit=preset.limit,
        seed=options.seed,
    )


def choose_network(prepared: Prepared, preset: Preset, options: Options) -> Chosen:
    """The network that was asked for, or the recipe's own, or one that suits the images; at the recipe's size."""
    model, size = options.model, options.size
    if options.start is None and model is None and preset.model:
        model = replace(PRESETS[preset.model], **preset.changes)
    if size is None and preset.size:
        size = preset.size
    ends = {name: preset.changes[name] for name in ENDS if name in preset.changes}
    return choose(
        prepared.dataset,
        prepared.entries,
        preset.recipe,
        model=model,
        start=options.start,
        size=size,
        ends=ends,
        seed=options.seed,
    )


def fitted_to(preset: Preset, chosen: Chosen, options: Options) -> list[str]:
    """What a recipe makes of the network it starts from, and what it leaves as it is, in words."""
    if chosen.start is None:
        return []
    config, notes = chosen.model.config, []
    if options.size is None and preset.size:
        notes.append(f"images of {preset.size}x{preset.size}, as the recipe says: --size gives another")
    others = {name: value for name, value in preset.changes.items() if name not in ENDS}
    apart = [f"{name} {getattr(config, name)}" for name, value in others.items() if getattr(config, name) != value]
    if apart:
        notes.append(
            f"the network is that of the checkpoint, where the recipe was made for another: {join_limited(apart)}"
        )
    return notes


def make_plan(prepared: Prepared, chosen: Chosen, preset: Preset, options: Options) -> Plan:
    """Everything that the result depends on, settled."""
    dataset, recipe = prepared.dataset, preset.recipe
    count = len(dataset.part("train"))
    per_epoch = max(1, count // recipe.batch)
    steps = preset.steps or math.ceil(recipe.epochs * per_epoch)
    origin = chosen.origin
    if chosen.start is not None:
        origin += f" ({content_hash({}, chosen.start.model.state_dict())[:23]})"
    return Plan(
        data=dataset.source,
        classes=dataset.classes,
        task=dataset.task,
        model=chosen.model.config,
        preprocess=chosen.preprocess,
        recipe=scaled(recipe, steps, per_epoch),
        steps=steps,
        per_epoch=per_epoch,
        seed=options.seed,
        threads=torch.get_num_threads(),
        origin=origin,
        minutes=options.minutes,
        versions=versions(),
    )


def findings_of(plan: Plan, prepared: Prepared) -> tuple[Finding, ...]:
    """What the linter says of a plan."""
    images = len(prepared.dataset.part("train"))
    sizes = [(each.height, each.width) for each in prepared.entries]
    return tuple(
        lint(
            plan.model,
            plan.recipe,
            images=images,
            classes=len(plan.classes),
            size=plan.preprocess.size,
            pretrained=bool(plan.origin),
            sizes=sizes,
            names=plan.classes,
        )
    )


def check(plan: Plan, prepared: Prepared, options: Options) -> tuple[str, ...]:
    """What is known against a plan, in words; what is known to fail is refused."""
    found = findings_of(plan, prepared)
    errors = [each.message for each in found if each.level == "error"]
    if errors and options.check:
        raise InputError(f"this recipe is known to fail: {join_limited(errors)}")
    return tuple(f"{each.level}: {each.message}" for each in found)


def make_parts(plan: Plan, dataset: Dataset, manifest: Manifest, options: Options) -> dict[str, Part]:
    """The images of every split, as the network sees them; those to train on with room for crops."""
    found = {}
    digests = {each.name: each.digest for each in manifest.entries} if options.cache is not None else {}
    for split in dataset.splits:
        margin = 1.25 if split == "train" and plan.recipe.augment.crop is not None else 1.0
        part = dataset.part(split)
        shelf = None
        if options.cache is not None:
            shelf = (Path(options.cache), [digests[each.name] for each in part.samples])
        views = Views(part, plan.preprocess, margin=margin, threads=2, workers=options.workers, shelf=shelf)
        found[split] = Part(views, part.targets(plan.classes))
    return found


def probe_first(job: Job, parts: dict[str, Part], dataset: Dataset) -> tuple[Stage, ...]:
    """k-NN and a linear probe, once a run; the head then starts from the probe, or from zeros if the recipe says so."""
    path = job.folder / "stages.json"
    if path.exists():
        rows = read_json(path)["stages"]
        stages = tuple(Stage(each["name"], Score(*each["score"]), each["note"]) for each in rows)
        if has_state(job.folder / "state"):
            return stages
    plan = job.plan
    judged = next(split for split in ("test", "val", "train") if split in parts)
    if job.plan.recipe.augment.crop is not None:
        parts = parts | {"train": training_part(plan, dataset)}
    probed = probe(job.model, plan.preprocess, parts, judged, len(plan.classes), plan.task)
    start_head(job.model, probed, plan.recipe.head_start)
    for stage in probed.stages:
        job.watch.tell(f"{stage.name}: {100 * stage.score.value:.1f} % on {judged}")
    write_json(path, {"stages": [each._asdict() for each in probed.stages]})
    return probed.stages


def _try_one_batch(job: Job) -> None:
    """Before a long run: can it learn at all?"""
    if job.plan.steps >= LONG and job.plan.recipe.tune == "all" and not overfits(job):
        raise InputError(
            "the network cannot learn 16 images by heart in 40 steps: the labels, the images or the rate are "
            "wrong; try --find-lr, and look at the data with `vitrail audit`"
        )


def logged(watch: Watch, path: Path) -> Watch:
    """The same, with what is told, and every epoch, in a file too, each line with its time."""

    def note(text: str) -> None:
        with suppress(OSError), open(path, "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {text}\n")  # a full disk is told by what matters

    def tell(text: str) -> None:
        note(text)
        watch.tell(text)

    def epoch(row: dict[str, Any]) -> None:
        plain = {name: value for name, value in row.items() if name != "event"}
        note(", ".join(f"{name} {value}" for name, value in plain.items()))
        watch.epoch(row)

    return replace(watch, tell=tell, epoch=epoch)


def measured(job: Job, options: Options) -> Job:
    """The job with its number of steps fixed by the speed of this machine, where minutes were given."""
    if options.minutes is None or options.steps is not None:
        return job
    steps = steps_for(options.minutes, measure_speed(job), job.plan.per_epoch)
    job.watch.tell(f"{steps} steps fit {options.minutes:g} minutes")
    recipe = scaled(job.plan.recipe, steps, job.plan.per_epoch)
    return replace(job, plan=replace(job.plan, steps=steps, recipe=recipe))


def versions() -> Mapping[str, str]:
    """Of what the bits of a result depend on."""
    return {"vitrail": __version__, "torch": torch.__version__}


def environment() -> list[tuple[str, str]]:
    """Where a run was made, for its report."""
    return [
        ("vitrail", __version__),
        ("python", platform.python_version()),
        ("torch", torch.__version__),
        ("threads", str(torch.get_num_threads())),
        ("machine", f"{platform.machine()}, {os.cpu_count()} processors"),
        ("system", platform.system()),
    ]
