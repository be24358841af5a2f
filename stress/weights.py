"""Damaged files of weights by the thousand: they open and read, or end in a VitrailError, in nothing else.

python stress/weights.py --count 100000 --seed 0

One run of this command, on one core: 7,978 read, 92,022 refused, no other end, 86 s; the slowest file took 0.03 s, the
memory of a child grew by at most 13 MB. With --seed 1: 8,005 read, 91,995 refused, no other end; with --seed 2: 7,945
read, 92,055 refused, no other end, 73 s, slowest 0.014 s, growth at most 12 MB.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import pickletools
import random
import resource
import struct
import sys
import tempfile
import time
import zipfile
from argparse import Namespace
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from image_campaign import mutated  # beside this file
from safetensors.torch import save as to_safetensors

from vitrail.errors import VitrailError
from vitrail.weights.reading.weight_files import open_contents

BATCH = 1000  # files a child
MEMORY = 4 * 2**30  # address space of a child
GROWTH = 200  # MB that a child may grow by
SLOW = 1.0  # seconds a file may take
CPU = 100  # seconds a child may take
STEPS = bytes(ord(each.code) for each in pickletools.opcodes)


class Seed(NamedTuple):
    """A sound file, its inner piece that steers the reading, and how to put another such piece in."""

    data: bytes
    inner: bytes
    around: Callable[[bytes], bytes]


def seed_files() -> dict[str, Seed]:
    """One small file of each kind, and of each way that kind is written."""
    rng = torch.Generator().manual_seed(0)
    rows = torch.randn(6, 4, generator=rng)
    tensors = {
        "patch_embed.proj.weight": torch.randn(4, 3, 2, 2, generator=rng),
        "norm.weight": torch.ones(4),
        "norm.bias": torch.zeros(4, dtype=torch.float16),
        "head.weight": rows,
        "mask": torch.tensor([True, False]),
        "steps": torch.tensor(7),
    }
    network = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.LayerNorm(3))
    training = {
        "model": {f"module.{name}": value for name, value in network.state_dict().items()},
        "teacher": {f"backbone.{name}": value for name, value in tensors.items()} | {"head.last": rows.t()},
        "optimizer": {"state": {0: {"step": 3.0, "exp_avg": rows[1:3]}}, "param_groups": [{"lr": 1e-3, "params": [0]}]},
        "args": Namespace(lr=0.1, sizes=[224, 384], name="vit"),
        "best": np.float64(0.5),
        "epoch": 300,
    }
    arrays = {name.replace(".", "/"): value.numpy() for name, value in tensors.items()}
    arrays["columns"] = np.asfortranarray(rows.numpy())

    def saved(values: object, **options: object) -> bytes:
        file = io.BytesIO()
        torch.save(values, file, **options)
        return file.getvalue()

    def packed(save: Callable[..., None]) -> bytes:
        file = io.BytesIO()
        save(file, **arrays)
        return file.getvalue()

    safetensors = to_safetensors(tensors, {"format": "pt"})
    length = int.from_bytes(safetensors[:8], "little")
    old = saved(training, _use_new_zipfile_serialization=False)
    start, end = _values_of(old)
    plain, nested = saved(tensors), saved(training, pickle_protocol=4)
    stored, deflated = packed(np.savez), packed(np.savez_compressed)
    return {
        "safetensors": Seed(
            safetensors,
            safetensors[8 : 8 + length],
            lambda piece: struct.pack("<Q", len(piece)) + piece + safetensors[8 + length :],
        ),
        "pt": Seed(plain, *_member(plain, "archive/data.pkl")),
        "pt training": Seed(nested, *_member(nested, "archive/data.pkl")),
        "pt legacy": Seed(old, old[start:end], lambda piece: old[:start] + piece + old[end:]),
        "npz": Seed(stored, *_member(stored, "head/weight.npy")),
        "npz deflated": Seed(deflated, *_member(deflated, "columns.npy", zipfile.ZIP_DEFLATED)),
    }


def _values_of(old: bytes) -> tuple[int, int]:
    """Where the pickle of the values lies in a file of torch's older format."""
    file, places = io.BytesIO(old), []
    for _ in range(4):
        places.append(file.tell())
        for _ in pickletools.genops(file):
            pass
    return places[3], file.tell()


def _member(archive: bytes, name: str, method: int = zipfile.ZIP_STORED) -> tuple[bytes, Callable[[bytes], bytes]]:
    """A member of an archive, and the archive with another in its place, every checksum right."""
    with zipfile.ZipFile(io.BytesIO(archive)) as source:
        members = {each: source.read(each) for each in source.namelist()}

    def around(piece: bytes) -> bytes:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", method) as target:
            for each, data in members.items():
                target.writestr(zipfile.ZipInfo(each), piece if each == name else data, method)
        return file.getvalue()

    return members[name], around


def damaged(index: int, seed: int, seeds: dict[str, Seed]) -> tuple[str, bytes]:
    """The kind and bytes of damaged file number index: the same for the same seed in any batch."""
    chance = random.Random(f"{seed}:{index}")
    kinds = list(seeds)
    kind = kinds[index % len(kinds)]
    file = seeds[kind]
    how = chance.random()
    if how < 0.5:  # the piece that steers is scratched or damaged, and all around it is right
        return kind, file.around(scratched(file.inner, chance))
    if how < 0.75:
        return kind, file.around(mutated(file.inner, chance, [each.inner for each in seeds.values()]))
    return kind, mutated(file.data, chance, [each.data for each in seeds.values()])


def scratched(data: bytes, chance: random.Random) -> bytes:
    """The bytes with one to three of them changed: what is nearly right gets furthest."""
    work = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(work))
        step = (work[at] + chance.choice((-1, 1))) % 256
        work[at] = chance.choice(
            (step, work[at] ^ 1 << chance.randrange(8), chance.choice(STEPS), chance.randrange(256))
        )
    return bytes(work)


def outcome(path: Path) -> str:
    """'read' or 'refused', the two good ends; else what escaped, or what was wrong with the answer."""
    try:
        for stored in open_contents(path).tensors.values():
            tensor = stored.read()
            if tuple(tensor.shape) != stored.shape or tensor.dtype != stored.dtype:
                return "another tensor than promised"
    except VitrailError:
        return "refused"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return "read"


def _child(start: int, stop: int, seed: int, seeds: dict[str, Seed], folder: Path, pipe: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU, CPU))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    counts: Counter[str] = Counter()
    odd: list[str] = []
    slowest = 0.0
    path = folder / "weights"
    for index in range(start, stop):
        kind, data = damaged(index, seed, seeds)
        path.write_bytes(data)
        began = time.perf_counter()
        what = outcome(path)
        seconds = time.perf_counter() - began
        slowest = max(slowest, seconds)
        counts[f"{kind}/{what if what in ('read', 'refused') else 'foreign'}"] += 1
        if what not in ("read", "refused") or seconds > SLOW:
            counts[f"{kind}/slow"] += seconds > SLOW
            odd.append(f"file {index} ({kind}): {what}, {seconds:.2f} s")
    growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    if growth > GROWTH:
        odd.append(f"files {start} to {stop}: grew by {growth:.0f} MB")
    with os.fdopen(pipe, "w") as file:
        json.dump({"counts": counts, "odd": odd, "slowest": slowest, "growth": growth}, file)


def batch(start: int, stop: int, seed: int, seeds: dict[str, Seed], folder: Path) -> dict[str, object] | None:
    """What a child found in the files start to stop; None if it died."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            os.close(reading)
            _child(start, stop, seed, seeds, folder, writing)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        answer = file.read()
    _, status = os.waitpid(process, 0)
    return json.loads(answer) if answer and not os.WIFSIGNALED(status) else None


def campaign(count: int, seed: int) -> int:
    """Run it, print the table; the number of files or children that ended badly."""
    began = time.perf_counter()
    seeds = seed_files()
    counts: Counter[str] = Counter()
    odd: list[str] = []
    slowest = growth = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for start in range(0, count, BATCH):
            result = batch(start, min(start + BATCH, count), seed, seeds, Path(folder))
            if result is None:
                odd.append(f"files {start} to {start + BATCH}: child died")
                continue
            counts.update(result["counts"])
            odd += result["odd"]
            slowest, growth = max(slowest, result["slowest"]), max(growth, result["growth"])
    columns = ("read", "refused", "foreign", "slow")
    print(f"{'kind':14}" + "".join(f"{name:>9}" for name in columns))
    for kind in (*seeds, "all"):
        totals = [sum(counts[f"{each}/{name}"] for each in seeds if kind in (each, "all")) for name in columns]
        print(f"{kind:14}" + "".join(f"{each:9,}" for each in totals))
    seconds = time.perf_counter() - began
    print(f"seed {seed}, {seconds:.0f} s, slowest file {slowest:.3f} s, largest growth of a child {growth:.0f} MB")
    print(*odd[:50], sep="\n")
    return len(odd)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--count", type=int, default=100_000)
    options.add_argument("--seed", type=int, default=0)
    chosen = options.parse_args()
    torch.set_num_threads(1)
    sys.exit(1 if campaign(chosen.count, chosen.seed) else 0)


if __name__ == "__main__":
    main()
