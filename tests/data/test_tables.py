"""Tables: the columns, several labels, every quirk of CSV, and errors that name the line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vitrail.data import Dataset, read_data
from vitrail.errors import InputError


def table(folder: Path, text: str | bytes, name: str = "labels.csv", images: str = "a.jpg b.jpg c.jpg d.jpg") -> Path:
    """A table beside empty images: reading opens none."""
    folder.mkdir(exist_ok=True)
    for each in images.split():
        (folder / each).touch()
    (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)
    return folder / name


def shown(data: Dataset) -> list[tuple[object, ...]]:
    return [tuple(each) for each in data.samples]


def test_path_and_label(tmp_path: Path) -> None:
    data = read_data(table(tmp_path, "path,label\nb.jpg,dog\na.jpg,cat\n"))
    assert shown(data) == [("b.jpg", ("dog",), "", ""), ("a.jpg", ("cat",), "", "")]
    assert list(data.images) == [tmp_path / "b.jpg", tmp_path / "a.jpg"]
    assert (data.classes, data.task, data.left_out) == (("cat", "dog"), "single-label", {})


def test_split_and_group(tmp_path: Path) -> None:
    text = (
        "group,PATH,note,Split, Label \np1,a.jpg,x,train,cat\np1,b.jpg,,TRAIN,dog\n,c.jpg,,valid,cat\np3,d.jpg,,,dog\n"
    )
    assert shown(read_data(table(tmp_path, text))) == [
        ("a.jpg", ("cat",), "train", "p1"),
        ("b.jpg", ("dog",), "train", "p1"),
        ("c.jpg", ("cat",), "val", ""),
        ("d.jpg", ("dog",), "", "p3"),
    ]


def test_several_labels_anywhere_make_the_task_several(tmp_path: Path) -> None:
    data = read_data(table(tmp_path, "path,label\na.jpg,dog | cat|dog\nb.jpg,\nc.jpg,cat\nd.jpg,bird\n"))
    assert data.task == "multi-label"
    assert [each.labels for each in data.samples] == [("cat", "dog"), (), ("cat",), ("bird",)]
    assert data.targets().tolist() == [[0, 1, 1], [0, 0, 0], [0, 1, 0], [1, 0, 0]]


@pytest.mark.parametrize(
    "text",
    [
        b"\xef\xbb\xbfpath,label\r\na.jpg,cat\r\nb.jpg,dog\r\n",
        b"path,label\na.jpg,cat\n\n\nb.jpg,dog",
        b'"Path","Label"\n"a.jpg","cat"\n"b.jpg","dog"\n',
        b"path;label\na.jpg;cat\nb.jpg;dog\n",
        b"label\tx\tpath\ncat\t1,2\ta.jpg\ndog\t\tb.jpg\n",
        b"path,label\n ./a.jpg , cat \nx/../b.jpg,dog\n",
    ],
)
def test_quirks_of_csv(tmp_path: Path, text: bytes) -> None:
    data = read_data(table(tmp_path, text))
    assert shown(data) == [("a.jpg", ("cat",), "", ""), ("b.jpg", ("dog",), "", "")]


def test_tsv_and_quotes_and_odd_names(tmp_path: Path) -> None:
    names = ['with "quotes".jpg', "comma, here.jpg", "new\nline.jpg", os.fsdecode(b"latin\xe9.jpg")]
    for name in names:
        (tmp_path / name).touch()
    rows = [
        b'"' + os.fsencode(name).replace(b'"', b'""') + b'"\tc' + str(i % 2).encode() for i, name in enumerate(names)
    ]
    data = read_data(table(tmp_path, b"\n".join([b"path\tlabel", *rows]), "x.tsv"))
    assert [each.name for each in data.samples] == names
    assert all(path.is_file() for path in data.images)


def test_paths_are_relative_to_the_table_wherever_one_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table(tmp_path / "images", "", "x")
    text = f"path,label\n../images/a.jpg,cat\n{tmp_path}/images/b.jpg,dog\n"
    path = table(tmp_path / "tables", text, images="")
    monkeypatch.chdir(path.parent)
    for source in (path, "labels.csv"):
        data = read_data(source)
        assert [each.name for each in data.samples] == ["../images/a.jpg", f"{tmp_path}/images/b.jpg"]
        assert [each.resolve() for each in data.images] == [tmp_path / "images/a.jpg", tmp_path / "images/b.jpg"]


@pytest.mark.parametrize(
    "text, wrong",
    [
        ("", "labels.csv has no column 'path' and no 'label': expected a header with path, label, its first line is"),
        ("a.jpg,cat\nb.jpg,dog\n", r"has no column 'path' and no 'label': .* its first line is \['a.jpg', 'cat'\]"),
        ("path,class\na.jpg,cat\n", "has no column 'label'"),
        ("path,label,Label\na.jpg,cat,dog\n", "has two columns 'label': expected one"),
        ("path,label\na.jpg,cat\nb.jpg\n", "labels.csv, line 3: 1 cells, expected 2 as in the header"),
        ("path,label\na.jpg,cat\nb.jpg,dog,c\n", "line 3: 3 cells, expected 2"),
        ('path,label\n"a\n.jpg",cat\nb.jpg\n', "line 4: 1 cells"),
        ('path,label\n"a.jpg",cat\n"b\n.jpg",dog,x\n', "line 3: 3 cells"),
        ('path,label\na.jpg,cat\n"b.jpg"x,dog\n', "line 3: cannot be read as CSV: .*expected after"),
        ('path,label\na.jpg,cat\n"b.jpg,dog\n', "line 3: cannot be read as CSV: unexpected end"),
        ("path,label\na.jpg,cat\n\nb.jpg,\n", "line 4: expected the name of a class, got ''"),
        ("path,label\na.jpg,cat|dog\nb.jpg,cat||dog\n", "line 3: expected the name of a class, got ''"),
        ("path,label\na.jpg,cat\n,dog\n", "line 3: expected the path of an image, got ''"),
        ("path,label\na.jpg,cat\nb\0.jpg,dog\n", "line 3: (expected the path of an image|cannot be read as CSV)"),
        (
            "path,label,split\na.jpg,cat,train\nb.jpg,dog,tran\n",
            "line 3: the split 'tran' is unknown: did you mean 'tr",
        ),
        ("path,label\na.jpg,cat\n./a.jpg,dog\n", "line 3: a.jpg stands in line 2 already: expected every image once"),
        ("path,label\na.jpg,cat\nb.jpg,cat\n", "labels.csv has one class only, 'cat'"),
        ("path,label\n", "no images in .*labels.csv"),
        (b"path,label\na.jpg,caf\xe9\n", r"line 2: the class name 'caf\\udce9' is not UTF-8"),
        ("path,label\na.jpg,cat\n".encode("utf-16"), "labels.csv is UTF-16: save it as CSV in UTF-8"),
        (f"path,label\na.jpg,{'x' * 200_000}\n", "line 2: cannot be read as CSV: field larger"),
    ],
)
def test_errors_name_the_line(tmp_path: Path, text: str | bytes, wrong: str) -> None:
    with pytest.raises(InputError, match=wrong):
        read_data(table(tmp_path, text))


def test_files_that_are_not_there_are_listed_with_their_lines(tmp_path: Path) -> None:
    text = "path,label\n" + "".join(f"no{number}.jpg,cat\n" for number in range(12)) + "a.jpg,dog\nfolder,dog\n"
    (tmp_path / "folder").mkdir()
    with pytest.raises(
        InputError,
        match=r"13 of 14 images cannot be used \(paths are relative to the folder of the table\): "
        r"line 2: no0.jpg is not there \(No such file or directory\); .*; line 9: no7.jpg .* and 5 more",
    ):
        read_data(table(tmp_path, text))


@pytest.mark.fault("I11")
def test_pipes_and_links_that_lead_out_are_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/s.jpg").touch()
    path = table(
        tmp_path / "set", "path,label\npipe.jpg,cat\nlink.jpg,cat\nfolder/s.jpg,dog\ninner.jpg,cat\nself.jpg,dog\n"
    )
    os.mkfifo(path.parent / "pipe.jpg")
    (path.parent / "link.jpg").symlink_to(tmp_path / "secret/s.jpg")
    (path.parent / "folder").symlink_to(tmp_path / "secret")
    (path.parent / "inner.jpg").symlink_to(path.parent / "a.jpg")
    (path.parent / "self.jpg").symlink_to(path.parent / "self.jpg")
    with pytest.raises(
        InputError,
        match="4 of 5 images .*: line 2: pipe.jpg is a pipe, socket or device; "
        "line 3: link.jpg is a link that leads out of the folder; "
        "line 4: folder/s.jpg is a link that leads out of the folder; line 6: self.jpg is not there",
    ):
        read_data(path)


def test_a_class_that_train_does_not_have_is_an_error(tmp_path: Path) -> None:
    for split in ("val", "test"):
        text = f"path,label,split\na.jpg,cat,train\nb.jpg,dog,train\nc.jpg,dogs,{split}\nd.jpg,cat,{split}\n"
        with pytest.raises(InputError, match=f"{split} has classes that train does not: unknown to train: 'dogs' .did"):
            read_data(table(tmp_path, text))
    text = "path,label,split\na.jpg,cat,train\nb.jpg,dog,train\nd.jpg,cat,test\n"
    assert read_data(table(tmp_path, text)).part("test").targets().tolist() == [0]  # a table need not have all


def test_given_classes_hold_for_tables(tmp_path: Path) -> None:
    path = table(tmp_path, "path,label\na.jpg,cat\nb.jpg,dog\n")
    assert read_data(path, classes=("dog", "cat")).targets().tolist() == [1, 0]
    with pytest.raises(InputError, match="missing: 'bird'; unknown: 'dog'"):
        read_data(path, classes=("bird", "cat"))
