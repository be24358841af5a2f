"""Files are compared with the network before they get their names: in every target, precision, output and pass."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitrail
from shipping import small
from vitrail.errors import CheckpointError, VitrailError
from vitrail.exporters import TARGETS, openvino
from vitrail.exporters import exporter as exporting
from vitrail.exporters import verification as checking
from vitrail.exporters.example_inputs import inputs_for
from vitrail.exporters.exported import Exported
from vitrail.exporters.input_stage import Entrance
from vitrail.exporters.target import Draft
from vitrail.exporters.verification import CheckCase, cases, compare_pixels, tolerance
from vitrail.images import Preprocess
from vitrail.packed import packed_file as artefact
from vitrail.packed import packed_runtime as packed
from vitrail.packed.packed_file import open_packed, save_packed
from vitrail.packed.packed_runtime import Packed
from vitrail.quantisation import output_distance
from vitrail.quantisation.quant_plan import QuantPlan, Range

Drift = Callable[[int, np.ndarray[Any, Any]], float]  # the output's number, and its values -> how far off it is
SHARES = {"largest": output_distance.largest, "typical": output_distance.typical}
RANGES = {"encoder.blocks.0.attention.qkv": Range(-3.0, 3.0)}  # rounding there moves answers by less than 0.01


@pytest.fixture
def drifting(monkeypatch: pytest.MonkeyPatch) -> Callable[[Drift], None]:
    """Files whose answers are as far from the network's as is said, of the value that counts; nothing is traced.

    Of an embedding the drift is one that the head does not see, so that no other answer moves.
    """

    def by(drift: Drift) -> None:
        def write(draft: Draft, path: Path) -> None:
            for each in TARGETS[draft.contents.target].files(path):
                each.write_bytes(b"a file")
            int8 = draft.int8
            network = draft.graph if int8 is None else exporting._rounding(draft.graph, int8.ranges, int8.symmetric)

            def compute(img: np.ndarray[Any, Any], names: Any) -> list[np.ndarray[Any, Any]]:
                with torch.inference_mode():
                    found = [each.numpy() for each in network(torch.from_numpy(img))]
                norm = SHARES[tolerance(draft.contents).scale]
                patterns = [np.ones_like(found[0]), unseen(network.model, found[1]), np.ones_like(found[2])]
                return [
                    each + drift(number, each) * norm(each) * pattern / norm(pattern)
                    for number, (each, pattern) in enumerate(zip(found, patterns, strict=True))
                ]

            monkeypatch.setattr(exporting, "start_exported", lambda *_: Exported(path, draft.contents, compute))

        for name, target in TARGETS.items():
            monkeypatch.setitem(TARGETS, name, replace(target, write=write))

    monkeypatch.setattr(exporting, "trace", lambda graph, contents: None)
    monkeypatch.setattr(exporting, "_note", lambda target, contents, path: None)
    monkeypatch.setattr(openvino, "multiplies_bf16", lambda: True)
    return by


def unseen(model: Any, embedding: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Changes of an embedding that move no logit."""
    weight = model.head.classify.weight.detach().double().numpy()
    random = np.random.default_rng(0).standard_normal(embedding.shape)
    return (random - random @ np.linalg.pinv(weight) @ weight).astype(np.float32)


@pytest.mark.parametrize(
    "name, options, changes, most",
    [
        ("a.onnx", {}, {}, 1e-4),
        ("a.xml", {}, {}, 1e-4),
        ("a.pt2", {}, {}, 1e-4),
        ("a.onnx", {"plan": QuantPlan("fp32", RANGES)}, {}, 0.05),
        ("a.xml", {"plan": QuantPlan("fp32", RANGES)}, {}, 0.05),
        ("a.onnx", {"plan": QuantPlan("fp32", RANGES), "symmetric": True}, {}, 0.05),
        ("a.xml", {"plan": QuantPlan("bf16")}, {}, 0.08),
        ("a.xml", {"plan": QuantPlan("bf16", RANGES)}, {}, 0.08),
        ("a.xml", {"plan": QuantPlan("bf16")}, {"merge_per_block": 2}, 0.3),
    ],
)
def test_a_file_may_be_so_far_from_the_network_and_no_further(
    name: str,
    options: dict[str, Any],
    changes: dict[str, Any],
    most: float,
    drifting: Callable[[Drift], None],
    tmp_path: Path,
) -> None:
    made = small.checkpoint(**changes)
    drifting(lambda number, values: 1.1 * most * (number == 1))
    with pytest.raises(
        CheckpointError, match=f"the file's embeddings differ .*, and at most {100 * most:.3g} % is allowed"
    ):
        vitrail.export(made, tmp_path / name, **options)
    assert list(tmp_path.iterdir()) == []
    drifting(lambda number, values: 0.9 * most * (number == 1))
    report = vitrail.export(made, tmp_path / name, **options)
    assert report.largest_difference == pytest.approx(0.9 * most, rel=0.01)
    drifting(lambda number, values: 0.0)  # one that rounds where the network does
    assert vitrail.export(made, tmp_path / name, **options).largest_difference < 1e-6


@pytest.mark.parametrize("output, name", [(0, "logits"), (1, "embeddings"), (2, r"probs \(given its own logits\)")])
def test_every_output_is_compared(output: int, name: str, drifting: Callable[[Drift], None], tmp_path: Path) -> None:
    drifting(lambda number, values: 4e-4 * (number == output))
    words = rf"not exported: on 1 image of 32x32 \(random pixels\) the file's {name} differ from the network's own by"
    with pytest.raises(CheckpointError, match=words):
        vitrail.export(small.checkpoint(), tmp_path / "a.onnx")


@pytest.mark.parametrize("batch", [1, 3, 16])
def test_every_pass_is_compared(batch: int, drifting: Callable[[Drift], None], tmp_path: Path) -> None:
    drifting(lambda number, values: 2e-4 * (len(values) == batch))
    with pytest.raises(CheckpointError, match=f"on {batch} images?"):
        vitrail.export(small.checkpoint(), tmp_path / "a.onnx")


def test_rounding_may_move_one_image_further_than_all_of_them(
    drifting: Callable[[Drift], None], tmp_path: Path
) -> None:
    """A file in int8 is judged by all images together; a single one may be three times as far away, no more."""
    made, plan = small.checkpoint(), QuantPlan("fp32", RANGES)
    drifting(lambda number, values: 0.14 * (number == 1 and len(values) == 1))
    assert vitrail.export(made, tmp_path / "a.onnx", plan=plan).largest_difference == pytest.approx(0.14, rel=0.01)
    drifting(lambda number, values: 0.16 * (number == 1 and len(values) == 1))
    with pytest.raises(CheckpointError, match=r"on 1 image of .* embeddings differ .*, and at most 15 % is allowed"):
        vitrail.export(made, tmp_path / "b.onnx", plan=plan)


@pytest.mark.parametrize(
    "moved, allowed",
    [
        ((0.10, 0.03), (0.20, 0.20)),  # of embeddings and logits: rounding happens to spare the direction of logits
        ((0.03, 0.10), (0.06, 0.20)),
        ((0.20, 0.03), (0.30, 0.30)),  # the limit
        ((0.01, 0.01), (0.05, 0.05)),
    ],
)
def test_logits_that_round_may_go_as_far_as_embeddings_and_not_the_other_way(
    moved: tuple[float, float], allowed: tuple[float, float]
) -> None:
    ready = exporting.prepare(small.checkpoint(), "onnx")
    dice = np.random.default_rng(0)
    width = ready.contents.embedding
    logits = 100 * dice.standard_normal((4, 5)).astype(np.float32)  # larger than the head gives for such embeddings
    logits -= logits.mean(axis=1, keepdims=True)
    embedding = dice.standard_normal((4, width)).astype(np.float32)
    exact = [logits * (1 + moved[1]), embedding * (1 + moved[0])]
    answers = checking.Answers([logits, embedding], [logits, embedding], exact)
    within = tolerance(replace(ready.contents, precision="int8"))
    parts = checking._from_network(ready.network, answers, answers, within, checking.INDEPENDENT)
    assert [(each.what, each.apart) for each in parts] == [("embeddings", 0.0), ("logits", 0.0)]
    assert [each.allowed for each in parts] == pytest.approx(allowed, rel=1e-4)


def test_an_answer_of_another_shape_is_refused() -> None:
    ready = exporting.prepare(small.checkpoint(), "onnx")
    inputs = inputs_for(small.checkpoint().preprocess, "float", None)

    def short(img: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
        with torch.inference_mode():
            logits, embedding, probs = (each.numpy() for each in ready.network(torch.from_numpy(img)))
        return [logits, embedding[:, :-1], probs]

    with pytest.raises(CheckpointError, match="on 1 image of .* embeddings differ .* by inf %"):
        checking.compare(short, ready.network, inputs, [CheckCase(1, (32, 32))], tolerance(ready.contents))


def test_passes_are_of_several_batches_and_where_the_size_is_free_of_several_sizes() -> None:
    own = (224, 160)
    assert cases(20_000_000, own, (0, 0)) == [
        CheckCase(1, own),
        CheckCase(3, own),
        CheckCase(16, own),
    ]
    assert cases(20_000_001, own, (0, 0)) == [
        CheckCase(1, own),
        CheckCase(2, own),
        CheckCase(3, own),
    ]  # large networks are slow
    assert cases(1, own, (16, 8))[3:] == [CheckCase(2, (256, 176)), CheckCase(2, (208, 168))]
    assert cases(1, (16, 16), (16, 16))[-1] == CheckCase(2, (16, 32))  # never without a patch


def test_what_each_precision_allows() -> None:
    ready = exporting.prepare(small.checkpoint(), "onnx").contents
    merging = exporting.prepare(small.checkpoint(merge_per_block=2), "onnx").contents
    found = {each: tolerance(replace(ready, precision=each)) for each in ("float32", "int8", "bf16", "int8+bf16")}
    assert {name: each[:2] for name, each in found.items()} == {
        "float32": (1e-4, 1e-4),
        "int8": (0.05, 1e-4),  # the head is none of the layers in int8
        "bf16": (0.08, 0.03),
        "int8+bf16": (0.08, 0.03),
    }
    assert {name: (each.scale, each.rounds) for name, each in found.items()} == {
        "float32": ("largest", False),
        "int8": ("typical", True),
        "bf16": ("typical", False),
        "int8+bf16": ("typical", True),
    }
    assert [tolerance(replace(merging, precision=each)).network for each in ("float32", "bf16")] == [1e-4, 0.3]
    assert checking.LOOSELY == 0.3


@pytest.mark.parametrize("step, allowed", [(0.4, True), (0.6, True), (1.0, True), (1.05, False), (3.0, False)])
def test_pixels_made_inside_may_be_one_step_off(step: float, allowed: bool) -> None:
    preprocess = Preprocess(size=16, crop=1.0, mean=0.4, std=0.25)

    class Off(Entrance):
        def forward(self, img: torch.Tensor) -> torch.Tensor:
            found = super().forward(img)
            found[:, 0, 0, :8] += step / 255 / 0.25  # eight pixels of one band
            return found

    entrance = Off(preprocess, resize=False)
    if not allowed:
        with pytest.raises(CheckpointError, match=f"differ from Preprocess's by up to {step:.3g} steps of 8 bits"):
            compare_pixels(entrance, preprocess)
        return
    found = compare_pixels(entrance, preprocess)
    assert found.largest == pytest.approx(step, abs=1e-3)
    assert found.share == pytest.approx(8 / (3 * 16 * 16) if step >= 0.5 else 0)


def test_whole_images_are_compared_at_three_sizes() -> None:
    seen: list[tuple[int, ...]] = []

    class Heard(Entrance):
        def forward(self, img: torch.Tensor) -> torch.Tensor:
            seen.append(tuple(img.shape))
            return super().forward(img)

    preprocess = Preprocess(size=(32, 24))
    assert compare_pixels(Heard(preprocess, resize=True), preprocess).largest <= 1.01
    assert seen == [(1, 69, 59, 3), (1, 48, 24, 3), (1, 16, 15, 3)]


@pytest.mark.parametrize("name, files", [("a.onnx", ["a.onnx"]), ("a.xml", ["a.bin", "a.xml"])])
def test_a_file_is_on_the_disk_before_it_gets_its_name(
    name: str, files: list[str], drifting: Callable[[Drift], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The description comes last: without it, weights are no file of ours."""
    done: list[str] = []
    sync, rename = os.fsync, os.replace

    def synced(number: int) -> None:
        done.append("folder" if os.fstat(number).st_ino == tmp_path.stat().st_ino else "synced")
        sync(number)

    def renamed(source: Any, place: Any) -> None:
        done.append(Path(place).name)
        rename(source, place)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    drifting(lambda number, values: 0.0)
    vitrail.export(small.checkpoint(), tmp_path / name)
    assert done == [each for file in files for each in ("synced", file)] + ["folder"]


def test_a_description_that_does_not_come_back_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = exporting.prepare(small.checkpoint(), "onnx").contents
    silent = replace(TARGETS["onnx"], add_notes=lambda contents, path: None)
    monkeypatch.setattr(exporting, "read_exported", lambda path, target: contents)
    exporting._note(silent, contents, tmp_path / "a.onnx")
    with pytest.raises(CheckpointError, match="does not come back as it was written"):
        exporting._note(silent, replace(contents, measurements={"top1": 0.5}), tmp_path / "a.onnx")


@pytest.mark.parametrize(
    "precision, half, changes, most",
    [
        ("fp32", False, {}, 1e-4),
        ("bf16", False, {}, 0.08),
        ("fp32", True, {}, 0.08),  # a coarse network is no finer packed
        ("fp32", False, {"merge_per_block": 2}, 1e-4),
        ("bf16", False, {"merge_per_block": 2}, 0.3),
    ],
)
def test_a_packed_network_may_be_so_far_from_eager_and_no_further(
    precision: str, half: bool, changes: dict[str, Any], most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = small.checkpoint(**changes)
    made = replace(made, model=made.model.bfloat16()) if half else made
    right = packed.proof

    def off(share: float) -> None:
        def proof(runtime: Packed) -> torch.Tensor:
            kind = torch.bfloat16 if half else torch.float32
            embedding = [made.model.embed(each.to(kind)) for each in packed._noise(runtime)]
            exact = torch.cat([made.model.head(each).float() for each in embedding])
            scale = output_distance.head_scale(made.model.head, torch.cat(embedding).float().numpy())
            norm = output_distance.typical if most > 1e-4 else output_distance.largest
            return exact + share * max(norm(exact.numpy()), scale)

        monkeypatch.setattr(packed, "proof", proof)

    with torch.inference_mode():
        off(1.1 * most)
        with pytest.raises(VitrailError, match=f"differs from the eager one: .*, expected at most {100 * most:g} %:"):
            Packed(made, QuantPlan(precision))
        off(0.9 * most)
        assert Packed(made, QuantPlan(precision)).difference == pytest.approx(0.9 * most, rel=0.02)
    monkeypatch.setattr(packed, "proof", right)
    assert (Packed(made, QuantPlan(precision)).difference or 0.0) < most


@pytest.mark.parametrize("changes, most", [({}, 0.05), ({"merge_per_block": 2}, 0.3)])
def test_a_packed_file_may_answer_so_far_from_what_it_did_and_no_further(
    changes: dict[str, Any], most: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = small.checkpoint(**changes)
    save_packed(Packed(made), made, tmp_path / "a.safetensors")
    right = packed.proof
    for share, taken in ((0.9, True), (1.1, False)):

        def proof(runtime: Packed, share: float = share) -> torch.Tensor:
            exact = right(runtime)
            return exact + share * most * max(output_distance.typical(exact.numpy()), packed.logit_scale(runtime))

        monkeypatch.setattr(artefact, "proof", proof)
        if taken:
            open_packed(tmp_path / "a.safetensors")
            continue
        with pytest.raises(CheckpointError, match=f"than when it was written: .* expected at most {100 * most:g} %"):
            open_packed(tmp_path / "a.safetensors")
