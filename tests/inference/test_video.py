"""frames: each frame of an animation, a stream of JPEGs or a video, as it was written."""

from __future__ import annotations

import io
import os
import struct
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image, ImageSequence

from vitrail.errors import ImageError, InputError, MissingExtraError
from vitrail.images import Limits, decode
from vitrail.inference import frames
from vitrail.inference.video import is_video

COLOURS = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0), (0, 255, 255)]


def make_images(size: tuple[int, int] = (40, 24)) -> list[Image.Image]:
    return [Image.new("RGB", size, colour) for colour in COLOURS]


def encoded(kind: str, **options: Any) -> bytes:
    first, *others = make_images()
    file = io.BytesIO()
    first.save(file, kind, save_all=True, append_images=others, **options)
    return file.getvalue()


def mjpeg(count: int = 5, size: tuple[int, int] = (40, 24), **options: Any) -> bytes:
    file = io.BytesIO()
    for image in make_images(size)[:count]:
        image.save(file, "JPEG", quality=95, **options)
    return file.getvalue()


def middle(image: Image.Image) -> np.ndarray:
    return np.asarray(image)[image.height // 2, image.width // 2].astype(int)


# ---- Pillow alone ------------------------------------------------------------------------------------------------


@pytest.mark.row("DL.7")
@pytest.mark.parametrize(
    "kind, options", [("GIF", {}), ("WEBP", {"lossless": True}), ("PNG", {}), ("TIFF", {}), ("MPO", {"quality": 95})]
)
def test_every_frame_of_an_animation(kind: str, options: dict[str, Any], tmp_path: Path) -> None:
    data = encoded(kind, **options)
    path = tmp_path / "moving"
    path.write_bytes(data)
    for source in (data, path, str(path), io.BytesIO(data)):
        found = list(frames(source))
        assert [(each.mode, each.size) for each in found] == [("RGB", (40, 24))] * 5
        for image, colour in zip(found, COLOURS, strict=True):
            assert np.abs(middle(image) - colour).max() <= 3
    assert [tuple(np.rint(middle(each) / 255)) for each in frames(data, every=2)] == [
        tuple(np.array(colour) / 255) for colour in COLOURS[::2]
    ]


@pytest.mark.row("DL.7")
def test_every_image_of_a_stream_of_jpegs(tmp_path: Path) -> None:
    data = mjpeg()
    path = tmp_path / "clip.mjpeg"
    path.write_bytes(data)
    for source in (data, path, io.BytesIO(data)):
        found = list(frames(source))
        assert len(found) == 5
        for image, colour in zip(found, COLOURS, strict=True):
            assert np.abs(middle(image) - colour).max() <= 3
    assert len(list(frames(data, every=3))) == 2
    [single] = frames(mjpeg(1))
    assert np.array_equal(np.asarray(single), np.asarray(decode(mjpeg(1))))


def test_images_with_lines_between_them_as_web_cameras_send_them() -> None:
    parts = [mjpeg(count + 1)[len(mjpeg(count)) if count else 0 :] for count in range(3)]
    lines = b"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: %d\r\n\r\n"
    data = b"".join(lines % len(part) + part + b"\r\n" for part in parts)
    found = list(frames(data))
    assert len(found) == 3
    for image, colour in zip(found, COLOURS, strict=False):
        assert np.abs(middle(image) - colour).max() <= 3


def test_frames_without_tables_as_cameras_send_them() -> None:
    """Motion JPEG leaves the usual Huffman tables out; the decoder knows them."""
    whole = mjpeg(1)
    bare, at = whole[:2], 2
    while whole[at + 1] != 0xDA:
        end = at + 2 + int.from_bytes(whole[at + 2 : at + 4], "big")
        bare += whole[at:end] if whole[at + 1] != 0xC4 else b""
        at = end
    bare += whole[at:]
    assert len(bare) < len(whole) - 400
    [found] = frames(bare)
    assert np.array_equal(np.asarray(found), np.asarray(decode(whole)))


@pytest.mark.row("DL.7")
def test_a_camera_s_pipe_gives_each_frame_as_it_comes(tmp_path: Path) -> None:
    """A frame is known to be whole when the next one begins: the third is only written once the first was seen."""
    for named in (False, True):
        seen = threading.Event()
        two, three = mjpeg(2), mjpeg(3)[len(mjpeg(2)) :]
        if named:
            os.mkfifo(tmp_path / "camera")
            source: Any = tmp_path / "camera"
            write: Any = lambda: open(tmp_path / "camera", "wb", buffering=0)  # noqa: E731, SIM115
        else:
            reading, writing = os.pipe()
            source = os.fdopen(reading, "rb")
            write = lambda end=writing: os.fdopen(end, "wb", buffering=0)  # noqa: E731

        def film(write: Any = write, seen: threading.Event = seen, two: bytes = two, three: bytes = three) -> None:
            with write() as file:
                file.write(two)
                assert seen.wait(600)
                file.write(three)

        camera = threading.Thread(target=film)
        camera.start()
        found = frames(source)
        assert np.abs(middle(next(found)) - COLOURS[0]).max() <= 3
        seen.set()
        assert np.abs(middle(next(found)) - COLOURS[1]).max() <= 3
        assert np.abs(middle(next(found)) - COLOURS[2]).max() <= 3
        assert list(found) == []
        camera.join()
        if not named:
            source.close()


@pytest.mark.parametrize("kind", ["GIF", "PNG", "JPEG"])
def test_a_pipe_may_give_a_byte_at_a_time(kind: str) -> None:
    """What it holds is told by its first bytes, however many of them come at once."""
    data = mjpeg() if kind == "JPEG" else encoded(kind)
    file = io.BytesIO(data)
    found = list(frames(SimpleNamespace(read=lambda size: file.read(min(size, 1)))))
    assert len(found) == 5
    for image, colour in zip(found, COLOURS, strict=True):
        assert np.abs(middle(image) - colour).max() <= 3


@pytest.mark.parametrize(
    "kind, options", [("GIF", {"disposal": 1}), ("GIF", {"disposal": 2}), ("WEBP", {"lossless": True}), ("PNG", {})]
)
def test_transparent_frames_stand_on_white(kind: str, options: dict[str, Any]) -> None:
    """As Pillow composes them, each laid on the background."""
    drawn = []
    for number in range(4):
        values = np.zeros((24, 40, 4), np.uint8)
        values[4:12, 4 + 5 * number : 12 + 5 * number] = (250 - 50 * number, 60 * number, 0, 255)
        drawn.append(Image.fromarray(values))
    file = io.BytesIO()
    drawn[0].save(file, kind, save_all=True, append_images=drawn[1:], **options)
    found = list(frames(file.getvalue()))
    with Image.open(file) as opened:
        expected = [each.convert("RGBA") for each in ImageSequence.Iterator(opened)]
    assert len(found) == len(expected) == 4
    for image, clear in zip(found, expected, strict=True):
        white = Image.new("RGBA", clear.size, (255, 255, 255, 255))
        assert np.array_equal(np.asarray(image), np.asarray(Image.alpha_composite(white, clear).convert("RGB")))
        assert image.getpixel((0, 0)) == (255, 255, 255)


def test_orientation_counts_in_every_frame() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    for data in (mjpeg(2, exif=exif), encoded("PNG", exif=exif)):
        assert {each.size for each in frames(data)} == {(24, 40)}


# ---- broken, empty, too large ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_a_cut_animation_is_an_error(kind: str) -> None:
    data = encoded(kind)
    for end in (len(data) // 3, len(data) // 2, len(data) - 200):
        cut = data[:end]
        with pytest.raises(ImageError, match="damaged or cut short|not an image"):
            list(frames(cut))


def test_a_cut_stream_gives_the_frames_before_it() -> None:
    found = frames(io.BytesIO(mjpeg(3)[:-10]))
    assert [next(found).size for _ in range(2)] == [(40, 24)] * 2
    with pytest.raises(ImageError, match="stream: not a video that can be read, or damaged after frame 1"):
        next(found)


def test_damage_within_a_frame_names_the_frame() -> None:
    first = mjpeg(1)
    broken = first[:2] + b"\xff\xc4\x00\x04\xff\xff" + first[2:]
    found = frames(first + broken)
    next(found)
    with pytest.raises(ImageError, match="image of .* bytes: not a video that can be read, or damaged after frame 0"):
        next(found)


def test_a_frame_whose_middle_is_gone_is_not_made_up() -> None:
    """FFmpeg, left alone, would fill in what it cannot read."""
    noise = np.random.default_rng(0).integers(0, 256, (2, 240, 400, 3), np.uint8)
    shots = []
    for values in noise:
        file = io.BytesIO()
        Image.fromarray(values).save(file, "JPEG", quality=90)
        shots.append(file.getvalue())
    broken = shots[1][:5000] + bytes(3000) + shots[1][8000:]
    found = frames(shots[0] + broken)
    next(found)
    with pytest.raises(ImageError, match="damaged after frame 0"):
        next(found)


def test_nothing_and_nowhere(tmp_path: Path) -> None:
    (tmp_path / "empty.mjpeg").touch()
    for source, message in (
        (b"", "empty, no frames in it"),
        (tmp_path / "empty.mjpeg", "empty.mjpeg: empty, no frames in it"),
        (tmp_path / "none.mp4", "none.mp4: cannot be read .No such file"),
        (tmp_path, "a folder, expected a video"),
        ("a\0b", "cannot be read"),
    ):
        with pytest.raises(ImageError, match=message):
            list(frames(source))
    for wrong in (None, 5, Image.new("RGB", (4, 4))):
        with pytest.raises(InputError, match="expected a path, bytes or an open file of frames"):
            frames(wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="every: expected a whole number from 1"):
        frames(mjpeg(), every=0)
    with pytest.raises(InputError, match="expected bytes, got str: open it in binary mode"):
        list(frames(io.StringIO("text")))  # type: ignore[arg-type]


def test_limits_hold_for_every_frame() -> None:
    small = Limits(pixels=500)
    for data in (mjpeg(2), encoded("GIF"), encoded("TIFF")):
        with pytest.raises(ImageError, match=r"40x24 is over the limit of 500 \(pixels\)"):
            list(frames(data, limits=small))
    file = io.BytesIO()
    Image.new("RGB", (20, 20)).save(file, "TIFF", save_all=True, append_images=[Image.new("RGB", (40, 24))])
    found = frames(file.getvalue(), limits=small)
    next(found)
    with pytest.raises(ImageError, match="frame 1: refused, 40x24 is over the limit of 500"):
        next(found)


def test_metadata_behind_the_first_frame_is_weighed() -> None:
    """Comments between frames, which Pillow joins one by one; tags of the second page that each claim the file."""
    gif = encoded("GIF")
    second = gif.index(b"\x21\xf9", gif.index(b"\x21\xf9") + 2)
    heavy = gif[:second] + b"\x21\xfe" + (b"\xff" + b"x" * 255) * 3000 + b"\0" + gif[second:]
    assert decode(heavy).size == (40, 24)
    with pytest.raises(ImageError, match="refused, metadata of over"):
        list(frames(heavy))
    tiff = encoded("TIFF")
    tag = b"\x0f\x01\x02\x00" + (len(tiff)).to_bytes(4, "little") + (8).to_bytes(4, "little")
    evil = (1000).to_bytes(2, "little") + tag * 1000 + bytes(4)
    start = int.from_bytes(tiff[4:8], "little")
    after = start + 2 + 12 * int.from_bytes(tiff[start : start + 2], "little")
    tiff = tiff[:after] + len(tiff).to_bytes(4, "little") + tiff[after + 4 :] + evil
    assert decode(tiff).size == (40, 24)
    with pytest.raises(ImageError, match="refused, metadata of over 1,000,000"):
        list(frames(tiff, limits=Limits(metadata_bytes=1_000_000)))


# ---- PyAV --------------------------------------------------------------------------------------------------------


class FakeError(Exception):
    """Stands for the errors of FFmpeg."""


@pytest.fixture
def fake_av(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """As much of PyAV as is used: a container with one video, whose frames are images."""
    state = SimpleNamespace(opened=[], closed=0, rotation=0, count=5, fails_at=None, has_video=True, data=b"")

    class Container:
        streams = SimpleNamespace(video=[SimpleNamespace(thread_type="")])

        def __enter__(self) -> Container:
            if not state.has_video:
                self.streams = SimpleNamespace(video=[])
            return self

        def __exit__(self, *_: object) -> None:
            state.closed += 1

        def decode(self, _: object) -> Iterator[SimpleNamespace]:
            for number, image in enumerate(make_images()[: state.count]):
                if number == state.fails_at:
                    raise FakeError("Invalid data found")
                yield SimpleNamespace(
                    width=image.width, height=image.height, rotation=state.rotation, to_image=lambda image=image: image
                )

    def opening(source: Any, mode: str = "r", format: str | None = None, options: Any = None) -> Container:
        assert mode == "r"
        state.opened.append((source if isinstance(source, str) else "file", format))
        if not isinstance(source, str):
            while piece := source.read(7):
                state.data += piece
        return Container()

    module = ModuleType("av")
    module.open = opening  # type: ignore[attr-defined]
    module.error = SimpleNamespace(FFmpegError=FakeError)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "av", module)
    return state


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    path = tmp_path / "clip.mp4"
    path.write_bytes(b"\0\0\0\x20ftypisom" + bytes(range(200)))
    return path


@pytest.mark.row("DL.7")
def test_videos_through_pyav(fake_av: SimpleNamespace, clip: Path) -> None:
    assert [tuple(middle(each)) for each in frames(clip, every=2)] == COLOURS[::2]
    assert fake_av.opened == [(str(clip), None)]
    with open(clip, "rb") as file:
        assert len(list(frames(file))) == 5
    assert fake_av.data == clip.read_bytes()  # the first bytes, which told what it is, are given back
    found = frames(clip)
    next(found)
    found.close()
    assert fake_av.closed == 3


@pytest.mark.row("DL.7")
def test_a_camera_goes_to_pyav(fake_av: SimpleNamespace) -> None:
    """Any device stands for one here; it is never opened."""
    assert len(list(frames("/dev/null"))) == 5
    assert fake_av.opened == [("/dev/null", "v4l2")]


@pytest.mark.parametrize("rotation, turn", [(-90, -90), (90, 90), (180, 180), (-180, 180), (0, 0)])
def test_videos_are_turned_upright(fake_av: SimpleNamespace, clip: Path, rotation: int, turn: int) -> None:
    """PyAV gives the angle counterclockwise, as Pillow's rotate takes it."""
    marked = Image.new("RGB", (40, 24))
    marked.putpixel((0, 0), (255, 255, 255))
    fake_av.rotation = rotation
    global make_images
    original = make_images
    try:
        make_images = lambda size=(40, 24): [marked]  # noqa: E731
        [found] = frames(clip)
    finally:
        make_images = original
    assert np.array_equal(np.asarray(found), np.asarray(marked.rotate(turn, expand=True)))


def test_what_goes_wrong_in_videos(fake_av: SimpleNamespace, clip: Path) -> None:
    fake_av.fails_at = 2
    found = frames(clip)
    next(found), next(found)
    with pytest.raises(ImageError, match=r"clip.mp4: not a video .* damaged after frame 1 \(Invalid data found\)"):
        next(found)
    fake_av.fails_at, fake_av.count = None, 0
    with pytest.raises(ImageError, match="clip.mp4: a video without frames"):
        list(frames(clip))
    fake_av.count = 5
    with pytest.raises(ImageError, match="frame 0: refused, 40x24 is over the limit of 500"):
        list(frames(clip, limits=Limits(pixels=500)))
    fake_av.has_video = False
    with pytest.raises(ImageError, match="clip.mp4: holds no video"):
        list(frames(clip))


def test_without_pyav_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, clip: Path) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(
        MissingExtraError, match=r"clip.mp4: videos and cameras need PyAV: pip install 'vitrail\[video\]'"
    ):
        list(frames(clip))
    with pytest.raises(MissingExtraError, match="bytes: videos and cameras need PyAV"):
        list(frames(mjpeg(2)))
    assert len(list(frames(mjpeg(1)))) == 1  # a still image needs none


# ---- PyAV itself -------------------------------------------------------------------------------------------------

SHOWN = [COLOURS[number % 5] for number in (0, 1, 2, 3, 4, 0, 2, 4, 1, 3, 0, 3)]  # twelve frames, no two alike in a row


def filmed(path: Path, codec: str = "mpeg4", turned: int = 0, size: tuple[int, int] = (64, 48)) -> Path:
    """A video of frames of one colour each; the left half of a turned one is black."""
    with av.open(path, "w") as made:
        stream = made.add_stream(codec, rate=10)
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        for number, colour in enumerate(SHOWN):
            image = Image.new("RGB", size, colour)
            if turned:
                image.paste((0, 0, 0), (0, 0, size[0] // 2, size[1]))
            frame = av.VideoFrame.from_image(image)
            frame.pts = number
            made.mux(stream.encode(frame))
        made.mux(stream.encode())
    if turned:
        turn_in_header(path, turned)
    return path


def turn_in_header(path: Path, clockwise: int) -> None:
    """Exchange the matrix of the track, as a telephone writes it that was held upright."""
    matrices = {0: (1, 0, 0, 1), 90: (0, 1, -1, 0), 180: (-1, 0, 0, -1), 270: (0, -1, 1, 0)}

    def packed(degrees: int) -> bytes:
        a, b, c, d = (value << 16 for value in matrices[degrees])
        return struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)

    data = path.read_bytes()
    at = data.index(packed(0), data.index(b"tkhd"))
    path.write_bytes(data[:at] + packed(clockwise) + data[at + 36 :])


def nearest(image: Image.Image) -> tuple[int, int, int]:
    """The colour of those filmed that the middle of a frame is; codecs move it a little."""
    apart = [int(np.abs(middle(image) - colour).max()) for colour in COLOURS]
    assert min(apart) <= 40, apart
    return COLOURS[int(np.argmin(apart))]


@pytest.mark.row("DL.7")
@pytest.mark.parametrize("codec, name", [("mpeg4", "clip.mp4"), ("mpeg4", "clip.avi"), ("libx264", "clip.mkv")])
def test_a_real_video(codec: str, name: str, tmp_path: Path) -> None:
    """Every frame in its order and colour, whichever way the file is given; or every Nth from the first on."""
    if codec not in av.codecs_available:
        pytest.skip(f"this PyAV has no {codec}")
    path = filmed(tmp_path / name, codec)
    data = path.read_bytes()
    with open(path, "rb") as file:
        for source in (path, str(path), data, io.BytesIO(data), file):
            found = list(frames(source))
            assert [(each.mode, each.size) for each in found] == [("RGB", (64, 48))] * 12
            assert [nearest(each) for each in found] == SHOWN
    for every in (2, 3, 5, 11, 12, 99):
        assert [nearest(each) for each in frames(path, every=every)] == SHOWN[::every]


@pytest.mark.parametrize("clockwise", [90, 180, 270])
def test_a_real_video_that_lies_on_its_side_is_turned_upright(clockwise: int, tmp_path: Path) -> None:
    """Its left half is black: turned clockwise by 90 degrees, as the file asks, its upper half."""
    found = list(frames(filmed(tmp_path / "clip.mp4", turned=clockwise)))
    assert len(found) == 12
    assert found[0].size == ((64, 48) if clockwise == 180 else (48, 64))
    values = np.asarray(found[0]).astype(int)
    dark = {90: values[:20], 180: values[:, 44:], 270: values[44:]}[clockwise]
    bright = {90: values[44:], 180: values[:, :20], 270: values[:20]}[clockwise]
    assert dark.max() <= 40
    assert np.abs(bright - SHOWN[0]).max() <= 60


def test_real_videos_that_cannot_be_used(tmp_path: Path) -> None:
    path = filmed(tmp_path / "clip.mp4")
    data = path.read_bytes()
    with pytest.raises(ImageError, match="not a video that can be read"):
        list(frames(data[: len(data) // 4]))
    with pytest.raises(ImageError, match="not a video that can be read"):
        list(frames(b"no video at all, but long enough to be looked at"))
    with pytest.raises(ImageError, match="clip.mp4, frame 0: refused, 64x48 is over the limit of 3,000"):
        list(frames(path, limits=Limits(pixels=3000)))
    with av.open(tmp_path / "sound.wav", "w") as made:
        stream = made.add_stream("pcm_s16le", rate=8000)
        silence = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), format="s16", layout="mono")
        silence.sample_rate = 8000
        made.mux(stream.encode(silence))
        made.mux(stream.encode())
    with pytest.raises(ImageError, match="sound.wav: holds no video"):
        list(frames(tmp_path / "sound.wav"))


def test_a_real_video_may_be_left_early(tmp_path: Path) -> None:
    path = filmed(tmp_path / "clip.mp4")
    found = frames(path)
    assert nearest(next(found)) == SHOWN[0]
    found.close()
    with pytest.raises(StopIteration):
        next(found)
    assert len(list(frames(path))) == 12


# ---- which paths move --------------------------------------------------------------------------------------------


def test_which_paths_are_seen_frame_by_frame(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "camera")
    for name in ("a.mp4", "b.MJPEG", "/dev/null", tmp_path / "camera"):
        assert is_video(name)
    for name in ("a.jpg", "b.png", "c.gif", "none", tmp_path):
        assert not is_video(name)
        assert is_video(name, animations=True) == (name == "c.gif")
