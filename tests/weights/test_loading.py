"""load and convert, whatever the family: overrides, parts left out, what is refused, and the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import vitrail
from network import renames
from vitrail.checkpoint import Checkpoint, Mapped
from vitrail.errors import CheckpointError, InputError
from vitrail.images import Preprocess
from vitrail.network import Positions, Rotary, ViT, ViTConfig
from vitrail.weights import FAMILIES, convert, load
from vitrail.weights.resize import with_size
from weights.timm_files import SMALL


def test_every_tensor_is_in_the_report(bare: Path) -> None:
    """Ours, theirs, shape and how, for each; nothing twice, nothing left."""
    mapping = load(bare).provenance.mapping
    assert {name for row in mapping for name in row.theirs} == set(load_file(bare))
    assert {row.ours for row in mapping} == set(load(bare).model.state_dict())
    assert Mapped("tokens.cls", ("cls_token",), (1, 128), "without the batch axis") in mapping
    kernel = next(row for row in mapping if row.ours == "patches.projection.weight")
    assert kernel == Mapped(kernel.ours, ("patch_embed.proj.weight",), (128, 192), "convolution kernel flattened")


def test_what_is_loaded_can_be_saved_as_ours(bare: Path, tmp_path: Path) -> None:
    """With the report and the settings in its provenance, bit for bit."""
    ckpt = load(bare)
    vitrail.save(ckpt, tmp_path / "ours.safetensors")
    back = load(tmp_path / "ours.safetensors")
    assert back.provenance == ckpt.provenance
    assert all(torch.equal(value, back.model.state_dict()[name]) for name, value in ckpt.model.state_dict().items())
    for wrong in ({"override": {"heads": 4}}, {"leave_out": ("head",)}):
        with pytest.raises(InputError, match="says everything itself"):
            load(tmp_path / "ours.safetensors", **wrong)  # type: ignore[arg-type]


def test_what_is_loaded_is_at_rest(bare: Path) -> None:
    """No layer of it trains: dropout, where a file asks for it, would change answers."""
    assert not any(each.training for each in load(bare).model.modules())


def test_the_folder_of_a_run_stands_for_its_best_checkpoint(bare: Path, tmp_path: Path) -> None:
    best, last = load(bare), load(bare)
    with torch.no_grad():
        last.model.norm.bias.add_(1.0)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "data.json").write_text("{}")
    vitrail.save(best, tmp_path / "run" / "best.safetensors")
    vitrail.save(last, tmp_path / "run" / "last.safetensors")
    assert torch.equal(load(tmp_path / "run").model.norm.bias, best.model.norm.bias)


def test_every_tensor_has_memory_of_its_own_and_no_more(bare: Path, tmp_path: Path) -> None:
    """Also where two of ours are cut out of one of theirs: no small tensor keeps a large one alive."""
    dinov3 = {"qkv_bias": "no-key", "rotary": Rotary("dinov3"), "positions": Positions("none"), "norm_eps": 1e-5}
    model = ViT(ViTConfig(**SMALL, **dinov3, layer_scale=1.0, classes=0)).eval()
    convert(Checkpoint(model, Preprocess(32)), tmp_path / "dinov3.pth", to="dinov3")
    for path in (bare, tmp_path / "dinov3.pth"):
        state = load(path).model.state_dict()
        assert all(value.untyped_storage().nbytes() == value.nbytes for value in state.values())
        assert len({value.untyped_storage().data_ptr() for value in state.values()}) == len(state)


@pytest.mark.row("001.08")
def test_another_image_size_resamples_the_table_once(bare: Path) -> None:
    """224 to 384, in small: the table is resampled by the family's policy, and answers are those of before."""
    native, larger = load(bare), load(bare, override={"image_size": 48})
    assert larger.model.config.image_size == (48, 48)
    assert larger.preprocess.size == (48, 48)
    assert larger.model.tokens.tables[0].table.shape == (37, 128)
    pixels = torch.randn(2, 3, 48, 48)
    assert torch.allclose(native.model(pixels), larger.model(pixels), atol=1e-5)


def test_another_size_keeps_the_mode_and_refuses_what_has_no_table() -> None:
    """A network that trains goes on training, one at rest stays so; relative positions are for one size."""
    for training in (True, False):
        ckpt = Checkpoint(ViT(ViTConfig(**SMALL)).train(training), Preprocess(32))
        assert with_size(ckpt, 48).model.training is training
        assert with_size(ckpt, 48).preprocess.size == (48, 48)
        assert with_size(ckpt, 32).model is ckpt.model
    relative = Checkpoint(ViT(ViTConfig(**SMALL, positions=Positions("relative"))), Preprocess(32))
    with pytest.raises(CheckpointError, match="positions 'relative' cannot be made for another size: keep"):
        with_size(relative, 48)


def test_heads_are_told_and_never_guessed_where_64_does_not_divide(tmp_path: Path) -> None:
    model = ViT(ViTConfig(**{**SMALL, "width": 96, "heads": 3}, classes=10))
    renames.randomise(model)
    convert(Checkpoint(model, Preprocess(32)), tmp_path / "folder", to="timm")  # config.json says the heads
    assert load(tmp_path / "folder").model.config.heads == 3
    alone = tmp_path / "alone.safetensors"
    save_file(load_file(tmp_path / "folder" / "model.safetensors"), alone)
    with pytest.raises(CheckpointError, match="how many heads"):
        load(alone)
    assert load(alone, override={"heads": 3}).model.config.heads == 3
    with pytest.raises(CheckpointError, match="heads"):  # a bare file would come back with other heads
        convert(tmp_path / "folder", tmp_path / "bare.safetensors", to="timm")
    assert not (tmp_path / "bare.safetensors").exists()


def test_unknown_names_list_what_is_known(tmp_path: Path) -> None:
    save_file({"layer.weight": torch.ones(2, 2)}, tmp_path / "odd.safetensors")
    with pytest.raises(CheckpointError, match="no vision transformer known here.*timm"):
        load(tmp_path / "odd.safetensors")


@pytest.mark.parametrize(
    "to, name",
    [("timm", "out.npz"), ("google", "out.pth"), ("google", "out"), ("deit", "x.safetensors"), ("vitrail", "o")],
)
def test_the_name_must_end_as_what_is_written_does(bare: Path, tmp_path: Path, to: str, name: str) -> None:
    with pytest.raises(InputError, match=f"expected NAME.*, as {to} is written, got '{name}'"):
        convert(bare, tmp_path / name, to=to)
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("wrong", [3, None, b"x", "", "a\0b", ["timm"], "x" * 300 + ".npz"])
def test_what_is_no_path_or_name_is_refused(bare: Path, tmp_path: Path, wrong: Any) -> None:
    """As a source, as a target, as a family, as what to leave out: always one of our errors."""
    for source, out, to in ((wrong, tmp_path / "o", "timm"), (bare, wrong, "google"), (bare, tmp_path / "o", wrong)):
        with pytest.raises(vitrail.VitrailError):
            convert(source, out, to=to)
    with pytest.raises(vitrail.VitrailError):
        load(bare, leave_out=(wrong,))
    with pytest.raises(vitrail.VitrailError):
        load(bare, override={"family": wrong})
    with pytest.raises(vitrail.VitrailError):
        load(bare, override={"image_size": wrong})
    with pytest.raises(vitrail.VitrailError):
        load(bare, override={"positions": wrong, "resample": {}})
    if not isinstance(wrong, list):
        with pytest.raises(vitrail.VitrailError):
            load(bare, leave_out=wrong)


def test_every_family_stands_in_the_docs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "weights.md").read_text("utf-8")
    section = page.partition("## The families")[2].partition("\n## ")[0]
    listed = [line.split("`")[1] for line in section.splitlines() if line.startswith("| `")]
    assert sorted(listed) == sorted([*FAMILIES, "vitrail"])


def test_what_is_there_is_not_written_over(bare: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(InputError, match="already there"):
        convert(bare, tmp_path / "there", to="timm")
    with pytest.raises(InputError, match="did you mean 'timm'"):
        convert(bare, tmp_path / "out", to="tim")


def test_a_pruned_network_stays_ours(bare: Path, tmp_path: Path) -> None:
    ckpt = load(bare)
    pruned = Checkpoint(vitrail.prune_heads(ckpt.model, {0: [1]}), ckpt.preprocess)
    with pytest.raises(CheckpointError, match="kept_heads"):
        convert(pruned, tmp_path / "out", to="timm")
    assert convert(pruned, tmp_path / "out.safetensors", to="vitrail").identical == 32
