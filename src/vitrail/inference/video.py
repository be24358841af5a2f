"""frames: a video, an animation, a camera or a stream of JPEGs in; upright RGB images out, one at a time.

Pillow alone reads GIF, WebP, APNG, multi-page TIFF and still images; PyAV, an extra, reads videos, cameras and
streams of JPEGs (MJPEG).
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol, TypeAlias

from PIL import Image

from vitrail.checks import check_int
from vitrail.errors import ImageError, InputError, MissingExtraError
from vitrail.images.decoding import DEFAULT_LIMITS, Limits, check_size, decode, decode_pages, describe
from vitrail.images.heif import is_heif

VIDEOS: Final = (
    *(".mjpeg", ".mjpg", ".mp4", ".m4v", ".mov", ".avi", ".mkv", ".webm", ".mpg", ".mpeg", ".ts", ".m2ts", ".ogv"),
    *(".wmv", ".flv", ".3gp", ".y4m"),
)
ANIMATIONS: Final = (".gif", ".webp", ".apng")
_HEAD: Final = 32  # bytes that tell what a file is
_JPEG: Final = b"\xff\xd8"
_NEXT_JPEG: Final = b"\xff\xd9\xff\xd8\xff"  # the end of one and the start of another, which no thumbnail has
_MULTIPART: Final = (b"--", b"\r\n--")  # JPEGs as web cameras send them
_MJPEG: Final = (".mjpeg", ".mjpg")
_IMAGES: Final = (b"\x89PNG", b"GIF8", b"II*\0", b"MM\0*", b"II+\0", b"MM\0+", b"BM")
_CLOCKWISE: Final = {90: Image.Transpose.ROTATE_270, 180: Image.Transpose.ROTATE_180, 270: Image.Transpose.ROTATE_90}


class Readable(Protocol):
    """A file, pipe or socket that gives bytes."""

    def read(self, size: int, /) -> bytes: ...


Moving: TypeAlias = "str | os.PathLike[str] | bytes | Readable"


def frames(source: Moving, every: int = 1, limits: Limits = DEFAULT_LIMITS) -> Generator[Image.Image, None, None]:
    """Every frame, or every Nth from the first on. A still image has one.

    A path may be a file, a named pipe or a camera ("/dev/video0"); an open file is read from where it stands, and is
    left open. Anything that cannot be read raises ImageError, after the frames before it.
    """
    check_int("every", every, error=InputError)
    if not isinstance(source, str | os.PathLike | bytes) and not hasattr(source, "read"):
        raise InputError(f"expected a path, bytes or an open file of frames, got {describe(source)}")
    return _frames(source, every, limits)


def is_video(path: str | os.PathLike[str], animations: bool = False) -> bool:
    """Whether a path is to be seen frame by frame: a video by its name, a pipe or a camera; animations if asked for."""
    if Path(path).suffix.lower() in (*VIDEOS, *(ANIMATIONS if animations else ())):
        return True
    try:
        kind = os.stat(path).st_mode
    except OSError:
        return False  # whoever reads it will say so
    return stat.S_ISFIFO(kind) or stat.S_ISCHR(kind)


def _frames(source: Moving, every: int, limits: Limits) -> Generator[Image.Image, None, None]:
    if isinstance(source, bytes):
        yield from _of_file(io.BytesIO(source), describe(source), None, every, limits)
    elif not isinstance(source, str | os.PathLike):
        yield from _of_file(source, str(getattr(source, "name", "stream")), None, every, limits)
    else:
        path, name = os.fspath(source), describe(source)
        file = _opened(path, name)
        if file is None:
            yield from _of_video(path, name, every, limits, "v4l2")
            return
        with file:
            ordinary = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            yield from _of_file(file, name, path if ordinary else None, every, limits)


def _opened(path: str, name: str) -> BinaryIO | None:
    """A file or a pipe to read; None of a device, which only PyAV can."""
    try:
        kind = os.stat(path).st_mode
        if not stat.S_ISDIR(kind):
            return None if stat.S_ISCHR(kind) else open(path, "rb")
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        raise ImageError(f"{name}: cannot be read ({getattr(error, 'strerror', None) or error})") from error
    raise ImageError(f"{name}: a folder, expected a video")


def _of_file(
    file: Readable, name: str, path: str | None, every: int, limits: Limits
) -> Generator[Image.Image, None, None]:
    """Frames of an open file, whatever it is; given a path, PyAV opens that."""
    read = _reader(file)
    head = b""
    while len(head) < _HEAD and (piece := read(_HEAD - len(head))):
        if not isinstance(piece, bytes | bytearray | memoryview):
            raise InputError(f"{name}: expected bytes, got {type(piece).__name__}: open it in binary mode")
        head += piece
    if not head:
        raise ImageError(f"{name}: empty, no frames in it")
    joined = _Joined(head, file)
    if head.startswith(_MULTIPART):
        yield from _of_video(joined, name, every, limits, "mpjpeg")
    elif head.startswith(_JPEG):
        has_end = path is not None or (isinstance(file, io.IOBase) and file.seekable())
        yield from _of_jpegs(joined, name, path, every, limits, has_end)
    elif is_heif(head):  # the other images of such a file are no frames
        yield decode(joined.rest(limits.file_bytes + 1), limits=limits, name=name)
    elif head.startswith(_IMAGES) or head[8:12] in (b"WEBP", b"avif", b"avis"):
        with closing(decode_pages(joined.rest(limits.file_bytes + 1), name, every, limits)) as pages:
            yield from pages
    else:
        yield from _of_video(path if path is not None else joined, name, every, limits, None)


def _of_jpegs(
    joined: _Joined, name: str, path: str | None, every: int, limits: Limits, has_end: bool
) -> Iterator[Image.Image]:
    """One image, or as many as there are, one after another; of a pipe that is not known before its end."""
    if path is not None and Path(path).suffix.lower() in _MJPEG:
        yield from _of_video(path, name, every, limits, "mjpeg")
    elif not has_end:
        yield from _of_video(joined, name, every, limits, "mjpeg")
    else:
        data = joined.rest(limits.file_bytes + 1)
        if _NEXT_JPEG in data:
            yield from _of_video(io.BytesIO(data), name, every, limits, "mjpeg")
        else:
            yield decode(data, limits=limits, name=name)


def _reader(file: Readable) -> Any:
    """What is there already, where the file can give it: a camera's frame must not wait for the next one."""
    return getattr(file, "read1", file.read)


class _Joined:
    """A file whose first bytes were read already."""

    def __init__(self, head: bytes, file: Readable) -> None:
        self._head = head
        self._read = _reader(file)

    def read(self, size: int = -1) -> bytes:
        if self._head:
            given = self._head if size < 0 else self._head[:size]
            self._head = self._head[len(given) :]
            return given
        return bytes(self._read(size))

    def rest(self, most: int) -> bytes:
        """All that is left, up to so many bytes."""
        pieces = []
        while most > 0 and (piece := self.read(min(most, 1 << 20))):
            pieces.append(piece)
            most -= len(piece)
        return b"".join(pieces)


def _of_video(
    source: str | _Joined | io.BytesIO, name: str, every: int, limits: Limits, container: str | None
) -> Iterator[Image.Image]:
    """Frames through PyAV, turned upright as the file asks."""
    jpegs = container in ("mjpeg", "mpjpeg")
    try:
        import av
    except ImportError:
        raise MissingExtraError(f"{name}: videos and cameras need PyAV: pip install 'vitrail[video]'") from None
    number = -1
    try:
        # A camera's first frame must not wait until there is enough to study; nor, in threads, for those after it.
        with av.open(source, "r", format=container, options={"probesize": "32"} if jpegs else {}) as opened:
            if not opened.streams.video:
                raise ImageError(f"{name}: holds no video")
            video = opened.streams.video[0]
            video.thread_type = "SLICE" if jpegs else "AUTO"
            if jpegs:
                video.codec_context.options = {"err_detect": "explode"}  # a frame that is cut is not made up
            for number, frame in enumerate(opened.decode(video)):
                if number % every:
                    continue
                check_size((frame.width, frame.height), f"{name}, frame {number}", limits)
                image = frame.to_image()
                turn = _CLOCKWISE.get(-round(frame.rotation) % 360)
                yield image if turn is None else image.transpose(turn)
    except (av.error.FFmpegError, OSError) as error:
        place = f"after frame {number} " if number >= 0 else ""
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise ImageError(f"{name}: not a video that can be read, or damaged {place}({reason})") from error
    if number < 0:
        raise ImageError(f"{name}: a video without frames")
