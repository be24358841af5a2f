"""predict_many and embed_many: a network and any number of images -> a folder of answers, by workers of Ray.

The images are cut into shards. A worker writes each as a file of its own, so that whatever ends, what is done is done;
the same call goes on with the rest. At the end all is read again: every image once, or an error that names it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from vitrail import errors
from vitrail.checks import check_int, join_limited
from vitrail.cores import usable_cores
from vitrail.errors import InputError, VitrailError, first_line
from vitrail.files import is_name, path_text
from vitrail.inference import FoundImages, Runtime
from vitrail.inference.row_files import JSON_LINES, PARQUET, import_arrow
from vitrail.progress import counting
from vitrail.scale.batch_job import BatchJob, Receipt, open_job
from vitrail.scale.batch_worker import ModelSource, Question, ShardWorker, Task
from vitrail.scale.image_rows import list_images
from vitrail.scale.ray_cluster import open_cluster
from vitrail.training.run_folder import locked, make_folder
from vitrail.types import ProgressCallback

DEVICES: Final = ("auto", "cpu", "cuda")
Data: TypeAlias = "str | os.PathLike[str] | Sequence[str | os.PathLike[str]]"
Bar: TypeAlias = "Callable[[int], AbstractContextManager[ProgressCallback | None]]"


class BatchReport(NamedTuple):
    """What a job left in its folder."""

    folder: Path
    rows: int
    shards: int
    unread: tuple[tuple[str, str], ...]  # path, reason; their rows stand among the others
    unlike: int  # images unlike anything the network was trained on, as far as anybody looked
    files: FoundImages  # what was found in folders, and passed over
    computed: int  # shards of this call; the others were there


def predict_many(
    checkpoint: str | os.PathLike[str],
    data: Data,
    out: str | os.PathLike[str],
    *,
    top: int = 5,
    threshold: float = 0.0,
    decline: bool = False,
    trust: bool = False,
    **options: Any,
) -> BatchReport:
    """What is on every image: rows as `vitrail predict --out FILE.parquet` writes them, in shards.

    - checkpoint: the path or name of a network, which every worker can open.
    - data: folders, patterns, files; a .csv with a column path; a .parquet with a column of image bytes or of paths.
    - out: a folder for the answers, of .parquet files, or of .jsonl where its name ends so.
    - top, threshold, decline, trust: as for `vitrail predict`.
    - options: those of `run_batch_job`.
    """
    check_int("top", top, error=InputError)
    return run_batch_job(checkpoint, data, out, Question("predict", top, threshold, decline, trust), **options)


def embed_many(
    checkpoint: str | os.PathLike[str], data: Data, out: str | os.PathLike[str], **options: Any
) -> BatchReport:
    """The embedding of every image: rows as `vitrail embed --out FILE.parquet` writes them, in shards.

    - checkpoint, data, out, options: as for `predict_many`.
    """
    return run_batch_job(checkpoint, data, out, Question("embed"), **options)


def run_batch_job(
    checkpoint: str | os.PathLike[str],
    data: Data,
    out: str | os.PathLike[str],
    question: Question,
    *,
    workers: int | None = None,
    threads: int = 1,
    batch: int = 16,
    shard_size: int | None = None,
    address: str = "",
    force: bool = False,
    runtime: str = "",
    override: Mapping[str, Any] | None = None,
    leave_out: Sequence[str] = (),
    scaled_decoding: bool = False,
    device: str = "auto",
    done: ProgressCallback | None = None,
    progress: bool | None = None,
    opened: Runtime | None = None,
    bar: Bar | None = None,
) -> BatchReport:
    """Ask a question of any number of images.

    - workers: processes with a network each; None: as many as the CPUs allow.
    - threads: of each worker.
    - batch: images computed at once.
    - shard_size: images in a file of answers, in whole batches; None: by their number.
    - address: of a Ray cluster; "": a cluster of this machine, for as long as it takes.
    - force: throw away what a job left in the folder.
    - runtime, override, leave_out, scaled_decoding: how the network is opened.
    - device: where workers compute: "cpu", "cuda" (a GPU of its own for each), "auto": GPUs where the cluster has some.
    - done, progress: as for `vitrail.predict`.
    - opened: the network, where the caller has opened it already.
    - bar: what shows progress for so many images, in the place of `progress`.
    """
    for name, value in (("workers", workers), ("shard_size", shard_size)):
        if value is not None:
            check_int(name, value, error=InputError)
    check_int("threads", threads, 1, 256, error=InputError)
    check_int("batch", batch, error=InputError)
    if device not in DEVICES:
        raise InputError(f"device: expected {', '.join(DEVICES)}, since Ray hands out what it has; got {device!r:.40}")
    if shard_size is not None and shard_size % batch:
        # Else an image would be computed beside others than in one process, which shows in the last digits.
        raise InputError(f"shard_size: expected whole batches of {batch}, got {shard_size}")
    folder = Path(os.path.abspath(out))
    suffix = JSON_LINES if folder.suffix == JSON_LINES else PARQUET
    if suffix == PARQUET:
        import_arrow()
    text = path_text(checkpoint)
    path = text if is_name(text) else os.path.abspath(text)
    model = ModelSource(path, runtime, tuple(sorted((override or {}).items())), tuple(leave_out), scaled_decoding)
    sha256 = model.digest()
    question.maker(opened or model.open())  # what is wrong with the network is told before any worker starts
    images = list_images([data] if isinstance(data, str | os.PathLike) else data)
    asked = {**asdict(question), **asdict(model), "path": text, "sha256": sha256, "batch": batch}
    if folder.is_file():
        raise InputError(f"{out} is a file: expected a folder for shards, new, or of the same job")
    make_folder(folder)
    with locked(folder, doing="filled", instead="give another --out"):
        asked = json.loads(json.dumps(asked))  # as it is read back
        job = open_job(folder, suffix, question.columns, asked, images.rows, batch, shard_size, force)
        job.forget_tries()
        receipts = job.receipts()
        missing = [shard.number for shard in job.shards if shard.number not in receipts]
        count = sum(shard.images for shard in job.shards)
        with bar(count) if bar is not None else counting(done, progress, count) as told:
            if told is not None:
                told(sum(receipt.rows for receipt in receipts.values()))
            if missing:
                task = Task(job, model, sha256, question, batch, threads)
                if not address:
                    workers = workers or max(1, usable_cores().threads // threads)
                with open_cluster(address, threads * (workers or 1)) as ray:
                    for receipt in _receipts(ray, replace(task, device=_placed(ray, device)), missing, workers):
                        job.record(receipt)
                        if told is not None:
                            told(receipt.rows)
        verified = job.verify()
        job.finish(verified)
    unread = tuple(verified.unread)
    return BatchReport(Path(out), verified.rows, len(job.shards), unread, verified.unlike, images.files, len(missing))


def _receipts(ray: Any, task: Task, missing: Sequence[int], workers: int | None) -> Iterator[Receipt]:
    """Each of these shards, when it is done, in whatever order."""
    gpus = int(task.device == "cuda")
    pool = min(_pool(ray, task.threads, gpus, workers), len(missing))
    context = ray.data.DataContext.get_current().copy()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    with ray.data.DataContext.current(context):
        shards = ray.data.from_items([{"shard": number} for number in missing], override_num_blocks=len(missing))
        words = shards.map_batches(
            ShardWorker,
            fn_constructor_args=(task,),
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=pool),
            num_cpus=task.threads,
            num_gpus=gpus or None,
        )
        try:
            for row in words.iter_rows():
                word = json.loads(row["said"])
                if "error" in word:
                    kind = getattr(errors, word["kind"], VitrailError)
                    raise kind(word["error"])
                yield Receipt(**word["receipt"])
        except ray.exceptions.RayError as error:
            raise VitrailError(_died(task.job, error)) from error


def _placed(ray: Any, device: str) -> str:
    """Where each worker computes."""
    if device == "auto":
        return "cuda" if any(_room(ray, "GPU")) else "cpu"
    return device


def _room(ray: Any, kind: str) -> list[int]:
    """How much of a kind each machine has."""
    return [int(node["Resources"].get(kind, 0)) for node in ray.nodes() if node["Alive"]]


def _pool(ray: Any, threads: int, gpus: int, workers: int | None) -> int:
    """How many workers there are room for."""
    cpus = _room(ray, "CPU")
    by_cpus = [count // threads for count in cpus]
    if not sum(by_cpus):
        raise InputError(
            f"no machine of the Ray cluster has {threads} CPUs ({join_limited([str(count) for count in cpus])}): use "
            "fewer threads"
        )
    room = sum(map(min, by_cpus, _room(ray, "GPU"))) if gpus else sum(by_cpus)
    if not room:
        raise InputError("no machine of the Ray cluster has a GPU that it knows of: use --device cpu")
    return min(workers or room, room)


def _died(job: BatchJob, error: BaseException) -> str:
    left = [shard for shard in job.shards if shard.number not in job.receipts()]
    names = join_limited([job.part(shard.number).name for shard in left], ", ")
    return (
        f"Ray gave up ({first_line(error)}); {len(left):,} of {len(job.shards):,} shards are left: {names}. The same "
        "command goes on with them; VITRAIL_DEBUG=1 shows what Ray says"
    )
