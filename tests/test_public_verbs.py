"""The public verbs: each takes a checkpoint, its path or its run's folder, and says what its parameters are."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from vitrail.errors import CheckpointError, InputError, VitrailError


class Places(NamedTuple):
    """A checkpoint in every way that it can be given, and what to try it on."""

    checkpoint: vitrail.Checkpoint
    file: Path
    run: Path
    trained: vitrail.training.Run
    photos: Path
    image: Image.Image


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Places:
    photos = tmp_path_factory.mktemp("photos")
    dice = np.random.default_rng(0)
    for number in range(48):
        folder = photos / ("train", "val", "test")[number % 3] / ("ants", "bees")[number // 3 % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(dice.integers(0, 255, (20, 30, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    config = vitrail.ViTConfig(image_size=16, patch_size=8, width=16, depth=2, heads=2, mlp_width=16, classes=2)
    out = tmp_path_factory.mktemp("runs")
    run = vitrail.train(photos, model=config, steps=2, batch=8, size=16, out=out, check=False, report=False)
    checkpoint = vitrail.load(run.folder)
    file = tmp_path_factory.mktemp("files") / "own.safetensors"
    vitrail.save(checkpoint, file)
    return Places(
        checkpoint, file, run.folder, run, photos, Image.fromarray(dice.integers(0, 255, (20, 30, 3), np.uint8))
    )


# A verb on something given as a checkpoint -> what can be compared.
VERBS: dict[str, Callable[[Any, Places, Path], Any]] = {
    "predict": lambda given, p, out: vitrail.predict(given, [p.image]),
    "embed": lambda given, p, out: vitrail.embed(given, [p.image]).tolist(),
    "explain": lambda given, p, out: vitrail.explain(given, p.image, check=False).map.tolist(),
    "evaluate": lambda given, p, out: vitrail.evaluate(given, p.photos, resamples=0).scores["top1"],
    "compare": lambda given, p, out: vitrail.compare(given, given, p.photos / "test").both_right,
    "trace": lambda given, p, out: vitrail.trace(given, p.checkpoint.transform(p.image)[None]).logits.tolist(),
    "prune": lambda given, p, out: vitrail.prune(given, p.photos, keep=0.5).heads,
    "save": lambda given, p, out: vitrail.save(given, out / "copy.safetensors"),
    "convert": lambda given, p, out: vitrail.convert(given, out / "to.safetensors", to="vitrail").identical,
    "export": lambda given, p, out: vitrail.export(given, out / "to.pt2").format,
    "audit": lambda given, p, out: vitrail.audit(p.photos, checkpoint=given).agreement,
}
ANY_RUNTIME = {"predict", "embed", "explain", "evaluate", "compare", "audit"}


@pytest.mark.parametrize("verb", VERBS)
def test_a_path_is_taken_wherever_a_checkpoint_is(places: Places, tmp_path: Path, verb: str) -> None:
    answers = []
    ways = (places.checkpoint, places.file, str(places.file), places.run, str(places.run), places.trained)
    for number, given in enumerate(ways):
        out = tmp_path / str(number)
        out.mkdir()
        answers.append(VERBS[verb](given, places, out))
    assert all(each == answers[0] for each in answers[1:])


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("given", [7, None, {"weights": 1}, [b"x"]], ids=["number", "None", "dict", "list"])
def test_anything_else_is_told_in_words(places: Places, tmp_path: Path, verb: str, given: Any) -> None:
    if (verb, given) == ("audit", None):
        pytest.skip("an audit does without a checkpoint")
    with pytest.raises(InputError, match=r"expected .*(checkpoint|Checkpoint|path)"):
        VERBS[verb](given, places, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("given", [7, None, [b"x"]], ids=["number", "None", "list"])
def test_long_verbs_tell_it_before_they_begin(places: Places, tmp_path: Path, given: Any) -> None:
    with pytest.raises(InputError, match="expected Checkpoint, or the path of one"):
        vitrail.optimize(given, places.photos, tmp_path / "fast")
    with pytest.raises(InputError, match="expected Checkpoint, or the path of one"):
        vitrail.bench(given)
    with pytest.raises(CheckpointError, match="nowhere"):
        vitrail.bench(tmp_path / "nowhere.safetensors")


@pytest.mark.parametrize("verb", VERBS)
def test_a_path_where_nothing_is_is_told(places: Places, tmp_path: Path, verb: str) -> None:
    with pytest.raises(CheckpointError, match="nowhere.safetensors"):
        VERBS[verb](tmp_path / "nowhere.safetensors", places, tmp_path)


@pytest.mark.parametrize("verb", sorted(set(VERBS) - ANY_RUNTIME - {"convert", "save"}))
def test_what_needs_the_network_says_so_of_an_exported_file(
    places: Places, exported: Path, tmp_path: Path, verb: str
) -> None:
    with pytest.raises(VitrailError, match="made for its runtime alone: use the weights it was made from"):
        VERBS[verb](exported, places, tmp_path)


@pytest.fixture(scope="module")
def exported(places: Places, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("exported") / "model.onnx"
    vitrail.export(places.checkpoint, out)
    return out


def test_the_path_of_a_run_knows_its_images(places: Places) -> None:
    """Those held out by the run, whatever its folder is called."""
    named, own = vitrail.evaluate(places.run, places.photos, resamples=0), vitrail.evaluate(places.run, resamples=0)
    assert own.split == named.split == "test"
    assert own.names == named.names
    assert vitrail.prune(places.run, keep=0.5).split == "test"
    with pytest.raises(InputError, match="not of a run, so it does not know its data"):
        vitrail.evaluate(places.file)
    with pytest.raises(InputError, match="only the path of a run's checkpoint tells of its own"):
        vitrail.evaluate(places.checkpoint)


def test_a_traced_model_is_as_good_as_its_checkpoint(places: Places) -> None:
    pixels = places.checkpoint.transform(places.image)[None]
    assert torch.equal(vitrail.trace(places.checkpoint.model, pixels).logits, vitrail.trace(places.run, pixels).logits)


DOCUMENTED = (*VERBS, "load", "train", "prune_heads", "optimize", "bench")


def test_a_fresh_network_completes_the_settings_of_its_config() -> None:
    settings = inspect.signature(vitrail.create).parameters
    assert list(settings) == ["name", *inspect.signature(vitrail.ViTConfig).parameters]
    assert all(each.kind is each.KEYWORD_ONLY for each in list(settings.values())[1:])


@pytest.mark.parametrize("verb", DOCUMENTED)
def test_a_verb_says_in_a_line_what_each_parameter_is(verb: str) -> None:
    function = getattr(vitrail, verb)
    lines = re.findall(r"^- (\w+): \S.{8,}$", inspect.getdoc(function) or "", re.MULTILINE)
    assert list(inspect.signature(function).parameters) == lines
