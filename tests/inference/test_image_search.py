"""find_images: which files a list of paths and folders stands for, in which order; and what is passed over, and why."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail.errors import InputError
from vitrail.inference import FoundImages, PassedOver, find_images, image_search


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
    for name, why in (("nothing.png", "No such file"), ("broken.png", "a broken link to .*gone")):
        with pytest.raises(InputError, match=f"no file or folder .*{name}: {why}"):
            find_images([tmp_path / name])
    with pytest.raises(InputError, match="File name too long"):
        find_images([tmp_path / ("x" * 300)])
    assert find_images([]) == FoundImages(())


def test_what_is_not_there_stands_among_those_that_are(tmp_path: Path) -> None:
    """One wrong name of a hundred should not cost the answers of the others."""
    touch(tmp_path, "a.png")
    (tmp_path / "broken.png").symlink_to(tmp_path / "gone")
    given = [tmp_path / "a.png", tmp_path / "broken.png", tmp_path / "none" / "*.png"]
    assert list(find_images(given)) == given
    with pytest.raises(InputError, match=r"no file or folder .*broken\.png"):
        find_images(given[1:])


# ---- what is passed over -----------------------------------------------------------------------------------------


def reasons(found: FoundImages) -> dict[str, tuple[int, list[str]]]:
    return {each.reason: (each.count, [Path(path).name for path in each.paths]) for each in found.passed_over}


def test_what_is_passed_over_is_counted_and_named(tmp_path: Path) -> None:
    touch(tmp_path, "a.png", "notes.txt", "deep/b.csv", ".DS_Store", ".hidden.png", ".cache/c.png", "clip.mp4")
    (tmp_path / "gone.png").symlink_to(tmp_path / "nowhere")
    (tmp_path / "deep" / "up").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe.png")
    found = find_images([tmp_path])
    assert [path.name for path in found] == ["a.png"]
    assert reasons(found) == {
        "broken link": (1, ["gone.png"]),
        "link to a folder": (1, ["up"]),
        "hidden folder": (1, [".cache"]),
        "hidden file": (1, [".hidden.png"]),
        "video, to be named by itself": (1, ["clip.mp4"]),
        "pipe, socket or device": (1, ["pipe.png"]),
        "file that is no image": (3, [".DS_Store", "b.csv", "notes.txt"]),
    }
    assert found.is_complete
    assert find_images([tmp_path / "a.png"]).passed_over == ()


def test_a_folder_that_may_not_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "a.png", "private/b.png", "open/c.png")
    scandir = os.scandir

    def forbidden(folder: str) -> object:
        if str(folder).endswith("private"):
            raise PermissionError(13, "Permission denied", folder)
        return scandir(folder)

    monkeypatch.setattr(image_search.os, "scandir", forbidden)
    found = find_images([tmp_path])
    assert [path.name for path in found] == ["a.png", "c.png"]
    assert reasons(found) == {"folder that cannot be read": (1, ["private"])}
    assert not found.is_complete
    with pytest.raises(InputError, match="private cannot be read: check its permissions"):
        find_images([tmp_path / "private"])


def test_images_are_known_by_their_first_bytes(tmp_path: Path) -> None:
    """Without an ending they are read; another ending is somebody's word, and is believed."""
    small = Image.new("RGB", (8, 8), "red")
    for kind in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM"):
        small.save(tmp_path / kind, kind)
    small.save(tmp_path / "scan.dat", "PNG")
    np.save(tmp_path / "array.npy", np.zeros((4, 4), np.uint8))
    (tmp_path / "array.npy").rename(tmp_path / "NPY")
    for name, text in (("README", "# BM"), ("BMW", "BMW is a car"), ("P5", "P5"), ("Makefile", "all:"), ("empty", "")):
        (tmp_path / name).write_text(text)
    found = find_images([tmp_path])
    assert [path.name for path in found] == sorted(["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "NPY"])
    assert reasons(found) == {
        "image with an unknown ending": (1, ["scan.dat"]),
        "file that is no image": (5, ["BMW", "Makefile", "P5", "README", "empty"]),
    }
    assert find_images([tmp_path / "scan.dat"])[0].name == "scan.dat"  # named, it is read


def test_a_line_for_each_kind(tmp_path: Path) -> None:
    assert str(PassedOver("broken link", 1, ("a.png",))) == "1 broken link passed over: a.png"
    assert str(PassedOver("hidden file", 2, (".a", ".b"))) == "2 hidden files passed over: .a, .b"
    many = PassedOver("hidden file", 1200, tuple(f".{number}" for number in range(1200)))
    assert str(many) == "1,200 hidden files passed over: .0, .1, .2, …"
    assert str(PassedOver("file that is no image", 1, ("a.txt",))) == "1 file that is no image passed over: a.txt"
    touch(tmp_path, "notes.txt", ".a.png")
    told = r"\(1 hidden file passed over; 1 file that is no image passed over\): expected files ending in"
    with pytest.raises(InputError, match=told):
        find_images([tmp_path])


def test_patterns_stand_for_what_they_fit(tmp_path: Path) -> None:
    touch(tmp_path, "10.jpg", "9.jpg", "a.png", "deep/8.jpg", "[x].jpg", "more/b.png")
    names = [path.name for path in find_images([tmp_path / "*.jpg"])]
    assert names == ["9.jpg", "10.jpg", "[x].jpg"]
    assert [path.name for path in find_images([tmp_path / "[x].jpg"])] == ["[x].jpg"]  # there is such a file
    assert [path.name for path in find_images([str(tmp_path / "**/*.jpg")])] == ["9.jpg", "10.jpg", "[x].jpg", "8.jpg"]
    assert [path.name for path in find_images([tmp_path / "m*"])] == ["b.png"]  # a folder, looked into
    with pytest.raises(InputError, match=r"no file or folder fits the pattern .*\*\.gif"):
        find_images([tmp_path / "*.gif"])


def test_an_empty_path_is_not_the_folder_one_is_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="expected the path of an image or folder, got ''"):
        find_images([""])
    assert len(find_images(["."]).paths) == 1
