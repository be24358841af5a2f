"""The verb train: from a folder of images to a verdict."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import vitrail
from cli.command_line import Line, run_of
from vitrail.cli import load_verbs
from vitrail.training import Options


class _Recorded(Exception):  # noqa: N818
    """Raised in the place of a training, once its options are known."""


def options(monkeypatch: pytest.MonkeyPatch, *words: object) -> tuple[Any, Options]:
    """What the training would be asked for."""
    seen: list[tuple[Any, Options]] = []

    def run(data: Any, given: Options) -> None:
        seen.append((data, given))
        raise _Recorded

    monkeypatch.setattr(vitrail.training, "run", run)
    CliRunner().invoke(load_verbs(), ["train", *map(str, words)])
    return seen[0]


@pytest.mark.row("001.10")
def test_the_flags_of_a_training_reach_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Name, data, model, starting weights, size, batch, rate, length, seed: as ViT-pytorch's train.py has them."""
    data, given = options(
        monkeypatch,
        *("photos", "--name", "one", "--model", "vit-b16", "--size", "160x288", "--batch", 48, "--lr", "0.03"),
        *("--epochs", 2.5, "--seed", 42, "--recipe", "jeonsworld-cifar", "--out", tmp_path),
    )
    assert data == "photos"
    assert (given.name, given.model, given.size, given.batch, given.lr) == ("one", "vit-b16", (160, 288), 48, 0.03)
    assert (given.epochs, given.minutes, given.seed, given.recipe) == (2.5, None, 42, "jeonsworld-cifar")
    assert (given.start, Path(given.out)) == (None, tmp_path)
    _, given = options(monkeypatch, "photos", "--from", "net.npz", "--minutes", 3)
    assert (given.start, given.model, given.epochs, given.minutes) == ("net.npz", None, None, 3)
    run = tmp_path / "runs" / "photos-7"
    run.mkdir(parents=True)
    (run / "config.json").write_text("{}")
    _, given = options(monkeypatch, "photos", "--resume", run)
    assert (Path(given.out), given.name) == (run.parent, "photos-7")


def test_a_run_goes_on_from_its_own_record(vit: Line, photos: Path, start: Path, tmp_path: Path) -> None:
    """`--resume RUN` alone: the images and the options are those it was started with."""
    flags = ("--from", start, "--epochs", "2", "--batch", "8", "--lr", "2e-3", "--out", tmp_path, "--name", "one")
    first = vit("train", photos, *flags, "--json").json
    said = vit("train", "--resume", tmp_path / "one")
    assert said.code == 2
    assert said.err.endswith(f"{tmp_path / 'one'} is finished; `vitrail rerun {tmp_path / 'one'}` repeats it\n")
    (tmp_path / "one" / "result.json").unlink()  # as if it had been stopped before its end
    refused = vit("train", "--resume", tmp_path / "one", "--lr", "1e-2", "--epochs", "3")
    assert refused.code == 2
    assert "leave --epochs, --lr out, or name DATA and all options" in refused.err
    again = vit("train", "--resume", tmp_path / "one", "--json").json
    assert again["resumed"]
    assert {key: again[key] for key in ("run", "steps", "evaluation")} == {
        key: first[key] for key in ("run", "steps", "evaluation")
    }
    nothing = vit("train", "--epochs", "2")
    assert nothing.code == 2
    assert "train: DATA is missing" in nothing.err


def test_from_images_to_a_verdict(vit: Line, photos: Path, start: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    flags = ("--from", start, "--epochs", "3", "--batch", "8", "--lr", "2e-3", "--out", out)
    first = vit("train", photos, *flags, "--json").json
    assert {"run", "best", "evaluation", "seconds", "steps"} <= first.keys()
    assert first["run"] == str(out / "photos-1")
    assert {"n", "top1", "top5", "macro_f1", "ece"} <= first["evaluation"].keys()
    assert [each["name"] for each in first["stages"]] == ["k-NN", "linear probe"]

    said = vit("train", photos, *flags, "--seed", "1", "--name", "second")
    assert said.code == 0, said.err
    assert re.search(r"^accuracy +\d+\.\d %", said.out, re.MULTILINE)
    assert re.search(r"^best epoch: \d of 3, validation accuracy \d+\.\d %$", said.out, re.MULTILINE)
    assert f"report            {out / 'second' / 'report.html'}" in said.out
    assert "1 of 62 images cannot be read, and is skipped" in said.err
    assert len(re.findall(r"epoch \d: loss .*, validation .* s computing, .* s waiting for images", said.err)) == 3

    found = vit("evaluate", out / "photos-1", "--json").json
    assert found["n"] == first["evaluation"]["n"]
    assert found["top1"] == first["evaluation"]["top1"]
    said = vit("evaluate", out / "photos-1", photos, "--split", "all", "--out", tmp_path / "judged")
    assert said.code == 3, said.err  # one image cannot be read
    assert "61 images" in said.out
    assert (tmp_path / "judged" / "report.html").stat().st_size > 10_000
    assert json.loads((tmp_path / "judged" / "evaluation.json").read_text())["n"] == 61

    both = vit("compare", out / "photos-1", out / "second", photos, "--json", "--out", tmp_path / "both").json
    assert both["p_value"] <= 1
    assert (tmp_path / "both" / "comparison.html").exists()
    said = vit("compare", out / "photos-1", out / "second", photos)
    assert f"A is {out / 'photos-1'}, B is {out / 'second'}\n" in said.out
    assert re.search(r"A - B +[+-]\d+\.\d percentage points \(95 % interval", said.out)

    answers = vit("predict", out / "photos-1", photos / "red" / "0.png", "--json").json
    assert answers["calibrated"] is True

    said = vit("rerun", out / "photos-1", "--out", tmp_path / "again")
    assert said.code == 0, said.err
    assert f"the same bits as {out / 'photos-1'}" in said.out


def test_seeds_give_mean_and_spread(vit: Line, photos: Path, start: Path, tmp_path: Path) -> None:
    flags = ("--from", start, "--epochs", "1", "--batch", "8", "--out", tmp_path, "--seeds", "2", "--name", "x")
    found = vit("train", photos, *flags, "--json").json
    scores = [run["evaluation"]["top1"] for run in found["runs"]]
    assert found["mean"] == pytest.approx(sum(scores) / 2)
    assert [Path(run["run"]).name for run in found["runs"]] == ["x-seed0", "x-seed1"]
    written = (tmp_path / "x-seed0" / "last.safetensors").stat().st_mtime_ns
    (tmp_path / "x-seed1" / "result.json").unlink()  # as if it had been stopped in the second
    again = vit("train", photos, *flags, "--json").json
    assert [run["resumed"] for run in again["runs"]] == [True, True]
    assert (again["mean"], again["spread"]) == (found["mean"], found["spread"])
    assert (tmp_path / "x-seed0" / "last.safetensors").stat().st_mtime_ns == written
    said = vit("train", photos, *flags, "--lr", "1e-5")
    assert "was started with something else" in said.err


def test_what_can_be_known_before_a_run(vit: Line, photos: Path, start: Path, tmp_path: Path) -> None:
    said = vit("train", photos, "--from", start, "--show-lr", "--out", tmp_path)
    assert said.code == 0, said.err
    rates = {line.split()[0]: line for line in said.out.splitlines() if re.match(r"(entry|block|end|head)", line)}
    assert {"entry", "block", "end", "head"} <= rates.keys()
    found = vit("train", photos, "--from", start, "--find-lr", "--out", tmp_path, "--json").json
    assert 0 < found["suggested"] < 1
    said = vit("train", photos, "--from", start, "--lr", "0.05", "--check", "--out", tmp_path)
    assert said.code == 2
    assert "error" in said.out
    assert not (tmp_path / "photos-1").exists()


@pytest.mark.fault("T3")
@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_with_its_code_and_leaves_the_state_of_that_step(
    photos: Path, start: Path, tmp_path: Path, number: int, code: int
) -> None:
    flags = ["--from", str(start), "--epochs", "3000", "--batch", "8", "--out", str(tmp_path), "--name", "run"]
    command = [sys.executable, "-m", "vitrail", "train", str(photos), *flags]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    log = tmp_path / "run" / "metrics.jsonl"
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as run:
        while run.poll() is None and not (log.exists() and log.stat().st_size):
            time.sleep(0.01)  # until the first steps are logged
        run.send_signal(number)
        _, said = run.communicate(timeout=600)
    assert run.returncode == code, said
    stopped = re.search(r"stopped at step (\d+) of \d+; everything is saved, and the same command goes on", said)
    assert stopped is not None, said
    newest = max((tmp_path / "run" / "state").glob("r*.state"))
    assert int(newest.name[6:15]) == int(stopped[1])


def test_seeds_say_their_mean_and_sample_deviation(vit: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = {3: 0.5, 4: 0.6, 5: 0.9}
    monkeypatch.setattr(vitrail.training, "run", lambda data, options: run_of(scores[options.seed], options.seed))
    found = vit("train", "photos", "--seed", "3", "--seeds", "3", "--json").json
    assert found["runs"] == [{"seed": 3}, {"seed": 4}, {"seed": 5}]
    assert found["mean"] == pytest.approx(2.0 / 3)
    assert found["spread"] == pytest.approx(np.std([0.5, 0.6, 0.9], ddof=1))
    said = vit("train", "photos", "--seed", "3", "--seeds", "3").out
    assert said.endswith("accuracy: 66.67 % on average over 3 seeds, standard deviation 20.82 %\n")
    assert re.search(r"^seed +accuracy +run *$", said, re.MULTILINE)


def test_a_mean_over_seeds_keeps_the_caveat_of_its_numbers(vit: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vitrail.training, "run", lambda data, options: run_of(0.5, options.seed, caveat="Chosen by."))
    assert vit("train", "photos", "--seeds", "2").out.endswith("\ncaveat: Chosen by.\n")
    assert vit("train", "photos", "--seeds", "2", "--json").json["caveat"] == "Chosen by."


def test_weights_are_no_preset_to_train_from_nothing(vit: Line, photos: Path, start: Path, tmp_path: Path) -> None:
    for name in ("timm:vit_tiny_patch16_224", start):
        said = vit.mistake("train", photos, "--model", name, "--out", tmp_path)
        assert said == f"--model trains a preset from nothing, and {name} has weights: start from it by --from {name}"
    assert "that is a preset, which has no weights: `vitrail train --model vit-ti16` trains it" in vit.mistake(
        "train", photos, "--from", "vit-ti16", "--out", tmp_path
    )
