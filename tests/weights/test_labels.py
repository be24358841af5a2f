"""Files of class names: every usual form is read, and what is no such file is told by its name."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.errors import CheckpointError, InputError
from vitrail.weights.imagenet import imagenet1k
from vitrail.weights.reading.labels import LARGEST_FILE, read_labels

NAMES = ("cat", "œuf [à la coque]", "<b>été</b>", "猫", "n02124075 Egyptian cat")


@pytest.fixture
def file(tmp_path: Path) -> Callable[..., Path]:
    def write(content: str | bytes, name: str = "labels.txt") -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


@pytest.mark.parametrize(
    "content, name",
    [
        ("\n".join(NAMES), "labels.txt"),
        ("\n".join(NAMES) + "\n\n", "labels.txt"),
        ("\r\n".join(NAMES) + "\r\n", "labels.txt"),
        (b"\xef\xbb\xbf" + "\r\n".join(NAMES).encode(), "labels.txt"),
        ("\n".join(f"  {name}\t" for name in NAMES), "labels"),
        (json.dumps(NAMES), "labels.json"),
        (json.dumps(NAMES, ensure_ascii=False, indent=2), "labels.txt"),
        (json.dumps({str(place): name for place, name in enumerate(NAMES)}), "id2label.json"),
        (json.dumps({str(place): NAMES[place] for place in (3, 1, 4, 0, 2)}), "labels.json"),
        (b"\xef\xbb\xbf" + json.dumps(NAMES).encode(), "labels.json"),
    ],
)
def test_every_form_gives_the_same_names(file: Callable[..., Path], content: str | bytes, name: str) -> None:
    assert read_labels(file(content, name)) == NAMES
    assert read_labels(str(file(content, name))) == NAMES


def test_a_name_may_begin_as_json_does(file: Callable[..., Path]) -> None:
    assert read_labels(file("[unknown]\n{brace\n")) == ("[unknown]", "{brace")


def test_imagenet_s_own_names_come_back(file: Callable[..., Path]) -> None:
    assert read_labels(file("\n".join(imagenet1k()))) == imagenet1k()


@pytest.mark.fault("W17")
@pytest.mark.parametrize(
    "content, message",
    [
        ("<!DOCTYPE html>\n<html><body>404</body></html>", "is a web page"),
        ("\n  <HTML><head>", "is a web page"),
        ("<?xml version='1.0'?><a/>", "is a web page"),
        ("version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "git-LFS pointer"),
        ("cat\n" + 10_000_000 * "a", "class 1 is 10,000,000 characters long, expected at most 1000"),
        (LARGEST_FILE * "a" + "aa", "larger than 16,777,216 bytes"),
        ("cat\ndog\ncat\nfox\ndog", "got twice: 'cat', 'dog'"),
        ("cat\n\ndog", "line 2 is empty"),
        ("cat\n \t\ndog", "line 2 is empty"),
        ("", "is empty"),
        ("\n \n", "is empty"),
        (b"\xff\xfec\x00a\x00t\x00", "not text: byte 0 is not UTF-8"),
        (b"caf\xe9\n", "byte 3 is not UTF-8"),
        ("cat\ndo\x1b[31mg", "class 1 holds the control character '.x1b'"),
        ("ca\x00t", "control character"),
        ("cat\rdog", "control character '.r'"),
        ("cat\tdog", "control character '.t'"),
        ("cat\u2028dog", "control character"),
        ("\u202egod", "control character"),
        ('["cat", "d\\u0000g"]', "class 1 holds the control character"),
        ('["cat", "\\ud800"]', "class 1 holds the control character"),
        ('["cat", 3]', "class 1: expected a name, got 3"),
        ('["cat", " "]', "class 1: expected a name, got ' '"),
        ('["cat", ["dog"]]', "class 1: expected a name"),
        ('{"0": "cat", "2": "dog"}', "numbered from 0 to 1, and there is no 1: got '0', '2'"),
        ('{"cat": 0}', "there is no 0: got 'cat'"),
        ('{"0": "cat", "0": "dog"}', "class '0' stands there twice"),
        ('{"0": "cat", "1": {"2": "x"}}', "class 1: expected a name"),
    ],
)  # fmt: skip
def test_w17_what_is_no_list_of_names_is_told(file: Callable[..., Path], content: str | bytes, message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        read_labels(file(content))
    assert len(str(caught.value)) < 400
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "content, message",
    [
        ("cat\ndog", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("3", "expected a JSON list of names"),
        ("null", "expected a JSON list of names"),
        ('"cat"', "expected a JSON list of names"),
    ],
)
def test_json_that_is_none(file: Callable[..., Path], content: str, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_labels(file(content, "labels.json"))


def test_empty_json_has_no_names_and_the_caller_judges_the_number(file: Callable[..., Path]) -> None:
    assert read_labels(file("[]", "a.json")) == ()
    assert read_labels(file("{}", "a.json")) == ()


def test_no_file_a_folder_a_pipe_and_no_path(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "none.txt", tmp_path, tmp_path / "pipe", "a\x00b", "x" * 5000):
        with pytest.raises(CheckpointError, match=r"no file|could not read"):
            read_labels(path)
    for wrong in (None, 3, b"labels.txt", ["labels.txt"]):
        with pytest.raises(InputError, match="expected the path"):
            read_labels(wrong)  # type: ignore[arg-type]


@pytest.mark.fault("W17")
@given(content=st.binary(max_size=60) | st.text(max_size=40).map(str.encode), json_name=st.booleans())
def test_w17_no_content_raises_anything_else(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, json_name: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / ("fuzz.json" if json_name else "fuzz.txt")
    path.write_bytes(content)
    try:
        labels: Any = read_labels(path)
    except CheckpointError:
        return
    assert len(set(labels)) == len(labels)
    assert all(isinstance(label, str) and label.strip() for label in labels)
