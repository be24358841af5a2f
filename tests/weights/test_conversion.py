"""convert proves what it wrote: a writer that changes a bit or a setting is found out, and the report says how far."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from network import renames
from vitrail.checkpoint import Checkpoint, save
from vitrail.errors import CheckpointError, InputError
from vitrail.images import Preprocess
from vitrail.network import ViT, ViTConfig
from vitrail.network.config import Positions, Resample
from vitrail.network.masked import MaskedDecoder
from vitrail.weights import FAMILIES, conversion, convert, load

SMALL: dict[str, Any] = {"image_size": 16, "patch_size": 8, "width": 64, "depth": 1, "heads": 1, "mlp_width": 128}
TARGETS = {"timm": "out", "transformers": "out", "deit": "out.pth", "google": "out.npz", "vitrail": "out.safetensors"}


def network(**changes: Any) -> Checkpoint:
    """A small network that each of the targets can carry, but for its activation."""
    torch.manual_seed(0)
    model = ViT(ViTConfig(**{**SMALL, "classes": 10, **changes})).eval()
    renames.randomise(model)
    return Checkpoint(model, Preprocess(16))


def for_target(to: str) -> Checkpoint:
    return network(activation="gelu_tanh" if to == "google" else "gelu")


def one_bit(value: Tensor) -> Tensor:
    """The same numbers but for the last bit of the first."""
    changed = value.clone()
    changed.view(torch.int32).flatten()[0] ^= 1
    return changed


def other_sign_of_zero(value: Tensor) -> Tensor:
    """-0.0 where the first is 0.0: equal as a number, another bit."""
    changed = value.clone()
    assert changed.flatten()[0] == 0
    changed.flatten()[0] = -0.0
    return changed


def write_wrongly(monkeypatch: pytest.MonkeyPatch, change: Callable[[Tensor], Tensor], ours: str) -> None:
    """From now on convert writes one tensor of ours with other bits, whatever the family."""
    right, right_save = conversion.to_theirs, conversion.save

    def wrong(table: Any, tensors: dict[str, Tensor], config: ViTConfig) -> Any:
        return right(table, {**tensors, ours: change(tensors[ours])}, config)

    def wrong_save(checkpoint: Checkpoint, path: Path) -> None:
        state = checkpoint.model.state_dict()
        other = ViT(checkpoint.model.config).eval()
        other.load_state_dict({**state, ours: change(state[ours])})
        right_save(replace(checkpoint, model=other), path)

    monkeypatch.setattr(conversion, "to_theirs", wrong)
    monkeypatch.setattr(conversion, "save", wrong_save)


def answer_otherwise(monkeypatch: pytest.MonkeyPatch, change: Callable[[Tensor], Tensor]) -> None:
    """From now on what convert reads back has the same settings and tensors, and answers otherwise."""
    right = conversion.load

    def wrong(path: Any) -> Checkpoint:
        back = right(path)
        back.model.register_forward_hook(lambda _module, _pixels, logits: change(logits))
        return back

    monkeypatch.setattr(conversion, "load", wrong)


# ---- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", TARGETS)
def test_one_bit_written_wrongly_is_refused_and_nothing_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    """The last bit of one bias: far too little for the answers to show it, so the tensors themselves must."""
    checkpoint = for_target(to)
    write_wrongly(monkeypatch, one_bit, "norm.bias")
    with pytest.raises(CheckpointError, match=f"{to}: mapped back, tensors differ or are gone: norm.bias"):
        convert(checkpoint, tmp_path / TARGETS[to], to=to)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    assert convert(checkpoint, tmp_path / TARGETS[to], to=to).largest_difference == 0


def test_a_zero_written_with_the_other_sign_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal as a number, and so are the answers; but not the same bits."""
    checkpoint = network()
    with torch.no_grad():
        checkpoint.model.norm.bias[0] = 0.0
    write_wrongly(monkeypatch, other_sign_of_zero, "norm.bias")
    with pytest.raises(CheckpointError, match="tensors differ or are gone: norm.bias"):
        convert(checkpoint, tmp_path / "out", to="timm")


def test_a_tensor_in_another_kind_of_number_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers that half precision holds as well, written so: the same values, and not what was there."""
    checkpoint = network()
    halves = {name: value.bfloat16().float() for name, value in checkpoint.model.state_dict().items()}
    checkpoint.model.load_state_dict(halves)
    right = conversion.to_theirs

    def wrong(table: Any, tensors: dict[str, Tensor], config: ViTConfig) -> Any:
        return right(table, {name: value.bfloat16() for name, value in tensors.items()}, config)

    monkeypatch.setattr(conversion, "to_theirs", wrong)
    with pytest.raises(CheckpointError, match="tensors differ or are gone"):
        convert(checkpoint, tmp_path / "out.pth", to="deit")


def wrong_eps(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers' config.json with another eps than the network's: every tensor is right, the answers are not."""
    family = FAMILIES["transformers"]

    def sidecars(description: Any) -> dict[str, Any]:
        files = family.sidecars(description)
        return files | {"config.json": files["config.json"] | {"layer_norm_eps": 0.01}}

    monkeypatch.setitem(FAMILIES, "transformers", replace(family, sidecars=sidecars))


def test_a_setting_written_wrongly_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong_eps(monkeypatch)
    with pytest.raises(CheckpointError, match="norm_eps: 1e-06, and it would come back as 0.01"):
        convert(network(), tmp_path / "out", to="transformers")
    assert list(tmp_path.iterdir()) == []


def test_other_answers_are_refused_where_settings_and_tensors_show_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same wrong setting, with the comparison of settings blind: then the answers must tell."""
    wrong_eps(monkeypatch)
    monkeypatch.setattr(conversion, "differences", lambda ours, theirs: [])
    with pytest.raises(CheckpointError, match="transformers: read back, the network answers differently, by 0.0"):
        convert(network(), tmp_path / "out", to="transformers")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("to", TARGETS)
def test_answers_may_differ_by_a_hundred_thousandth_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    """Half of that passes, and the report says it; twice of that does not."""
    checkpoint = for_target(to)
    answer_otherwise(monkeypatch, lambda logits: logits * (1 + 5e-6))
    report = convert(checkpoint, tmp_path / TARGETS[to], to=to)
    largest = float(conversion._answers(checkpoint, (16, 16)).abs().max())
    assert report.relative_difference == pytest.approx(5e-6, rel=0.1)
    assert report.largest_difference == pytest.approx(5e-6 * largest, rel=0.1)
    assert report.argmax_agreement == 1
    monkeypatch.undo()
    answer_otherwise(monkeypatch, lambda logits: logits * (1 + 2e-5))
    with pytest.raises(CheckpointError, match="answers differently"):
        convert(checkpoint, tmp_path / f"again-{TARGETS[to]}", to=to)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_answers_that_are_no_numbers_are_no_agreement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    """No comparison with NaN holds, so none may be taken for "not too far apart"."""
    answer_otherwise(monkeypatch, lambda logits: logits.index_fill(1, torch.tensor([3]), value))
    with pytest.raises(CheckpointError, match="answers differently"):
        convert(network(), tmp_path / "out", to="timm")


def test_half_precision_that_overflows_in_both_alike_is_the_same(tmp_path: Path) -> None:
    """A network whose logits are beyond half precision, before and after: the same network."""
    checkpoint = network()
    with torch.no_grad():
        checkpoint.model.half().head.classify.bias[2] = 65504.0  # type: ignore[union-attr]
        checkpoint.model.head.classify.weight[2] = 65504.0  # type: ignore[union-attr]
    assert not conversion._answers(checkpoint, (16, 16)).isfinite().all()
    report = convert(checkpoint, tmp_path / "out", to="timm")
    assert (report.largest_difference, report.relative_difference) == (0, 0)


def test_what_another_family_would_recognise_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that would be read as another family's are no files of this one, though they carry everything."""
    monkeypatch.setitem(FAMILIES, "deit", replace(FAMILIES["deit"], wrapper=""))
    with pytest.raises(CheckpointError, match="what was written for deit would be read as timm: not converted"):
        convert(network(), tmp_path / "out.pth", to="deit")


def test_a_decoder_that_has_no_place_is_refused(tmp_path: Path) -> None:
    """Its tensors are no extras: a family without a decoder cannot carry it."""
    table = Positions("sincos-2d", resample=Resample(antialias=False))
    stack = ViTConfig(**{**SMALL, "classes": 192, "pool": "none", "positions": table})
    with pytest.raises(CheckpointError, match="timm has no place for decoder"):
        convert(replace(network(), decoder=MaskedDecoder(stack, 64)), tmp_path / "out", to="timm")


def test_a_tensor_that_is_gone_when_read_back_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that drops the decoder: no tensor that is left differs, and no answer."""
    table = Positions("sincos-2d", resample=Resample(antialias=False))
    stack = ViTConfig(**{**SMALL, "mlp_width": 256, "classes": 192, "pool": "none", "positions": table})
    masked = replace(network(classes=0), decoder=MaskedDecoder(stack, 64).eval())
    right = conversion.load
    monkeypatch.setattr(conversion, "load", lambda path: replace(right(path), decoder=None))
    with pytest.raises(CheckpointError, match="mae: mapped back, tensors differ or are gone: decoder"):
        convert(masked, tmp_path / "out.pth", to="mae")


def test_settings_for_a_file_are_refused_with_a_checkpoint(tmp_path: Path) -> None:
    for how in ({"override": {"heads": 2}}, {"leave_out": ("head",)}):
        with pytest.raises(InputError, match="belong to a file that is read"):
            convert(network(), tmp_path / "out", to="timm", **how)


# ---- what is told -------------------------------------------------------------------------------------------------


def test_the_report_counts_what_was_compared(tmp_path: Path) -> None:
    """Every tensor of ours, and those of theirs that were written: q, k and v apart are six where ours are two."""
    checkpoint = network()
    report = convert(checkpoint, tmp_path / "hf", to="transformers")
    ours = len(checkpoint.tensors())
    assert (report.identical, report.tensors) == (ours, ours + 4)
    assert (report.source, report.out) == (checkpoint.provenance.source, str(tmp_path / "hf"))
    assert convert(tmp_path / "hf", tmp_path / "deit.pth", to="deit").source == str(tmp_path / "hf")


def test_first_answers_that_change_places_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two classes with the same weights share the first place; a breath on one image tips it: one of two agrees."""
    checkpoint = network()
    with torch.no_grad():
        head = checkpoint.model.head.classify
        assert head is not None
        head.weight[1] = head.weight[0]
        head.bias[:2] = 100.0
    breath = torch.zeros(2, 10)
    breath[1, 1] = 2e-4
    answer_otherwise(monkeypatch, lambda logits: logits + breath)
    report = convert(checkpoint, tmp_path / "out", to="timm")
    assert report.argmax_agreement == 0.5
    assert report.largest_difference == pytest.approx(2e-4, rel=0.1)


def test_the_report_says_whether_names_and_preprocessing_came_along(tmp_path: Path) -> None:
    named = replace(network(), classes=tuple(f"bird {number}" for number in range(10)))
    folder = convert(named, tmp_path / "out", to="timm")
    assert (folder.classes_carried, folder.preprocess_carried) == (True, True)
    assert load(tmp_path / "out").classes == named.classes
    file = convert(named, tmp_path / "out.pth", to="deit")
    assert (file.classes_carried, file.preprocess_carried) == (False, False)


def test_crops_that_make_the_same_pixels_are_one() -> None:
    """Resized to 248 and cut to 224, however the share is written; 0.875 resizes to 256."""
    for crop, same in ((224 / 248, True), (0.9, True), (0.875, False)):
        assert conversion._same_pixels(Preprocess(224, crop=0.9), Preprocess(224, crop=crop)) is same
    assert not conversion._same_pixels(Preprocess(224, crop=0.9), Preprocess(224, crop=0.9, mean=0.4))


def test_what_failed_half_way_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk in the middle of a folder, and of a file."""

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(json, "dumps", full)
    monkeypatch.setattr(torch, "save", full)
    for to in ("timm", "deit"):
        with pytest.raises(CheckpointError, match="could not write .*No space left on device"):
            convert(network(), tmp_path / TARGETS[to], to=to)
    assert list(tmp_path.iterdir()) == []


def test_our_own_file_is_what_save_writes(tmp_path: Path) -> None:
    checkpoint = network()
    convert(checkpoint, tmp_path / "out.safetensors", to="vitrail")
    save(checkpoint, tmp_path / "saved.safetensors")
    assert (tmp_path / "out.safetensors").read_bytes() == (tmp_path / "saved.safetensors").read_bytes()
