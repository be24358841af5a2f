"""predict and embed: published numbers of a real network, and the same answer by whatever way an image comes."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import vitrail
from network import renames
from vitrail.checkpoint import Checkpoint
from vitrail.errors import ImageError, InputError
from vitrail.images import Preprocess
from vitrail.inference import probabilities
from vitrail.network import ViT, ViTConfig

CONFIG = ViTConfig(image_size=32, patch_size=8, width=32, depth=2, heads=2, mlp_width=64, classes=7)


@pytest.fixture(scope="module")
def real(fixtures: Path) -> Checkpoint:
    """ViT-Ti/16 as published, with the preprocessing it was trained for: the defaults."""
    model = vitrail.create("vit-ti16").eval()
    renames.to_ours(renames.TIMM, model, load_file(fixtures / "vit_tiny_patch16_224_in1k.safetensors"))
    return Checkpoint(model, Preprocess())


@pytest.fixture(scope="module")
def images() -> Path:
    """The folder of images that scikit-image carries in its package; nothing is downloaded."""
    return Path(pytest.importorskip("skimage.data").__file__).parent


@pytest.fixture(scope="module")
def small() -> Checkpoint:
    torch.manual_seed(1)
    model = ViT(CONFIG).eval()
    renames.randomise(model)
    return Checkpoint(model, Preprocess(size=32), tuple("abcdefg"))


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    """Thirty-two different images of different sizes."""
    dice = np.random.default_rng(5)
    paths = []
    for number in range(32):
        height, width = dice.integers(20, 90, 2)
        rough = Image.fromarray(dice.integers(0, 256, (4, 5, 3), np.uint8))
        paths.append(tmp_path / f"{number}.png")
        rough.resize((int(width), int(height)), Image.Resampling.BICUBIC).save(paths[-1])
    return paths


# ---- a real network ----------------------------------------------------------------------------------------------


@pytest.mark.row("000.27")
@pytest.mark.parametrize(
    "name, expected",
    [("chelsea.png", {"285": 0.8128, "282": 0.1073}), ("coffee.png", {"967": 0.9380, "968": 0.0406})],
)
def test_the_published_answer(real: Checkpoint, images: Path, name: str, expected: dict[str, float]) -> None:
    """Egyptian cat and tabby; espresso and cup: as timm with its own evaluation transform, to four digits."""
    [found] = vitrail.predict(real, [images / name], top=2)
    assert found.labels == tuple(expected)
    assert found.probabilities == pytest.approx(tuple(expected.values()), abs=6e-5)


def test_the_same_as_timm_on_the_same_pixels(real: Checkpoint, images: Path, fixtures: Path, timm: ModuleType) -> None:
    theirs = timm.create_model("vit_tiny_patch16_224", pretrained=False).eval()
    theirs.load_state_dict(load_file(fixtures / "vit_tiny_patch16_224_in1k.safetensors"))
    pixels = real.preprocess.batch([images / "chelsea.png", images / "coffee.png"])
    with torch.no_grad():
        expected = theirs(torch.from_numpy(pixels))
    logits, _ = real.run(pixels)
    assert renames.gap(torch.from_numpy(logits), expected) < 1e-5
    found = vitrail.predict(real, [images / "chelsea.png", images / "coffee.png"], top=1000)
    for each, row in zip(found, expected.double().softmax(1).numpy(), strict=True):
        ours = dict(zip(each.labels, each.probabilities, strict=True))
        assert max(abs(ours[str(number)] - row[number]) for number in range(1000)) < 1e-5


def test_other_preprocessing_gives_other_numbers(real: Checkpoint, images: Path) -> None:
    """The mean and standard deviation of ImageNet, which this network was not trained with, cost it certainty."""
    wrong = Checkpoint(real.model, Preprocess(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)))
    cat, cup = vitrail.predict(wrong, [images / "chelsea.png", images / "coffee.png"], top=2)
    assert (cat.labels[0], cat.probabilities[0]) == ("285", pytest.approx(0.6962, abs=1e-4))  # 0.8128 with its own
    assert (cup.labels, cup.probabilities[1]) == (("470", "967"), pytest.approx(0.1647, abs=1e-4))  # 0.9380 and first


@pytest.mark.fault("I13")
def test_one_image_alone_and_in_a_batch_real(real: Checkpoint, images: Path) -> None:
    """Logits of the real network, up to 16: at most 2e-6 of the largest apart (measured: 4e-7), answers 2e-6."""
    pixels = real.preprocess.batch([images / name for name in ("chelsea.png", "coffee.png", "rocket.jpg")])
    together, _ = real.run(pixels)
    for row, alone in zip(together, pixels, strict=True):
        single, _ = real.run(alone[None])
        assert np.abs(single[0] - row).max() <= 2e-6 * np.abs(together).max()
        assert np.abs(probabilities(single[0]) - probabilities(row)).max() <= 2e-6


# ---- the same answer, whichever way ------------------------------------------------------------------------------


@pytest.mark.fault("I13")
@pytest.mark.parametrize("size", [2, 3, 5, 8, 16, 31, 32])
def test_one_image_alone_and_in_a_batch(small: Checkpoint, photos: list[Path], size: int) -> None:
    """Not padded, so not the same bits: logits, here up to 4, differ by at most 2e-6 (measured: 7e-7)."""
    alone = np.concatenate([small.run(small.preprocess(path)[None])[0] for path in photos[:size]])
    pixels = small.preprocess.batch(photos[:size])
    assert np.array_equal(pixels, np.stack([small.preprocess(path) for path in photos[:size]]))
    together, _ = small.run(pixels)
    assert np.abs(together).max() < 8
    assert np.abs(alone - together).max() <= 2e-6
    one = vitrail.predict(small, photos[:size], top=7, batch=1)
    many = vitrail.predict(small, photos[:size], top=7, batch=size)
    assert [each.labels for each in one] == [each.labels for each in many]
    for first, second in zip(one, many, strict=True):
        assert first.probabilities == pytest.approx(second.probabilities, abs=2e-6)


@pytest.mark.fault("I6")
def test_eight_orientations_give_one_answer(small: Checkpoint, tmp_path: Path) -> None:
    """An image stored turned, with the tag that says so, is the upright image."""
    upright = Image.fromarray(np.random.default_rng(3).integers(0, 256, (40, 56, 3), np.uint8))
    stored = {
        1: None,
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    paths = []
    for tag, turn in stored.items():
        image = upright if turn is None else upright.transpose(turn)
        exif = Image.Exif()
        exif[0x0112] = tag
        paths.append(tmp_path / f"{tag}.png")
        image.save(paths[-1], exif=exif)
    found = vitrail.predict(small, paths, top=7, batch=1)
    assert len({(each.labels, each.probabilities) for each in found}) == 1
    plain = vitrail.predict(small, [paths[1].read_bytes(), upright], top=7, batch=1)
    assert plain[0].probabilities == plain[1].probabilities == found[0].probabilities


@pytest.mark.fault("I12")
def test_path_bytes_image_and_array_give_the_same_bits(small: Checkpoint, photos: list[Path]) -> None:
    for path in photos[:20]:
        with Image.open(path) as image:
            array = np.asarray(image)
            ways: list[Any] = [str(path), path, path.read_bytes(), bytearray(path.read_bytes()), image, array]
            found = vitrail.predict(small, ways, top=7, batch=1)
        assert len({(each.labels, each.probabilities) for each in found}) == 1
        assert [each.path for each in found] == [str(path), str(path), *(f"image {n}" for n in range(2, 6))]


def test_an_array_of_images_is_a_list_of_them(small: Checkpoint) -> None:
    colour = np.random.default_rng(0).integers(0, 256, (4, 40, 30, 3), np.uint8)
    assert vitrail.predict(small, colour) == vitrail.predict(small, list(colour))
    assert vitrail.predict(small, colour[..., 0]) == vitrail.predict(small, list(colour[..., 0]))


# ---- what comes out ----------------------------------------------------------------------------------------------


def test_probabilities_are_the_softmax_of_the_logits(small: Checkpoint, photos: list[Path]) -> None:
    logits, _ = small.run(small.preprocess.batch(photos[:3]))
    expected = torch.from_numpy(logits).double().softmax(1).numpy()
    for found, row in zip(vitrail.predict(small, photos[:3], top=7), expected, strict=True):
        assert sum(found.probabilities) == pytest.approx(1, abs=1e-12)
        assert list(found.probabilities) == sorted(found.probabilities, reverse=True)
        assert found.probabilities == pytest.approx(sorted(row, reverse=True), abs=1e-12)
        assert found.labels[0] == small.classes[row.argmax()]
    assert [len(each.labels) for each in vitrail.predict(small, photos[:2], top=3)] == [3, 3]
    assert len(vitrail.predict(small, photos[:1], top=100)[0].labels) == 7


def test_temperature_and_several_labels() -> None:
    logits = np.array([[2.0, 0.0, -2.0], [1000.0, 999.0, -1000.0]], np.float32)
    assert probabilities(logits)[0] == pytest.approx([0.86681333, 0.11731043, 0.01587624])
    assert probabilities(logits)[1] == pytest.approx([0.73105858, 0.26894142, 0.0])
    assert probabilities(logits, temperature=2.0)[0] == pytest.approx([0.66524096, 0.24472847, 0.09003057])
    assert probabilities(logits, "multi-label")[0] == pytest.approx([0.88079708, 0.5, 0.11920292])
    assert probabilities(logits, "multi-label")[1] == pytest.approx([1.0, 1.0, 0.0])
    assert probabilities(logits, "multi-label", 2.0)[0] == pytest.approx([0.73105858, 0.5, 0.26894142])


def test_task_and_temperature_of_the_checkpoint_are_used(small: Checkpoint, photos: list[Path]) -> None:
    logits, _ = small.run(small.preprocess(photos[0])[None])
    several = Checkpoint(small.model, small.preprocess, small.classes, task="multi-label", temperature=3.0)
    [found] = vitrail.predict(several, photos[:1], top=7)
    expected = torch.from_numpy(logits[0]).double().div(3).sigmoid().numpy()
    assert found.probabilities == pytest.approx(sorted(expected, reverse=True), abs=1e-12)
    assert sum(found.probabilities) != pytest.approx(1, abs=0.01)


@pytest.mark.row("004.13")
def test_embed_gives_what_the_head_receives(small: Checkpoint, photos: list[Path]) -> None:
    found = vitrail.embed(small, photos[:5], batch=5)
    pixels = torch.from_numpy(small.preprocess.batch(photos[:5]))
    with torch.no_grad():
        traced = vitrail.trace(small.model, pixels)
        assert np.abs(small.model.head(torch.from_numpy(found)).numpy() - small.run(pixels.numpy())[0]).max() < 1e-5
    assert found.dtype == np.float32
    assert found.shape == (5, 32)
    assert np.abs(found - traced.pooled.numpy()).max() <= 2e-6 * np.abs(found).max()
    assert np.abs(vitrail.embed(small, photos[:5], batch=2) - found).max() <= 2e-6 * np.abs(found).max()


def test_embed_of_other_pools(photos: list[Path]) -> None:
    two = ViT(dataclasses.replace(CONFIG, pool="cls+distillation", distillation_token=True)).eval()
    found = vitrail.embed(Checkpoint(two, Preprocess(size=32)), photos[:2])
    pixels = torch.from_numpy(Preprocess(size=32).batch(photos[:2]))
    with torch.no_grad():
        assert np.allclose(found, vitrail.trace(two, pixels).pooled.mean(dim=1).numpy(), atol=1e-6)
    none = ViT(dataclasses.replace(CONFIG, pool="none", classes=0)).eval()
    with pytest.raises(InputError, match=r"no pool: use vitrail\.trace or model\.features"):
        vitrail.embed(Checkpoint(none, Preprocess(size=32)), photos[:1])


# ---- mistakes ----------------------------------------------------------------------------------------------------


def test_a_network_without_a_head_cannot_predict(photos: list[Path]) -> None:
    bare = Checkpoint(ViT(dataclasses.replace(CONFIG, classes=0)).eval(), Preprocess(size=32))
    with pytest.raises(InputError, match="has no head, so it cannot predict: use embed"):
        vitrail.predict(bare, photos[:1])
    assert vitrail.embed(bare, photos[:1]).shape == (1, 32)


def test_an_image_that_cannot_be_read(small: Checkpoint, photos: list[Path], tmp_path: Path) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(photos[1].read_bytes()[:60])
    given = [photos[0], broken, photos[2], tmp_path / "none.png", photos[3]]
    with pytest.raises(ImageError, match=r"broken\.png"):
        vitrail.predict(small, given)
    told: list[tuple[str, str]] = []
    for batch in (1, 2, 16):
        told.clear()
        found = vitrail.predict(small, given, batch=batch, skip=lambda name, error: told.append((name, str(error))))
        assert [each.path for each in found] == [str(photos[0]), str(photos[2]), str(photos[3])]
        assert [name for name, _ in told] == [str(broken), str(tmp_path / "none.png")]
        assert all(name in error for name, error in told)
    assert len(vitrail.embed(small, given, skip=lambda *_: None)) == 3
    assert vitrail.predict(small, [broken], skip=lambda *_: None) == []
    with pytest.raises(InputError, match="no images to embed"):
        vitrail.embed(small, [broken], skip=lambda *_: None)


def test_an_empty_list(small: Checkpoint) -> None:
    assert vitrail.predict(small, []) == []
    with pytest.raises(InputError, match="no images to embed"):
        vitrail.embed(small, [])


@pytest.mark.parametrize("wrong", [{"top": 0}, {"top": -1}, {"batch": 0}, {"top": "5"}, {"top": 2.5}, {"batch": 2.0}])
def test_wrong_numbers(small: Checkpoint, photos: list[Path], wrong: dict[str, int]) -> None:
    with pytest.raises(InputError, match=f"{next(iter(wrong))}: expected a whole number from 1 to"):
        vitrail.predict(small, photos[:1], **wrong)


def test_predicting_from_another_runtime_never_imports_torch(photos: list[Path]) -> None:
    """An exported file is a runtime like any other: images in, labels out, with numpy and Pillow only."""
    script = f"""
import sys
import numpy as np
import vitrail
from vitrail.inference import RuntimeBase

class Bright(RuntimeBase):
    preprocess = vitrail.Preprocess(size=32)
    classes = ("dark", "bright")
    task = "single-label"
    temperature = thresholds = reject = None

    def run(self, pixels):
        mean = pixels.mean(axis=(1, 2, 3))
        return np.stack([-9 * mean, 9 * mean], axis=1), pixels.mean(axis=(2, 3))

white, black = np.full((40, 40, 3), 255, np.uint8), np.zeros((40, 40, 3), np.uint8)
found = vitrail.predict(Bright(), [white, black, {str(photos[0])!r}], top=1)
assert [each.labels[0] for each in found[:2]] == ["bright", "dark"], found
assert vitrail.embed(Bright(), [white]).tolist() == [[1.0, 1.0, 1.0]]
print("torch" in sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=600, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, "False\n", "")
