"""Files of torch.export: the same answers, and no code of a stranger's runs, whatever the file says."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from shipping import small
from vitrail.checkpoint import Checkpoint
from vitrail.errors import CheckpointError, InputError
from vitrail.inference import is_exported, open_exported, torch_file, torch_program
from vitrail.inference.digest import digest_of
from vitrail.inference.exported import read_exported
from vitrail.shipping.runtimes import open_runtime

Entries = dict[str, bytes]
Change = Callable[[Entries], None]


@pytest.fixture(scope="module")
def source() -> Checkpoint:
    return small.checkpoint()


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory, source: Checkpoint) -> Path:
    """a.pt2, and folders of images named after classes."""
    folder = tmp_path_factory.mktemp("programs")
    vitrail.export(source, folder / "a.pt2", dynamic_size=True)
    dice = np.random.default_rng(0)
    for number in range(10):
        place = folder / "photos" / "abcde"[number % 5] / f"{number}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(dice.integers(0, 256, (40, 50, 3), np.uint8)).save(place)
    return folder


# ---- the same answers --------------------------------------------------------------------------------------------


def test_verbs_take_the_path_of_a_program(shelf: Path, source: Checkpoint) -> None:
    path, images = shelf / "a.pt2", sorted((shelf / "photos").rglob("*.png"))
    assert is_exported(path)
    for ours, theirs in zip(vitrail.predict(source, images), vitrail.predict(str(path), images), strict=True):
        assert ours[:2] == theirs[:2]
        np.testing.assert_allclose(ours.probabilities, theirs.probabilities, atol=1e-5)
    np.testing.assert_allclose(vitrail.embed(path, images), vitrail.embed(source, images), atol=1e-4)
    expected = vitrail.evaluate(source, shelf / "photos", resamples=10).scores
    found = vitrail.evaluate(path, shelf / "photos", resamples=10).scores
    for each in expected:
        assert found[each].value == pytest.approx(expected[each].value, abs=1e-4)
    compared = vitrail.compare(source, path, shelf / "photos")
    assert (compared.only_a, compared.only_b) == (0, 0)


def test_a_program_knows_what_it_is_and_takes_sizes_in_patches(shelf: Path, source: Checkpoint) -> None:
    found = open_exported(shelf / "a.pt2")
    assert found.about == source.about
    assert repr(found) == "Exported('a.pt2', float32, float of any size)"
    assert [(each.height, each.width) for each in found.contents.checks[3:]] == [(48, 48), (24, 40)]
    for size in ((8, 8), (8, 48), (64, 24)):  # none of them checked on the way; one patch a side among them
        pixels = torch.randn(2, 3, *size).numpy()
        for a, b in zip(found.run(pixels), source.run(pixels), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)
    probs = torch.softmax(source.model(torch.from_numpy(pixels)) / 1.7, dim=1).detach().numpy()
    np.testing.assert_allclose(found.compute(pixels, ["probs"])[0], probs, atol=1e-6)
    with pytest.raises(InputError, match="multiples of 8x8 pixels, got 33x32"):
        found.run(np.zeros((1, 3, 33, 32), np.float32))
    with pytest.raises(InputError, match="torch could not run a.pt2 on"):
        found.compute(np.zeros((1, 3, 33, 32), np.float32))
    with pytest.raises(InputError, match="torch.set_num_threads"):
        open_exported(shelf / "a.pt2", threads=1)
    assert type(open_runtime(shelf / "a.pt2")) is type(found)
    with pytest.raises(InputError, match="open it without runtime='packed'"):
        open_runtime(shelf / "a.pt2", "packed")


def test_bytes_and_whole_images_go_in(tmp_path: Path, source: Checkpoint) -> None:
    vitrail.export(source, tmp_path / "whole.pt2", pixels="bytes", resize_inside=True)
    images = list(np.random.default_rng(0).integers(0, 256, (3, 60, 45, 3), np.uint8))
    found, expected = vitrail.predict(tmp_path / "whole.pt2", images), vitrail.predict(source, images)
    for one, other in zip(found, expected, strict=True):
        assert one.labels[0] == other.labels[0]
        np.testing.assert_allclose(one.probabilities, other.probabilities, atol=2e-3)


def test_a_written_program_is_plain_and_loads_in_torch_alone(shelf: Path, source: Checkpoint) -> None:
    raw = (shelf / "a.pt2").read_bytes()
    with zipfile.ZipFile(shelf / "a.pt2") as archive:
        assert archive.testzip() is None
        assert archive.read("vitrail/data/sample_inputs/model.pt") == b""
        assert b".py" not in archive.read("vitrail/models/model.json")  # where in the source a node comes from
    assert os.fsencode(str(shelf)) not in raw
    module = torch.export.load(shelf / "a.pt2").module()
    pixels = torch.randn(2, 3, 32, 32)
    np.testing.assert_allclose(module(pixels)[0].detach(), source.run(pixels.numpy())[0], atol=1e-5)


# ---- files that are not as they should be ------------------------------------------------------------------------


def sealed(entries: Entries) -> bytes:
    """An archive by someone who knows how to make the checksum right."""
    body = torch_file.packed(entries).getvalue()[: -torch_file.SEAL]
    return body + torch_file.seal(digest_of(body))


def entries_of(path: Path) -> Entries:
    with zipfile.ZipFile(path) as archive:
        return {each.removeprefix(torch_file.FOLDER): archive.read(each) for each in archive.namelist()}


def in_json(entry: str, change: Callable[[Any], object]) -> Change:
    def changed(entries: Entries) -> None:
        plain = json.loads(entries[entry])
        change(plain)
        entries[entry] = json.dumps(plain).encode()

    return changed


def graph(change: Callable[[Any], object]) -> Change:
    return in_json(torch_file.GRAPH, change)


def node(**values: Any) -> Change:
    """The first node, changed."""
    return graph(lambda plain: plain["graph_module"]["graph"]["nodes"][0].update(values))


def size(text: str) -> Change:
    """The first size that is an expression, changed."""

    def change(plain: Any) -> None:
        values = plain["graph_module"]["graph"]["tensor_values"]
        sides = [side for each in values.values() for side in each["sizes"] if "as_expr" in side]
        sides[0]["as_expr"]["expr_str"] = text

    return graph(change)


def signature(**values: str) -> Change:
    return graph(lambda plain: plain["graph_module"]["module_call_graph"][0]["signature"].update(values))


def weight(**values: Any) -> Change:
    return in_json(
        "data/weights/model_weights_config.json", lambda plain: next(iter(plain["config"].values())).update(values)
    )


def shape(**values: Any) -> Change:
    return in_json(
        "data/weights/model_weights_config.json",
        lambda plain: next(iter(plain["config"].values()))["tensor_meta"].update(values),
    )


def described(**values: Any) -> Change:
    return in_json(torch_file.DESCRIPTION, lambda plain: plain.update(values))


def with_entry(name: str, content: bytes = b"x") -> Change:
    return lambda entries: entries.update({name: content})


class Evil:
    """Unpickled, it leaves a trace."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("evil-was-here",)


def evil_pickle() -> bytes:
    out = io.BytesIO()
    torch.save(Evil(), out)
    return out.getvalue()


TEXT = {"name": "x", "arg": {"as_string": "evil"}, "kind": 1}
TREE = '[1, {"type": "collections.defaultdict", "context": "{}", "children_spec": []}]'
EVIL = "__import__('os').mkdir('evil-was-here')"


@pytest.mark.fault("W16")
@pytest.mark.parametrize(
    "change, words",
    [
        (with_entry(torch_file.EXAMPLES, evil_pickle()), "pickled examples"),
        (with_entry("data/weights/model.pt", evil_pickle()), "it holds 'vitrail/data/weights/model.pt'"),
        (with_entry("data/constants/opaque_obj_0", pickle.dumps(Evil())), "it holds .*opaque_obj_0"),
        (with_entry("data/aotinductor/model/a.so"), "it holds .*a.so"),
        (with_entry("models/other.json", b"{}"), "it holds .*other.json"),
        (with_entry("../../x"), "it holds"),
        (weight(use_pickle=True), "is pickled"),
        (weight(path_name="opaque_obj_0"), "is pickled"),
        (weight(path_name="../constants/tensor_0"), "is pickled"),
        (weight(path_name="weight_999"), "without its shape, kind or place"),
        (weight(tensor_meta=None), "without its shape, kind or place"),
        (shape(sizes=[{"as_int": 1 << 40}, {"as_int": 1 << 20}]), r"claims .* bytes, and weight_0 has 24,576"),
        (shape(storage_offset={"as_int": 1}), "claims 24,580 bytes, and weight_0 has 24,576"),
        (shape(strides=[{"as_int": -1}, {"as_int": 1}]), "without its shape, kind or place"),
        (shape(device={"type": "cuda", "index": 0}), "claims"),
        (node(target="torch.os.mkdir"), "target: 'torch.os.mkdir'"),
        (node(target="torch.hub.load"), "target: 'torch.hub.load'"),
        (node(target="torch.ops.aten._print.default"), "target: 'torch.ops.aten._print.default'"),
        (node(target="torch.ops.higher_order.cond"), "target:"),
        (node(target="#x:y"), "target:"),
        (node(inputs=[TEXT]), "text for 'x'"),
        (node(inputs=[{"name": "filename", "arg": {"as_string": "tanh"}, "kind": 1}]), "text for 'filename'"),
        (node(inputs=[{"name": "x", "arg": {"as_operator": "torch.os.mkdir"}, "kind": 1}]), "of kind 'as_operator'"),
        (node(inputs=[{"name": "x", "arg": {"as_custom_obj": {}}, "kind": 1}]), "of kind 'as_custom_obj'"),
        (node(name="x = 1; import os"), "name: 'x = 1; import os'"),
        (node(metadata={"stack_trace": "x"}), "metadata:"),
        (size(EVIL), "expr_str:"),
        (size("Symbol.mro()"), "expr_str:"),
        (graph(lambda plain: plain.update(guards_code=[EVIL])), "guards_code:"),
        (graph(lambda plain: plain["range_constraints"].update({EVIL: {}})), "the name"),
        (graph(lambda plain: plain["range_constraints"].update({"u999999999999": {}})), "the name"),
        (signature(in_spec=TREE), "a tree of 'collections.defaultdict'"),
        (signature(out_spec="x"), "a tree 'x'"),
        (with_entry(torch_file.GRAPH, b"[" * 100_000), "cut short or damaged"),
        (with_entry(torch_file.GRAPH, b"[]"), "expected an object of JSON"),
        (lambda entries: entries.pop(torch_file.GRAPH), "expected a program of torch.export"),
        (lambda entries: entries.pop(torch_file.DESCRIPTION), "no description of ours: export the checkpoint again"),
        (with_entry(torch_file.DESCRIPTION, b"\xff"), "description inside is damaged"),
        (with_entry(torch_file.NOTES, b"{"), "description inside is damaged"),
        (described(format=2), "expected an export of format 1, got 2: use a newer Vitrail"),
        (described(about=[]), "description inside is damaged"),
        (described(size=[0, 0]), "description inside is damaged"),
        (described(target="onnx"), "says it was made for onnx"),
        (described(pixels="jpeg"), "'jpeg' is unknown"),
    ],
)
def test_an_edited_program_is_refused(
    change: Change, words: str, shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = entries_of(shelf / "a.pt2")
    change(entries)
    assert entries != entries_of(shelf / "a.pt2")
    refused(sealed(entries), words, tmp_path, monkeypatch)


def refused(raw: bytes, words: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is refused by name, torch never sees it, and nothing in it has run."""

    def reached(*_: Any, **__: Any) -> Any:
        raise AssertionError("torch saw a file that should have been refused")

    monkeypatch.setattr(torch.export, "load", reached)
    monkeypatch.chdir(folder)
    (folder / "bad.pt2").write_bytes(raw)
    with pytest.raises(CheckpointError, match=f"(?s)bad.pt2.*{words}"):
        open_exported(folder / "bad.pt2")
    assert [each.name for each in folder.iterdir()] == ["bad.pt2"]


@pytest.mark.fault("W16")
@pytest.mark.parametrize(
    "change, words",
    [
        (lambda raw: b"", "is empty"),
        (lambda raw: raw[: len(raw) // 2], "no checksum at its end"),
        (lambda raw: raw[:-1], "no checksum at its end"),
        (lambda raw: raw + b"x", "no checksum at its end"),
        (lambda raw: raw[:5000] + bytes([raw[5000] ^ 1]) + raw[5001:], "its checksum is"),
        (lambda raw: raw[:-1] + (b"0" if raw[-1:] != b"0" else b"1"), "its checksum is"),
        (lambda raw: torch_file.seal(digest_of(b"")), "cut short or damaged"),
    ],
)
def test_a_damaged_program_is_refused(
    change: Callable[[bytes], bytes], words: str, shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused(change((shelf / "a.pt2").read_bytes()), words, tmp_path, monkeypatch)


@pytest.mark.fault("W16")
def test_a_program_of_torch_alone_is_refused(
    shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: Checkpoint
) -> None:
    out = io.BytesIO()
    torch.export.save(torch.export.export(torch.nn.Linear(3, 2), (torch.zeros(1, 3),)), out)
    refused(out.getvalue(), "it is no file of `vitrail export`", tmp_path, monkeypatch)
    small_zip = io.BytesIO()
    with zipfile.ZipFile(small_zip, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("vitrail/" + torch_file.GRAPH, b" " * 100_000)
        archive.comment = torch_file.seal("0" * 64)
    body = small_zip.getvalue()[: -torch_file.SEAL]
    refused(body + torch_file.seal(digest_of(body)), "is compressed", tmp_path, monkeypatch)


@pytest.mark.fault("W16")
def test_what_torch_itself_refuses_is_told(shelf: Path, tmp_path: Path) -> None:
    entries = entries_of(shelf / "a.pt2")
    graph(lambda plain: plain["schema_version"].update(major=99))(entries)
    (tmp_path / "new.pt2").write_bytes(sealed(entries))
    written = torch.__version__.replace("+", r"\+")
    with pytest.raises(CheckpointError, match=rf"torch \S+ refuses .*new.pt2, written by torch {written}: .*again"):
        open_exported(tmp_path / "new.pt2")
    out = io.BytesIO()
    torch.export.save(torch.export.export(Doubled(), (torch.zeros(1, 3),)), out)
    with zipfile.ZipFile(out) as archive:
        found = {each.partition("/")[2]: memoryview(archive.read(each)) for each in archive.namelist()}
    with pytest.raises(CheckpointError, match="other.pt2: expected the input img and 2 or 3 outputs, got .*x.*, 1"):
        torch_program.program(torch, Path("other.pt2"), found)


class Doubled(torch.nn.Module):
    """A program of another kind."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


@pytest.mark.fault("W16")
def test_no_damage_leads_to_another_error(shelf: Path, tmp_path: Path) -> None:
    """Bytes changed, cut out and put in at random, with the checksum made right again; torch sees none of it."""
    dice = np.random.default_rng(0)
    raw = (shelf / "a.pt2").read_bytes()[: -torch_file.SEAL]
    refusals = 0
    for _ in range(200):
        body = bytearray(raw)
        place = len(raw) - int(dice.integers(1, 12_000))  # descriptions and the directory
        kind = int(dice.integers(3))
        if kind == 0:
            body[place] = int(dice.integers(256))
        elif kind == 1:
            del body[place : place + int(dice.integers(1, 40))]
        else:
            body[place:place] = dice.bytes(int(dice.integers(1, 40)))
        (tmp_path / "a.pt2").write_bytes(bytes(body) + torch_file.seal(digest_of(bytes(body))))
        try:
            read_exported(tmp_path / "a.pt2")
        except CheckpointError:
            refusals += 1
    assert refusals > 100
