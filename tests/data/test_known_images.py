"""KnownImages: a second scan reads what has changed and nothing else, and never trusts a cache that it should not."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile

from vitrail.data import Scan, image_scan, known_images, read_data, scan
from vitrail.data.known_images import MAGIC, recall
from vitrail.files import cache_folder
from vitrail.images.decoding import read_file


def make_image(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (6, 8 + seed, 3), np.uint8)).save(path)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, in which files that were just made count as old."""
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(known_images, "TICK", -(10**12))
    return tmp_path / "cache" / "scans"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for row in range(12):
        make_image(tmp_path / "photos" / "ab"[row % 2] / f"{row}.png", row)
    return tmp_path / "photos"


class Reads:
    """The images that a scan reads, by name."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []

        def read(source: Path) -> object:
            self.names.append(Path(source).name)
            return read_file(source)

        patch.setattr(image_scan, "read_file", read)

    def of(self, data: Path) -> tuple[Scan, list[str], str]:
        """A scan with what is known, the images that it read, and what was said of the cache."""
        dataset = read_data(data)
        self.names.clear()
        known = recall(dataset)
        assert known is not None
        found = scan(dataset, known=known)
        plain = scan(dataset)
        assert (found.entries, found.bad, found.dataset) == (plain.entries, plain.bad, plain.dataset)
        return found, sorted(self.names[: len(self.names) - len(dataset)]), known.note


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads(monkeypatch)


ALL = sorted(f"{row}.png" for row in range(12))


def test_what_has_not_changed_is_not_read_again(photos: Path, cache: Path, reads: Reads) -> None:
    assert reads.of(photos)[1:] == (ALL, "")
    assert reads.of(photos)[1:] == ([], "")
    assert len(list(cache.iterdir())) == 1


def test_what_changed_came_or_went_is_found(photos: Path, cache: Path, reads: Reads) -> None:
    reads.of(photos)
    make_image(photos / "a" / "2.png", 50)
    make_image(photos / "a" / "00.png", 51)
    (photos / "b" / "3.png").unlink()
    (photos / "b" / "5.png").rename(photos / "b" / "6.png")
    assert reads.of(photos)[1] == ["00.png", "2.png", "6.png"]
    assert reads.of(photos)[1] == []


@pytest.mark.fault("T17")
def test_other_bytes_of_the_same_size_and_time_are_found(photos: Path, cache: Path, reads: Reads) -> None:
    """As a copy leaves them that keeps times: the time of the last change of any kind still tells."""
    reads.of(photos)
    path = photos / "a" / "4.png"
    status, raw = path.stat(), bytearray(path.read_bytes())
    raw[-5] ^= 1  # of a checksum that Pillow does not look at
    path.write_bytes(raw)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_mtime_ns == status.st_mtime_ns
    found, read, _ = reads.of(photos)
    assert read == ["4.png"]
    [entry] = [each for each in found.entries if each.name == "a/4.png"]
    assert entry.digest == hashlib.sha256(raw).hexdigest()


@pytest.mark.fault("T17")
def test_a_file_as_young_as_the_cache_is_read_again(
    photos: Path, cache: Path, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may change once more within the tick of its clock, and look the same."""
    monkeypatch.setattr(known_images, "TICK", 10**12)
    reads.of(photos)
    assert reads.of(photos)[1] == ALL
    monkeypatch.setattr(known_images, "TICK", -(10**12))
    assert reads.of(photos)[1] == ALL  # which that scan could not know to be old
    assert reads.of(photos)[1] == []


def test_an_image_that_cannot_be_read_is_never_remembered(photos: Path, cache: Path, reads: Reads) -> None:
    whole = (photos / "a" / "0.png").read_bytes()
    (photos / "a" / "0.png").write_bytes(whole[:40])
    assert len(reads.of(photos)[0].bad) == 1
    found, read, _ = reads.of(photos)
    assert (read, [name for name, _ in found.bad]) == (["0.png"], ["a/0.png"])
    (photos / "a" / "0.png").write_bytes(whole)
    found, read, _ = reads.of(photos)
    assert (read, found.bad) == (["0.png"], ())


def test_a_table_and_its_folder_are_remembered_apart(photos: Path, cache: Path, reads: Reads) -> None:
    table = photos / "labels.csv"
    table.write_text("path,label\n" + "".join(f"{'ab'[row % 2]}/{row}.png,{'xy'[row % 2]}\n" for row in range(6)))
    assert len(reads.of(table)[1]) == 6
    reads.of(photos)
    assert reads.of(table)[1] == reads.of(photos)[1] == []
    assert len(list(cache.iterdir())) == 2


@pytest.mark.parametrize("place", ["start", "header", "stamps", "facts", "names", "check", "cut", "empty", "longer"])
def test_a_damaged_cache_is_not_used_and_told(photos: Path, cache: Path, reads: Reads, place: str) -> None:
    reads.of(photos)
    [path] = cache.iterdir()
    raw = bytearray(path.read_bytes())
    (length,) = struct.unpack("<Q", raw[len(MAGIC) : len(MAGIC) + 8])
    columns = len(MAGIC) + 8 + length
    places = {"start": 2, "header": 30, "stamps": columns + 9, "facts": columns + 400, "names": -36, "check": -3}
    if place in places:
        raw[places[place]] ^= 1
    path.write_bytes({"cut": raw[:-1], "empty": b"", "longer": raw + b"x"}.get(place, bytes(raw)))
    _, read, note = reads.of(photos)
    assert read == ALL
    assert note.startswith(f"{path} is ")
    assert note.endswith(": all images are read again")
    assert reads.of(photos)[1:] == ([], "")  # it was made anew


def test_a_cache_of_another_decoder_or_of_other_limits_is_not_used(
    photos: Path, cache: Path, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads.of(photos)
    told = "was made with other decoders, or other limits: all images are read again"
    for patch in (
        lambda: monkeypatch.setattr(known_images, "pillow_version", "99.1"),
        lambda: monkeypatch.setattr(known_images, "__version__", "0.0.1"),
        lambda: monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True),
        lambda: monkeypatch.setattr(known_images, "FORMAT", 99),
    ):
        patch()
        _, read, note = reads.of(photos)
        assert (read, note.endswith(told)) == (ALL, True)
        assert reads.of(photos)[1:] == ([], "")


def test_no_cache_is_kept_where_none_is_wanted(photos: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", "")
    assert recall(read_data(photos)) is None
    assert recall(read_data("vitrail:fashion")) is None


def test_a_cache_that_cannot_be_written_is_no_error(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: Reads
) -> None:
    (tmp_path / "file").write_bytes(b"x")
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "file"))
    _, read, note = reads.of(photos)
    assert read == ALL
    assert note.endswith("cannot be read (Not a directory): all images are read again")


def test_only_so_many_sets_are_remembered(
    tmp_path: Path, photos: Path, cache: Path, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_images, "MOST", 2)
    sets = [photos, tmp_path / "second", tmp_path / "third"]
    for number, folder in enumerate(sets):
        if number:
            make_image(folder / "a" / "1.png", number)
            make_image(folder / "b" / "2.png", number)
        reads.of(folder)
        for path in cache.iterdir():  # so that their order is known, whatever the clock
            age = 10 * len(sets) if path.stat().st_mtime < 1000 else 0
            os.utime(path, (500 - age, 500 - age))
    assert reads.of(tmp_path / "third")[1] == reads.of(tmp_path / "second")[1] == []
    assert reads.of(photos)[1] == ALL


@pytest.mark.parametrize(
    "system, variables, expected",
    [
        ("linux", {"XDG_CACHE_HOME": "/x"}, "/x/vitrail"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, "~/.cache/vitrail"),
        ("linux", {}, "~/.cache/vitrail"),
        ("darwin", {"XDG_CACHE_HOME": "/x"}, "~/Library/Caches/vitrail"),
        ("win32", {"LOCALAPPDATA": "/y"}, "/y/vitrail"),
        ("win32", {}, "~/AppData/Local/vitrail"),
        ("linux", {"VITRAIL_CACHE": "/z"}, "/z"),
        ("linux", {"VITRAIL_CACHE": ""}, "None"),
    ],
)
def test_where_caches_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str, variables: dict[str, str], expected: str
) -> None:
    for name in ("VITRAIL_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("vitrail.files.sys.platform", system)
    assert str(cache_folder()).replace(str(tmp_path), "~") == expected


def test_the_file_holds_no_pickle_and_says_what_it_is(photos: Path, cache: Path, reads: Reads) -> None:
    reads.of(photos)
    [path] = cache.iterdir()
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[len(MAGIC) : len(MAGIC) + 8])
    header = json.loads(raw[len(MAGIC) + 8 : len(MAGIC) + 8 + length])
    assert (header["format"], header["rows"]) == (1, 12)
    assert len(raw) < len(MAGIC) + 8 + length + 12 * (24 + 16 + 32 + 12)  # a row each
