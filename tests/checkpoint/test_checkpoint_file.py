"""The checkpoint: what goes in comes out bit for bit; what is damaged, wrong or half written is refused."""

from __future__ import annotations

import dataclasses
import errno
import io
import json
import os
import random
import resource
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitrail
from effort import at_most
from vitrail.checkpoint import KEY, Checkpoint, Mapped, Provenance, Setting, content_hash, load, save
from vitrail.checkpoint import checkpoint_file as module
from vitrail.errors import CheckpointError, InputError, nearest
from vitrail.images import Preprocess
from vitrail.images.model_info import ModelInfo
from vitrail.images.ood_detector import OodDetector
from vitrail.inference import RuntimeBase
from vitrail.network import ConvStem, Positions, Rotary, ViT, ViTConfig
from vitrail.network.masked import MaskedDecoder

TINY = ViTConfig(image_size=(16, 16), patch_size=(4, 4), width=8, depth=2, heads=2, mlp_width=12, classes=3)
BUILDING = 20_000  # calls: some times what loading TINY takes, and a small part of what a thousand blocks would
NAMES = ("cat", "œuf [à la coque]", "<b>été</b>")
PIXELS = Preprocess(size=16)


def shaped(**changes: Any) -> ViTConfig:
    return dataclasses.replace(TINY, **changes)


CONFIGS = {
    "plain": TINY,
    "fixed table": shaped(positions=Positions("sincos-2d", resample=vitrail.network.Resample(antialias=False))),
    "fixed and shared": shaped(positions=Positions("sincos-1d", at="shared")),
    "two tables": shaped(positions=Positions("learned-2d")),
    "every block": shaped(positions=Positions("learned", at="every")),
    "relative": shaped(positions=Positions("relative")),
    "batch norm": shaped(norm="batch"),
    "mixed rotary": shaped(rotary=Rotary("mixed", theta=10.0), positions=Positions("none")),
    "dinov3 rotary": shaped(rotary=Rotary("dinov3", rescale=2.0), positions=Positions("none"), qkv_bias="no-key"),
    "swiglu": shaped(mlp="swiglu", activation="silu", layer_scale=1e-5),
    "attention pool": shaped(pool="map", cls_token=False),
    "distillation": shaped(pool="cls+distillation", distillation_token=True, registers=2),
    "conv stem": shaped(stem=ConvStem((4, 8)), patch_size=(1, 1)),
    "no head": shaped(classes=0, embedding_norm=True, final_norm="none"),
    "parallel, axial": shaped(parallel=True, axial=True, qk_norm=True, cls_token=False, pool="mean"),
    "merging": shaped(merge_per_block=2, patch_norms=True, representation_width=5),
}


DECODER = shaped(depth=1, width=4, heads=1, classes=48, pool="none", positions=Positions("sincos-2d"))
SETTINGS = (Setting("norm_eps", "1e-06", "the family's own"), Setting("activation", "gelu", "config.json"))
MAPPING = (
    Mapped("tokens.cls", ("cls_token",), (1, 8), "same"),
    Mapped("encoder.blocks.0.attention.qkv.weight", ("query", "clé", "value"), (24, 8), "joined"),
)


def full(model: ViT | None = None) -> Checkpoint:
    """A checkpoint that uses every field."""
    return Checkpoint(
        model or ViT(TINY),
        Preprocess(size=(16, 16), crop=1.0, interpolation="bilinear", mean=(0.1, 0.2, 0.3), std=(0.9, 0.3, 1 / 3)),
        NAMES,
        Provenance(
            "photos/", "CC-BY-4.0", "runs/7", {"top1": 0.1 + 0.2, "n": 2e-7}, "fine-tuned", "timm", SETTINGS, MAPPING
        ),
        task="multi-label",
        temperature=0.1 + 0.7,
        thresholds=(0.25, 0.5, 1e-6),
        reject=0.3,
        decoder=MaskedDecoder(DECODER, TINY.width),
        extras={"mask_token": torch.randn(1, 8), "étapes": torch.arange(3), "none": torch.zeros(0, 2).bool()},
        ood=OodDetector.fit(np.eye(8), np.linspace(0, 1, 19 * 8).reshape(19, 8)),
    )


def parts(path: Path) -> tuple[dict[str, Any], bytes]:
    """The header of a safetensors file and what follows it."""
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:end]), data[end:]


def joined(header: dict[str, Any] | str | bytes, body: bytes) -> bytes:
    raw = header if isinstance(header, bytes) else (header if isinstance(header, str) else json.dumps(header)).encode()
    return struct.pack("<Q", len(raw)) + raw + body


def rewritten(path: Path, change: Callable[[dict[str, Any], dict[str, torch.Tensor]], None]) -> Path:
    """A file whose description or tensors were changed by someone who then signed it rightly."""
    from safetensors.torch import load as read
    from safetensors.torch import save as write

    tensors = read(path.read_bytes())
    description = json.loads(parts(path)[0]["__metadata__"][KEY])
    del description["hash"]
    change(description, tensors)
    text = json.dumps(description | {"hash": content_hash(description, tensors)})
    other = path.with_name("changed.safetensors")
    other.write_bytes(write(tensors, {KEY: text}))
    return other


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "full.safetensors"
    torch.manual_seed(1)  # not that of the tests: what they make themselves differs from this
    save(full(), path)
    return path.read_bytes()


@pytest.fixture
def saved(tmp_path: Path, whole: bytes) -> Path:
    path = tmp_path / "full.safetensors"
    path.write_bytes(whole)
    return path


# ---- there and back ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONFIGS)
def test_every_kind_of_network_comes_back_bit_for_bit(tmp_path: Path, name: str) -> None:
    config = CONFIGS[name]
    model = ViT(config).train()
    pixels = torch.randn(3, 3, 16, 16)
    model(pixels)  # batch norm now has statistics of its own
    made = Checkpoint(model.eval(), PIXELS)
    save(made, tmp_path / "a.safetensors")
    loaded = load(tmp_path / "a.safetensors")
    assert loaded.model.config == config
    assert loaded.describe() == made.describe()
    assert not loaded.model.training
    ours, theirs = model.state_dict(), loaded.model.state_dict()
    assert list(ours) == list(theirs)
    for key in ours:
        assert ours[key].dtype == theirs[key].dtype
        assert torch.equal(ours[key], theirs[key]), key
    assert torch.equal(model(pixels), loaded.model(pixels))
    assert all(each.requires_grad for each in loaded.model.parameters())


def test_bfloat16_weights_stay_bfloat16(tmp_path: Path) -> None:
    model = ViT(TINY).to(torch.bfloat16).eval()
    save(Checkpoint(model, PIXELS), tmp_path / "half.safetensors")
    loaded = load(tmp_path / "half.safetensors")
    assert {each.dtype for each in loaded.model.state_dict().values()} == {torch.bfloat16}
    for key, value in model.state_dict().items():
        assert torch.equal(value, loaded.model.state_dict()[key])
    logits, embedding = loaded.run(np.zeros((1, 3, 16, 16), np.float32))
    assert logits.dtype == embedding.dtype == np.float32


def test_a_pruned_network_comes_back_pruned(tmp_path: Path) -> None:
    model = vitrail.prune_heads(ViT(shaped(heads=4)), {0: [1, 2], 1: [0]}).eval()
    save(Checkpoint(model, PIXELS), tmp_path / "cut.safetensors")
    loaded = load(tmp_path / "cut.safetensors").model
    assert loaded.config.kept_heads == ((0, 3), (1, 2, 3))
    pixels = torch.randn(2, 3, 16, 16)
    assert torch.equal(model(pixels), loaded(pixels))


def test_all_that_is_not_a_tensor_comes_back(saved: Path) -> None:
    loaded = load(saved)
    made = dataclasses.replace(full(loaded.model), decoder=loaded.decoder, extras=loaded.extras)
    for field in dataclasses.fields(Checkpoint):
        assert getattr(loaded, field.name) == getattr(made, field.name), field.name
    assert all(type(each) is Setting for each in loaded.provenance.settings)
    assert all(type(each) is Mapped for each in loaded.provenance.mapping)
    assert loaded.provenance.mapping[1].theirs == ("query", "clé", "value")
    assert loaded.provenance.mapping[1].shape == (24, 8)
    assert loaded.provenance.family == "timm"
    assert loaded.classes == NAMES
    assert loaded.provenance.metrics == {"top1": 0.30000000000000004, "n": 2e-7}
    assert loaded.preprocess.std == (0.9, 0.3, 1 / 3)
    assert loaded.describe()["format"] == 3


def test_a_file_of_an_earlier_release_opens_in_the_words_of_this_one(tmp_path: Path) -> None:
    """format2.safetensors was written by the release before, which called tasks "one" and "several"."""
    earlier = Path(__file__).with_name("format2.safetensors")
    assert rb"\"task\": \"several\"" in earlier.read_bytes()
    loaded = load(earlier)
    assert (loaded.task, loaded.classes, loaded.temperature) == ("multi-label", ("cat", "dog"), 1.5)
    assert (loaded.thresholds, loaded.provenance.source) == ((0.25, 0.75), "photos/")
    logits, embedding = loaded.run(np.linspace(-1, 1, 192, dtype=np.float32).reshape(1, 3, 8, 8))
    np.testing.assert_allclose(logits, [[-3.8886638, -3.7168474]], rtol=1e-5)  # as that release answered
    np.testing.assert_allclose(embedding, [[-2.822268, 4.320841, 2.356219, 0.6076059]], rtol=1e-5)
    save(loaded, tmp_path / "new.safetensors")
    assert load(tmp_path / "new.safetensors").describe() == loaded.describe()
    assert loaded.describe()["format"] == 3
    data = bytearray(earlier.read_bytes())
    data[-1] ^= 1
    (tmp_path / "damaged.safetensors").write_bytes(data)
    with pytest.raises(CheckpointError, match="its content hash is"):
        load(tmp_path / "damaged.safetensors")


def test_decoder_and_extras_come_back_bit_for_bit(tmp_path: Path) -> None:
    made = full()
    save(made, tmp_path / "a.safetensors")
    loaded = load(tmp_path / "a.safetensors")
    assert made.decoder is not None
    assert loaded.decoder is not None
    assert loaded.decoder.config == DECODER
    assert loaded.decoder.entering == TINY.width
    assert not loaded.decoder.training
    ours, theirs = made.decoder.state_dict(), loaded.decoder.state_dict()
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    tokens, restore = torch.randn(2, 5, 8), torch.randperm(16).expand(2, 16)
    assert torch.equal(made.decoder.eval()(tokens, restore), loaded.decoder(tokens, restore))
    assert set(loaded.extras) == {"mask_token", "étapes", "none"}
    for name, value in made.extras.items():
        assert loaded.extras[name].dtype == value.dtype
        assert torch.equal(loaded.extras[name], value), name
    assert load(tmp_path / "a.safetensors").tensors().keys() == made.tensors().keys()


def test_without_decoder_and_extras_there_are_none(tmp_path: Path) -> None:
    save(Checkpoint(ViT(TINY), PIXELS), tmp_path / "a.safetensors")
    loaded = load(tmp_path / "a.safetensors")
    assert loaded.decoder is None
    assert loaded.extras == {}
    assert loaded.provenance == Provenance()


def test_tensors_that_share_their_memory_are_saved_each(tmp_path: Path) -> None:
    model = ViT(TINY)
    made = Checkpoint(model, PIXELS, extras={"cls": model.tokens.cls, "part": model.norm.weight[2:5]})
    save(made, tmp_path / "a.safetensors")
    loaded = load(tmp_path / "a.safetensors")
    assert torch.equal(loaded.extras["cls"], model.tokens.cls)
    assert torch.equal(loaded.extras["part"], model.norm.weight[2:5])
    assert loaded.extras["cls"].data_ptr() != loaded.model.tokens.cls.data_ptr()


def test_every_byte_is_read_once(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And lands where it stays: no tensor lies in memory twice."""
    counts = []
    read = os.preadv

    def counted(number: int, views: list[memoryview], start: int) -> int:
        counts.append(read(number, views, start))
        return counts[-1]

    monkeypatch.setattr(os, "preadv", counted)
    load(saved)
    assert sum(counts) == saved.stat().st_size


def test_the_hash_is_of_names_kinds_shapes_values_and_description() -> None:
    tensors = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.arange(4)}
    described = {"format": 2, "x": [1, 2]}
    first = content_hash(described, tensors)
    assert content_hash({"x": [1, 2], "format": 2}, dict(reversed(tensors.items()))) == first
    others = [
        (described | {"x": [1, 3]}, tensors),
        (described, {"c": tensors["a"], "b": tensors["b"]}),
        (described, {"a": tensors["b"], "b": tensors["a"]}),
        (described, tensors | {"a": tensors["a"].reshape(3, 2)}),
        (described, tensors | {"a": tensors["a"].view(torch.int32)}),
        (described, tensors | {"a": -tensors["a"]}),
        (described, {"a": tensors["a"]}),
    ]
    assert len({content_hash(*each) for each in others} | {first}) == 1 + len(others)


def test_saving_twice_gives_the_same_bytes(tmp_path: Path, saved: Path) -> None:
    save(load(saved), tmp_path / "again" / "deeper" / "b.safetensors")
    assert (tmp_path / "again" / "deeper" / "b.safetensors").read_bytes() == saved.read_bytes()


def test_classes_without_names_are_numbers() -> None:
    assert Checkpoint(ViT(TINY), PIXELS).classes == ("0", "1", "2")


def test_a_network_in_training_answers_as_one_at_rest(tmp_path: Path) -> None:
    model = ViT(shaped(dropout=0.5, norm="batch", drop_path=0.3, initialisation="timm")).train()
    pixels = np.random.default_rng(0).standard_normal((4, 3, 16, 16), np.float32)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    made = Checkpoint(model, PIXELS)
    first, second = made.run(pixels), made.run(pixels)
    assert np.abs(first[0]).max() > 0
    assert np.array_equal(first[0], second[0])
    assert np.array_equal(first[1], second[1])
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    with torch.no_grad():
        assert np.array_equal(first[0], model.eval()(torch.from_numpy(pixels)).numpy())


# ---- what is damaged ---------------------------------------------------------------------------------------------


@pytest.mark.fault("T8")
def test_every_flipped_bit_is_found(saved: Path) -> None:
    """One in each tensor, the length of the header, and many in it."""
    data = saved.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    dice = random.Random(0)
    spans = [each["data_offsets"] for name, each in parts(saved)[0].items() if name != "__metadata__"]
    places = [8 * end + dice.randrange(8 * start, 8 * stop) for start, stop in spans if stop > start]
    assert len(places) > 40
    places += [dice.randrange(64, 8 * end) for _ in range(100)]
    places += range(64)
    missed = [place for place in places if not refused(saved, flipped(data, place))]
    assert missed == [], f"{len(missed)} of {len(places)} flips were not noticed"


@pytest.mark.fault("T8")
def test_flips_that_mean_the_same_are_found_too(saved: Path) -> None:
    """1e-06 and 1E-06, \\u00e9 and \\u00E9, the 17th digit: the same value to a reader, but not what was written."""
    data = saved.read_bytes()
    text = data[: 8 + int.from_bytes(data[:8], "little")]
    for same in (b"1e-06", b"u00e9", b"0.30000000000000004"):
        place = text.index(same) + len(same) - (1 if same[0] == 48 else 4 if same[0] == 49 else 2)
        bit = 5 if data[place] != ord("4") else 0  # e to E, 4 to 5
        other = flipped(data, 8 * place + bit)
        assert other[place : place + 1] in b"E5"
        assert refused(saved, other), same


def flipped(data: bytes, bit: int) -> bytes:
    other = bytearray(data)
    other[bit // 8] ^= 1 << bit % 8
    return bytes(other)


def refused(path: Path, data: bytes) -> bool:
    """Whether these bytes raise CheckpointError with the path in it; any other error fails the test."""
    path.write_bytes(data)
    try:
        load(path)
    except CheckpointError as error:
        return str(path) in str(error)
    return False


@pytest.mark.fault("T7", "T9")
def test_a_file_cut_short_is_refused(saved: Path) -> None:
    data = saved.read_bytes()
    for tenth in range(10):
        assert refused(saved, data[: len(data) * tenth // 10]), f"{10 * tenth} % of the file"
    assert refused(saved, data[:-1])
    assert refused(saved, data + b"\0")


@pytest.mark.fault("T9")
def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty.safetensors"
    empty.touch()
    fifo = tmp_path / "pipe.safetensors"
    os.mkfifo(fifo)
    loop = tmp_path / "loop.safetensors"
    loop.symlink_to(loop)
    for path, reason in (
        (empty, "cut short"),
        (tmp_path, "is a folder"),
        (tmp_path / "none.safetensors", "no checkpoint"),
        (fifo, "is a pipe or device"),
        (loop, "Too many levels of symbolic links"),
        (tmp_path / ("x" * 300), "File name too long"),
        ("vitrail:glas", "did you mean 'vitrail:glass'"),
    ):
        with pytest.raises(CheckpointError, match=reason):
            load(path)
    for wrong in (None, 5, b"x.safetensors", "a\0b", ""):
        with pytest.raises(InputError, match="expected the path of a file or folder of weights"):
            load(wrong)  # type: ignore[arg-type]


@pytest.mark.fault("W7")
@pytest.mark.parametrize(
    "data",
    [
        b"<!DOCTYPE html><html><head><title>404</title></head></html>",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 22874184\n",
        random.Random(3).randbytes(4096),
        b"PK\x03\x04" + bytes(100),
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 2) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 4) + b"\xff\xfe{}",
        joined('{"__metadata__": {"other": "x"}}', b""),
        joined('{"__metadata__": 5}', b""),
        joined('{"__metadata__": {"vitrail": 5}}', b""),
        joined('{"__metadata__": {"vitrail": "{"}}', b""),
        joined('{"__metadata__": {"vitrail": "[]"}}', b""),
        joined('{"__metadata__": {"vitrail": "{\\"format\\": NaN}"}}', b""),
        joined("[" * 100_000, b""),
        joined(json.dumps({"__metadata__": {KEY: "[" * 100_000}}), b""),
        joined('{"a": ' + "9" * 5000 + "}", b""),
    ],
    ids=lambda data: repr(data[:24]),
)
def test_what_is_not_ours_is_refused_at_once(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.safetensors"
    with at_most(1000):
        assert refused(path, data)


@pytest.mark.fault("W8")
def test_a_name_that_stands_twice_is_refused(saved: Path) -> None:
    header, body = parts(saved)
    text = json.dumps(header)
    name = next(key for key in header if key != "__metadata__")
    twice = text[:-1] + f", {json.dumps(name)}: {json.dumps(header[name])}}}"
    assert json.loads(twice) == header  # json alone does not notice
    saved.write_bytes(joined(twice, body))
    with pytest.raises(CheckpointError, match="twice"):
        load(saved)


@pytest.mark.fault("W7")
@pytest.mark.parametrize(
    "change",
    [
        {"data_offsets": [0, 4]},
        {"data_offsets": [4, 0]},
        {"data_offsets": [0, 2**62]},
        {"data_offsets": "x"},
        {"dtype": "F99"},
        {"dtype": None},
        {"shape": [2**62, 0]},
        {"shape": "x"},
        {"shape": [-1]},
        {"more": 1},
    ],
    ids=str,
)
def test_a_wrong_entry_in_the_header_is_refused(saved: Path, change: dict[str, Any]) -> None:
    header, body = parts(saved)
    header["tokens.cls"] |= change
    assert refused(saved, joined(header, body))


@pytest.mark.fault("W9")
def test_all_that_does_not_fit_stands_in_one_message(saved: Path) -> None:
    def change(description: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        del tensors["tokens.cls"]
        tensors["extra.weight"] = torch.zeros(2)
        tensors["norm.bias"] = torch.zeros(9)
        tensors["head.classify.weight"] = torch.zeros(5, 8)
        tensors["norm.weight"] = torch.zeros(8, dtype=torch.int64)

    with pytest.raises(CheckpointError) as caught:
        load(rewritten(saved, change))
    message = str(caught.value)
    for part in (
        "missing tokens.cls",
        "unexpected extra.weight",
        "norm.bias: expected [8], got [9]",
        "head.classify.weight: expected [3, 8], got [5, 8]",
        "norm.weight: expected floats, got I64",
    ):
        assert part in message


@pytest.mark.fault("W9")
def test_a_wrong_count_of_classes_is_refused(saved: Path) -> None:
    path = rewritten(saved, lambda description, _: description["classes"].append("dog"))
    with pytest.raises(CheckpointError, match=r"expected 3 class names, as the head has, got 4"):
        load(path)


@pytest.mark.fault("W8")
def test_nan_is_neither_saved_nor_loaded(saved: Path, tmp_path: Path) -> None:
    made = full()
    for value in (float("nan"), float("inf")):
        with torch.no_grad():
            made.model.norm.bias[3] = value
        with pytest.raises(CheckpointError, match=r"norm\.bias holds NaN or infinite values: not saved"):
            save(made, tmp_path / "nan.safetensors")
        assert sorted(tmp_path.iterdir()) == [saved]

    def change(_: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        tensors["norm.bias"][3] = float("nan")

    with pytest.raises(CheckpointError, match=r"norm\.bias holds NaN or infinite values: refused"):
        load(rewritten(saved, change))


@pytest.mark.fault("W8")
@pytest.mark.parametrize("name", ["extras.mask_token", "decoder.norm.bias"])
def test_nan_is_refused_in_the_other_parts_too(saved: Path, name: str) -> None:
    def change(_: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        tensors[name].view(-1)[-1] = float("-inf")

    with pytest.raises(CheckpointError, match=rf"{name} holds NaN or infinite values: refused"):
        load(rewritten(saved, change))


@pytest.mark.fault("W8")
@pytest.mark.parametrize("dtype, large", [(torch.float32, 3e38), (torch.float16, 6e4), (torch.bfloat16, 3e38)])
def test_large_numbers_are_not_infinite_ones(tmp_path: Path, dtype: torch.dtype, large: float) -> None:
    """Whatever becomes of their sum; and infinities that cancel out are still found."""
    values = torch.full((64,), large).to(dtype)
    made = Checkpoint(ViT(TINY), PIXELS, extras={"large": values})
    save(made, tmp_path / "a.safetensors")
    assert torch.equal(load(tmp_path / "a.safetensors").extras["large"], values)
    values[:2] = torch.tensor([float("inf"), float("-inf")])
    with pytest.raises(CheckpointError, match=r"extras\.large holds NaN or infinite values: not saved"):
        save(made, tmp_path / "b.safetensors")


def test_another_hash_is_refused(saved: Path) -> None:
    header, body = parts(saved)
    text = header["__metadata__"][KEY]
    digest = json.loads(text)["hash"]
    assert digest.startswith("sha256:")
    header["__metadata__"][KEY] = text.replace(digest, "sha256:" + "0" * 64)
    saved.write_bytes(joined(header, body))
    with pytest.raises(CheckpointError, match=r"its content hash is sha256:.*, expected sha256:000"):
        load(saved)


@pytest.mark.parametrize(
    "field, value, reason",
    [
        ("depth", 10**9, "depth"),
        ("depth", 1024, r"expected 1024 blocks, as the config says, got \d+ tensors"),
        ("width", 2**40, "width"),
        ("width", -8, "width"),
        ("width", "8", "width"),
        ("width", 8.5, "width"),
        ("mlp_width", 2**20, "do not fit the config"),
        ("classes", 10**12, "classes"),
        ("image_size", [2**20, 2**20], "do not fit|crop|image"),
        ("colour", "blue", "colour"),
    ],
)
def test_a_config_that_asks_too_much_is_refused_before_it_is_built(
    saved: Path, field: str, value: Any, reason: str
) -> None:
    path = rewritten(saved, lambda description, _: description["config"].update({field: value}))
    with at_most(BUILDING), pytest.raises(CheckpointError, match=reason):
        load(path)


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"format": 4}, "expected format 3, got 4: it may need a newer Vitrail"),
        ({"format": 1}, "expected format 3, got 1: it was made by an older one: make it anew"),
        ({"format": None}, "expected format 3, got None"),
        ({"config": 5}, "expected a mapping"),
        ({"preprocess": 5}, "damaged|expected a mapping"),
        ({"preprocess": {"size": 17}}, "17x17 does not divide into patches of 4x4"),
        ({"preprocess": {"size": 16, "channels": 1}}, "the network takes 3 channels, the preprocessing gives 1"),
        ({"classes": 5}, "classes: expected a list, got 5"),
        ({"classes": ["a", "a", "b"]}, "class names must differ, got twice: a"),
        ({"classes": ["a", "", "b"]}, "none may be empty"),
        ({"classes": [1, [], {}]}, "must be text"),
        ({"task": "many"}, "task 'many' is unknown"),
        ({"task": "several"}, "task 'several' is unknown"),
        ({"format": 2, "task": ["one"]}, "task \\['one'\\] is unknown"),
        ({"temperature": 0}, "temperature: expected a positive number, got 0"),
        ({"temperature": "1"}, "temperature: expected a positive number, got '1'"),
        ({"thresholds": [0.5]}, "thresholds: expected 3, got 1"),
        ({"thresholds": [0.5, "x", 0.5]}, "thresholds: expected a number from 0 to 1, got 'x'"),
        ({"thresholds": 7}, "thresholds: expected a list, got 7"),
        ({"reject": 1.5}, "reject: expected a number from 0 to 1, got 1.5"),
        ({"provenance": []}, "damaged"),
        ({"provenance": {"source": 5}}, "source: expected text, got 5"),
        ({"provenance": {"family": None}}, "family: expected text, got None"),
        ({"provenance": {"metrics": [1]}}, "metrics: expected numbers under names, got \\[1\\]"),
        ({"provenance": {"settings": "x"}}, "settings: expected a list, got 'x'"),
        ({"provenance": {"settings": [5]}}, "settings: expected name, value, why, got 5"),
        ({"provenance": {"settings": [{"name": "a", "value": "b"}]}}, "settings: expected name, value, why, got"),
        ({"provenance": {"settings": [{"name": "a", "value": 1, "why": "c"}]}}, "settings: expected Setting"),
        ({"provenance": {"mapping": {}}}, "mapping: expected a list, got {}"),
        ({"provenance": {"mapping": [["a", ["b"], [1], "c"]]}}, "mapping: expected ours, theirs, shape, how, got"),
        ({"provenance": {"mapping": [MAPPING[0]._asdict() | {"theirs": "b"}]}}, "mapping: expected Mapped"),
        ({"provenance": {"mapping": [MAPPING[0]._asdict() | {"shape": [-1]}]}}, "mapping: expected Mapped"),
        ({"provenance": {"mapping": [MAPPING[0]._asdict() | {"shape": [True]}]}}, "mapping: expected Mapped"),
        ({"decoder": None}, "unexpected decoder.encoder.blocks.0.attention.out.bias"),
        ({"decoder": 5}, "expected a mapping of settings, got 5"),
        ({"decoder": DECODER.to_dict() | {"depth": 2}}, "missing decoder.encoder.blocks.1"),
        ({"decoder": DECODER.to_dict() | {"depth": 1024}}, "expected 1024 blocks, as the config says"),
        ({"decoder": DECODER.to_dict() | {"width": 8}}, r"decoder.entry.weight: expected \[8, 8\], got \[4, 8\]"),
        ({"decoder": DECODER.to_dict() | {"classes": 3}}, "decoder: expected classes=48"),
    ],
)
def test_a_wrong_description_is_refused(saved: Path, change: dict[str, Any], reason: str) -> None:
    with pytest.raises(CheckpointError, match=reason):
        load(rewritten(saved, lambda description, _: description.update(change)))


@pytest.mark.parametrize(
    "name", ["config", "decoder", "preprocess", "classes", "task", "temperature", "thresholds", "reject", "provenance"]
)
def test_a_lacking_part_is_named(saved: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match=f"the description lacks '{name}'"):
        load(rewritten(saved, lambda description, _: description.pop(name)))


def test_wrong_parts_are_refused_at_construction() -> None:
    model = ViT(TINY)
    for values, reason in (
        ({"classes": ("a", "b")}, "expected 3 class names, as the head has, got 2"),
        ({"temperature": float("nan")}, "temperature: expected a positive number"),
        ({"temperature": -1.0}, "temperature: expected a positive number"),
        ({"thresholds": (0.5, float("nan"), 0.5)}, "thresholds: expected a number from 0 to 1"),
        ({"task": "multilabel"}, "did you mean 'multi-label'"),
        ({"decoder": ViT(TINY)}, "decoder: expected MaskedDecoder, got a ViT"),
        ({"decoder": MaskedDecoder(DECODER, 9)}, "the decoder takes tokens of width 9, the network gives 8"),
        ({"extras": [torch.zeros(1)]}, "extras: expected tensors under names"),
        ({"extras": {"": torch.zeros(1)}}, "extras: expected names of text, got ''"),
        ({"extras": {5: torch.zeros(1)}}, "extras: expected names of text, got 5"),
        ({"extras": {"\ud800": torch.zeros(1)}}, "extras: expected names of text"),
        ({"extras": {"a": [1.0]}}, r"extras: a: expected a tensor with its values in memory, got \[1.0\]"),
        ({"extras": {"a": torch.zeros(1, device="meta")}}, "extras: a: expected a tensor with its values in memory"),
        ({"extras": {"a": torch.zeros(1).to(torch.complex64)}}, "extras: a: expected numbers .* got torch.complex64"),
    ):
        with pytest.raises(CheckpointError, match=reason):
            Checkpoint(model, PIXELS, **values)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match=r"only \(16, 16\), the preprocessing gives \(32, 32\)"):
        Checkpoint(ViT(shaped(fixed_size=True)), Preprocess(size=32))


@pytest.mark.fault("W13")
def test_only_our_errors_escape_from_mutated_files(saved: Path) -> None:
    data = saved.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    dice = random.Random(1)
    passed = 0
    for number in range(500):
        other = bytearray(data)
        area = end if number % 2 else len(data)  # half of them hit the header
        for _ in range(dice.randint(1, 8)):
            place = dice.randrange(min(area, len(other)))
            kind = dice.randrange(4)
            if kind == 0:
                other[place] = dice.randrange(256)
            elif kind == 1:
                del other[place : place + dice.randint(1, 64)]
            elif kind == 2:
                other[place:place] = other[place : place + dice.randint(1, 64)]
            else:
                other[place:place] = dice.choice((b"9" * 20, b'"', b"}", b"null", b"-1", b"NaN", b"[[", bytes(8)))
        passed += bytes(other) != data and not refused(saved, bytes(other))
    assert passed == 0


@pytest.mark.fault("W14")
def test_a_file_cut_while_it_is_read_does_no_harm(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that the header says was true, and then it no longer is: an error, and the process lives."""
    compare = module._compare

    def cut_then_compare(*given: Any) -> None:
        os.truncate(saved, saved.stat().st_size - 100)
        compare(*given)

    monkeypatch.setattr(module, "_compare", cut_then_compare)
    with pytest.raises(CheckpointError, match=rf"{saved} was cut short while being read: get the file anew"):
        load(saved)


@pytest.mark.fault("W14")
def test_a_file_replaced_between_any_two_reads_loads_whole_or_not_at_all(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written anew in place, with other weights or half of them, before each of the reads in turn."""
    data, read = saved.read_bytes(), os.preadv
    torch.manual_seed(2)
    save(full(), saved)
    other = saved.read_bytes()
    assert len(other) == len(data)
    assert other != data
    reads: list[int] = []
    changes: dict[int, bytes] = {}

    def changing(number: int, views: list[memoryview], start: int) -> int:
        reads.append(start)
        if len(reads) in changes:
            saved.write_bytes(changes[len(reads)])
        return read(number, views, start)

    monkeypatch.setattr(os, "preadv", changing)
    monkeypatch.setattr(module, "in_threads", lambda work, given: [work(each) for each in given])
    saved.write_bytes(data)
    assert load(saved).classes == NAMES
    count = len(reads)
    assert count > 20
    for new in (other, data[: len(data) // 2]):
        for turn in (1, 2, 3, count // 2, count):
            saved.write_bytes(data)
            reads.clear()
            changes = {turn: new}
            with pytest.raises(CheckpointError, match="was cut short|was changed|is damaged|cannot be read"):
                load(saved)


# ---- saving is all or nothing ------------------------------------------------------------------------------------


@pytest.mark.fault("T5")
def test_a_full_disk_leaves_the_older_file(saved: Path) -> None:
    """A limit on the size of files stands for a full disk: the write itself fails half-way."""
    before, made = saved.read_bytes(), full()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(CheckpointError) as caught:
            save(made, saved)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert str(caught.value) == f"could not write {saved} ({len(before):,} bytes needed): File too large"
    assert saved.read_bytes() == before
    assert os.listdir(saved.parent) == [saved.name]


@pytest.mark.fault("T5")
@pytest.mark.parametrize("name", ["fsync", "replace"])
def test_a_step_that_fails_leaves_the_older_file(saved: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    before = saved.read_bytes()
    other = full()

    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, name, fail)
        with pytest.raises(CheckpointError) as caught:
            save(other, saved)
    assert str(caught.value) == f"could not write {saved} ({len(before):,} bytes needed): No space left on device"
    assert saved.read_bytes() == before
    assert os.listdir(saved.parent) == [saved.name]


@pytest.mark.fault("T5")
def test_what_does_not_read_back_never_takes_the_name(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = saved.read_bytes()
    write = module.write_safetensors

    def spoil(file: io.BufferedWriter, *given: Any) -> None:
        whole = io.BytesIO()
        write(whole, *given)
        file.write(flipped(whole.getvalue(), 8 * (len(before) - 5)))

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_safetensors", spoil)
        with pytest.raises(CheckpointError, match="is damaged: its content hash"):
            save(full(), saved)
    assert saved.read_bytes() == before
    assert os.listdir(saved.parent) == [saved.name]


@pytest.mark.fault("T5")
def test_a_file_is_synced_proven_renamed_and_its_folder_synced_in_that_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut at any moment leaves the older file or the new one: each step is on the disk before the next."""
    path = tmp_path / "folder" / "a.safetensors"
    sync, read_back, rename = os.fsync, module.load, os.replace
    steps: list[tuple[str, ...]] = []

    def name_of(number: int) -> str:
        return os.readlink(f"/proc/self/fd/{number}")

    def synced(number: int) -> None:
        steps.append(("synced", name_of(number), str(os.fstat(number).st_size)))
        sync(number)

    def loaded(path: Path) -> Checkpoint:
        steps.append(("read back", str(path)))
        return read_back(path)

    def renamed(old: Path, new: Path) -> None:
        steps.append(("renamed", str(old), str(new)))
        rename(old, new)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(module, "load", loaded)
    monkeypatch.setattr(os, "replace", renamed)
    save(full(), path)
    temporary = steps[0][1]
    assert Path(temporary).parent == path.parent.resolve()
    assert Path(temporary) != path
    assert [step[:2] if step[1] == str(path.parent) else step for step in steps] == [
        ("synced", temporary, str(path.stat().st_size)),  # all of it, nothing left in a buffer
        ("read back", temporary),
        ("renamed", temporary, str(path)),
        ("synced", str(path.parent)),
    ]


def test_places_where_no_file_can_be_are_refused(tmp_path: Path, saved: Path) -> None:
    made = full()
    folder = tmp_path / "folder.safetensors"
    folder.mkdir()
    for path, reason in (
        (saved / "under a file.safetensors", "Not a directory|File exists"),
        (tmp_path / ("x" * 250 + ".safetensors"), "File name too long"),
        (folder, "Is a directory"),
    ):
        with pytest.raises(CheckpointError, match=reason):
            save(made, path)
    for name in ("weights.pt", "weights", "weights.safetensors.bak", ".safetensors"):
        with pytest.raises(InputError, match=r"saved as NAME\.safetensors, got"):
            save(made, tmp_path / name)
    assert sorted(os.listdir(tmp_path)) == [folder.name, saved.name]


@pytest.mark.parametrize(
    "metric", [float("nan"), float("inf"), np.float32(0.5), object()], ids=["nan", "inf", "float32", "object"]
)
def test_a_metric_that_json_cannot_carry_is_refused(tmp_path: Path, metric: Any) -> None:
    made = dataclasses.replace(full(), provenance=Provenance(metrics={"top1": metric}))
    with pytest.raises(CheckpointError, match="not saved: the description holds what JSON cannot carry"):
        save(made, tmp_path / "a.safetensors")
    assert os.listdir(tmp_path) == []


def test_a_network_without_memory_is_not_saved(tmp_path: Path) -> None:
    made = Checkpoint(vitrail.network.surgery.build_empty(TINY), PIXELS)
    with pytest.raises(CheckpointError, match="expected a tensor with its values in memory"):
        save(made, tmp_path / "a.safetensors")
    with pytest.raises(CheckpointError, match="expected numbers of kind .* got torch.float8_e5m2"):
        save(Checkpoint(ViT(TINY).to(torch.float8_e5m2), PIXELS), tmp_path / "a.safetensors")
    assert os.listdir(tmp_path) == []


def tiny_network(**changes: Any) -> ViT:
    settings = {"image_size": 8, "patch_size": 4, "width": 8, "depth": 2, "heads": 2, "mlp_width": 8, "classes": 3}
    return ViT(ViTConfig(**{**settings, **changes}))


def test_predicting_leaves_every_module_in_its_mode() -> None:
    model = tiny_network(dropout=0.5, initialisation="timm").train()  # whose head does not start from zero
    model.encoder.blocks[0].eval()  # frozen, as people do
    before = [module.training for module in model.modules()]
    checkpoint = Checkpoint(model, Preprocess(size=8))
    pixels = np.random.default_rng(0).normal(size=(2, 3, 8, 8)).astype(np.float32)
    first, second = checkpoint.run(pixels), checkpoint.run(pixels)
    for one, other in zip(first, second, strict=True):  # no dropout
        assert np.abs(one).max() > 0
        assert np.array_equal(one, other)
    assert [module.training for module in model.modules()] == before


def test_run_takes_float_pixels_only() -> None:
    checkpoint = Checkpoint(tiny_network(), Preprocess(size=8))
    for wrong in (np.zeros((1, 3, 8, 8), np.uint8), [[1.0]], torch.zeros(1, 3, 8, 8)):
        with pytest.raises(InputError, match="expected pixels as a float array"):
            checkpoint.run(wrong)  # type: ignore[arg-type]


def test_one_thing_given_for_another_is_told(tmp_path: Path) -> None:
    """The likeliest mistakes of all: a checkpoint for its model, a model for its checkpoint."""
    model = tiny_network()
    checkpoint = Checkpoint(model, Preprocess(size=8))
    with pytest.raises(InputError, match="model: expected ViT, got a Checkpoint: pass its .model"):
        vitrail.prune_heads(checkpoint, {})  # type: ignore[arg-type]
    with pytest.raises(InputError, match="expected pixels, a float tensor"):  # a checkpoint is as good as its model
        vitrail.trace(checkpoint, {})  # type: ignore[arg-type]
    for verb in (vitrail.predict, vitrail.embed):
        with pytest.raises(InputError, match="expected a checkpoint or another runtime, got ViT"):
            verb(model, [])  # type: ignore[operator]
    with pytest.raises(InputError, match="checkpoint: expected Checkpoint, got a ViT"):
        save(model, tmp_path / "m.safetensors")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="expected a path to save to, got NoneType"):
        save(checkpoint, None)  # type: ignore[arg-type]
    for wrong in (
        (None, Preprocess(size=8)),
        (model, None),
        (model, Preprocess(size=8), "abc"),
        (model, Preprocess(size=8), 5),
    ):
        with pytest.raises(CheckpointError, match="expected"):
            Checkpoint(*wrong)


def test_thresholds_and_reject_are_obeyed() -> None:
    model = tiny_network(head_bias_init=0.0)
    torch.nn.init.normal_(model.head.classify.weight)
    image = np.zeros((8, 8, 3), np.uint8)
    plain = vitrail.predict(Checkpoint(model, Preprocess(size=8)), [image])[0]
    assert len(plain.labels) == 3
    sure, unsure = plain.probabilities[0] - 0.01, plain.probabilities[0] + 0.01
    assert vitrail.predict(Checkpoint(model, Preprocess(size=8), reject=sure), [image])[0] == plain._replace(
        needed=sure
    )
    marked = vitrail.predict(Checkpoint(model, Preprocess(size=8), reject=unsure), [image])[0]
    assert marked == plain._replace(confident=False, needed=unsure)
    limits = [0.0, 0.0, 0.0]
    limits[int(plain.labels[1])] = 1.0
    kept = vitrail.predict(Checkpoint(model, Preprocess(size=8), thresholds=tuple(limits)), [image])[0]
    assert kept.labels == (plain.labels[0], plain.labels[2])


def test_a_runtime_says_of_itself_what_its_about_says() -> None:
    class Runtime(RuntimeBase):
        def __init__(self, about: ModelInfo) -> None:
            self.about = about

    about = ModelInfo(Preprocess(size=8), ("a", "b"), "multi-label", 1.5, (0.25, 0.75), 0.125)
    runtime = Runtime(about)
    for field in dataclasses.fields(ModelInfo):
        assert getattr(runtime, field.name) == getattr(about, field.name), field.name
    assert ModelInfo.from_dict(json.loads(json.dumps(about.to_dict()))) == about
    for name in about.to_dict():
        with pytest.raises(CheckpointError, match=f"the description lacks {name}"):
            ModelInfo.from_dict({key: value for key, value in about.to_dict().items() if key != name})


def test_a_name_far_from_all_is_answered_with_all_of_them() -> None:
    known = ("bicubic", "bilinear", "box")
    assert nearest("bicubik", known) == "did you mean 'bicubic'?"
    assert nearest("biliear", known) == "did you mean 'bilinear'?"
    assert nearest("zzz", known) == "expected one of: bicubic, bilinear, box"
