"""Preprocessor files of transformers: read, written, and the same pixels as its own classes."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vitrail.errors import CheckpointError
from vitrail.images import Preprocess
from vitrail.weights.families.transformers_pixels import CLASSES, from_transformers, to_transformers
from vitrail.weights.preprocessing import (
    IMAGENET,
    evaluation,
)
from weights.pixel_steps import CAT, TALL, apart


def share_apart(ours: np.ndarray[Any, Any], theirs: Any, std: tuple[float, ...]) -> float:
    """The share of values that differ by more than one grey level."""
    difference = np.abs(np.asarray(ours, np.float64) - np.asarray(theirs, np.float64))
    return float((difference * 255 * np.array(std).reshape(-1, 1, 1) > 1.01).mean())


def processors(transformers: ModuleType, name: str) -> list[Any]:
    """The classes behind a name: torchvision's, and Pillow's where there is one."""
    return [getattr(transformers, each) for each in (name, f"{name}Pil") if hasattr(transformers, each)]


@pytest.mark.parametrize("name", CLASSES)
def test_class_defaults_are_those_of_transformers(transformers: ModuleType, name: str) -> None:
    for processor in processors(transformers, name):
        made = processor().to_dict()
        for key, value in CLASSES[name].items():
            theirs = getattr(processor, key, None) if key == "default_to_square" else made.get(key)
            if key in ("size", "crop_size"):
                theirs = {side: number for side, number in dict(theirs).items() if number is not None}
            plain = list(value) if isinstance(value, tuple) else value
            same = list(theirs) if isinstance(theirs, tuple) else theirs
            assert same == plain or (key == "do_center_crop" and not same and not plain), (key, same)
        assert made["rescale_factor"] == 1 / 255
        saved = json.loads(processor().to_json_string())  # every key that a saved file has is understood
        assert from_transformers(saved) == from_transformers({"image_processor_type": name})


@pytest.mark.row("000.25")
@pytest.mark.parametrize("image", [CAT, TALL], ids=["wide", "tall"])
@pytest.mark.parametrize(
    "values",
    [
        *({"image_processor_type": name} for name in CLASSES),
        {"image_processor_type": "ViTImageProcessor", "size": {"height": 160, "width": 96}, "resample": 3},
        {"image_processor_type": "ViTImageProcessor", "resample": 0, "do_normalize": False},
        {"image_processor_type": "DeiTImageProcessor", "size": {"height": 438, "width": 438}, "crop_size": 384},
        {
            "image_processor_type": "BitImageProcessor",
            "size": {"shortest_edge": 256},
            "resample": 3,
            "image_mean": list(IMAGENET["mean"]),
            "image_std": list(IMAGENET["std"]),
        },
        {"image_processor_type": "CLIPImageProcessor", "size": 336, "crop_size": 336},
        {"image_processor_type": "BeitImageProcessor", "size": 256, "do_center_crop": True, "do_reduce_labels": False},
        {"image_processor_type": "SiglipImageProcessor", "size": {"height": 384, "width": 384}, "resample": 1},
    ],
    ids=lambda values: "-".join(f"{value}" for value in list(values.values())[:2]),
)
def test_pixels_are_those_of_transformers_processors(
    transformers: ModuleType, image: Image.Image, values: dict[str, Any]
) -> None:
    """In Pillow's form to the last bit of the image. In torchvision's within one grey level, but for fewer than two
    values in a thousand: where a cubic or Lanczos kernel overshoots white or black, Pillow cuts after each pass.
    """
    preprocess = from_transformers(values)
    written = json.loads(json.dumps(to_transformers(preprocess, values["image_processor_type"])))
    assert written["image_processor_type"] == values["image_processor_type"]
    assert from_transformers(written)(image).tobytes() == preprocess(image).tobytes()
    for kind in processors(transformers, values["image_processor_type"]):
        for file in (values, written):
            pixels = kind.from_dict(file)(image, return_tensors="np")["pixel_values"][0]
            if kind.__name__.endswith("Pil"):
                assert apart(preprocess(image), pixels, preprocess.std) < 1e-3
            else:
                assert share_apart(preprocess(image), pixels, preprocess.std) < 0.002


def test_an_odd_rest_is_cut_one_pixel_apart(transformers: ModuleType) -> None:
    """227 - 224 = 3: transformers starts at 1 (half, rounded down), torchvision, timm and Preprocess at 2 (to even)."""
    image = CAT.resize((227, 224))
    values = {"image_processor_type": "CLIPImageProcessor"}
    theirs = transformers.CLIPImageProcessorPil()(image, return_tensors="np")["pixel_values"][0]
    preprocess = from_transformers(values)
    assert apart(preprocess(image), theirs, preprocess.std) > 20
    assert apart(preprocess(image)[:, :, :-1], theirs[:, :, 1:], preprocess.std) < 1e-3


def test_a_share_that_floats_cannot_hold_still_resizes_to_the_number_in_the_file() -> None:
    """224 / (224 / s) may fall short of s; every s from 200 to 448 comes out as itself."""
    for edge in range(200, 449):
        file = {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": edge}}
        assert from_transformers(file).scaled() == (edge, edge)


def test_old_and_nested_spellings() -> None:
    old = {
        "do_normalize": True, "do_resize": True, "feature_extractor_type": "ViTFeatureExtractor",
        "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "resample": 2, "size": 384,
    }  # fmt: skip
    assert from_transformers(old) == Preprocess(384, "squash", 1.0, "bilinear")
    assert from_transformers({"image_processor": old, "processor_class": "X"}) == from_transformers(old)
    assert from_transformers(old | {"feature_extractor_type": None}) == from_transformers(old)  # no class, all said
    clip = {"feature_extractor_type": "CLIPFeatureExtractor", "size": 224, "crop_size": 224}
    assert from_transformers(clip) == evaluation("clip").preprocess
    fast = {"image_processor_type": "SiglipImageProcessorFast", "size": [256, 192], "do_convert_rgb": None}
    assert from_transformers(fast) == Preprocess((256, 192), "squash", 1.0, "bicubic")
    off = {"do_pad": False, "rescale_offset": False, "do_center_crop": None, "auto_map": {}, "crop_size": 9}
    assert from_transformers(old | off) == from_transformers(old)  # steps that are switched off
    grey = {"image_processor_type": "ViTImageProcessor", "image_mean": [0.1], "image_std": [0.3]}
    assert from_transformers(grey).channels == 1


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"do_resize": False}, "do_resize false"),
        ({"do_resize": "yes"}, "expected true or false"),
        ({"rescale_factor": 1 / 127.5}, "expected 1/255, got 0.00784"),
        ({"rescale_factor": "1/255"}, "expected 1/255"),
        ({"do_rescale": False}, "do_rescale false"),
        ({"do_pad": True}, "do_pad: not understood"),
        ({"rescale_offset": True, "crop_pct": 0.9}, "crop_pct, rescale_offset: not understood"),
        ({"size": {"shortest_edge": 224}}, "crops nothing"),
        ({"size": {"longest_edge": 224}}, "expected a height and a width, or a shortest_edge"),
        ({"size": {"height": 224}}, "expected a height and a width"),
        ({"size": {"height": 10**9, "width": 2}}, "expected a height and a width"),
        ({"size": "224"}, "size"),
        ({"size": True}, "size"),
        ({"do_center_crop": True}, "crop_size"),
        ({"do_center_crop": True, "crop_size": {"shortest_edge": 3}}, "crop_size"),
        ({"do_center_crop": True, "crop_size": {"height": 100, "width": 200}}, "the same share of both sides"),
        ({"do_center_crop": True, "crop_size": 2000}, "crop"),
        ({"do_center_crop": True, "size": {"shortest_edge": 9}, "crop_size": [4, 6]}, "expected a square"),
        ({"resample": 5}, "resample"),
        ({"resample": [2]}, "resample"),
        ({"resample": True}, "resample"),
        ({"image_mean": [0.5, 0.5]}, "mean needs 3 numbers"),
        ({"image_mean": "half"}, "mean"),
        ({"image_std": [0.0, 1, 1]}, "std must be positive"),
        ({"image_mean": [float("nan")] * 3}, "mean"),
        ({"image_processor_type": "ConvNextImageProcessor"}, "not known here"),
        ({"image_processor_type": 7}, "not known here"),
        ({"image_processor_type": "Siglip2ImageProcessor"}, "one frame for all"),
        ({"image_processor_type": None}, "names no class, and lacks size"),
        ({"image_processor": 3}, "expected a mapping"),
    ],
)  # fmt: skip
@pytest.mark.fault("W11")
def test_what_a_file_of_transformers_may_get_wrong(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        from_transformers({"image_processor_type": "ViTImageProcessor", **wrong})


@pytest.mark.parametrize(
    "preprocess, kind",
    [
        (Preprocess(), "BitImageProcessor"),
        (Preprocess(crop=1.0), "BitImageProcessor"),
        (Preprocess(resize="squash"), "DeiTImageProcessor"),
        (Preprocess((64, 32), "squash", 1.0), "ViTImageProcessor"),
    ],
)
def test_another_class_takes_over_where_the_one_asked_for_cannot(
    transformers: ModuleType, preprocess: Preprocess, kind: str
) -> None:
    written = to_transformers(preprocess, "ViTImageProcessor")
    assert written["image_processor_type"] == kind
    theirs = getattr(transformers, f"{kind}Pil").from_dict(written)(CAT, return_tensors="np")["pixel_values"][0]
    assert apart(preprocess(CAT), theirs, preprocess.std) < 1e-3


def test_a_written_file_opens_by_its_name(transformers: ModuleType, tmp_path: Path) -> None:
    """AutoImageProcessor finds the class in the file, whatever the network beside it."""
    preprocess = Preprocess(size=96, crop=1.0, **IMAGENET)
    text = json.dumps(to_transformers(preprocess, "CLIPImageProcessor"))
    (tmp_path / "preprocessor_config.json").write_text(text)
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path)
    assert type(processor).__name__.startswith("CLIPImageProcessor")
    pixels = np.asarray(processor(CAT, return_tensors="np")["pixel_values"])[0]
    assert apart(preprocess(CAT), pixels, preprocess.std) <= 1.01


@pytest.mark.parametrize(
    "preprocess, message",
    [
        (Preprocess(resize="pad", crop=1.0), "bars around the image"),
        (Preprocess((64, 32)), "covering a frame of \\(64, 32\\)"),
        (Preprocess(antialias=False), "antialias"),
        (Preprocess(order="BGR"), "order"),
        (Preprocess(channels=1, mean=0.5, std=0.2, range=4095), "range=4095"),
    ],
)
def test_what_transformers_cannot_carry_is_refused(preprocess: Preprocess, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        to_transformers(preprocess, "ViTImageProcessor")
