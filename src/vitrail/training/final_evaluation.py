"""After the last step: calibrate the best network on validation, judge it on the test images, write it all down."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from vitrail.checkpoint import Checkpoint, load, save
from vitrail.checkpoint.devices import device_of
from vitrail.data.augmentation import augment_images
from vitrail.data.cache import Views
from vitrail.data.loader import epoch_order
from vitrail.data.samples import Dataset
from vitrail.data.view_store import ViewStore
from vitrail.errors import MissingExtraError
from vitrail.evaluation.calibration import fit_reject, fit_temperature, fit_thresholds
from vitrail.evaluation.caveats import caveat_of
from vitrail.evaluation.figure_files import write_figures
from vitrail.evaluation.report import Report, build
from vitrail.evaluation.report_files import predictions_table, reduced_image
from vitrail.evaluation.results import Evaluation, Score
from vitrail.evaluation.scoring import evaluation_of, unlike_of
from vitrail.inference import probabilities
from vitrail.reporting.html_page import counted
from vitrail.training.job import Job, Part, Progress
from vitrail.training.ood_fitting import answers_of, fit_ood
from vitrail.training.record import Record, times_of
from vitrail.training.run_folder import write_text
from vitrail.types import Array


class FinalResult(NamedTuple):
    """The checkpoint to use, and how good it is on images it never saw, where there are any."""

    checkpoint: Checkpoint
    evaluation: Evaluation
    validation: Evaluation | None


def evaluate_best(job: Job, progress: Progress, dataset: Dataset, test: Part | None) -> FinalResult:
    """Fit what is fitted on validation, never on test; then measure once on test, or on validation if there is none."""
    best = job.folder / "best.safetensors"
    path = best if progress.best is not None else job.folder / "last.safetensors"
    checkpoint = load(path, device=device_of(job.model))
    validation = None
    if job.val is not None:
        logits, embeddings = answers_of(checkpoint, job.val.views)
        checkpoint = calibrated(checkpoint, logits, job.val.targets)
        ood = fit_ood(job, checkpoint, embeddings, progress.step * job.plan.recipe.batch)
        checkpoint = replace(checkpoint, ood=ood)
        validation = _evaluation(checkpoint, logits, job.val.targets, dataset, "val")
    if test is None and validation is not None:
        judged, evaluation = "val", validation
    else:
        judged, part = ("test", test) if test is not None else ("train", training_part(job, dataset))
        logits, embeddings = answers_of(checkpoint, part.views)
        evaluation = _evaluation(checkpoint, logits, part.targets, dataset, judged)
        if judged == "test" and checkpoint.ood is not None:  # the others set the promise, or were trained on
            evaluation = replace(evaluation, unlike=unlike_of(checkpoint.ood, embeddings))
    metrics = {f"{judged}_{name}": each.value for name, each in evaluation.scores.items() if np.isfinite(each.value)}
    about = replace(checkpoint.provenance, metrics=dict(checkpoint.provenance.metrics) | metrics)
    checkpoint = replace(checkpoint, provenance=about)
    save(checkpoint, best)
    return FinalResult(checkpoint, evaluation, validation)


def share_evaluation(job: Job, dataset: Dataset, final: FinalResult | None) -> Evaluation:
    """The evaluation of the first process, for all."""
    processes = job.processes
    evaluation = None if final is None else final.evaluation
    if evaluation is not None and processes.world == 1:
        return evaluation
    facts, arrays = None, {}
    if final is not None and evaluation is not None:
        thresholds = final.checkpoint.thresholds
        facts = {
            "split": evaluation.split,
            "temperature": evaluation.temperature,
            "thresholds": None if thresholds is None else list(thresholds),
            "reject": evaluation.reject,
            "caveat": evaluation.caveat,
            "names": list(evaluation.names),
        }
        arrays = {"logits": torch.from_numpy(evaluation.logits), "targets": torch.from_numpy(evaluation.targets)}
    facts = processes.broadcast(facts)
    shared = processes.broadcast_tensors(arrays)
    if evaluation is not None:
        return evaluation
    return evaluation_of(
        shared["logits"].numpy(),
        shared["targets"].numpy(),
        classes=job.plan.classes,
        task=job.plan.task,
        source=dataset.source,
        resamples=0,
        **facts,
    )


def training_part(job: Job, dataset: Dataset, store: ViewStore | None = None) -> Part:
    """The training images as predict would see them, without room for crops."""
    if job.plan.recipe.augment.crop is None:
        return job.train
    digests = job.train.views.digests
    views = Views(dataset.part("train"), job.plan.preprocess, threads=2, store=store, digests=digests)
    return Part(views, job.train.targets)


def calibrated(checkpoint: Checkpoint, logits: Array, targets: Array) -> Checkpoint:
    """The same network with temperature, and thresholds or a reject threshold, fitted on these images."""
    temperature = fit_temperature(logits, targets, checkpoint.task)
    known = probabilities(logits, checkpoint.task, temperature)
    if checkpoint.task == "multi-label":
        return replace(checkpoint, temperature=temperature, thresholds=fit_thresholds(known, targets))
    return replace(checkpoint, temperature=temperature, reject=fit_reject(known, targets))


def write_everything(job: Job, final: FinalResult, dataset: Dataset, report: Report) -> None:
    """predictions.csv, figures and report.html of a run; `report` is what it says besides the numbers."""
    folder, evaluation = job.folder, final.evaluation
    write_text(folder / "predictions.csv", predictions_table(evaluation))
    history = [dict(row) for row in Record(folder / "metrics.jsonl").rows()]
    judged = dataset.part(evaluation.split) if evaluation.split in dataset.splits else dataset

    def image(row: int) -> Image.Image:
        return reduced_image(judged.images[row], final.checkpoint.preprocess)

    seen = what_it_sees(job)
    report = replace(
        report,
        summary=_summary(job, final.checkpoint),
        history=history,
        per_epoch=job.plan.per_epoch,
        stages=(*report.stages, _last_stage(job, evaluation)) if report.stages else (),
        times=times_of(folder / "times.jsonl"),
        evaluation=None if evaluation is final.validation else evaluation,
        validation=final.validation,
        images=image,
        seen=seen,
    )
    write_text(folder / "report.html", build(report))
    try:
        write_figures(folder / "figures", history, evaluation, seen, image)
    except MissingExtraError as error:
        job.callbacks.log(f"no figures: {error}")


def _last_stage(job: Job, evaluation: Evaluation) -> tuple[str, Score, str]:
    """What the training itself reached, beside the simpler methods before it."""
    score = evaluation.scores["top1" if evaluation.task == "single-label" else "mean_ap"]
    if job.plan.recipe.tune == "head" or not job.plan.steps:
        return "trained head", score, "only the last layer was trained"
    return "fine-tuned", score, f"the whole network, {counted(job.plan.steps, 'step')}"


def what_it_sees(job: Job, count: int = 18) -> list[tuple[Image.Image, str]]:
    """Training images as the network meets them in its first epoch, augmented, with their labels."""
    plan, part = job.plan, job.train
    rows = epoch_order(plan.seed, 0, len(part.targets))[:count]
    views = part.views.get(rows)
    changed = augment_images(views, plan.preprocess.size, plan.recipe.augment, seed=plan.seed, epoch=0, rows=rows)
    scaled = changed.float() * (255 / plan.preprocess.range)
    images = scaled.clamp(0, 255).byte().permute(0, 2, 3, 1).numpy()
    shown = []
    for array, row in zip(images, rows.tolist(), strict=True):
        image = Image.fromarray(array[:, :, :3] if array.shape[2] >= 3 else array[:, :, 0])
        shown.append((image, _labels(part.targets[row], plan.classes)))
    return shown


def _labels(target: Any, classes: Sequence[str]) -> str:
    if np.ndim(target) == 0:
        return classes[int(target)]
    return ", ".join(name for name, mark in zip(classes, target, strict=True) if mark) or "none"


def _evaluation(checkpoint: Checkpoint, logits: Array, targets: Array, dataset: Dataset, split: str) -> Evaluation:
    return evaluation_of(
        logits,
        targets,
        names=[each.name for each in dataset.part(split).samples],
        classes=checkpoint.classes,
        task=checkpoint.task,
        temperature=checkpoint.temperature,
        thresholds=checkpoint.thresholds,
        reject=checkpoint.reject,
        source=dataset.source,
        split=split,
        caveat=caveat_of(Counter({split: len(targets)})),
    )


def _length(job: Job) -> str:
    recipe = job.plan.recipe
    epochs = "1 epoch" if recipe.epochs == 1 else f"{recipe.epochs:.4g} epochs"
    return f"{counted(job.plan.steps, 'step')} of {counted(recipe.batch, 'image')}, {epochs}"


def _summary(job: Job, checkpoint: Checkpoint) -> list[tuple[str, str]]:
    plan, recipe = job.plan, job.plan.recipe
    config = plan.model
    count = sum(each.numel() for each in job.model.parameters())
    return [
        ("network", f"{config.depth} blocks of width {config.width}, {count:,} parameters"),
        ("starts from", plan.origin or "scratch"),
        ("images", f"{plan.preprocess.size[0]}x{plan.preprocess.size[1]}, resized by {plan.preprocess.resize}"),
        ("training", _length(job)),
        ("optimiser", f"{recipe.optimiser}, rate {recipe.lr:g}, {recipe.schedule}"),
        ("seed", str(plan.seed)),
        ("unlike images", _unlike(checkpoint)),
    ]


def _unlike(checkpoint: Checkpoint) -> str:
    """What answers say of images unlike anything the network was trained on."""
    if checkpoint.ood is None:
        return "not told from those it was trained on"
    most = f"{100 * checkpoint.ood.false_alarms:g} %"
    return f"marked; a false alarm for at most {most} of images like the training ones"
