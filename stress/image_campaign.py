"""Damaged images by the thousand: decode may answer with an image or an ImageError, with nothing else.

python stress/image_campaign.py --count 100000 --seed 0
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import resource
import signal
import struct
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable

import numpy as np
from PIL import Image

from vitrail.errors import ImageError
from vitrail.images import decode

BATCH = 1000  # images a child
MEMORY = 3 * 2**30  # address space of a child
SLOW = 2.0  # seconds an image may take
WALL = 120.0  # seconds a child may take
CPU = 100


def seed_images() -> dict[str, bytes]:
    """One small image of each kind."""
    rng = np.random.default_rng(0)
    colours = np.kron(rng.integers(0, 256, (6, 8, 4), dtype=np.uint8), np.ones((6, 6, 1), np.uint8))
    rgba = Image.fromarray(colours)
    rgb = rgba.convert("RGB")
    exif = Image.Exif()
    exif[0x0112] = 6
    deep = Image.fromarray(colours[:, :, 0].astype(np.uint16) * 257)
    frames = [rgb.rotate(90 * turn) for turn in range(1, 4)]

    def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
        file = io.BytesIO()
        image.save(file, kind, **options)
        return file.getvalue()

    return {
        "jpeg": encoded(rgb, "JPEG", exif=exif),
        "jpeg progressive": encoded(rgb, "JPEG", progressive=True),
        "jpeg cmyk": encoded(rgb.convert("CMYK"), "JPEG"),
        "png": encoded(rgba, "PNG", exif=exif),
        "png palette": encoded(rgb.quantize(16), "PNG", transparency=3),
        "png 16 bit": encoded(deep, "PNG"),
        "apng": encoded(rgb, "PNG", save_all=True, append_images=frames),
        "gif": encoded(rgb, "GIF", save_all=True, append_images=frames),
        "webp": encoded(rgba, "WEBP", exif=exif.tobytes()),
        "webp lossless": encoded(rgb, "WEBP", lossless=True),
        "bmp": encoded(rgb, "BMP"),
        "ppm": encoded(rgb, "PPM"),
        "tiff": encoded(rgba, "TIFF"),
        "tiff lzw": encoded(rgb, "TIFF", compression="tiff_lzw"),
        "tiff deflate": encoded(deep, "TIFF", compression="tiff_deflate"),
        "avif": encoded(rgb, "AVIF", speed=10),
    }


def mutated(data: bytes, chance: random.Random, others: list[bytes]) -> bytes:
    """The bytes with one to four random injuries, most of them near the header."""
    work = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        if work:
            chance.choice(_INJURIES)(work, chance, others)
    if work.startswith(b"\x89PNG") and chance.random() < 0.7:
        _mend_checksums(work)  # else nearly every injury stops at a checksum
    return bytes(work)


def _place(work: bytearray, chance: random.Random) -> int:
    return chance.randrange(min(len(work), 96) if chance.random() < 0.5 else len(work))


def _flip(work: bytearray, chance: random.Random, others: list[bytes]) -> None:
    for _ in range(chance.randint(1, 16)):
        work[_place(work, chance)] ^= 1 << chance.randrange(8)


def _extreme(work: bytearray, chance: random.Random, others: list[bytes]) -> None:
    value = chance.choice((0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x10000, 0x7FFFFFFF, 0xFFFFFFFF))
    packed = struct.pack(chance.choice("<>") + "I", value)
    at, width = _place(work, chance), chance.choice((1, 2, 4))
    work[at : at + width] = packed[:width] if chance.random() < 0.5 else packed[-width:]


def _cut(work: bytearray, chance: random.Random, others: list[bytes]) -> None:
    del work[_place(work, chance) :]


def _drop(work: bytearray, chance: random.Random, others: list[bytes]) -> None:
    at = _place(work, chance)
    del work[at : at + chance.randint(1, 32)]


def _insert(work: bytearray, chance: random.Random, others: list[bytes]) -> None:
    at = _place(work, chance)
    work[at:at] = chance.randbytes(chance.randint(1, 32))


def _repeat(work: bytearray, chance: random.Random, others: list[bytes]) -> None:
    at = _place(work, chance)
    work[at:at] = work[at : at + chance.randint(1, 64)] * chance.randint(1, 20)


def _splice(work: bytearray, chance: random.Random, others: list[bytes]) -> None:
    other = chance.choice(others)
    start = chance.randrange(len(other))
    at = _place(work, chance)
    piece = other[start : start + chance.randint(1, 256)]
    work[at : at + len(piece)] = piece


_INJURIES: tuple[Callable[[bytearray, random.Random, list[bytes]], None], ...] = (
    _flip,
    _extreme,
    _extreme,
    _cut,
    _drop,
    _insert,
    _repeat,
    _splice,
)


def _mend_checksums(work: bytearray) -> None:
    at = 8
    while at + 12 <= len(work):
        (length,) = struct.unpack_from(">I", work, at)
        end = at + 8 + length
        if end + 4 > len(work):
            return
        struct.pack_into(">I", work, end, zlib.crc32(work[at + 4 : end]))
        at = end + 4


def image(index: int, seed: int, images: dict[str, bytes]) -> tuple[str, bytes]:
    """The kind and bytes of mutated image number index: the same for the same seed in any batch."""
    chance = random.Random(f"{seed}:{index}")
    kinds = list(images)
    kind = kinds[index % len(kinds)]
    return kind, mutated(images[kind], chance, list(images.values()))


def outcome(data: bytes) -> str:
    """'decoded' or 'refused', the two good ends; else the name of the exception that escaped."""
    try:
        image = decode(data)
    except ImageError:
        return "refused"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return "decoded" if image.mode == "RGB" and min(image.size) > 0 else f"mode {image.mode}"


def _child(start: int, stop: int, seed: int, images: dict[str, bytes], pipe: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU, CPU))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # libtiff prints its complaints
    counts: Counter[str] = Counter()
    odd: list[str] = []
    slowest = 0.0
    for index in range(start, stop):
        kind, data = image(index, seed, images)
        began = time.perf_counter()
        what = outcome(data)
        seconds = time.perf_counter() - began
        slowest = max(slowest, seconds)
        counts[f"{kind}/{what if what in ('decoded', 'refused') else 'foreign'}"] += 1
        if what not in ("decoded", "refused") or seconds > SLOW:
            counts[f"{kind}/slow"] += seconds > SLOW
            odd.append(f"image {index} ({kind}): {what}, {seconds:.2f} s")
    with os.fdopen(pipe, "w") as file:
        json.dump({"counts": counts, "odd": odd, "slowest": slowest}, file)


def _run(start: int, stop: int, seed: int, images: dict[str, bytes]) -> tuple[int, int]:
    """(process, pipe) of a child that decodes the images start to stop."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            os.close(reading)
            _child(start, stop, seed, images, writing)
        finally:
            os._exit(0)
    os.close(writing)
    return process, reading


def campaign(count: int, seed: int, jobs: int) -> int:
    """Run it, print the table; the number of images or children that ended badly."""
    began = time.perf_counter()
    images = seed_images()
    starts = list(range(0, count, BATCH))[::-1]
    running: dict[int, tuple[int, int, float]] = {}
    counts: Counter[str] = Counter()
    odd: list[str] = []
    slowest, memory = 0.0, 0
    while starts or running:
        while starts and len(running) < jobs:
            start = starts.pop()
            process, pipe = _run(start, min(start + BATCH, count), seed, images)
            running[process] = (start, pipe, time.perf_counter())
        for process, (start, pipe, since) in list(running.items()):
            done, status, usage = os.wait4(process, os.WNOHANG)
            if not done:
                if time.perf_counter() - since > WALL:
                    os.kill(process, signal.SIGKILL)
                continue
            del running[process]
            with os.fdopen(pipe) as file:
                answer = file.read()
            memory = max(memory, usage.ru_maxrss)
            if os.WIFSIGNALED(status) or not answer:
                odd.append(f"images {start} to {start + BATCH}: child died, status {status}")
                continue
            result = json.loads(answer)
            counts.update(result["counts"])
            odd += result["odd"]
            slowest = max(slowest, result["slowest"])
        time.sleep(0.02)
    seconds = time.perf_counter() - began
    columns = ("decoded", "refused", "foreign", "slow")
    print(f"{'kind':18}" + "".join(f"{name:>9}" for name in columns))
    for kind in images:
        print(f"{kind:18}" + "".join(f"{counts[kind + '/' + name]:9,}" for name in columns))
    totals = {name: sum(counts[f"{kind}/{name}"] for kind in images) for name in columns}
    print(f"{'all':18}" + "".join(f"{totals[name]:9,}" for name in columns))
    print(f"seed {seed}, {seconds:.0f} s, slowest image {slowest:.2f} s, largest child {memory / 1024:.0f} MB")
    print(*odd[:50], sep="\n")
    return len(odd)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--count", type=int, default=100_000)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--jobs", type=int, default=2)
    chosen = options.parse_args()
    sys.exit(1 if campaign(chosen.count, chosen.seed, chosen.jobs) else 0)


if __name__ == "__main__":
    main()
