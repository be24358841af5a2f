"""A job and the rows of its steps -> batches: the whole ones, or the part of each that falls to this process."""

from __future__ import annotations

from collections.abc import Generator, Iterable

from vitrail.checkpoint.devices import device_of
from vitrail.data.loader import Batch, BatchRows, batches
from vitrail.training.job import Job
from vitrail.training.virtual_workers import places_of, share_of


def is_shared(job: Job) -> bool:
    """Whether gradients are added over parts of a batch, of this process alone or of several."""
    return job.plan.virtual_workers > 0 or job.processes.world > 1


def own_rows(job: Job, batch: BatchRows) -> BatchRows:
    """Of the images of a step those that this process learns from."""
    if not is_shared(job):
        return batch
    workers = job.plan.virtual_workers or job.processes.world
    own = places_of(len(batch.rows), workers, share_of(workers, job.processes))
    return batch._replace(rows=batch.rows[own], repeats=None if batch.repeats is None else batch.repeats[own])


def job_batches(job: Job, rows: Iterable[BatchRows]) -> Generator[Batch, None, None]:
    """The batches of these rows, as the job's plan makes them of its training images."""
    plan = job.plan
    return batches(
        job.train.views,
        job.train.targets,
        rows,
        preprocess=plan.preprocess,
        augment=plan.recipe.augment,
        seed=plan.seed,
        classes=len(plan.classes),
        smoothing=plan.recipe.smoothing,
        threads=job.threads,
        device=device_of(job.model),
    )
