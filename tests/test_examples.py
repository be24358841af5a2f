"""The examples run, and the network on one page is the network of the package."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

from vitrail import TextDecoder
from vitrail.network import ViT, ViTConfig, preset
from vitrail.network.surgery import build_empty

ROOT = Path(__file__).resolve().parents[1]


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# The network on one page

RENAMES = (
    ("patches.projection.", "project."),
    ("tokens.cls", "cls"),
    ("tokens.tables.0.table", "positions"),
    ("encoder.blocks.", "blocks."),
    (".mlp.up.", ".mlp.0."),
    (".mlp.down.", ".mlp.2."),
    ("head.classify.", "head."),
)


def on_one_page(model: nn.Module) -> dict[str, Tensor]:
    """The package's tensors under the page's names; its convolution is the page's matrix."""
    page = {}
    for name, tensor in model.state_dict().items():
        for ours, theirs in RENAMES:
            name = name.replace(ours, theirs)
        if name == "project.weight":
            tensor = tensor.flatten(1)
        page[name] = tensor[None] if name in ("cls", "positions") else tensor
    return page


def pair(config: ViTConfig) -> tuple[ViT, nn.Module]:
    """The package's network with random weights, and the page's with the same."""
    package = ViT(config).eval()
    with torch.no_grad():
        for name, parameter in package.named_parameters():
            around = 1.0 if "norm" in name and name.endswith("weight") else 0.0
            parameter.normal_(around, 0.05)
    page = example("one_page_vit").ViT(
        config.image_size[0],
        config.patch_size[0],
        config.width,
        config.depth,
        config.heads,
        config.mlp_width,
        config.classes,
    )
    page.load_state_dict(on_one_page(package))
    return package, page.eval()


SMALL = ViTConfig(image_size=32, patch_size=8, width=48, depth=4, heads=3, mlp_width=192, classes=10)


@torch.no_grad()
def test_one_page_gives_the_same_numbers() -> None:
    package, page = pair(SMALL)
    pixels = torch.randn(3, 3, 32, 32)
    assert (package(pixels) - page(pixels)).abs().max() < 1e-6
    package, page, pixels = package.double(), page.double(), pixels.double()
    logits = package(pixels)
    assert logits.abs().max() > 0.1
    assert (logits - page(pixels)).abs().max() < 1e-12


@torch.no_grad()
def test_one_page_is_vit_ti16_to_the_last_digits() -> None:
    package, page = pair(preset("vit-ti16"))
    pixels = torch.randn(1, 3, 224, 224, dtype=torch.float64)
    logits = package.double()(pixels)
    assert logits.abs().max() > 0.1
    assert (logits - page.double()(pixels)).abs().max() < 1e-12


@pytest.mark.parametrize(
    "name, sizes, parameters",
    [
        ("vit-b16", {}, 86_567_656),
        ("vit-ti16", {"width": 192, "heads": 3, "mlp_width": 768}, 5_717_416),
    ],
)
def test_one_page_has_as_many_parameters(name: str, sizes: dict[str, int], parameters: int) -> None:
    with torch.device("meta"):
        page = example("one_page_vit").ViT(**sizes)
    package = build_empty(preset(name))
    assert sum(each.numel() for each in page.parameters()) == parameters
    assert {key: each.shape for key, each in page.state_dict().items()} == {
        key: each.shape for key, each in on_one_page(package).items()
    }


def test_one_page_is_one_page_and_needs_only_torch() -> None:
    source = (ROOT / "examples" / "one_page_vit.py").read_text("utf-8")
    assert 60 <= len(source.splitlines()) <= 80
    imported = [ast.unparse(node) for node in ast.parse(source).body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert imported == ["import torch", "from torch import nn"]


# Characters


@pytest.mark.row("004.01", "004.03")
def test_characters_learns_and_writes(capsys: pytest.CaptureFixture[str]) -> None:
    characters = example("characters")
    few = ["--steps", "40", "--block-size", "16", "--width", "32", "--depth", "2"]
    outcome = characters.main(few)
    assert len(outcome.losses) == 40
    assert outcome.losses[0] == pytest.approx(3.43, abs=0.1)  # ln 31: it knows nothing yet
    assert sum(outcome.losses[-5:]) / 5 < outcome.losses[0] - 0.5
    assert len(outcome.sample) == 1 + 4 * 16
    assert set(outcome.sample) <= set(characters.invented_text())
    printed = capsys.readouterr().out
    assert "31 different ones" in printed
    assert "step   39  loss" in printed
    assert outcome.sample in printed
    assert characters.main(few) == outcome  # the same seed, the same run


def few_steps(monkeypatch: pytest.MonkeyPatch, seed: int = 0) -> tuple[list[float], list[float]]:
    """The rates of some steps, and how long the gradient was at each."""
    rates: list[float] = []
    norms: list[float] = []
    step = torch.optim.AdamW.step

    def watched(self: torch.optim.AdamW, *arguments: object) -> object:
        group = self.param_groups[0]
        rates.append(group["lr"])
        norms.append(sum(float(each.grad.square().sum()) for each in group["params"]) ** 0.5)
        return step(self)

    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.AdamW, "step", watched)
        few = ["--steps", "12", "--block-size", "8", "--width", "16", "--depth", "1", "--seed", str(seed)]
        example("characters").main(few)
    return rates, norms


def test_characters_follows_one_cycle_of_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    rates, _ = few_steps(monkeypatch)
    highest = rates.index(max(rates))
    assert rates[highest] == pytest.approx(3e-3, rel=0.05)
    assert 0 < highest < 6
    assert rates == sorted(rates[: highest + 1]) + sorted(rates[highest + 1 :], reverse=True)
    assert rates[-1] < 1e-5


def test_characters_forgets_the_gradient_of_the_step_before(monkeypatch: pytest.MonkeyPatch) -> None:
    _, norms = few_steps(monkeypatch)
    assert max(norms[6:]) < 2 * norms[0]  # summed up they would be several times as long


def test_characters_begins_otherwise_with_another_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    characters = example("characters")
    text = characters.invented_text(20)
    first = [characters.train(text, 1, 8, 16, 1, seed) for seed in (0, 0, 1)]
    assert first[0] == first[1] != first[2]
    starts: list[Tensor] = []
    monkeypatch.setattr(characters, "TextDecoder", lambda config: starts.append(torch.rand(3)) or TextDecoder(config))
    for seed in (0, 1):
        characters.train(text, 1, 8, 16, 1, seed)
    assert not torch.equal(*starts)  # the weights, too, are drawn by the seed
    assert characters.invented_text(20, seed=1) != text


def test_characters_takes_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "own.txt"
    text.write_text("abba " * 20, "utf-8")
    outcome = example("characters").main(
        [str(text), "--steps", "1", "--block-size", "8", "--width", "16", "--depth", "1"]
    )
    assert set(outcome.sample) <= set("ab ")
    text.write_text("short", "utf-8")
    with pytest.raises(SystemExit):
        example("characters").main([str(text)])
    assert "more than 48 characters, got 5" in capsys.readouterr().err
