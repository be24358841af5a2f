"""train: a folder of images -> a run: checkpoint, honest numbers, report; the same call goes on after a kill."""

from __future__ import annotations

import hashlib
import math
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from vitrail.checkpoint import Checkpoint
from vitrail.checkpoint.devices import AUTO, describe_device, device_names, device_of, find_device
from vitrail.data.cache import Views
from vitrail.data.manifest import Manifest, differences, record
from vitrail.data.samples import Dataset
from vitrail.errors import InputError
from vitrail.evaluation.recorded_paths import record_paths
from vitrail.evaluation.report import Report
from vitrail.evaluation.results import Evaluation, Score
from vitrail.evaluation.training_sections import count_data
from vitrail.reporting.html_page import counted, percent
from vitrail.reporting.object_card import Card
from vitrail.training.device_choice import PLACE, find_again, last_place, moved_note, on_faster_device, place_of
from vitrail.training.environment import describe_environment
from vitrail.training.final_evaluation import evaluate_best, share_evaluation, training_part, write_everything
from vitrail.training.job import Callbacks, Job, Part, Progress
from vitrail.training.loop import fit
from vitrail.training.memory import pieces_note
from vitrail.training.mixed_precision import check_precision, precision_notes
from vitrail.training.model_choice import ModelChoice, ModelRequest, build_model
from vitrail.training.options import Options, resolve
from vitrail.training.pace import LENGTHS, pace_notes
from vitrail.training.plan import Plan, plan_differences
from vitrail.training.planning import (
    check_learns,
    check_plan,
    check_sharding,
    make_plan,
    recipe_notes,
    thread_notes,
    with_final_length,
    with_fitting_batch,
    with_measured_steps,
)
from vitrail.training.preparation import CROP_MARGIN, PreparedData, prepare
from vitrail.training.probing import Stage, probe, start_head
from vitrail.training.processes import Processes, check_processes, current
from vitrail.training.published import Preset
from vitrail.training.run_folder import (
    CONFIG,
    DATA,
    RESULT,
    RunFolder,
    find_run,
    locked,
    make_folder,
    read_json,
    write_json,
    write_text,
)
from vitrail.training.state import has_state
from vitrail.training.tensorboard import check_tensorboard, with_tensorboard

DYING: Final = 3.0  # seconds in which processes end whose launcher was killed


class BestEpoch(NamedTuple):
    """The epoch whose network is kept: the best on validation images."""

    epoch: int
    epochs: int  # that were trained
    metric: str  # by which it was chosen
    score: float

    @classmethod
    def of(cls, plan: Plan, progress: Progress) -> BestEpoch | None:
        """None where nothing was validated."""
        if progress.best is None:
            return None
        metric = "top1" if plan.task == "single-label" else "mean_ap"
        return cls(progress.best_epoch, math.ceil(progress.step / plan.per_epoch), metric, progress.best[0])


@dataclass(frozen=True)
class Run:
    """A finished training: its folder, and what it reached; taken wherever the path of a checkpoint is."""

    folder: Path
    plan: Plan
    best: Path  # the checkpoint to use
    evaluation: Evaluation  # on images it never saw, where there are any
    stages: tuple[Stage, ...]  # what came before: k-NN, probe
    steps: int
    seconds: float  # since it was started, or last went on
    warnings: tuple[str, ...] = ()
    resumed: bool = False
    best_epoch: BestEpoch | None = None
    notes: tuple[str, ...] = ()  # what was found before it started: images that were left out, splits that were made
    lengths: tuple[tuple[int, int], ...] = ()  # where minutes were given: from a step on, it had so many steps

    def __fspath__(self) -> str:
        return str(self.folder)

    def card(self) -> Card:
        """What it says of itself in a REPL and a notebook."""
        evaluation, report = self.evaluation, self.folder / "report.html"
        before = ", ".join(f"{each.name} {percent(each.score.value)}" for each in self.stages)
        best = "" if self.best_epoch is None else f"; best epoch {self.best_epoch.epoch} of {self.best_epoch.epochs}"
        since = " since it went on" if self.resumed else ""
        return Card(
            f"Run: {self.folder}",
            (
                ("data", f"{self.plan.data}: {counted(len(self.plan.classes), 'class')}"),
                ("judged by", f"{counted(len(evaluation), 'image')} ({evaluation.split})"),
                *evaluation.card().rows[:1],
                ("caveat", evaluation.caveat),
                ("before", before),
                ("training", f"{counted(self.steps, 'step')} in {self.seconds:.0f} s{since}{best}"),
                ("warnings", "; ".join((*self.warnings, *self.notes))),
                ("checkpoint", str(self.best)),
                ("report", str(report) if report.is_file() else ""),
            ),
        )

    def __repr__(self) -> str:
        return self.card().as_text()

    def _repr_html_(self) -> str:
        return self.card().as_html()

    def to_dict(self) -> dict[str, Any]:
        """The result for machines."""
        return {
            "run": str(self.folder),
            "best": str(self.best),
            "evaluation": self.evaluation.to_dict(),
            "split": self.evaluation.split,
            "stages": [each._asdict() for each in self.stages],
            "best_epoch": None if self.best_epoch is None else self.best_epoch._asdict(),
            "steps": self.steps,
            "planned_steps": self.plan.steps,
            "lengths": [list(each) for each in self.lengths],
            "seconds": round(self.seconds, 2),
            "resumed": self.resumed,
            "warnings": list(self.warnings),
        }


def run(data: str | os.PathLike[str] | Dataset, options: Options, lengths: str = "") -> Run:
    """The whole way: prepare, plan, train, evaluate, report; `lengths` is the record of them that a rerun repeats."""
    started, processes = time.monotonic(), current()
    check_processes(options.processes)
    if not processes.is_first:  # nobody hears it
        options = replace(options, callbacks=Callbacks(), tensorboard=False)
    log = options.callbacks.log
    if options.tensorboard:
        check_tensorboard()
    if processes.is_first:
        make_folder(Path(options.out))
    preset = resolve(options)
    check_sharding(preset.recipe, options)
    if not options.elsewhere:  # where it goes on, products in fp32 are more exact, not less
        check_precision(preset.recipe.precision, find_device(processes.device(options.device)))
    with processes.first_before_others():
        prepared, choice = prepare_model(data, preset, options)
    for note in (*prepared.notes, *recipe_notes(preset, choice, options), *thread_notes()):
        log(note)
    preset = with_fitting_batch(prepared, choice, preset, options)
    plan = make_plan(prepared, choice, preset, options)
    warnings = check_plan(plan, prepared, options)
    if options.minutes is None:
        for text in warnings:
            log(text)
    manifest = record(prepared.dataset, prepared.entries)
    check_alike(manifest, processes)
    folder, resumes = first_finds_run(prepared, plan, manifest, options, processes)
    with (
        locked(folder, DYING if processes.world > 1 else 0.0) if processes.is_first else nullcontext(),
        ExitStack() as until_the_end,
    ):
        device = find_device(processes.device(options.device))
        config: dict[str, Any] = {}
        if not resumes:
            check_precision(plan.recipe.precision, device)
        else:
            config = processes.broadcast(read_json(folder / CONFIG) if processes.is_first else None)
            plan = Plan.from_dict(config["plan"])
            if plan.virtual_workers and not options.elsewhere:
                until_the_end.enter_context(threads_as(plan.threads))
            if processes.world == 1:
                device = find_again(plan, options.device)
            log(f"going on with {folder}")
            for text in precision_notes(plan.recipe.precision, device):
                log(text)
            if place_of(device, plan) != last_place(config):
                config["elsewhere"] = [*config.get("elsewhere", ()), place_of(device, plan)]
                if processes.is_first:
                    write_json(folder / CONFIG, config)
        with processes.first_before_others():
            parts = make_parts(plan, prepared, options)
        callbacks = with_tensorboard(options.callbacks, folder) if options.tensorboard else options.callbacks
        job = Job(
            plan=plan,
            model=choice.model.to(device),
            train=parts["train"],
            val=parts.get("val"),
            folder=folder,
            threads=options.threads,
            save_seconds=options.save_seconds,
            callbacks=with_log_file(callbacks, folder / "log.txt") if processes.is_first else callbacks,
            processes=processes,
            fixed=options.steps is not None,
        )
        stages: tuple[Stage, ...] = ()
        if choice.start is not None and processes.is_first:  # the others get the head that it leaves
            stages = probe_first(job, choice.start, parts, prepared)
        if prepared.store is not None:
            prepared.store.clear()  # what is needed from here on is held by the parts
        if not resumes:
            if options.device == AUTO and processes.world == 1:
                job = on_faster_device(job)
            job = with_measured_steps(job, options)
            if options.check:
                check_learns(job)
            config = run_record(folder, job.plan, data, options)
            config["environment"] = dict(describe_environment(device_of(job.model), job.plan.recipe))
            if processes.is_first:
                if lengths:
                    write_text(folder / LENGTHS, lengths)
                write_text(folder / DATA, manifest.to_json())
                write_json(folder / CONFIG, config)
        job = replace(job, run_id=config.get("id", ""))  # runs of before had none
        if options.minutes is not None:  # only now is known how long the run is
            warnings = check_plan(job.plan, prepared, options)
            for text in warnings:
                job.callbacks.log(text)
        notes = (*prepared.notes, *moved_note(config))
        for text in notes[len(prepared.notes) :]:
            job.callbacks.log(text)
        progress = fit(job)
        for text in (paced := pace_notes(job.plan, progress.pace)):
            job.callbacks.log(text)
        notes, trained = (*notes, *paced), with_final_length(job, progress)
        if progress.pieces > job.plan.recipe.pieces:
            notes = (*notes, pieces_note(job.model, job.plan.recipe.batch, progress.pieces))
        final = evaluate_best(trained, progress, prepared.dataset, parts.get("test")) if processes.is_first else None
        if options.report and final is not None:
            report = Report(
                title=folder.name,
                command=options.command,
                stages=stages,
                data=count_data(prepared.dataset, prepared.bad),
                environment=describe_environment(device_of(job.model), job.plan.recipe),
                notes=notes,
                warnings=warnings,
            )
            write_everything(trained, final, prepared.dataset, report)
        result = Run(
            folder,
            job.plan,
            folder / "best.safetensors",
            share_evaluation(job, prepared.dataset, final),
            stages,
            progress.step,
            time.monotonic() - started,
            warnings,
            resumes,
            BestEpoch.of(job.plan, progress),
            notes,
            tuple((step, steps) for step, steps in progress.pace.lengths),
        )
        if processes.is_first:
            write_json(folder / RESULT, result.to_dict())
        processes.barrier()  # the run is finished for all of them, or for none
    return result


def check_alike(manifest: Manifest, processes: Processes) -> None:
    """Refuse processes that see other images than the first."""
    digest = hashlib.sha256(manifest.to_json().encode()).hexdigest()
    if processes.broadcast(digest) != digest:
        raise InputError(
            f"the process of rank {processes.rank} sees other images than the first: expected the same files, with the "
            "same contents, under the same paths on every machine"
        )


def first_finds_run(
    prepared: PreparedData, plan: Plan, manifest: Manifest, options: Options, processes: Processes
) -> RunFolder:
    """The folder of the run, made by the first process; the others are told."""
    told = None
    if processes.is_first:
        before = begun_before(Path(options.out), options.name)
        folder, resumes = find_run(
            Path(options.out),
            Path(prepared.dataset.source.removeprefix("vitrail:")).stem or "run",
            name=before or options.name,
            fresh=options.fresh and not before,
            finished=options.finished or bool(before),
            differences=lambda folder: run_differences(folder, plan, manifest, options),
        )
        make_folder(folder)
        told = [str(folder), resumes]
    name, resumes = processes.broadcast(told)
    return RunFolder(Path(name), resumes)


def begun_before(out: Path, name: str) -> str:
    """The name of the run that this very launch has begun, where a launcher starts it again after a kill; else ""."""
    launch = os.environ.get("TORCHELASTIC_RUN_ID")
    if launch is None or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        return ""
    for path in sorted(out.glob(f"*/{CONFIG}")):
        if (not name or path.parent.name == name) and read_json(path).get("launch") == launch:
            return path.parent.name
    return ""


@contextmanager
def threads_as(count: int) -> Iterator[None]:
    """So many threads of torch: those that the bits of a run were begun with."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def run_record(folder: Path, plan: Plan, data: str | os.PathLike[str] | Dataset, options: Options) -> dict[str, Any]:
    """What a run was asked for, and where all that it names lies."""
    start = None if isinstance(options.start, Checkpoint) else options.start
    named = (None if isinstance(data, Dataset) else data, start, options.exclude)
    launched = {"launch": os.environ["TORCHELASTIC_RUN_ID"]} if "TORCHELASTIC_RUN_ID" in os.environ else {}
    return {
        "id": uuid.uuid4().hex,
        "plan": plan.to_dict(),
        "options": options.to_dict(data),
        **record_paths(folder, named),
        **launched,
    }


def prepare_model(
    data: str | os.PathLike[str] | Dataset, preset: Preset, options: Options
) -> tuple[PreparedData, ModelChoice]:
    """The images, each decoded once, and the network that is to learn them."""
    request = ModelRequest.of(preset, options)
    prepared = prepare(
        data,
        options,
        limit=preset.limit,
        crops=preset.recipe.augment.crop is not None,
        expected_preprocess=request.expected_preprocess,
    )
    return prepared, build_model(request, prepared, preset.recipe, options.seed)


def run_differences(folder: Path, plan: Plan, manifest: Manifest, options: Options) -> list[str]:
    """How the run in a folder differs from the one that is wanted."""
    config = read_json(folder / CONFIG)
    before, wanted = Plan.from_dict(config["plan"]).to_dict() | last_place(config), plan.to_dict()
    if before["virtual_workers"] and options.exact is not False:  # whatever the number of processes
        wanted |= {name: before[name] for name in ("virtual_workers", "threads", "processes")}
    elif options.exact is None:
        wanted |= {"virtual_workers": 0, "processes": current().world}
    if options.elsewhere:
        wanted |= {name: before[name] for name in PLACE}
    elif options.device == AUTO and before["device"] in (describe_device(find_device(name)) for name in device_names()):
        wanted["device"] = before["device"]  # it goes on where it was
    measured: tuple[str, ...] = ()  # once, for good
    if options.minutes is not None and before["minutes"] == options.minutes:
        wanted |= {"steps": before["steps"]}
        measured = ("epochs",)
    if options.batch == AUTO and config["options"].get("batch") == AUTO:
        wanted |= {name: before[name] for name in ("steps", "per_epoch")}
        measured = ("epochs", "batch", "pieces")
    wanted["recipe"] |= {name: before["recipe"][name] for name in measured}
    old = Manifest.from_json((folder / DATA).read_text("utf-8"))
    return plan_differences(before, wanted) + differences(old, manifest)


def make_parts(plan: Plan, prepared: PreparedData, options: Options) -> dict[str, Part]:
    """The images of every split, as the network sees them; those to train on with room for crops."""
    parts = {}
    for split in prepared.dataset.splits:
        rows = [row for row, each in enumerate(prepared.dataset.samples) if each.split == split]
        margin = CROP_MARGIN if split == "train" and plan.recipe.augment.crop is not None else 1.0
        part = prepared.dataset.part(split)
        cache = None
        if options.cache is not None:
            cache = (Path(options.cache), prepared.entries.take(rows).hex_digests())
        views = Views(
            part,
            plan.preprocess,
            margin=margin,
            threads=2,
            workers=options.workers,
            store=prepared.store,
            cache=cache,
            digests=prepared.entries.facts.digests[rows],
        )
        parts[split] = Part(views, part.targets(plan.classes))
    return parts


def probe_first(job: Job, start: Checkpoint, parts: dict[str, Part], prepared: PreparedData) -> tuple[Stage, ...]:
    """k-NN and a linear probe, once a run; the head then starts from the probe, or from zeros if the recipe says so."""
    path = job.folder / "stages.json"
    if path.exists():
        rows = read_json(path)["stages"]
        if has_state(job.folder / "state"):
            return tuple(Stage(each["name"], Score(*each["score"]), each["note"]) for each in rows)
    judged = next(split for split in ("test", "val", "train") if split in parts)
    parts = parts | {"train": training_part(job, prepared.dataset, prepared.store)}
    stages, fitted = probe(start, parts, judged)
    start_head(job.model, fitted, job.plan.recipe.head_start)
    for stage in stages:
        job.callbacks.log(f"{stage.name}: {100 * stage.score.value:.1f} % on {judged}")
    write_json(path, {"stages": [each._asdict() for each in stages]})
    return stages


def with_log_file(callbacks: Callbacks, path: Path) -> Callbacks:
    """The same, with what is logged, and every epoch, in a file too, each line with its time."""

    def write(text: str) -> None:
        with suppress(OSError), open(path, "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {text}\n")  # a full disk is told by what matters

    def log(text: str) -> None:
        write(text)
        callbacks.log(text)

    def epoch(row: dict[str, Any]) -> None:
        plain = {name: value for name, value in row.items() if name != "event"}
        write(", ".join(f"{name} {value}" for name, value in plain.items()))
        callbacks.epoch(row)

    return replace(callbacks, log=log, epoch=epoch)
