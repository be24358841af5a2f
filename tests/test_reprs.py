"""What results say of themselves in a REPL and a notebook: ten lines, never the numbers of an array."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from vitrail.data import read_data
from vitrail.insight import explain_pixels

RESULTS = (
    *("Checkpoint", "Evaluation", "Run", "Explanation", "Trace", "Audit"),
    *("Comparison", "Pruned", "Bench", "Optimised"),
)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One of each, by the name of its class."""
    from vitrail.auditing import audit

    photos = tmp_path_factory.mktemp("photos")
    dice = np.random.default_rng(0)
    for number in range(24):
        folder = photos / ("train", "val")[number % 2] / ("<b>ants</b>", "bees")[number // 2 % 2]
        folder.mkdir(parents=True, exist_ok=True)
        values = dice.integers(0, 255, (20, 30, 3), dtype=np.uint8) if number > 1 else np.zeros((20, 30, 3), np.uint8)
        Image.fromarray(values).save(folder / f"{number}.png")
    config = vitrail.ViTConfig(image_size=16, patch_size=8, width=16, depth=2, heads=2, mlp_width=16, classes=2)
    run = vitrail.train(
        photos, model=config, steps=2, batch=8, size=16, out=tmp_path_factory.mktemp("runs"), check=False, report=False
    )
    checkpoint = vitrail.load(run.folder)
    image = Image.fromarray(dice.integers(0, 255, (40, 60, 3), dtype=np.uint8))
    return {
        "Checkpoint": checkpoint,
        "Evaluation": run.evaluation,
        "Run": run,
        "Explanation": vitrail.explain(checkpoint, image),
        "Trace": vitrail.trace(checkpoint.model, checkpoint.transform(image)[None]),
        "Audit": audit(read_data(photos)),
        "Comparison": vitrail.compare(run.folder, run.best, photos),
        "Pruned": vitrail.prune(run.folder, photos, keep=0.5),
        "Bench": vitrail.bench(run.folder, runtimes=("eager",), rounds=1),
        "Optimised": vitrail.optimize(
            run.folder, photos, run.folder / "fast", max_drop=100, batches=(1,), merging=False, runtimes=("packed",)
        ),
    }


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_says_what_it_is_in_ten_lines_of_a_hundred_columns(results: dict[str, Any], name: str) -> None:
    lines = repr(results[name]).splitlines()
    assert lines[0].startswith(f"{name}: ")
    assert 3 <= len(lines) <= 10
    assert max(map(len, lines)) <= 100
    assert not re.search(r"array\(|tensor\(|Tensor|object at|\[\[|dtype=", repr(results[name]))


@pytest.mark.parametrize("name", RESULTS)
def test_a_notebook_shows_a_card_with_the_same_rows(results: dict[str, Any], name: str) -> None:
    html = results[name]._repr_html_()
    names = re.findall(r"<dt>(.*?)</dt>", html)
    assert names[:2] == [re.split(r"\s{2,}", line.strip())[0] for line in repr(results[name]).splitlines()[1:3]]
    assert html.count("<dd>") == len(names) >= 2
    assert "<script" not in html
    assert "<b>ants" not in html  # the name of a class is text
    assert len(html) < 250_000


def test_an_evaluation_says_its_scores_in_words(results: dict[str, Any]) -> None:
    evaluation = results["Evaluation"]
    score = evaluation.scores["top1"]
    low, high = f"{100 * score.low:.1f}", f"{100 * score.high:.1f}"
    assert f"accuracy              {100 * score.value:.1f} % (95 % interval {low} to {high} %)" in repr(evaluation)
    assert "calibration error" in repr(evaluation)
    assert repr(evaluation).startswith("Evaluation: 12 images of ")


def test_a_run_says_where_its_checkpoint_is_and_what_it_scored(results: dict[str, Any]) -> None:
    run = results["Run"]
    assert str(run.best)[:60] in repr(run)
    assert f"{100 * run.evaluation.scores['top1'].value:.1f} %" in repr(run)
    assert "2 steps in" in repr(run)


def test_a_caveat_stands_beside_the_number(results: dict[str, Any]) -> None:
    limited = replace(results["Evaluation"], caveat="Measured on images it was trained on.")
    run = replace(results["Run"], evaluation=limited, stages=(), warnings=("few images",))
    for text in (repr(limited), repr(run)):
        assert re.search(r"^  caveat +Measured on images it was trained on\.$", text, re.MULTILINE)
        assert len(text.splitlines()) <= 10
    assert str(run.best)[:60] in repr(run)


def test_an_explanation_shows_its_map_over_the_image(results: dict[str, Any]) -> None:
    explanation = results["Explanation"]
    assert "2 x 2 patches" in repr(explanation)
    assert '<img src="data:image/png;base64,' in explanation._repr_html_()
    assert f"by {explanation.method} for " in explanation._repr_html_()


def test_an_explanation_of_pixels_shows_the_map_alone(results: dict[str, Any]) -> None:
    checkpoint = results["Checkpoint"]
    [explanation] = explain_pixels(checkpoint.model, torch.rand(1, 3, 16, 16), check=False)
    assert "faithfulness" not in repr(explanation)
    assert "look at it" not in repr(explanation)
    assert '<img src="data:image/png;base64,' in explanation._repr_html_()


def test_a_trace_says_shapes_and_is_unpacked_as_ever(results: dict[str, Any]) -> None:
    trace = results["Trace"]
    tokens, pooled, logits, hidden, attention, weights = trace
    assert tokens is trace.tokens
    assert trace._fields[-1] == "pool_weights"
    text = repr(trace)
    for tensor in (tokens, pooled, logits, hidden[0], attention[0], weights):
        assert str(tuple(tensor.shape)) in text
    assert "attention     2 blocks of (1, 2, 5, 5)" in text
    assert text.startswith("Trace: 1 image, float32 on cpu")
    assert "attention     not asked for" in repr(trace._replace(attention=()))


def test_a_comparison_says_whether_the_difference_may_be_chance(results: dict[str, Any]) -> None:
    text = repr(results["Comparison"])
    assert text.startswith("Comparison: 12 images of ")
    assert "+0.0 percentage points (95 % interval +0.0 to +0.0); p = 1" in text
    assert re.search(r"^  accuracy +A (\d+\.\d %), B \1$", text, re.MULTILINE)


def test_a_smaller_network_says_what_was_cut_and_what_it_cost(results: dict[str, Any]) -> None:
    text = repr(results["Pruned"])
    assert re.search(r"^  heads cut    \d+ \(heads? [\d, and]+ of block 0", text, re.MULTILINE)
    assert re.search(r"^  accuracy +\d+\.\d %, before \d+\.\d %$", text, re.MULTILINE)


def test_measurements_say_the_fastest_way(results: dict[str, Any]) -> None:
    assert "16x16, batch 16  eager" in repr(results["Bench"])
    assert re.search(
        r"^  fastest +(eager|packed) \w+, batch 1, \d+ readers?$", repr(results["Optimised"]), re.MULTILINE
    )


def test_an_audit_without_findings_says_so(results: dict[str, Any], tmp_path: Path) -> None:
    for label in ("ants", "bees"):
        (tmp_path / label).mkdir()
        for number in range(2):
            values = np.random.default_rng([number, ord(label[0])]).integers(0, 255, (20, 30, 3), dtype=np.uint8)
            Image.fromarray(values).save(tmp_path / label / f"{number}.png")
    assert "findings  nothing to complain about" in repr(vitrail.audit(tmp_path))
    assert "nothing to complain about" not in repr(results["Audit"])


def test_an_audit_says_what_it_found(results: dict[str, Any]) -> None:
    text = repr(results["Audit"])
    assert text.startswith("Audit: 24 images of ")
    assert "1 group of duplicates across splits" in text
    assert "1 the same as another" in text
    assert re.search(r"^  placeholders +2 images$", text, re.MULTILINE)
    assert "unreadable" not in text
