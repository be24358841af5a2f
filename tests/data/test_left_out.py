"""Files that are left out or cannot be read are told a line a kind: how many, and the first by name."""

from __future__ import annotations

from pathlib import Path

from vitrail.data.left_out import LeftOut, left_out_lines, reason_of, unreadable_lines
from vitrail.errors import ImageError


def test_the_first_of_a_kind_are_kept_by_name_and_all_are_counted() -> None:
    left_out = LeftOut({"broken links": 1}, {"broken links": ("a/x.jpg",)})
    for number in range(25):
        left_out.add("hidden files", f".{number}")
    left_out.add("broken links", "a/y.jpg")
    assert left_out.counts == {"broken links": 2, "hidden files": 25}
    assert left_out.first == {
        "broken links": ("a/x.jpg", "a/y.jpg"),
        "hidden files": tuple(f".{number}" for number in range(20)),
    }


def test_a_line_a_reason_in_the_right_number() -> None:
    counts = {"broken links": 1, "not images (.txt)": 1, "hidden files": 2, "not images (.xml)": 1200, "other": 3}
    names = {
        "broken links": ("a/x.jpg",),
        "not images (.txt)": ("notes.txt",),
        "hidden files": (".a", "new\nline"),
        "not images (.xml)": tuple(f"{number}.xml" for number in range(20)),
    }
    assert left_out_lines(counts, names) == [
        "left out: 1 broken link: a/x.jpg",
        "left out: 1 file that is not an image (.txt): notes.txt",
        r"left out: 2 hidden files: .a, 'new\nline'",
        "left out: 1,200 files that are not images (.xml): 0.xml, 1.xml, 2.xml and 1,197 more",
        "left out: 3 other",
    ]


def test_images_that_cannot_be_read_are_told_by_the_kind_of_reason() -> None:
    heif = "reading it needs pillow-heif: pip install 'vitrail[heif]'"
    unreadable = [
        ("a/1.jpg", "damaged or cut short (12 bytes not processed): copy or download it again"),
        ("a/page.jpg", "not an image that can be read: it seems to be a web page"),
        ("a/2.jpg", "/data/a/2.jpg: damaged or cut short (7 bytes not processed): copy or download it again"),
        *((f"b/{number}.heic", f"is a HEIC image: {heif}") for number in range(12)),
    ]
    assert unreadable_lines(unreadable) == [
        "2 images cannot be read (damaged or cut short (12 bytes not processed): copy or download it again): "
        "a/1.jpg, a/2.jpg",
        "1 image cannot be read (not an image that can be read: it seems to be a web page): a/page.jpg",
        "12 HEIC images need pillow-heif: pip install 'vitrail[heif]' (b/0.heic, b/1.heic, b/2.heic and 9 more)",
    ]
    assert unreadable_lines([("one.heic", f"/data/one.heic is a HEIC image: {heif}")]) == [
        "1 HEIC image needs pillow-heif: pip install 'vitrail[heif]' (one.heic)"
    ]


def test_a_reason_is_told_without_the_name_of_its_image() -> None:
    assert reason_of(ImageError("/a/b.jpg: empty, 0 bytes"), Path("/a/b.jpg")) == "empty, 0 bytes"
    assert reason_of(ImageError("/a/b.heic is a HEIC image: do"), Path("/a/b.heic")) == "is a HEIC image: do"
    assert reason_of(ImageError("something else"), Path("/a/b.jpg")) == "something else"
