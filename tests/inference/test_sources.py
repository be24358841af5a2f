"""find_images: which files a list of paths and folders stands for, and in which order."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from PIL import Image

from vitrail.errors import ImageError, InputError
from vitrail.inference import Named, find_images, stream_images


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def found_in(folder: Path) -> list[str]:
    return [str(path.relative_to(folder)) for path in find_images([folder])]


def test_numbers_sort_by_value(tmp_path: Path) -> None:
    touch(tmp_path, "10.png", "9.png", "a2.jpg", "a10.jpg", "a1.jpg", "b/1.png", "100.png", "a01.jpg", "7²3.png")
    names = ["7²3.png", "9.png", "10.png", "100.png", "a01.jpg", "a1.jpg", "a2.jpg", "a10.jpg", "b/1.png"]
    assert found_in(tmp_path) == names


def test_digits_of_every_script_sort(tmp_path: Path) -> None:
    """² is a digit to str.isdigit but no number to int; ٣ is three."""
    names = ["1²2.png", "x²y.png", "x٣.png", "x10.png", "①.png"]
    touch(tmp_path, *names)
    assert sorted(found_in(tmp_path)) == sorted(names)
    assert found_in(tmp_path).index("x٣.png") < found_in(tmp_path).index("x10.png")


def test_only_images_that_are_not_hidden(tmp_path: Path) -> None:
    touch(tmp_path, "a.PNG", "b.JPeG", "notes.txt", ".hidden.png", ".cache/c.png", "deep/er/d.webp", "e.avif", "png")
    (tmp_path / "folder.png").mkdir()
    assert found_in(tmp_path) == ["a.PNG", "b.JPeG", "deep/er/d.webp", "e.avif"]


def test_a_hidden_folder_that_is_named_is_looked_into(tmp_path: Path) -> None:
    touch(tmp_path, ".photos/a.png")
    assert found_in(tmp_path / ".photos") == ["a.png"]


def test_files_stay_in_the_order_they_were_named(tmp_path: Path) -> None:
    touch(tmp_path, "z.png", "a.dat", "f/2.png", "f/1.png")
    given = [tmp_path / "z.png", tmp_path / "f", str(tmp_path / "a.dat"), tmp_path / "z.png"]
    assert [path.name for path in find_images(given)] == ["z.png", "1.png", "2.png", "a.dat", "z.png"]


def test_loops_and_pipes_are_passed_over(tmp_path: Path) -> None:
    touch(tmp_path, "a.png", "sub/b.png")
    (tmp_path / "sub" / "up").symlink_to(tmp_path)
    (tmp_path / "self.png").symlink_to(tmp_path / "self.png")
    os.mkfifo(tmp_path / "pipe.png")
    assert found_in(tmp_path) == ["a.png", "sub/b.png"]


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    touch(tmp_path, "notes.txt")
    with pytest.raises(InputError, match=r"no images in .*: expected files ending in \.jpg, \.jpeg, \.jpe"):
        find_images([tmp_path])
    (tmp_path / "broken.png").symlink_to(tmp_path / "gone")
    for name in ("nothing.png", "broken.png"):
        with pytest.raises(InputError, match=f"no file or folder .*{name}"):
            find_images([tmp_path / name])
    with pytest.raises(InputError, match="File name too long"):
        find_images([tmp_path / ("x" * 300)])
    assert find_images([]) == []


def test_a_stream_of_images_and_frames(tmp_path: Path) -> None:
    shots = [Image.new("RGB", (8, 8), colour) for colour in ("red", "lime", "blue")]
    shots[0].save(tmp_path / "a.gif", save_all=True, append_images=shots[1:])
    shots[0].save(tmp_path / "b.png")
    (tmp_path / "c.mp4").write_bytes(b"no video")
    stills = stream_images([tmp_path])
    assert (stills.count, stills.is_short) == (2, True)
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
