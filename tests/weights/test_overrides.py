"""Settings that no tensor says: given by the user by name, and told in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import vitrail
from vitrail.errors import CheckpointError
from vitrail.images import Preprocess
from vitrail.network import Resample
from vitrail.weights import load
from vitrail.weights.family import class_names
from vitrail.weights.overrides import setting_text


def test_settings_can_be_overridden_by_name(bare: Path) -> None:
    override = {"activation": "relu", "norm_eps": 1e-5, "heads": 4, "resample": Resample(antialias=False), "crop": 1.0}
    ckpt = load(bare, override={**override, "mean": 0.25, "classes": [f"c{i}" for i in range(10)]})
    config = ckpt.model.config
    assert (config.activation, config.norm_eps, config.heads) == ("relu", 1e-5, 4)
    assert config.positions.resample == Resample(antialias=False)
    assert (ckpt.preprocess.crop, ckpt.preprocess.mean) == (1.0, (0.25,) * 3)
    assert ckpt.classes[3] == "c3"
    given = {each.name for each in ckpt.provenance.settings if each.why == "given"}
    assert given == {"activation", "norm_eps", "heads", "resample", "preprocess", "classes"}


@pytest.mark.parametrize(
    "override, message",
    [
        ({"activaton": "relu"}, "did you mean 'activation'"),
        ({"activation": "tanh"}, "activation"),
        ({"heads": 7}, "heads"),
        ({"heads": "many"}, "heads"),
        ({"width": 64}, "expected"),
        ({"classes": ["a", "b"]}, "expected 10 class names"),
        ({"classes": 5}, "with_classes"),
        ({"classes": "no such file"}, "no such file"),
        ({"resample": {"mood": 1}}, "mood"),
        ({"family": "tim"}, "did you mean 'timm'"),
        ({"family": "google"}, "embedding"),
        ({"channels": 1}, "expected"),
        ({"mean": 300}, "mean"),
    ],
)
def test_an_override_that_makes_no_sense_is_refused(bare: Path, override: dict[str, Any], message: str) -> None:
    with pytest.raises(vitrail.VitrailError, match=message):
        load(bare, override=override)


@pytest.mark.fault("W17")
def test_class_names_from_a_file(bare: Path, tmp_path: Path) -> None:
    """As many as the network has outputs; a page of HTML in their place, or too few, is refused."""
    labels = tmp_path / "labels.txt"
    labels.write_text("\n".join(f"bird {number}" for number in range(10)))
    assert load(bare, override={"classes": labels}).classes[9] == "bird 9"
    labels.write_text("\n".join(f"bird {number}" for number in range(9)))
    with pytest.raises(CheckpointError, match="expected 10 class names, as the head has, got 9"):
        load(bare, override={"classes": str(labels)})
    labels.write_text("<!DOCTYPE html><html><body>404</body></html>")
    with pytest.raises(vitrail.VitrailError, match="web page"):
        load(bare, override={"classes": labels})


def test_settings_are_told_in_words() -> None:
    colour = Preprocess(32, crop=0.875, antialias=False, mean=(0.1, 0.2, 0.3), order="BGR")
    words = "32x32, crop 0.875, bicubic without antialias, mean 0.1/0.2/0.3, std 0.5, BGR"
    assert setting_text(colour) == words
    plain = Preprocess((32, 48), "squash", 1.0, "bilinear")
    assert setting_text(plain) == "32x48, squash 1, bilinear, mean 0.5, std 0.5"
    assert setting_text(Resample(antialias=False, offset=0.1)) == "bicubic, offset 0.1"
    assert setting_text(Resample("bilinear", align_corners=True, antialias=False)) == "bilinear, align_corners"


def test_names_in_a_mapping_go_by_their_numbers() -> None:
    """Whatever their order in the file, and whether JSON made text of the numbers."""
    assert class_names(3, {"2": "egg", "0": "cat", "1": "dog"}) == ("cat", "dog", "egg")
    assert class_names(3, {1: "dog", 2: "egg", 0: "cat"}) == ("cat", "dog", "egg")
    assert class_names(3, ["cat", "dog", "cat"]) == ("cat (0)", "dog", "cat (2)")
    with pytest.raises(CheckpointError, match="expected names for 3 outputs"):
        class_names(3, {"0": "cat", "1": "dog", "3": "egg"})
