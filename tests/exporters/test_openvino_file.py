"""The text of OpenVINO files: our entries, and all that our exports never hold; of models of a few lines."""

from __future__ import annotations

import pytest

from vitrail.errors import CheckpointError
from vitrail.exporters import openvino_file


def model(constant: str = 'element_type="f32" shape="2, 3" offset="8" size="24"', kind: str = "MatMul") -> bytes:
    return (
        '<?xml version="1.0"?><net name="g" version="11"><layers>'
        f'<layer id="0" name="w" type="Const"><data {constant}/></layer><layer id="1" name="m" type="{kind}"/>'
        '</layers><rt_info><vitrail><description value="words"/><notes value="more"/></vitrail></rt_info></net>'
    ).encode()


def read(text: bytes, size: int = 32) -> dict[str, str]:
    return openvino_file.metadata(memoryview(text), size, "x")


def test_a_model_like_ours_is_read() -> None:
    assert read(model()) == {"description": "words", "notes": "more"}
    assert read(model('element_type="i8" shape="" offset="31" size="1"')) == {"description": "words", "notes": "more"}
    assert read(b"<net/>") == {}


@pytest.mark.fault("W16")
@pytest.mark.parametrize(
    "constant, words",
    [
        ('element_type="f32" shape="2, 3" offset="9" size="24"', "claims 24 bytes from 9, and its .bin has 32"),
        ('element_type="f32" shape="2, 3" offset="-8" size="24"', "claims 24 bytes from -8"),
        ('element_type="f32" shape="2, 3" offset="8" size="20"', "claims 20 bytes"),
        ('element_type="f16" shape="2, 3" offset="8" size="24"', "claims 24 bytes"),
        ('element_type="f32" shape="-2, -3" offset="8" size="24"', "a constant of kind 'f32' and shape"),
        ('element_type="string" shape="2, 3" offset="8" size="24"', "a constant of kind 'string'"),
        ('element_type="f32" shape="2, x" offset="8" size="24"', "without its shape, kind or place"),
        ('element_type="f32" shape="2, 3" size="24"', "without its shape, kind or place"),
        (f'element_type="u8" shape="{", ".join("1" * 17)}" offset="8" size="1"', "and shape"),
    ],
)
def test_constants_stay_within_the_weights(constant: str, words: str) -> None:
    with pytest.raises(CheckpointError, match=f"x: refused, .*{words}"):
        read(model(constant))


@pytest.mark.fault("W16")
@pytest.mark.parametrize("kind", ["If", "Loop", "TensorIterator", "ReadValue", "Assign"])
def test_layers_that_hold_graphs_or_a_state_are_refused(kind: str) -> None:
    with pytest.raises(CheckpointError, match=f"refused, it holds a layer {kind}, which our exports never do"):
        read(model(kind=kind))


@pytest.mark.fault("W16")
@pytest.mark.parametrize(
    "text, words",
    [
        (b'<!DOCTYPE net [<!ENTITY a "b">]>' + model()[21:], "declares XML entities"),
        (b"<!DOCTYPE net SYSTEM 'http://example.com/x'><net/>", "declares XML entities"),
        (model()[:-6], "is cut short or damaged"),
        (b"", "is cut short or damaged"),
        (b"<html/>", "expected an OpenVINO model, got XML of kind 'html'"),
    ],
)
def test_text_that_is_no_model_is_refused(text: bytes, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        read(text)


@pytest.mark.fault("W16")
def test_a_seal_holds_both_files() -> None:
    text, weights = model(), bytes(range(32))
    good = text + openvino_file.SEAL.of(text, weights)
    openvino_file.SEAL.check(memoryview(good), "x", "again", memoryview(weights))
    for bad, other in ((good.replace(b"words", b"wards"), weights), (good, weights[:-1]), (good, weights[::-1])):
        with pytest.raises(CheckpointError, match="x or its .bin is damaged, or the two do not belong together"):
            openvino_file.SEAL.check(memoryview(bad), "x", "again", memoryview(other))
    for cut in (text, good[:-1], good + b" ", b""):
        with pytest.raises(CheckpointError, match="x has no checksum at its end"):
            openvino_file.SEAL.check(memoryview(cut), "x", "again", memoryview(weights))
