"""int8 files of a ViT-Ti that was really fine-tuned, for two classes: good ones are taken, wrong ones are not."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import vitrail
from exporters.test_planted_faults import State, scale_layer, swap_channels
from vitrail.errors import CheckpointError
from vitrail.exporters import TARGETS
from vitrail.exporters import exporter as exporting
from vitrail.exporters.target import Draft
from vitrail.inference import open_model
from vitrail.quantisation.quantiser import Quantised, quantise


@pytest.fixture(scope="module")
def hands(fixtures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos of hands that show one and two: 60 of each to train on, 30 to judge by."""
    folder = tmp_path_factory.mktemp("hands")
    for name in ("1", "2"):
        photos = sorted((fixtures / "sign_language_digits" / name).iterdir())
        for split, chosen in (("train", photos[:60]), ("val", photos[60:90])):
            (folder / split / name).mkdir(parents=True)
            for photo in chosen:
                shutil.copy(photo, folder / split / name)
    return folder


@pytest.fixture(scope="module", params=[0, 1])
def tuned(
    hands: Path, fixtures: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Quantised:
    """Rounding moves the embeddings of the first by some 8 %, of the second by some 36 %."""
    start = fixtures / "vit_tiny_patch16_224_in1k.safetensors"
    out = tmp_path_factory.mktemp("runs")
    run = vitrail.train(
        hands,
        start=start,
        size=112,
        epochs=2,
        batch=16,
        seed=request.param,
        out=out,
        check=False,
        report=False,
    )
    return quantise(vitrail.load(run.folder), hands, max_drop=5.0)


@pytest.mark.parametrize("name", ["a.onnx", "a.xml"])
def test_a_fine_tuned_network_is_exported_in_int8(name: str, tuned: Quantised, tmp_path: Path) -> None:
    images = tuned.choosing.images.images
    report = vitrail.export(tuned.checkpoint, tmp_path / name, plan=tuned.plan, images=images)
    assert (report.compared_on, report.share_of) == ("your images", "typical")
    assert 0.01 < report.largest_difference < 0.3
    judged = tuned.choosing(open_model(tmp_path / name))
    assert judged.images == 60
    assert judged.agreement >= 0.9
    assert judged.drop.value <= 5.0


@pytest.mark.parametrize("fault", [scale_layer, swap_channels], ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("name", ["a.onnx", "a.xml"])
def test_a_wrong_file_of_it_is_refused(
    name: str, fault: Callable[[State], None], tuned: Quantised, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = next(each for each in TARGETS.values() if name.endswith(each.suffix))
    trace = exporting.trace

    def write(draft: Draft, path: Path) -> None:
        wrong = copy.deepcopy(draft.graph)
        with torch.no_grad():
            fault(dict(wrong.model.state_dict()))
        right.write(draft._replace(graph=wrong, program=trace(wrong, draft.contents)), path)

    monkeypatch.setitem(TARGETS, right.name, replace(right, write=write))
    monkeypatch.setattr(exporting, "trace", lambda graph, contents: None)
    with pytest.raises(
        CheckpointError, match=r"not exported: on 20 images \(your images\) the file's embeddings differ"
    ):
        vitrail.export(tuned.checkpoint, tmp_path / name, plan=tuned.plan, images=tuned.choosing.images.images)
    assert list(tmp_path.iterdir()) == []
