"""Other classes and other channels: what was learned stays where it belongs, and answers stay what they were."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import skimage.data
import torch
from PIL import Image
from safetensors.torch import load_file

from network import renames
from vitrail.checkpoint import Checkpoint, Provenance
from vitrail.errors import CheckpointError, InputError
from vitrail.images import Preprocess
from vitrail.network.config import ConvStem, ResNetStem, ViTConfig
from vitrail.network.masked import MaskedDecoder
from vitrail.network.presets import preset
from vitrail.network.vit import ViT
from vitrail.weights.adaptation import adapt_channels, with_channels, with_classes
from vitrail.weights.imagenet import imagenet1k
from vitrail.weights.preprocessing import CLIP, IMAGENET

TINY = ViTConfig(
    image_size=(32, 32), patch_size=(8, 8), width=16, depth=2, heads=2, mlp_width=24, classes=3, initialisation="hf"
)
NAMES = ("cat", "dog", "egg")
PIXELS = Preprocess(32, crop=1.0, **IMAGENET)
CAT = Image.fromarray(skimage.data.chelsea())
GREY = CAT.convert("L")


def network(seed: int = 0, **changes: Any) -> ViT:
    """A small network without zeros or ones to hide behind."""
    torch.manual_seed(seed)
    model = ViT(dataclasses.replace(TINY, **changes)).eval()
    renames.randomise(model)
    return model


def checkpoint(model: ViT | None = None, preprocess: Preprocess = PIXELS, **fields: Any) -> Checkpoint:
    model = model or network()
    classes = NAMES if model.config.classes else ()
    return Checkpoint(model, preprocess, **{"classes": classes, **fields})


def decoder_for(config: ViTConfig) -> MaskedDecoder:
    values = config.channels * config.patch_size[0] * config.patch_size[1]
    return MaskedDecoder(dataclasses.replace(config, classes=values, pool="none"), config.width)


def rows(model: ViT, layer: str = "classify") -> tuple[torch.Tensor, torch.Tensor | None]:
    head = getattr(model.head, layer)
    return head.weight, head.bias


# ---- classes ------------------------------------------------------------------------------------------------------

HEADS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no bias": {"head_bias": False},
    "representation": {"representation_width": 5},
    "distillation": {"pool": "cls+distillation", "distillation_token": True},
    "distillation without bias": {"pool": "cls+distillation", "distillation_token": True, "head_bias": False},
    "bias of its own": {"head_bias_init": -3.0},
    "two vectors": {"pool": "cls+mean"},
}


@pytest.mark.parametrize("kind", HEADS)
def test_rows_follow_their_names(kind: str) -> None:
    """Known classes give the logits they gave, in their new places; the representation and all else is untouched."""
    old = checkpoint(network(**HEADS[kind]))
    new = with_classes(old, ["fox", "egg", "cat"])
    assert new.classes == ("fox", "egg", "cat")
    assert new.model.config.classes == 3
    pixels = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        before, after = old.model(pixels), new.model(pixels)
        assert torch.equal(old.model.embed(pixels), new.model.embed(pixels))
    torch.testing.assert_close(after[:, [1, 2]], before[:, [2, 0]], rtol=0, atol=1e-6)
    for layer in ("classify", "distil") if "distillation" in kind else ("classify",):
        weight, bias = rows(new.model, layer)
        known, known_bias = rows(old.model, layer)
        assert torch.equal(weight[[1, 2]], known[[2, 0]])
        assert not (weight[0][None] == known).all(dim=1).any()
        if bias is not None and known_bias is not None:
            assert torch.equal(bias[[1, 2]], known_bias[[2, 0]])
            assert bias[0] == HEADS[kind].get("head_bias_init", 0.0)
    assert new.provenance.notes == "2 of 3 classes kept their weights, the others start fresh"


def test_fresh_rows_start_as_the_initialisation_says() -> None:
    for style, deviation in (("paper", 0.0), ("hf", 0.02), ("mae", 2e-5)):
        old = checkpoint(network(initialisation=style))
        weight, _ = rows(with_classes(old, [f"class {number}" for number in range(200)]).model)
        assert float(weight.detach().std()) == pytest.approx(deviation, rel=0.1)


@pytest.mark.parametrize(
    "old, new, kept",
    [
        (("cat", "dog", "egg"), ("Cat ", " DOG", "egg"), 3),
        (("Straße", "dog", "egg"), ("STRASSE", "x", "y"), 1),
        (("Cardigan", "cardigan", "egg"), ("CARDIGAN", "egg"), 1),  # which of the two?
        (("Cardigan", "cardigan", "egg"), ("cardigan", "CARDIGAN"), 2),  # one is the same, the other is left
        (("cat", "dog", "egg"), ("cat", "CAT", "Cat"), 1),
        (("cat", "dog", "egg"), ("CAT", "Cat"), 0),
        (("cat", "dog", "egg"), ("dogs", "e.g.g"), 0),
        (("0", "1", "2"), ("2", "1"), 0),  # numbers in place of names
        (("0", "1", "2"), ("0", "1", "2"), 3),
    ],
)
def test_which_names_are_the_same(old: tuple[str, ...], new: tuple[str, ...], kept: int) -> None:
    made = with_classes(checkpoint(classes=old), new)
    assert made.provenance.notes.startswith(f"{kept} of {len(new)} classes")


def test_an_exact_name_wins_over_a_loose_one() -> None:
    old = checkpoint(classes=("Cardigan", "cardigan", "egg"))
    new = with_classes(old, ("cardigan", "CARDIGAN"))
    assert torch.equal(rows(new.model)[0], rows(old.model)[0][[1, 0]])


def test_what_was_fitted_or_measured_for_the_old_classes_goes() -> None:
    source = Provenance("photos/", "CC0", "runs/1", {"top1": 0.9}, "fine-tuned")
    extras = {"mask_token": torch.ones(1, 16)}
    old = checkpoint(
        provenance=source, task="multi-label", temperature=1.3, thresholds=(0.1, 0.2, 0.3), reject=0.4, extras=extras
    )
    new = with_classes(old, ["cat"])
    assert (new.temperature, new.thresholds, new.reject) == (None, None, None)
    assert (new.task, new.preprocess, new.provenance.source) == ("multi-label", old.preprocess, "photos/")
    assert new.provenance.metrics == {}
    assert new.provenance.notes == "fine-tuned; 1 of 1 classes kept their weights, the others start fresh"
    assert torch.equal(new.extras["mask_token"], extras["mask_token"])
    assert old.model.config.classes == 3


def test_a_network_without_a_head_gets_one() -> None:
    old = checkpoint(network(classes=0, initialisation="timm"), decoder=decoder_for(TINY))
    new = with_classes(old, NAMES)
    assert rows(new.model)[0].shape == (3, 16)
    assert new.provenance.notes.startswith("0 of 3")
    assert new.decoder is old.decoder


def test_kind_of_number_freezing_and_mode_stay() -> None:
    model = network().to(torch.bfloat16).train()
    for parameter in model.encoder.parameters():
        parameter.requires_grad_(False)
    new = with_classes(checkpoint(model), ["egg", "fox"]).model
    assert {each.dtype for each in new.parameters()} == {torch.bfloat16}
    assert new.training
    assert not any(each.requires_grad for each in new.encoder.parameters())
    assert rows(new)[0].requires_grad
    assert torch.equal(rows(new)[0][0], rows(model)[0][2])


@pytest.mark.parametrize(
    "wrong, message",
    [
        ([], "expected a list"),
        ("cat", "expected a list"),
        (None, "expected a list"),
        ({"cat"}, "expected a list"),
        (["cat", 3], "expected text for every class, got 3"),
        (["cat", " "], "expected text"),
        (["cat", "dog", "cat"], "got twice: 'cat'"),
    ],
)
def test_names_that_are_none(wrong: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        with_classes(checkpoint(), wrong)
    with pytest.raises(InputError, match="expected Checkpoint"):
        with_classes(network(), ["cat"])  # type: ignore[arg-type]


# ---- channels of a network ----------------------------------------------------------------------------------------

STEMS: dict[str, dict[str, Any]] = {
    "patches": {},
    "no bias": {"patch_bias": False},
    "oblong": {"patch_size": (8, 4)},
    "norms": {"patch_norms": True},
    "norms without bias": {"patch_norms": True, "patch_bias": False},
    "convolutions": {"stem": ConvStem((4, 8)), "patch_size": (2, 2)},
}


@pytest.mark.parametrize("kind", STEMS)
@pytest.mark.parametrize("old, new", [(3, 1), (1, 3), (1, 4), (2, 6), (4, 1), (3, 9)])
def test_repeated_channels_give_the_same_answer(kind: str, old: int, new: int) -> None:
    model = network(channels=old, **STEMS[kind])
    made = adapt_channels(model, new)
    assert made.config.channels == new
    few = torch.randn(2, min(old, new), 32, 32)
    with torch.no_grad():
        before = model(few.repeat(1, old // few.shape[1], 1, 1))
        after = made(few.repeat(1, new // few.shape[1], 1, 1))
    torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["patches", "convolutions", "resnet"])
@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5, 8])
def test_the_kernel_is_timm_s(timm: ModuleType, kind: str, channels: int) -> None:
    from timm.models._manipulate import adapt_input_conv

    resnet = {"stem": ResNetStem(()), "patch_size": (2, 2)}
    model = network(**(resnet if kind == "resnet" else STEMS[kind]))
    kernel = {
        "patches": lambda m: m.patches.kernel,
        "convolutions": lambda m: m.stem[0].weight,
        "resnet": lambda m: m.stem.root.weight,
    }[kind]
    theirs = adapt_input_conv(channels, kernel(model).detach().clone())
    torch.testing.assert_close(kernel(adapt_channels(model, channels)).detach(), theirs, rtol=1e-6, atol=1e-7)


def test_a_resnet_stem_is_only_a_start() -> None:
    """The sum of standardised filters is not the standardised sum: said in the module, and shown here."""
    model = network(stem=ResNetStem(()), patch_size=(2, 2))
    made = adapt_channels(model, 1)
    grey = torch.randn(2, 1, 32, 32)
    with torch.no_grad():
        before, after = model(grey.expand(-1, 3, -1, -1)), made(grey)
    assert after.isfinite().all()
    assert renames.gap(after, before) > 1e-3
    with pytest.raises(CheckpointError, match="ResNet stem standardises"):
        with_channels(checkpoint(model), 1)


def test_a_network_of_its_own_with_the_rest_as_it_was() -> None:
    model = network().double().train()
    model.patches.projection.weight.requires_grad_(False)
    model.encoder.mlp_chunk = 4
    same = adapt_channels(model, 3)
    made = adapt_channels(model, 1)
    for each in (same, made):
        assert each.training
        assert each.encoder.mlp_chunk == 4
        assert not each.patches.projection.weight.requires_grad
        assert each.head.classify is not None
        assert each.head.classify.weight.requires_grad
        assert {value.dtype for value in each.parameters()} == {torch.float64}
    names = [name for name in model.state_dict() if not name.startswith("patches.projection.weight")]
    for name in names:
        assert torch.equal(made.state_dict()[name], model.state_dict()[name])
    with torch.no_grad():
        same.tokens.cls.add_(1)  # type: ignore[union-attr]
    assert not torch.equal(same.state_dict()["tokens.cls"], model.state_dict()["tokens.cls"])
    for wrong in (0, 1.0, True, "3", None):
        with pytest.raises(InputError, match="channels: expected a whole number"):
            adapt_channels(model, wrong)  # type: ignore[arg-type]


# ---- channels of a checkpoint -------------------------------------------------------------------------------------

ONE_MEAN = Preprocess(32, crop=1.0, mean=0.4, std=(0.2, 0.3, 0.25))
SAME = Preprocess(32, crop=1.0, mean=0.1307, std=0.3081)


def answers(checkpoint: Checkpoint, image: Image.Image | np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return checkpoint.run(checkpoint.preprocess.batch([image]))[0]


@pytest.mark.parametrize(
    "kind, preprocess",
    [
        ("patches", PIXELS),
        ("patches", Preprocess(32, crop=0.9, order="BGR", **CLIP)),
        ("patches", ONE_MEAN),
        ("patches", Preprocess(32, "squash", 1.0, "bilinear", False)),
        ("no bias", PIXELS),
        ("no bias", SAME),
        ("oblong", PIXELS),
        ("convolutions", ONE_MEAN),
        ("convolutions", SAME),
        ("norms", SAME),
        ("norms without bias", SAME),
    ],
)
def test_grey_images_get_the_same_answer(kind: str, preprocess: Preprocess) -> None:
    """A photograph without colour, seen by the colour network and by the grey one; and any photograph as its grey."""
    old = checkpoint(network(**STEMS[kind]), preprocess)
    new = with_channels(old, 1)
    assert (new.model.config.channels, new.preprocess.channels) == (1, 1)
    expected = answers(old, GREY)
    for image in (GREY, CAT):
        np.testing.assert_allclose(answers(new, image), expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    assert np.abs(answers(old, CAT) - expected).max() > 1e-3 * np.abs(expected).max()  # colour did matter
    assert new.provenance.notes == "made for 1 channel instead of 3"


def test_a_bias_appears_only_where_the_means_ask_for_it() -> None:
    model = network(patch_bias=False)
    assert with_channels(checkpoint(model, PIXELS), 1).model.config.patch_bias
    assert not with_channels(checkpoint(model, SAME), 1).model.config.patch_bias
    assert with_channels(checkpoint(model, SAME), 1).preprocess == dataclasses.replace(
        SAME, channels=1, mean=0.1307, std=0.3081
    )


@pytest.mark.parametrize("kind", ["patches", "no bias", "convolutions"])
def test_colour_for_a_grey_network(kind: str) -> None:
    """Grey images get the same answer, and coloured ones that of their grey but for its rounding to 8 bits."""
    grey = Preprocess(32, crop=1.0, channels=1, mean=0.1307, std=0.3081)
    old = checkpoint(network(channels=1, **STEMS[kind]), grey)
    new = with_channels(old, 3)
    assert new.preprocess == Preprocess(32, crop=1.0, mean=0.1307, std=0.3081)
    expected = answers(old, GREY)
    np.testing.assert_allclose(answers(new, GREY), expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    np.testing.assert_allclose(answers(new, CAT), expected, rtol=0, atol=0.02 * np.abs(expected).max())


@pytest.mark.parametrize("kind", ["patches", "no bias", "convolutions"])
def test_colours_weigh_as_pillow_weighs_them(kind: str) -> None:
    """Pure red, green and blue: each gets the answer of its own grey, of 76, 150 and 29, and of no other's."""
    grey = Preprocess(32, crop=1.0, channels=1, mean=0.1307, std=0.3081)
    old = checkpoint(network(channels=1, **STEMS[kind]), grey)
    new = with_channels(old, 3)
    colours = [Image.new("RGB", (32, 32), colour) for colour in ("#ff0000", "#00ff00", "#0000ff")]
    ours = np.concatenate([answers(new, each) for each in colours])
    greys = np.concatenate([answers(old, each.convert("L")) for each in colours])
    apart = np.abs(ours[:, None] - greys[None]).max(axis=-1)  # (colours, greys)
    assert apart.argmin(axis=1).tolist() == [0, 1, 2]
    assert apart.diagonal().max() < 0.02 * np.abs(greys).max()


def test_there_and_back() -> None:
    old = checkpoint(network(channels=1), Preprocess(32, crop=1.0, channels=1, mean=0.2, std=0.3))
    again = with_channels(with_channels(old, 3), 1)
    assert again.preprocess == old.preprocess
    torch.testing.assert_close(again.model.patches.kernel, old.model.patches.kernel, rtol=1e-6, atol=1e-7)
    assert again.provenance.notes == "made for 3 channels instead of 1; made for 1 channel instead of 3"
    assert with_channels(old, 1) is old


def test_the_decoder_of_the_old_channels_goes_and_fitted_numbers_stay() -> None:
    model = network()
    new = with_channels(checkpoint(model, decoder=decoder_for(model.config), temperature=1.5), 1)
    assert new.decoder is None
    assert new.temperature == 1.5
    assert "the decoder, which predicts the old channels, is gone" in new.provenance.notes


@pytest.mark.parametrize(
    "kind, preprocess, message",
    [
        ("convolutions", PIXELS, "pad with zeros"),
        ("norms", PIXELS, "only grey"),
        ("norms", ONE_MEAN, "only grey"),
        ("patches", Preprocess(32, "pad", 1.0, **IMAGENET), "bars"),
        ("norms", Preprocess(32, channels=1), "only grey"),
    ],
)
def test_what_could_not_stay_the_same_is_refused(kind: str, preprocess: Preprocess, message: str) -> None:
    old = checkpoint(network(channels=preprocess.channels, **STEMS[kind]), preprocess)
    with pytest.raises(CheckpointError, match=f"{message}.*adapt_channels"):
        with_channels(old, 4 - preprocess.channels)


@pytest.mark.parametrize("wrong", [0, 65, True, None, "1", [1], 3.0])
def test_channels_are_a_number_of_bands(wrong: Any) -> None:
    with pytest.raises(InputError, match="channels: expected a whole number from 1 to 64"):
        with_channels(checkpoint(), wrong)


# ---- bands --------------------------------------------------------------------------------------------------------


def test_a_start_for_training_on_five_bands() -> None:
    """Kernels, mean and std in turn; what was fitted for the colours is gone."""
    fitted = {"temperature": 1.5, "reject": 0.2, "thresholds": (0.1, 0.2, 0.3), "task": "multi-label"}
    old = checkpoint(network(), PIXELS, **fitted)
    new = with_channels(old, 5)
    assert (new.model.config.channels, new.preprocess.channels) == (5, 5)
    turn = [0, 1, 2, 0, 1]
    assert new.preprocess.mean == tuple(PIXELS.mean[place] for place in turn)
    assert new.preprocess.std == tuple(PIXELS.std[place] for place in turn)
    torch.testing.assert_close(new.model.patches.kernel, old.model.patches.kernel[:, turn] * (3 / 5))
    assert (new.temperature, new.reject, new.thresholds) == (None, None, None)
    assert new.provenance.notes == "made for 5 channels instead of 3, to be trained further"
    assert old.temperature == 1.5


def test_bands_that_repeat_the_colours_get_the_same_answer() -> None:
    """Six bands, the three colours twice, through the new preprocessing; of the frame's size, so nothing is resized."""
    old = checkpoint(network(), PIXELS)
    new = with_channels(old, 6)
    colours = np.asarray(CAT.convert("RGB").resize(PIXELS.size[::-1]))
    expected = answers(old, colours)
    twice = np.concatenate([colours, colours], axis=2)
    np.testing.assert_allclose(answers(new, twice), expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("bands", [2, 4, 5])
def test_many_bands_become_one(bands: int) -> None:
    """What the network says of bands that are all alike, the new one says of one; 16 bits stay 16 bits."""
    mean, std = np.linspace(0.2, 0.6, bands), np.linspace(0.1, 0.3, bands)
    wide = Preprocess(32, crop=1.0, channels=bands, mean=mean, std=std, range=65535)
    old = checkpoint(network(channels=bands), wide)
    new = with_channels(old, 1)
    assert (new.preprocess.channels, new.preprocess.range) == (1, 65535)
    grey = np.random.default_rng(0).integers(0, 65536, (40, 50, 1), np.uint16)
    expected = answers(old, np.repeat(grey, bands, axis=2))
    np.testing.assert_allclose(answers(new, grey), expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_swapped_colours_are_no_order_of_bands() -> None:
    with pytest.raises(CheckpointError, match="order='BGR' has no meaning for 4 channels: use adapt_channels"):
        with_channels(checkpoint(network(), dataclasses.replace(PIXELS, order="BGR")), 4)


# ---- the published network ----------------------------------------------------------------------------------------


def test_the_published_network_on_grey_and_with_fewer_classes(fixtures: Path) -> None:
    """ViT-Ti/16: the grey network agrees on photographs; ten of its classes keep their logits."""
    model = ViT(preset("vit-ti16")).eval()
    renames.to_ours(renames.TIMM, model, load_file(fixtures / "vit_tiny_patch16_224_in1k.safetensors"))
    whole = Checkpoint(model, Preprocess(), imagenet1k())
    assert whole.classes[int(answers(whole, CAT).argmax())] == "Egyptian cat"
    grey = with_channels(whole, 1)
    coffee = Image.fromarray(skimage.data.coffee()).convert("L")
    for image in (GREY, coffee):
        expected = answers(whole, image)
        np.testing.assert_allclose(answers(grey, image), expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    few = with_classes(whole, ["Egyptian cat", "Tabby", "espresso", "spaceship"])
    assert few.provenance.notes.startswith("3 of 4")
    np.testing.assert_allclose(answers(few, CAT)[0, :3], answers(whole, CAT)[0, [285, 281, 967]], atol=1e-5)
