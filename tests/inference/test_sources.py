"""stream_images: images one after another, and videos frame by frame."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from vitrail.errors import ImageError
from vitrail.inference import Named, stream_images


def test_a_stream_of_images_and_frames(tmp_path: Path) -> None:
    shots = [Image.new("RGB", (8, 8), colour) for colour in ("red", "lime", "blue")]
    shots[0].save(tmp_path / "a.gif", save_all=True, append_images=shots[1:])
    shots[0].save(tmp_path / "b.png")
    (tmp_path / "c.mp4").write_bytes(b"no video")
    stills = stream_images([tmp_path])
    assert (stills.count, stills.is_short) == (2, True)
    [video] = stills.files.passed_over
    assert video.paths == (str(tmp_path / "c.mp4"),)
    assert list(stills) == [tmp_path / "a.gif", tmp_path / "b.png"]
    every = stream_images([tmp_path / "a.gif", tmp_path / "b.png"], every=2)
    assert (every.count, every.is_short) == (None, False)
    first, second, still = every
    assert isinstance(first, Named)
    assert isinstance(second, Named)
    assert (first.name, second.name, still) == (
        f"{tmp_path / 'a.gif'}#0",
        f"{tmp_path / 'a.gif'}#2",
        tmp_path / "b.png",
    )
    [broken] = stream_images([tmp_path / "c.mp4"])
    assert isinstance(broken, Named)
    assert isinstance(broken.image, ImageError)
    assert not stream_images([tmp_path / "b.png"] * 3).is_short
