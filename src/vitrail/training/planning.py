"""Options, images and a network -> Plan, checked against what is known to go wrong before anything is trained."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from vitrail import __version__
from vitrail.checkpoint import content_hash
from vitrail.checkpoint.devices import AUTO, describe_device, find_device
from vitrail.checks import join_limited
from vitrail.cores import usable_cores
from vitrail.errors import InputError
from vitrail.reporting.html_page import counted
from vitrail.training.autotune import measure_speed, overfits, steps_for
from vitrail.training.batch_size import fitting_batch
from vitrail.training.job import Job, Progress
from vitrail.training.model_choice import ENDS, ModelChoice
from vitrail.training.options import Options
from vitrail.training.plan import Plan
from vitrail.training.preparation import PreparedData
from vitrail.training.processes import ALONE, current
from vitrail.training.published import Preset
from vitrail.training.recipe import Recipe
from vitrail.training.recipe_lint import Finding, lint
from vitrail.training.virtual_workers import virtual_workers_of

LONG: int = 500  # steps from which a run is long enough to be tried on one batch first


def make_plan(prepared: PreparedData, choice: ModelChoice, preset: Preset, options: Options) -> Plan:
    """Everything that the result depends on, settled."""
    dataset, recipe = prepared.dataset, preset.recipe
    per_epoch = max(1, len(dataset.part("train")) // recipe.batch)
    steps = preset.steps or math.ceil(recipe.epochs * per_epoch)
    origin = choice.origin
    if choice.start is not None:
        origin += f" ({content_hash({}, choice.start.model.state_dict())[:23]})"
    workers = virtual_workers_of(choice.model, False if options.shard else options.exact, current().world)
    return Plan(
        data=dataset.source,
        classes=dataset.classes,
        task=dataset.task,
        model=choice.model.config,
        preprocess=choice.preprocess,
        recipe=with_steps(recipe, steps, per_epoch),
        steps=steps,
        per_epoch=per_epoch,
        seed=options.seed,
        threads=torch.get_num_threads(),
        origin=origin,
        minutes=options.minutes,
        versions={"vitrail": __version__, "torch": torch.__version__},  # that the bits of a result depend on
        device=describe_device(find_device(current().device(options.device))),
        virtual_workers=workers,
        shard=options.shard,
        processes=1 if workers else current().world,
    )


def check_sharding(recipe: Recipe, options: Options) -> None:
    """Refuse what cannot be had of a network in parts."""
    reasons = {
        "--exact": (bool(options.exact), "adds the gradients of whole networks: leave one of them out"),
        "--minutes": (options.minutes is not None, "tries steps of a whole network first: give --epochs"),
        "--batch auto": (options.batch == AUTO, "tries steps of a whole network first: give a number"),
        "--compile": (recipe.compile, "compiles a whole network: leave it out"),
    }
    for flag, (is_given, why) in reasons.items():
        if options.shard and is_given:
            raise InputError(f"--shard leaves to each process a part of the network, and {flag} {why}")


def with_steps(recipe: Recipe, steps: int, per_epoch: int) -> Recipe:
    """The recipe with its length in epochs set to so many steps."""
    return replace(recipe, epochs=steps / per_epoch)


def with_fitting_batch(prepared: PreparedData, choice: ModelChoice, preset: Preset, options: Options) -> Preset:
    """The recipe with as many images a step as memory holds, where that was asked for; told with what follows."""
    if options.batch != AUTO:
        return preset
    plan = make_plan(prepared, choice, preset, options)
    images = len(prepared.dataset.part("train"))
    found = current().broadcast(fitting_batch(choice.model, plan, images, find_device(options.device))._asdict())
    options.callbacks.log(found["note"])
    pieces = min(preset.recipe.pieces, found["batch"])
    return replace(preset, recipe=replace(preset.recipe, batch=found["batch"], pieces=pieces))


def recipe_notes(preset: Preset, choice: ModelChoice, options: Options) -> list[str]:
    """What a recipe makes of the network it starts from, and what it leaves as it is, in words."""
    notes = [choice.note] if choice.note else []
    if choice.start is None:
        return notes
    config = choice.model.config
    if options.size is None and preset.size:
        notes.append(f"images of {preset.size}x{preset.size}, as the recipe says: --size gives another")
    others = {name: value for name, value in preset.changes.items() if name not in ENDS}
    apart = [f"{name} {getattr(config, name)}" for name, value in others.items() if getattr(config, name) != value]
    if apart:
        notes.append(
            f"the network is that of the checkpoint, where the recipe was made for another: {join_limited(apart)}"
        )
    return notes


def thread_notes() -> list[str]:
    """That torch has more threads than there are cores for them, in words: they are the caller's to choose."""
    cores, threads = usable_cores(), torch.get_num_threads()
    if threads <= cores.threads:
        return []
    return [
        f"torch computes with {threads} threads, and this process has cores for {cores.threads} ({cores}): "
        f"torch.set_num_threads({cores.threads}) before it starts, or OMP_NUM_THREADS={cores.threads}, may be faster"
    ]


def lint_plan(plan: Plan, prepared: PreparedData) -> tuple[Finding, ...]:
    """What the linter says of a plan."""
    return tuple(
        lint(
            plan.model,
            plan.recipe,
            images=len(prepared.dataset.part("train")),
            classes=len(plan.classes),
            size=plan.preprocess.size,
            pretrained=bool(plan.origin),
            sizes=[(each.height, each.width) for each in prepared.entries],
            names=plan.classes,
            minutes=plan.minutes,
            device=plan.device,
        )
    )


def check_plan(plan: Plan, prepared: PreparedData, options: Options) -> tuple[str, ...]:
    """What is known against a plan, in words; what is known to fail is refused."""
    findings = lint_plan(plan, prepared)
    errors = [each.message for each in findings if each.level == "error"]
    if errors and options.check:
        raise InputError(f"this recipe is known to fail: {join_limited(errors)}")
    return tuple(f"{each.level}: {each.message}" for each in findings)


def with_measured_steps(job: Job, options: Options) -> Job:
    """The job with its number of steps fixed by the speed of this machine, where minutes were given."""
    if options.minutes is None or options.steps is not None:
        return job
    speed = measure_speed(job)
    steps = job.processes.broadcast(
        steps_for(options.minutes, speed, job.plan.per_epoch) if job.processes.is_first else 0
    )
    fit = "fits" if steps == 1 else "fit"
    job.callbacks.log(f"{counted(steps, 'step')} {fit} {options.minutes:g} minute{'' if options.minutes == 1 else 's'}")
    recipe = with_steps(job.plan.recipe, steps, job.plan.per_epoch)
    return replace(job, plan=replace(job.plan, steps=steps, recipe=recipe), speed=speed)


def with_final_length(job: Job, progress: Progress) -> Job:
    """The job as it was carried out: with the steps that minutes have made of those that were planned."""
    if not progress.pace.lengths:
        return job
    steps = progress.pace.lengths[-1][1]
    recipe = with_steps(job.plan.recipe, steps, job.plan.per_epoch)
    return replace(job, plan=replace(job.plan, steps=steps, recipe=recipe))


def check_learns(job: Job) -> None:
    """Before a long run: can it learn at all? The first process tries it."""
    if not job.processes.is_first or job.is_sharded:  # a trial would need a whole network
        return
    job = replace(job, processes=ALONE, plan=replace(job.plan, virtual_workers=0))
    if job.plan.steps >= LONG and job.plan.recipe.tune == "all" and not overfits(job):
        raise InputError(
            "the network cannot learn 16 images by heart in 40 steps: the labels, the images or the rate are "
            "wrong; try --find-lr, and look at the data with `vitrail audit`"
        )
