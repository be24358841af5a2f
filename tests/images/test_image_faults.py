"""Bad images: bombs, cuts, strangers and mutants end soon, in an ImageError or in the right image."""

from __future__ import annotations

import importlib.util
import io
import os
import pickle
import re
import socket
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import numpy as np
import pytest
from PIL import Image

from effort import at_most
from vitrail.errors import ImageError, InputError
from vitrail.images import DEFAULT_LIMITS, FORMATS, Limits, decode

STRESS = Path(__file__).resolve().parents[2] / "stress" / "image_campaign.py"


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)  # type: ignore[arg-type]
    return file.getvalue()


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(width: int, height: int, bits: int = 1, before: bytes = b"", after: bytes = b"", pixels: bytes = b"") -> bytes:
    header = struct.pack(">IIBBBBB", width, height, bits, 0, 0, 0, 0)
    start = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + before
    return start + chunk(b"IDAT", zlib.compress(pixels)) + after + chunk(b"IEND", b"")


def tiff(entries: list[tuple[int, int, int, int]], following: int = 0, room: int = 0) -> bytes:
    """A little-endian TIFF of one directory: (tag, type, count, value), with room bytes behind it."""
    body = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    return b"II*\0\x08\0\0\0" + struct.pack("<H", len(entries)) + body + struct.pack("<I", following) + bytes(room)


def photo(size: tuple[int, int] = (48, 36)) -> Image.Image:
    values = np.random.default_rng(3).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(values).resize(size, Image.Resampling.BICUBIC)


def refused(source: object, message: str, limits: Limits | None = None) -> None:
    """The source ends in an ImageError that says so."""
    with pytest.raises(ImageError, match=message):
        decode(source, limits=limits or Limits())  # type: ignore[arg-type]


# ---- what decoding costs -----------------------------------------------------------------------------------------

SERVER = """
import os, pickle, resource, sys
sys.path.insert(0, sys.argv[1])
from PIL import Image
from effort import TooMuchWork, at_most
from vitrail.images import decode

Image.init()  # Pillow's plugins are not part of any image's memory


def kilobytes(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name + ":"))


def answer(source, most_calls, limits):
    # A peak begins at what is there now, and a fault may not take the machine's memory with it.
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    limit = 1024 * kilobytes("VmSize") + 2**29
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    before = kilobytes("VmRSS")
    try:
        with at_most(most_calls):
            said = f"decoded {decode(source, limits=limits).size}"
    except (Exception, TooMuchWork) as error:
        said = f"{type(error).__name__}: {error}"
    return said, kilobytes("VmHWM") - before


while True:
    try:
        job = pickle.load(sys.stdin.buffer)
    except EOFError:
        break
    if os.fork() == 0:  # a process of its own, so that nothing is left of those before
        pickle.dump(answer(*job), sys.stdout.buffer)
        sys.stdout.buffer.flush()
        os._exit(0)
    os.wait()
    del job
"""


class Cost(NamedTuple):
    said: str
    kilobytes: int  # at the most, beyond those of the bytes themselves


class Decoder:
    """Decodes in another process, each time a fresh one: its peak of memory is of that image alone."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", SERVER, str(Path(__file__).resolve().parents[1])]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def cost(self, source: bytes | Path, calls: int = 10**6, limits: Limits = DEFAULT_LIMITS) -> Cost:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        pickle.dump((source, calls, limits), self.process.stdin)
        self.process.stdin.flush()
        return Cost(*pickle.load(self.process.stdout))

    def refuses(self, data: bytes, message: str, calls: int) -> None:
        """The bytes end in an ImageError that says so, within so many calls and 100 MB of further memory."""
        said, kilobytes = self.cost(data, calls)
        assert re.match(f"ImageError: .*({message})", said), said
        assert kilobytes < 100_000


@pytest.fixture(scope="module")
def decoder() -> Iterator[Decoder]:
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("memory is measured by way of /proc, which this system has not")
    server = Decoder()
    with server.process:  # closes its pipes, upon which it ends
        yield server


def test_what_takes_200_megabytes_or_many_calls_is_noticed(decoder: Decoder) -> None:
    """The measure itself: of the one image, whatever was decoded before it."""
    small, large = png(8, 8, pixels=bytes(2 * 8)), png(7200, 7200, pixels=bytes(901 * 7200))
    for data, size, least, most in (
        (small, "(8, 8)", 0, 20_000),
        (large, "(7200, 7200)", 200_000, 300_000),
        (small, "(8, 8)", 0, 20_000),
    ):
        said, kilobytes = decoder.cost(data)
        assert said == f"decoded {size}"
        assert least <= kilobytes < most
    assert decoder.cost(small, calls=20).said == "TooMuchWork: more than 20 calls"
    assert (
        decoder.cost(webp_canvas(1600, 1600)).said == "decoded (1600, 1600)"
    )  # the bomb below is sound but for its size


def webp_canvas(width: int, height: int) -> bytes:
    """Two small frames somewhere on a canvas, for which its decoder takes 8 bytes a pixel as it opens them."""
    data = encoded(photo(), "WEBP", save_all=True, append_images=[photo().rotate(180)], duration=20)
    assert data[12:16] == b"VP8X"
    return data[:24] + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little") + data[30:]


WEBP_LIE = b"RIFF\x16\0\0\0WEBPVP8X\x0a\0\0\0\x10\0\0\0" + b"\xff\xff\x00" + b"\xff\xff\x00"
BOMBS = {
    "png 9k": png(9000, 9000, pixels=bytes(1126 * 9000)),
    "png 12k": png(12_000, 12_000),
    "png 20k": png(20_000, 20_000),
    "png 65535": png(65_535, 65_535),
    "png 2**31": png(2**31 - 1, 2**31 - 1),
    "png thin": png(16_000, 1, pixels=bytes(2001)),
    "png long": png(20_000, 300),
    "gif": b"GIF89a" + struct.pack("<HHBBB", 65_535, 65_535, 0, 0, 0) + b"," + bytes(4) + b"\xff\xff\xff\xff\0\x02\0;",
    "bmp": b"BM" + bytes(8) + struct.pack("<IIiiHHIIiiII", 54, 40, 60_000, 60_000, 1, 24, 0, 0, 0, 0, 0, 0),
    "webp": WEBP_LIE,
    "webp frames": webp_canvas(12_000, 12_000),
    "webp lossless": b"RIFF\x20\0\0\0WEBPVP8L\x14\0\0\0\x2f"
    + (0x3FFF | 0x3FFF << 14).to_bytes(4, "little")
    + bytes(20),
    "tiff": tiff(
        [
            (256, 4, 1, 60_000),
            (257, 4, 1, 60_000),
            (258, 3, 1, 8),
            (259, 3, 1, 1),
            (262, 3, 1, 1),
            (273, 4, 1, 8),
            (278, 4, 1, 60_000),
            (279, 4, 1, 10),
        ]
    ),
    "ppm": b"P6 50000 50000 255\n",
    "jpeg": encoded(photo(), "JPEG").replace(struct.pack(">HH", 36, 48), struct.pack(">HH", 65_500, 65_500), 1),
}


@pytest.mark.fault("I2")
@pytest.mark.parametrize("name", BOMBS)
def test_i2_bombs_are_refused_from_the_header(name: str, decoder: Decoder) -> None:
    decoder.refuses(BOMBS[name], "refused", calls=2000)


@pytest.mark.fault("I2")
def test_i2_an_avif_bomb(decoder: Decoder) -> None:
    if "AVIF" not in FORMATS:
        pytest.skip("this Pillow has no AVIF")
    data = encoded(photo(), "AVIF")
    assert data.count(struct.pack(">II", 48, 36)) == 1  # the size box
    lie = data.replace(struct.pack(">II", 48, 36), struct.pack(">II", 16_000, 16_000))
    decoder.refuses(lie, "refused|damaged", calls=2000)


@pytest.mark.fault("I2")
def test_i2_limits_are_the_callers() -> None:
    data = encoded(photo(), "PNG")
    assert decode(data, limits=Limits(pixels=48 * 36, side=48, aspect=48 / 36, file_bytes=len(data))).size == (48, 36)
    for tight, field in (
        (Limits(pixels=48 * 36 - 1), "pixels"),
        (Limits(side=47), "side"),
        (Limits(aspect=1.3), "aspect"),
        (Limits(file_bytes=len(data) - 1), "file_bytes"),
    ):
        refused(data, f"raise Limits.{field}", tight)
    with pytest.raises(InputError, match="Limits.pixels must be positive"):
        Limits(pixels=0)


def many_frames(kind: str) -> bytes:
    """10,000 frames of one small image, built by repeating the encoded second frame."""
    small = [Image.new("RGB", (8, 8), (0, 0, 9 * index)) for index in range(3)]
    data = encoded(small[0], kind, save_all=True, append_images=small[1:], duration=20)
    if kind == "GIF":
        start = data.index(b"\x21\xf9", data.index(b"\x2c"))
        return data[:start] + data[start:-1] * 5000 + b";"
    if kind == "WEBP":
        start = data.index(b"ANMF", data.index(b"ANMF") + 4)
        body = data[:start] + data[start:] * 5000
        return body[:4] + struct.pack("<I", len(body) - 8) + body[8:]
    start = data.index(b"fcTL", data.index(b"IDAT")) - 4
    body = data[:start] + data[start : data.index(b"IEND") - 4] * 5000 + data[data.index(b"IEND") - 4 :]
    at = body.index(b"acTL")
    return body[: at - 4] + chunk(b"acTL", struct.pack(">II", 10_001, 0)) + body[at + 16 :]


@pytest.mark.fault("I3", "I8")
@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_i3_ten_thousand_frames_cost_one(kind: str) -> None:
    data = many_frames(kind)
    with at_most({"PNG": 100_000}.get(kind, 1000)):  # the chunks of a PNG are all weighed
        assert decode(data).getpixel((0, 0)) == (0, 0, 0)


PIXEL = bytes(2)
PACKED = zlib.compress(bytes(64 * 2**20), 9)
HEAVY = {
    "png zTXt": png(1, 1, before=chunk(b"zTXt", b"a\0\0" + PACKED), pixels=PIXEL),
    "png iTXt": png(1, 1, before=chunk(b"iTXt", b"a\0\1\0\0\0" + PACKED), pixels=PIXEL),
    "png iTXt behind": png(1, 1, after=chunk(b"iTXt", b"a\0\1\0\0\0" + PACKED) * 40, pixels=PIXEL),
    "png tEXt": png(1, 1, before=chunk(b"tEXt", b"a\0" + bytes(64 * 2**20)), pixels=PIXEL),
    "png many iCCP": png(1, 1, before=chunk(b"iCCP", b"a\0\0" + PACKED) * 500, pixels=PIXEL),
    "png tiny chunks": png(1, 1, before=chunk(b"abCd", b"") * 100_000, pixels=PIXEL),
    "png tiny IDAT": png(1, 1, before=chunk(b"IDAT", b"") * 100_000, pixels=PIXEL),
    "jpeg padding": b"\xff\xd8" + b"\xff" * 20_000_000,
    "jpeg comments": b"\xff\xd8" + b"\xff\xfe\0\x02" * 5_000_000,
    "jpeg scans": encoded(photo(), "JPEG", progressive=True)[:-2]
    + b"\xff\xda\0\x08\1\1\0\0\x3f\0" * 5000
    + b"\xff\xd9",
    "jpeg tags": b"\xff\xd8\xff\xe1\xff\xf0Exif\0\0" + tiff([(tag, 7, 60_000, 8) for tag in range(1, 5000)], room=5000),
    "gif comments": b"GIF89a\1\0\1\0\0\0\0" + b"\x21\xfe" + (b"\xff" + bytes(255)) * 100_000 + b"\0;",
    "gif junk": b"GIF89a\1\0\1\0\0\0\0" + bytes(20_000_000),
    "ppm comment": b"P6 #" + b"a" * 20_000_000 + b"\n1 1 255\n123",
    "ppm plain": b"P3 1600 1600 255 " + b"7 " * 7_680_000,
    "ppm odd scale": b"P6 3000 3000 100 " + b"7" * 27_000_000,
    "bmp rle": b"BM"
    + bytes(8)
    + struct.pack("<IIiiHHIIiiII", 54, 40, 5000, 5000, 1, 8, 1, 0, 0, 0, 0, 0)
    + b"\1\2" * 3_000_000,
    "tiff tags": tiff(
        [(256, 4, 1, 8), (257, 4, 1, 8)] + [(tag, 7, 500_000, 8) for tag in range(300, 20_000)], room=300_000
    ),
    "tiff inner tags": tiff([(256, 4, 1, 8), (0x8769, 4, 1, 38)], room=0)
    + tiff([(tag, 7, 500_000, 8) for tag in range(300, 20_000)], room=300_000)[8:],
}


@pytest.mark.fault("I3")
@pytest.mark.parametrize("name", HEAVY)
def test_i3_heavy_metadata_is_refused_quickly(name: str, decoder: Decoder) -> None:
    by_pillow = name in ("png zTXt", "png iTXt")
    decoder.refuses(HEAVY[name], "Decompressed data too large" if by_pillow else "refused", calls=300_000)


@pytest.mark.fault("I3")
def test_i3_a_loop_of_tiff_directories_ends_at_the_first_page() -> None:
    data = bytearray(encoded(Image.new("L", (8, 8), 7), "TIFF"))
    (start,) = struct.unpack_from("<I", data, 4)
    (count,) = struct.unpack_from("<H", data, start)
    struct.pack_into("<I", data, start + 2 + 12 * count, start)  # the next directory is this one
    with at_most(2000):
        assert decode(bytes(data)).getpixel((0, 0)) == (7, 7, 7)


CUTS: dict[str, tuple[str, dict[str, object]]] = {
    "jpeg": ("JPEG", {}),
    "jpeg progressive": ("JPEG", {"progressive": True}),
    "png": ("PNG", {}),
    "webp": ("WEBP", {}),
    "webp lossless": ("WEBP", {"lossless": True}),
    "gif": ("GIF", {}),
    "bmp": ("BMP", {}),
    "ppm": ("PPM", {}),
    "tiff": ("TIFF", {}),
    "tiff lzw": ("TIFF", {"compression": "tiff_lzw"}),
}


@pytest.mark.fault("I4")
@pytest.mark.parametrize("name", CUTS)
def test_i4_cut_at_every_byte(name: str) -> None:
    """Every cut is an error; only one behind the last pixel may give the image, and then all of it."""
    kind, options = CUTS[name]
    data = encoded(photo((24, 18)), kind, **options)
    whole = decode(data).tobytes()
    survivors = []
    for end in range(len(data)):
        try:
            assert decode(data[:end]).tobytes() == whole
            survivors.append(end)
        except ImageError:
            pass
    assert len(survivors) <= {"png": 21, "gif": 2}.get(name, 0)
    assert survivors == list(range(len(data) - len(survivors), len(data)))


STRANGERS = {
    "EPS": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n", "EPS"),
    "PSD": (b"8BPS\0\1" + bytes(6) + struct.pack(">HIIHH", 3, 8, 8, 8, 3) + bytes(400), "Photoshop"),
    "FITS": (b"SIMPLE  =                    T".ljust(2880), "FITS"),
    "PDF": (encoded(photo(), "PDF"), "PDF"),
    "SVG": (b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg"/>', "SVG"),
    "ICNS": (encoded(photo((32, 32)), "ICNS"), "Apple icon"),
    "J2K": (encoded(photo(), "JPEG2000"), "JPEG 2000"),
    "ICO": (encoded(photo((32, 32)), "ICO"), "Windows icon"),
    "video": (b"\0\0\0\x18ftypisom" + bytes(40), "a video"),
    "cut HEIC": (b"\0\0\0\x18ftypheic" + bytes(40), "damaged or cut short"),
    "HTML": (b"\n<!DOCTYPE html><html><body>404</body></html>", "web page"),
    "LFS": (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n", "git lfs pull"),
    "JSON": (b'{"error": "not found"}', "text"),
    "text": (b"hello\nworld\n", "text"),
    "zeros": (bytes(5000), "zero bytes"),
    "noise": (bytes(range(128, 256)) * 8, "not known"),
    "zip": (b"PK\3\4" + bytes(30), "zip"),
    "empty": (b"", "empty"),
}


@pytest.mark.fault("I5")
@pytest.mark.parametrize("name", STRANGERS)
def test_i5_other_files_named_jpg_are_refused_and_named(name: str, tmp_path: Path) -> None:
    data, message = STRANGERS[name]
    path = tmp_path / "photo.jpg"
    path.write_bytes(data)
    refused(path, f"photo.jpg: .*{message}")
    refused(data, message)


@pytest.mark.fault("I5")
def test_i5_what_is_no_ordinary_file_is_never_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    refused(tmp_path / "pipe.jpg", "pipe.jpg: a pipe, socket or device")
    refused("/dev/zero", "a pipe, socket or device")
    with socket.socket(socket.AF_UNIX) as listener:
        monkeypatch.chdir(tmp_path)  # the address of a socket may not be long
        listener.bind("s.jpg")
        refused("s.jpg", "a pipe, socket or device")
    refused(tmp_path, "a folder")
    refused(tmp_path / "none.jpg", "none.jpg: no such file")
    refused("https://example.org/a.jpg", "download the image first")
    refused("a\0b.jpg", "cannot be read")
    refused("x" * 5000, "cannot be read")
    refused("", "no such file|folder")
    (tmp_path / "loop.jpg").symlink_to(tmp_path / "loop.jpg")
    refused(tmp_path / "loop.jpg", "cannot be read")


@pytest.mark.fault("I5")
def test_i5_devices_are_never_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even for a moment: a pipe would wait for a writer that never comes."""
    opened: list[object] = []

    def opening(path: object, *given: object) -> None:
        opened.append(path)
        raise OSError("opened")

    os.mkfifo(tmp_path / "pipe.jpg")
    monkeypatch.setattr("builtins.open", opening)
    for path in (tmp_path / "pipe.jpg", Path("/dev/zero"), tmp_path):
        refused(path, "a pipe, socket or device|a folder")
    monkeypatch.undo()
    assert opened == []


@pytest.mark.fault("I2")
def test_i2_no_more_of_a_file_is_read_than_allowed(tmp_path: Path, decoder: Decoder) -> None:
    """A file of 4 GB, all of it a hole, takes no room on the disk; in memory it would."""
    path = tmp_path / "large.png"
    with path.open("wb") as file:
        file.truncate(2**32)
    said, kilobytes = decoder.cost(path, limits=Limits(file_bytes=10**7))
    assert re.match("ImageError: .*refused, larger than 10,000,000 bytes: shrink it, or raise Limits.file_bytes", said)
    assert kilobytes < 100_000


@pytest.mark.fault("I5")
def test_i5_messages_stay_on_one_line_whatever_the_name() -> None:
    for name in ("a\nb.jpg", os.fsdecode(b"\xff\xfe.jpg"), "a\x1b[31m.jpg"):
        with pytest.raises(ImageError) as caught:
            decode(name)
        assert str(caught.value).isprintable()


@pytest.mark.fault("I9")
def test_i9_one_pixel_and_none() -> None:
    assert decode(encoded(Image.new("RGB", (1, 1), (1, 2, 3)), "PNG")).getpixel((0, 0)) == (1, 2, 3)
    assert decode(encoded(Image.new("RGB", (1, 150)), "PNG")).size == (1, 150)
    assert decode(encoded(Image.new("RGB", (150, 1)), "PNG")).size == (150, 1)
    refused(png(0, 5), "no pixels|damaged|not an image")
    refused(Image.new("RGB", (0, 5)), "no pixels")


@pytest.mark.fault("I1")
@pytest.mark.parametrize(
    "error",
    [MemoryError, RecursionError, SyntaxError, EOFError, OverflowError, ZeroDivisionError, struct.error],
)
def test_i1_whatever_a_decoder_raises_becomes_an_image_error(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Image.Image) -> None:
        raise error("oops")

    monkeypatch.setattr("PIL.PngImagePlugin.PngImageFile.load", broken)
    refused(encoded(photo(), "PNG"), "image of .* bytes: (damaged|not enough memory)")


def campaign() -> ModuleType:
    spec = importlib.util.spec_from_file_location("stress_images", STRESS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["stress_images"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.fault("I1")
def test_i1_two_thousand_mutants() -> None:
    """The first 2,000 images of the campaign in stress/image_campaign.py, of at least 12 kinds."""
    stress = campaign()
    images = stress.seed_images()
    assert len(images) >= 12
    assert all(stress.outcome(data) == "decoded" for data in images.values())
    ends = []
    for index in range(2000):
        _, data = stress.image(index, 20, images)
        with at_most(100_000):
            ends.append(stress.outcome(data))
    assert set(ends) == {"decoded", "refused"}
    assert 100 < ends.count("decoded") < 1000  # the mutants are neither harmless nor all dead at the door


@pytest.mark.fault("I3")
@pytest.mark.parametrize("progressive", [False, True])
def test_i3_a_video_behind_a_photo_is_no_bomb(progressive: bool) -> None:
    """Phones append a video to an image; its bytes hold every marker by chance, and none of them counts."""
    image = encoded(photo(), "JPEG", progressive=progressive)
    behind = np.random.default_rng(0).integers(0, 256, 8_000_000, dtype=np.uint8).tobytes()
    assert behind.count(b"\xff\xda") > 64
    for appended in (behind, bytes(2) + b"\xff\xda\0\2" * 1000):  # by chance, and as if they were scans
        assert np.array_equal(np.asarray(decode(image + appended)), np.asarray(decode(image)))
