"""The verbs that learn and judge: train, rerun, evaluate, compare, audit; what they print, write and refuse."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from vitrail import cli
from vitrail.checkpoint import Checkpoint, save
from vitrail.cli import judging, learning
from vitrail.evaluation import Score
from vitrail.images import Preprocess
from vitrail.network import ViT, ViTConfig

CONFIG = ViTConfig(image_size=16, patch_size=4, width=24, depth=1, heads=1, mlp_width=48, classes=3)


class Said(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        assert self.code == 0, self.err
        value = json.loads(self.out)
        assert isinstance(value, dict)
        return value


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes by colour, 20 images each; one of them twice, one unreadable."""
    folder = tmp_path_factory.mktemp("data") / "photos"
    dice = np.random.default_rng(3)
    for number, name in enumerate(("red", "green", "blue")):
        (folder / name).mkdir(parents=True)
        for row in range(20):
            pixels = dice.integers(0, 90, (16, 16, 3), dtype=np.uint8)
            pixels[:, :, number] += 120
            Image.fromarray(pixels).save(folder / name / f"{row}.png")
    Image.open(folder / "blue" / "0.png").save(folder / "blue" / "copy.bmp")
    (folder / "red" / "broken.png").write_bytes(b"no image")
    return folder


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights to start from."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "start.safetensors"
    save(Checkpoint(ViT(CONFIG).eval(), Preprocess(size=16, crop=1.0), ["a", "b", "c"]), path)
    return path


def say(*arguments: str | Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Said:
    monkeypatch.setattr(sys, "argv", ["vitrail", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    out, err = capsys.readouterr()
    return Said(int(end.value.code or 0), out, err)


@pytest.fixture
def vit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    return lambda *arguments: say(*arguments, monkeypatch=monkeypatch, capsys=capsys)


def test_from_images_to_a_verdict(vit: Any, photos: Path, start: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    flags = ("--from", start, "--epochs", "3", "--batch", "8", "--lr", "2e-3", "--out", out)
    first = vit("train", photos, *flags, "--json").json
    assert {"run", "best", "evaluation", "seconds", "steps"} <= first.keys()
    assert first["run"] == str(out / "photos-1")
    assert {"n", "top1", "top5", "macro_f1", "ece"} <= first["evaluation"].keys()
    assert [each["name"] for each in first["stages"]] == ["k-NN", "linear probe"]

    said = vit("train", photos, *flags, "--seed", "1", "--name", "second")
    assert said.code == 0, said.err
    assert re.search(r"top1 +\d+\.\d %", said.out)
    assert f"report            {out / 'second' / 'report.html'}" in said.out
    assert "1 of 62 images cannot be read, and are skipped" in said.err
    assert len(re.findall(r"epoch \d: loss .*, validation .* s computing, .* s waiting for images", said.err)) == 3

    found = vit("evaluate", out / "photos-1", "--json").json
    assert found["n"] == first["evaluation"]["n"]
    assert found["top1"] == first["evaluation"]["top1"]
    said = vit("evaluate", out / "photos-1", photos, "--split", "all", "--out", tmp_path / "judged")
    assert said.code == 0, said.err
    assert "61 images" in said.out
    assert (tmp_path / "judged" / "report.html").stat().st_size > 10_000
    assert json.loads((tmp_path / "judged" / "evaluation.json").read_text())["n"] == 61

    both = vit("compare", out / "photos-1", out / "second", photos, "--json", "--out", tmp_path / "both").json
    assert both["p_value"] <= 1
    assert (tmp_path / "both" / "comparison.html").exists()
    said = vit("compare", out / "photos-1", out / "second", photos)
    assert re.search(r"A - B +[+-]\d+\.\d\d points, 95 % interval", said.out)

    answers = vit("predict", out / "photos-1", photos / "red" / "0.png", "--json").json
    assert answers["calibrated"] is True

    said = vit("rerun", out / "photos-1", "--out", tmp_path / "again")
    assert said.code == 0, said.err
    assert f"the same bits as {out / 'photos-1'}" in said.out


def test_seeds_give_mean_and_spread(vit: Any, photos: Path, start: Path, tmp_path: Path) -> None:
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


def test_audit(vit: Any, photos: Path, tmp_path: Path) -> None:
    said = vit("audit", photos, "--out", tmp_path)
    assert said.code == 0, said.err
    assert "Copies of others, pixel for pixel: 1 image" in said.out
    assert "Unreadable: 1 file" in said.out
    assert {"audit.html", "audit.csv", "audit.json"} == {path.name for path in tmp_path.iterdir()}
    assert vit("audit", photos, "--json").json["counts"]["exact_copies"] == 1
    flags = ("--epochs", "0.1", "--batch", "8", "--out", tmp_path / "runs", "--exclude", tmp_path / "audit.csv")
    told = vit("train", photos, *flags)
    assert told.code == 0, told.err
    assert f"2 left out, as {tmp_path / 'audit.csv'} asks" in told.err  # the copy, and the one that cannot be read


def test_what_can_be_known_before_a_run(vit: Any, photos: Path, start: Path, tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    "arguments, says",
    [
        (("train", "{photos}", "--recipe", "nope"), "no recipe 'nope'"),
        (("train", "{photos}", "--epochs", "1", "--minutes", "1"), "epochs or minutes, not both"),
        (("train", "{photos}/nowhere"), "no data in"),
        (("train", "{photos}", "--resume", "nowhere"), "nowhere is no run"),
        (("train", "{photos}", "--model", "vit-x"), "no preset 'vit-x'"),
        (("train", "{photos}", "--device", "cuda"), "runs on the cpu and nowhere else yet, got 'cuda'"),
        (("train", "{photos}", "--exclude", "none.csv"), "none.csv"),
        (("evaluate", "vitrail:glass"), "does not know its data"),
        (("rerun", "{photos}"), "is no finished run"),
        (("audit", "{photos}/red/0.png"), "one image"),
    ],
)
def test_a_mistake_is_one_line_and_code_2(
    vit: Any, photos: Path, tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    given = [each.format(photos=photos) for each in arguments]
    extra = ["--out", tmp_path / "out"] if arguments[0] != "audit" else []
    said = vit(*given, *extra)
    assert said.code == 2
    assert said.out == ""
    assert says in said.err.splitlines()[-1]
    assert "Traceback" not in said.err


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


# ---- what is told, by fixed numbers -------------------------------------------------------------------------------


def run_of(score: float = 0.5, seed: int = 0) -> Any:
    """A finished run, as the verbs see it."""
    about = {"steps": 1, "seconds": 1.0, "resumed": False, "best": Path("best"), "folder": Path(f"run-{seed}")}
    evaluation = SimpleNamespace(scores={"top1": Score(score, 0.0, 1.0)}, split="test")
    return SimpleNamespace(
        evaluation=evaluation, stages=(), plan=SimpleNamespace(seed=seed), to_dict=lambda: {"seed": seed}, **about
    )


def test_seeds_say_their_mean_and_sample_deviation(vit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = {3: 0.5, 4: 0.6, 5: 0.9}
    monkeypatch.setattr(vitrail.training, "run", lambda data, options: run_of(scores[options.seed], options.seed))
    found = vit("train", "photos", "--seed", "3", "--seeds", "3", "--json").json
    assert found["runs"] == [{"seed": 3}, {"seed": 4}, {"seed": 5}]
    assert found["mean"] == pytest.approx(2.0 / 3)
    assert found["spread"] == pytest.approx(np.std([0.5, 0.6, 0.9], ddof=1))
    said = vit("train", "photos", "--seed", "3", "--seeds", "3").out
    assert said.endswith("top1: 66.67 % on average over 3 seeds, standard deviation 20.82\n")


def test_a_rerun_that_differs_says_so(vit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for same, differences, words in (
        (True, (), "the same bits as old"),
        (False, ("loss", "weights"), "NOT the same as old: loss; weights"),
    ):
        repeated = SimpleNamespace(same=same, differences=differences, run=run_of())
        monkeypatch.setattr(vitrail.training, "repeated", lambda run, to, watch, repeated=repeated: repeated)
        assert vit("rerun", "old").out.splitlines()[-1] == words
        told = vit("rerun", "old", "--json").json
        assert (told["same"], told["differences"]) == (same, list(differences))


@pytest.mark.parametrize("epoch, waited, told", [(1, 0.31, True), (1, 0.29, False), (3, 0.31, True), (4, 0.31, False)])
def test_an_epoch_that_waits_for_images_says_what_to_do(
    epoch: int, waited: float, told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"epoch": epoch, "loss": 1.0, "val_score": 0.5, "seconds": {"compute": 1 - waited, "data": waited}}
    with learning._watching() as watch:
        watch.epoch(row)
    said = capsys.readouterr().err
    assert f"epoch {epoch}: loss 1.000, validation 50.0 %; {1 - waited:.1f} s computing" in said
    assert ("31 % of the time goes into waiting for images: try --cache FOLDER" in said) == told


def test_the_weakest_classes_come_first(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [SimpleNamespace(name=f"c{n}", count=n, precision=0.5, recall=0.5, f1=n / 10) for n in (3, 1, 6, 4, 2, 5)]
    judging.show_scores(SimpleNamespace(scores={"top1": Score(0.5, 0.4, 0.6)}, per_class=rows, skipped=("a",)))
    said = capsys.readouterr()
    assert [line.split()[0] for line in said.out.splitlines()[3:]] == ["c1", "c2", "c3", "c4", "c5"]
    assert "0.5000" in said.out
    assert "1 images could not be read" in said.err
