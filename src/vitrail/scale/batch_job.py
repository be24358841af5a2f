"""A folder of answers: what is to be done, cut into shards; which are done; the proof that each image is there once.

FOLDER/part-00000.parquet ...   the answers, a shard a file, in the order of the images
FOLDER/_images.jsonl            the images, a line each
FOLDER/_job.json                what was asked for: another question is refused
FOLDER/_done.jsonl              a line for each shard that is done, with the digest of its file
FOLDER/_finished.json           written last, when all was read again and found right
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from vitrail.checks import join_limited, short_repr
from vitrail.errors import InputError, VitrailError
from vitrail.files import atomic_write, reason
from vitrail.inference.row_files import read_rows
from vitrail.scale.image_rows import ImageRow

IMAGES: Final = "_images.jsonl"
JOB: Final = "_job.json"
DONE: Final = "_done.jsonl"
FINISHED: Final = "_finished.json"
LOCK: Final = "lock"
OURS: Final = re.compile(r"part-\d{5,}\.(parquet|jsonl)|_(images|done)\.jsonl|_(job|finished)\.json|lock|\..*\.tmp")
BESIDE: Final = re.compile(
    r"_images\.jsonl|_done\.jsonl|lock|\..*\.tmp"
)  # what an end before the first shard may leave


class JobShard(NamedTuple):
    """A piece of a job: so many images, and where their lines stand in IMAGES."""

    number: int
    images: int
    start: int  # bytes
    length: int


class Receipt(NamedTuple):
    """A shard that is done: how many images, how many of them unread, and its file."""

    shard: int
    rows: int
    unread: int
    size: int
    sha256: str
    worker: str  # the machine and process that did it


class Verified(NamedTuple):
    """What was found in all shards."""

    rows: int
    unread: list[tuple[str, str]]  # path, reason
    unlike: int


@dataclass(frozen=True)
class BatchJob:
    """A job in its folder; any process that sees the folder can do a shard of it."""

    folder: Path
    suffix: str
    columns: tuple[str, ...]
    shards: tuple[JobShard, ...]

    def part(self, shard: int) -> Path:
        return self.folder / f"part-{shard:05d}{self.suffix}"

    def receipts(self) -> dict[int, Receipt]:
        """The shards that are done and lie there as they were written; what is torn or changed is not done."""
        done: dict[int, Receipt] = {}
        with suppress(FileNotFoundError), open(self.folder / DONE, encoding="utf-8") as file:
            for line in file:
                with suppress(ValueError, TypeError):  # the last line, where a write was cut short
                    receipt = Receipt(**json.loads(line))
                    done[receipt.shard] = receipt
        numbers = {shard.number: shard.images for shard in self.shards}
        return {
            number: receipt
            for number, receipt in done.items()
            if numbers.get(number) == receipt.rows and self._is_intact(receipt)
        }

    def record(self, receipt: Receipt) -> None:
        """Remember that a shard is done."""
        with open(self.folder / DONE, "ab+") as file:
            file.seek(max(0, file.tell() - 1))
            torn = file.read() not in (b"", b"\n")  # a line that was cut short stays alone
            file.write(b"\n" * torn + json.dumps(receipt._asdict()).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def begin(self, shard: int) -> int:
        """Note that a shard is begun: how often it was before, by workers that died over it."""
        with open(self._tries(shard), "ab") as file:
            file.write(b".")
            return file.tell() - 1

    def end(self, shard: int) -> None:
        self._tries(shard).unlink(missing_ok=True)

    def forget_tries(self) -> None:
        for path in self.folder.glob(".tries-*.tmp"):
            path.unlink(missing_ok=True)

    def _tries(self, shard: int) -> Path:
        return self.folder / f".tries-{shard:05d}.tmp"

    def verify(self) -> Verified:
        """Read all answers again: every image once, in its place, or an error that says what is missing or doubled."""
        done = self.receipts()
        unread: list[tuple[str, str]] = []
        count = unlike = 0
        looked = ("path", "error", *(("unlike",) if "unlike" in self.columns else ()))
        parts = {self.part(shard.number).name for shard in self.shards}
        strangers = sorted(path.name for path in self.folder.glob("part-*") if path.name not in parts)
        if strangers:
            raise VitrailError(
                f"{self.folder}: expected {len(parts):,} shards, found others: {join_limited(strangers)}"
            )
        for shard in self.shards:
            if shard.number not in done:
                part = self.part(shard.number)
                state = "is not as it was written" if part.exists() else "is missing"
                raise VitrailError(f"{part} {state}, with {shard.images:,} images: run the same command again")
            expected = [row.path for row in read_images_of(self.folder, shard)]
            paths: list[str] = []
            for row in read_rows(self.part(shard.number), looked):
                paths.append(row["path"])
                if row["error"] is not None:
                    unread.append((row["path"], row["error"]))
                unlike += bool(row.get("unlike"))
            if paths != expected:
                raise VitrailError(f"{self.part(shard.number)}: {differences(expected, paths)}")
            count += len(paths)
        return Verified(count, unread, unlike)

    def finish(self, verified: Verified) -> None:
        """The last word about a job."""
        result = {"rows": verified.rows, "unread": len(verified.unread), "shards": len(self.shards)}
        _write(self.folder / FINISHED, json.dumps(result, indent=1) + "\n")

    def _is_intact(self, receipt: Receipt) -> bool:
        try:
            path = self.part(receipt.shard)
            return path.stat().st_size == receipt.size and file_digest(path) == receipt.sha256
        except OSError:
            return False


def open_job(
    folder: Path,
    suffix: str,
    columns: tuple[str, ...],
    asked: Mapping[str, Any],
    images: Iterable[ImageRow],
    batch: int = 1,
    shard_size: int | None = None,
    force: bool = False,
) -> BatchJob:
    """The job in a folder: begun there, or gone on with if the very same was asked for. To be called under its lock.

    `force` throws away what a job left there.
    """
    if force:
        _clear(folder)
    for path in folder.glob(".*.tmp"):  # of processes that were killed while they wrote
        path.unlink(missing_ok=True)
    recorded = _recorded(folder)
    listed = folder / f".{IMAGES}.{os.getpid()}.tmp"
    try:
        count, digest = _list(listed, images, texts_only=suffix == ".parquet")
        wanted = {**asked, "format": suffix, "images": count, "list": digest}
        if recorded is None:
            recorded = wanted | {"shard_size": shard_size or usual_size(count, batch)}
            with atomic_write(folder / IMAGES) as temporary:
                listed.replace(temporary)
            _write(folder / JOB, json.dumps(recorded, indent=1) + "\n")
        else:
            _check_same(folder, recorded, wanted, shard_size)
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {reason(error)}") from error
    finally:
        listed.unlink(missing_ok=True)
    return BatchJob(folder, suffix, columns, tuple(_cut(folder / IMAGES, recorded["shard_size"])))


def _list(path: Path, images: Iterable[ImageRow], texts_only: bool) -> tuple[int, str]:
    """Write a line for each image: how many there are, and the digest of all lines."""
    count, digest = 0, hashlib.sha256()
    with open(path, "wb") as file:
        for image in images:
            if texts_only:
                _check_text(image)
            line = json.dumps(image).encode() + b"\n"
            file.write(line)
            digest.update(line)
            count += 1
    if not count:
        raise InputError("no images: expected at least one")
    return count, digest.hexdigest()


def usual_size(images: int, batch: int) -> int:
    """Images in a shard: enough shards to share out, and to lose little when a worker dies; not too many files."""
    wanted = min(16_384, max(256, -(-images // 1000)))
    return -(-wanted // batch) * batch  # in whole batches: each image beside the same others as in one process


def differences(expected: Sequence[str], found: Sequence[str]) -> str:
    """What is wrong with the images of a shard, by name."""
    wanted, there = Counter(expected), Counter(found)
    parts = []
    for word, names in (("missing", wanted - there), ("too many", there - wanted)):
        if names:
            told = join_limited([short_repr(name) for name in names.elements()])
            parts.append(f"{names.total():,} {word}: {told}")
    return "; ".join(parts) or "the images stand in another order"


def read_images_of(folder: Path, shard: JobShard) -> list[ImageRow]:
    """The images of a shard, by its lines."""
    with open(folder / IMAGES, "rb") as file:
        file.seek(shard.start)
        lines = file.read(shard.length).splitlines()
    rows = [ImageRow(*json.loads(line)) for line in lines]
    if len(rows) != shard.images:
        raise InputError(
            f"{folder / IMAGES} was changed: expected {shard.images:,} images from byte {shard.start:,} on"
        )
    return rows


def file_digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _cut(images: Path, size: int) -> Iterator[JobShard]:
    """So many lines a shard."""
    number = start = 0
    with open(images, "rb") as file:
        while lengths := [len(line) for line in islice(file, size)]:
            yield JobShard(number, len(lengths), start, sum(lengths))
            number, start = number + 1, start + sum(lengths)


def _recorded(folder: Path) -> dict[str, Any] | None:
    """What the job there was asked for; None where none was begun."""
    names = {path.name for path in folder.iterdir()}
    if JOB not in names:
        strangers = sorted(name for name in names if not BESIDE.fullmatch(name))
        if strangers:
            raise InputError(
                f"{folder} holds other files ({join_limited(strangers)}): expected a new one, or that of the same job"
            )
        return None
    try:
        recorded = json.loads((folder / JOB).read_text("utf-8"))
        if not isinstance(recorded["shard_size"], int):
            raise ValueError("no size")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{folder / JOB} is damaged ({error}): give another folder, or --force to start anew"
        ) from None
    return dict(recorded)


def _check_same(folder: Path, recorded: Mapping[str, Any], wanted: Mapping[str, Any], shard_size: int | None) -> None:
    """Refuse to go on with something else than was begun."""
    wanted = dict(wanted) | ({"shard_size": shard_size} if shard_size else {})
    words = {"list": "other images, or in another order", "sha256": "other weights"}
    wrong = [
        words.get(name, f"{name}: {short_repr(recorded.get(name))}, now {short_repr(value)}")
        for name, value in wanted.items()
        if recorded.get(name) != value
    ]
    if not wrong:
        if (folder / IMAGES).is_file() and file_digest(folder / IMAGES) == recorded["list"]:
            return
        wrong = [f"{IMAGES} was changed"]
    raise InputError(
        f"{folder} holds another job: {'; '.join(wrong)}. Give the same again to go on, another folder, or --force to "
        "start anew"
    )


def _clear(folder: Path) -> None:
    """Take away what a job left, and nothing else."""
    names = {path.name for path in folder.iterdir()}
    strangers = sorted(name for name in names if not OURS.fullmatch(name))
    if strangers:
        raise InputError(f"{folder} holds other files ({join_limited(strangers)}): give another folder")
    for name in sorted(names - {LOCK}, key=lambda name: name == JOB):  # what says that they are ours goes last
        (folder / name).unlink()


def _check_text(image: ImageRow) -> None:
    try:
        image.path.encode()
    except UnicodeEncodeError:
        raise InputError(f"{image.path!r:.200} is not text, and fits no Parquet file: use FOLDER.jsonl") from None


def _write(path: Path, text: str) -> None:
    try:
        with atomic_write(path) as temporary:
            temporary.write_text(text, "utf-8")
    except OSError as error:
        raise InputError(f"cannot write {path}: {reason(error)}") from error
