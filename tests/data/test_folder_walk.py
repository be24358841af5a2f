"""Which files below a folder are images, and why the others are left out."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from data.empty_files import touch
from vitrail.data import read_data
from vitrail.errors import InputError


@pytest.mark.fault("T22")
def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    touch(tmp_path, "a/1.jpg", "b/1.jpg", "a/.1.jpg", "b/.DS_Store", ".cache/x/1.jpg", "__MACOSX/a/1.jpg", "stray.png")
    touch(tmp_path, "a/notes.TXT", "a/more.txt", "b/Thumbs.db", "b/LICENSE", "a/.ipynb_checkpoints/1.jpg")
    touch(tmp_path, "a/@eaDir/1.jpg", "@eaDir/1.jpg")
    data = read_data(tmp_path)
    assert [each.name for each in data.samples] == ["a/1.jpg", "b/1.jpg"]
    assert data.left_out == {
        "hidden files": 2,
        "hidden folders": 2,
        "folders of tools": 3,
        "not images (.txt)": 2,
        "not images (.db)": 1,
        "not images (no suffix)": 1,
        "images outside class folders": 1,
    }


def test_kinds_of_files_left_out_do_not_grow_without_end(tmp_path: Path) -> None:
    touch(tmp_path, "a/1.jpg", "b/1.jpg", *(f"a/x.kind{number}" for number in range(60)))
    left_out = read_data(tmp_path).left_out
    assert len(left_out) == 21
    assert left_out["not images (others)"] == 40


@pytest.mark.fault("T22", "I11")
def test_file_names_may_be_anything(tmp_path: Path) -> None:
    names = ["a b.jpg", "new\nline.jpg", "\N{SNOWMAN}.jpg", "<script>alert(1).jpg", os.fsdecode(b"latin\xe9.jpg")]
    data = read_data(touch(tmp_path, "\N{TULIP} & co/1.jpg", *(f"plain class/{name}" for name in names)))
    assert data.classes == ("plain class", "\N{TULIP} & co")
    assert {each.name for each in data.samples if each.labels == ("plain class",)} == {
        f"plain class/{n}" for n in names
    }
    assert all(path.is_file() for path in data.images)


@pytest.mark.fault("I11")
def test_pipes_sockets_and_links_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = touch(tmp_path / "data", "a/1.jpg", "a/2.jpg", "b/1.jpg", "b/deep/2.jpg")
    outside = touch(tmp_path, "secret.jpg", "elsewhere/3.jpg")
    os.mkfifo(root / "a/pipe.jpg")
    monkeypatch.chdir(root / "a")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket.jpg")
        (root / "a/inside.jpg").symlink_to(root / "b/1.jpg")
        (root / "a/secret.jpg").symlink_to(outside / "secret.jpg")
        (root / "a/zero.jpg").symlink_to("/dev/zero")
        (root / "a/self.jpg").symlink_to(root / "a/self.jpg")
        (root / "a/gone.jpg").symlink_to(root / "a/never.jpg")
        (root / "b/up").symlink_to(root)
        (root / "b/elsewhere").symlink_to(outside / "elsewhere")
        data = read_data(root)
    assert [each.name for each in data.samples] == ["a/1.jpg", "a/2.jpg", "a/inside.jpg", "b/1.jpg", "b/deep/2.jpg"]
    assert data.left_out == {
        "pipes, sockets and devices": 2,
        "links that lead out of the folder": 2,
        "broken links": 2,
        "links to folders": 2,
    }


@pytest.mark.fault("I11")
def test_a_root_that_is_a_link_is_followed_and_a_neighbour_with_its_name_is_outside(tmp_path: Path) -> None:
    touch(tmp_path, "data/a/1.jpg", "data/b/1.jpg", "data-secret/2.jpg")
    (tmp_path / "data/a/2.jpg").symlink_to(tmp_path / "data-secret/2.jpg")
    (tmp_path / "link").symlink_to(tmp_path / "data")
    data = read_data(tmp_path / "link")
    assert [each.name for each in data.samples] == ["a/1.jpg", "b/1.jpg"]
    assert data.left_out == {"links that lead out of the folder": 1}


@pytest.mark.fault("I11")
@pytest.mark.parametrize("name", ["c", "train/c"])
def test_a_class_folder_that_is_a_link_is_an_error(tmp_path: Path, name: str) -> None:
    """Passing over it would lose a whole class."""
    folder = "train/" if "/" in name else ""
    touch(tmp_path, f"root/{folder}a/1.jpg", f"root/{folder}b/1.jpg", "c/1.jpg")
    (tmp_path / "root" / name).symlink_to(tmp_path / "c")
    with pytest.raises(InputError, match=r"/c is a link to a folder, which is not followed: copy"):
        read_data(tmp_path / "root")


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder called closed may not be read, whoever runs the tests."""
    real = os.scandir

    def scandir(path: Path) -> Iterator[os.DirEntry[str]]:
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr("vitrail.data.folder_walk.os.scandir", scandir)


@pytest.mark.fault("I11")
def test_a_folder_below_a_class_that_may_not_be_read_is_left_out_and_told(tmp_path: Path, closed: None) -> None:
    data = read_data(touch(tmp_path, "a/1.jpg", "b/1.jpg", "b/closed/2.jpg", "b/deep/closed/3.jpg"))
    assert [each.name for each in data.samples] == ["a/1.jpg", "b/1.jpg"]
    assert data.left_out == {"folders that cannot be read": 2}
    assert data.left_out_names == {"folders that cannot be read": ("b/closed", "b/deep/closed")}


@pytest.mark.fault("I11")
@pytest.mark.parametrize("name", ["closed/1.jpg", "train/closed/1.jpg"])
def test_a_class_that_may_not_be_read_is_an_error(tmp_path: Path, closed: None, name: str) -> None:
    """Passing over it would lose a whole class."""
    folder = "train/" if "train" in name else ""
    touch(tmp_path, f"{folder}a/1.jpg", f"{folder}b/1.jpg", name)
    with pytest.raises(InputError, match=f"the class {name[:-6]} in .* cannot be read: see to its permissions"):
        read_data(tmp_path)


@pytest.mark.fault("I11")
def test_a_data_set_that_may_not_be_read_is_an_error(tmp_path: Path, closed: None) -> None:
    with pytest.raises(InputError, match="the folder .*closed cannot be read: Permission denied"):
        read_data(touch(tmp_path / "closed", "a/1.jpg", "b/1.jpg"))


@pytest.mark.fault("T22")
def test_what_is_left_out_is_named_up_to_a_number(tmp_path: Path) -> None:
    touch(tmp_path, "a/1.jpg", "b/1.jpg", "b/notes.txt", *(f"a/{number}.xml" for number in range(30)))
    data = read_data(tmp_path)
    assert data.left_out == {"not images (.xml)": 30, "not images (.txt)": 1}
    assert data.left_out_names["not images (.txt)"] == ("b/notes.txt",)
    assert len(set(data.left_out_names["not images (.xml)"])) == 20


@pytest.mark.fault("T22")
def test_a_file_without_an_ending_is_an_image_by_its_first_bytes(tmp_path: Path) -> None:
    touch(tmp_path, "a/1.jpg", "b/1.jpg", "b/empty")
    for kind in ("png", "jpeg", "webp", "bmp"):
        Image.new("RGB", (8, 8)).save(tmp_path / "a" / f"as_{kind}", kind)
    (tmp_path / "a/LICENSE").write_text("BM is not always an image, and P6 is not either")
    data = read_data(tmp_path)
    assert [each.name for each in data.samples if "as" in each.name] == [
        *("a/as_bmp", "a/as_jpeg", "a/as_png", "a/as_webp"),
    ]
    assert data.left_out_names == {"not images (no suffix)": ("a/LICENSE", "b/empty")} or data.left_out_names == {
        "not images (no suffix)": ("b/empty", "a/LICENSE")
    }
