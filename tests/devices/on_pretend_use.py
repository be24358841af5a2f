"""What networks are used for, on a second device: run by test_pretend_use.py in a process of its own.

The device keeps exact numbers in ordinary memory, but mixes with no tensor of the CPU, as a GPU. What it gives must be
the CPU's numbers, and come back where they come back today.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.attention import SDPBackend, sdpa_kernel
from typer.testing import CliRunner

import vitrail
from vitrail.checkpoint import Checkpoint
from vitrail.checkpoint.devices import device_of, find_device, number_kinds
from vitrail.cli import load_verbs
from vitrail.data import Dataset, read_data
from vitrail.errors import InputError
from vitrail.images import Preprocess
from vitrail.inference import open_model
from vitrail.inference.recognisers import as_runtime
from vitrail.insight import METHODS, explain_pixels
from vitrail.insight.activations import traced
from vitrail.insight.attention_figures import looks
from vitrail.insight.head_importance import importance
from vitrail.insight.image_tour import tour
from vitrail.insight.measures import attention_distances, principal_colours, token_norms
from vitrail.insight.model_figures import figures_of_weights
from vitrail.insight.pruning_run import batches_of
from vitrail.network import MaskedDecoder, ViT, ViTConfig, resize_kernel, with_head, with_merging
from vitrail.network.config import Positions, Rotary
from vitrail.network.text import TextConfig, TextDecoder
from vitrail.packed.packed_file import save_packed
from vitrail.packed.packed_runtime import Packed
from vitrail.quantisation.fake_quant import fake_quantise
from vitrail.quantisation.quantiser import plan_all_int8, quantise
from vitrail.quantisation.range_calibration import calibration_pixels, rank_sensitivity
from vitrail.shipping import benchmark
from vitrail.weights.adaptation import adapt_channels, with_channels
from vitrail.weights.resize import with_size

CLOSE = 1e-5
FASHION = "vitrail:fashion"
HAS_FLOAT64 = not os.environ.get("PRETEND_REFUSES")
Pair = tuple[Checkpoint, Checkpoint]


@pytest.fixture(scope="session", autouse=True)
def pretend() -> Iterator[None]:
    """torch with a second device, which has no float64 where that is asked for."""
    sys.path.insert(0, str(Path(os.environ["PRETEND_DEVICE"]).parent))
    import pretend_device  # type: ignore[import-not-found]

    kept = pretend_device.install(refuse=() if HAS_FLOAT64 else {torch.float64})
    yield
    del kept


@pytest.fixture(autouse=True)
def one_kernel() -> Iterator[None]:
    """The CPU's own kernels of attention round otherwise."""
    with sdpa_kernel(SDPBackend.MATH):
        yield


@pytest.fixture(scope="session")
def pair() -> Pair:
    """A trained network on the CPU, and there."""
    here, there = vitrail.load(FASHION), vitrail.load(FASHION, device="auto")
    assert placed(here.model) == {"cpu"}
    assert placed(there.model) == {"pretend"}
    return here, there


@pytest.fixture(scope="session")
def image() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (28, 28), dtype=np.uint8))


@pytest.fixture(scope="session")
def images() -> Dataset:
    """A few images of the built-in set: 64 to train on, 64 to judge by."""
    dataset = read_data(FASHION)
    rows: dict[str, list[int]] = {"train": [], "test": []}
    for row, sample in enumerate(dataset.samples):
        rows[sample.split].append(row)
    return dataset.select([*rows["train"][:64], *rows["test"][:64]])


def placed(model: torch.nn.Module) -> set[str]:
    """Where the weights and buffers of a network lie."""
    return {each.device.type for each in (*model.parameters(), *model.buffers())}


def numbers(value: Any) -> np.ndarray[Any, Any]:
    return value.detach().cpu().double().numpy() if isinstance(value, torch.Tensor) else np.asarray(value, np.float64)


def same(pair: tuple[Any, Any], ask: Callable[[Any], Any]) -> None:
    """Numbers of both within rounding, and both networks where they were."""
    a, b = (numbers(ask(each)) for each in pair)
    assert a.shape == b.shape
    assert np.isfinite(a).all() == np.isfinite(b).all()
    assert np.nanmax(np.abs(a - b), initial=0.0) <= CLOSE * max(1.0, float(np.nanmax(np.abs(a), initial=0.0)))
    for each, kind in zip(pair, ("cpu", "pretend"), strict=True):
        model = getattr(each, "model", each)
        assert not isinstance(model, torch.nn.Module) or placed(model) == {kind}


def on(model: torch.nn.Module, tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(device_of(model))


# ---- where things go ---------------------------------------------------------------------------------------------


def test_a_checkpoint_stays_where_it_is_unless_it_is_sent(pair: Pair, image: Image.Image) -> None:
    here, there = pair
    assert device_of(there.to("cpu").model).type == "cpu"
    assert there.to("auto") is there
    for given, device in ((here, "auto"), (here, "pretend"), (there, "cpu"), (there, None), (FASHION, "cpu")):
        assert np.allclose(vitrail.embed(given, image, device=device), here.embed(image), atol=CLOSE)
        assert vitrail.predict(given, image, device=device)[0].labels == here.predict(image)[0].labels
    same(pair, lambda each: each.embed(image, device="auto"))
    assert placed(as_runtime(FASHION).model) == {"pretend"}  # type: ignore[attr-defined]  # a path, by itself
    assert placed(vitrail.load(FASHION).model) == {"cpu"}
    with pytest.raises(InputError, match=r"expected pixels on pretend:0, as the weights are, got some on cpu"):
        there.model(here.transform(image)[None])
    with pytest.raises(InputError, match="here cpu, pretend, got 'cuda'"):
        vitrail.embed(here, image, device="cuda")


def test_runtimes_of_their_own_stay_on_the_cpu(tmp_path: Path) -> None:
    """A path on "auto" is for the CPU where it cannot be for the accelerator; who asks for that is told."""
    torch.manual_seed(0)
    here = Checkpoint(ViT(replace(BASE, depth=1)).eval(), Preprocess(size=16), ("a", "b", "c"))
    there = here.to("auto")
    images = np.random.default_rng(0).integers(0, 255, (2, 16, 16, 3), dtype=np.uint8)
    vitrail.export(there, tmp_path / "a.pt2")  # from wherever the network lies
    vitrail.save(there, tmp_path / "own.safetensors")
    save_packed(Packed(here), here, tmp_path / "packed.safetensors")
    assert placed(there.model) == {"pretend"}
    for path, runtime in ((tmp_path / "packed.safetensors", ""), (tmp_path / "own.safetensors", "packed")):
        opened = open_model(path, runtime=runtime, device="auto")
        assert np.allclose(vitrail.embed(opened, images, device="auto"), here.embed(images), atol=1e-4)
        with pytest.raises(InputError, match="device 'pretend': .* computes on the cpu, or where its own runtime does"):
            open_model(path, runtime=runtime, device="pretend")
    with pytest.raises(InputError, match=r"packed networks run on the CPU, this one is on pretend:0"):
        Packed(there)


def test_extras_and_long_numbers(pair: Pair) -> None:
    """What computes nothing stays; a network whose numbers the device lacks is refused in words."""
    here = pair[0]
    kept = replace(here, extras={"counts": torch.ones(2, dtype=torch.float64)}, ood=here.ood).to("pretend")
    assert kept.extras["counts"].dtype == torch.float64
    long = replace(here, model=ViT(here.model.config).double().eval())
    if HAS_FLOAT64:
        assert long.to("pretend").model.tokens.cls is None or placed(long.to("pretend").model) == {"pretend"}
    else:
        with pytest.raises(InputError, match="cannot be put on device 'pretend:0': the device pretend has no torch.fl"):
            long.to("pretend")
    assert ("fp64" in number_kinds(find_device("auto"))) == HAS_FLOAT64


def test_verbs_of_the_command_line_take_it_by_themselves(image: Image.Image, tmp_path: Path) -> None:
    image.save(tmp_path / "a.png")
    app, runner = load_verbs(), CliRunner()
    told = {}
    for device in ("cpu", "auto", "pretend"):
        ran = runner.invoke(app, ["predict", FASHION, str(tmp_path / "a.png"), "--device", device, "--json"])
        assert ran.exit_code == 0, ran.output
        told[device] = json.loads(ran.stdout)["predictions"][0]
    assert told["cpu"]["labels"] == told["auto"]["labels"] == told["pretend"]["labels"]
    assert np.allclose(told["cpu"]["probabilities"], told["auto"]["probabilities"], atol=CLOSE)
    report = json.loads(runner.invoke(app, ["doctor", "--json"]).stdout)["devices"]
    assert report["pretend"] == ("fp32, fp16, bf16, fp64" if HAS_FLOAT64 else "fp32, fp16, bf16")


def test_eager_is_timed_there_beside_the_others(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "_alone", lambda path, device: benchmark.Alone(1.0, None, None))
    monkeypatch.setattr(benchmark, "limits", lambda: {"fp32": 1.0})
    told = vitrail.bench(pair[1], batches=(1,), runtimes=("eager", "packed fp32"), rounds=1, progress=False)
    assert told.device == told.to_dict()["device"] == "pretend"
    assert told.notes == ("eager computes on pretend, all others on the cpu",)
    assert {row.runtime: row.of_limit is None for row in told.rows} == {"eager": True, "packed fp32": False}
    assert max(row.difference for row in told.rows) < 1e-4


# ---- answers and scores ------------------------------------------------------------------------------------------


def test_predict_embed_and_evaluate(pair: Pair, image: Image.Image, images: Dataset) -> None:
    same(pair, lambda each: each.predict(image, top=10)[0].probabilities)
    same(pair, lambda each: each.embed([image, image]))
    same(pair, lambda each: each.predict(on(each.model, each.transform(image)[None]))[0].probabilities)
    same(pair, lambda each: vitrail.evaluate(each, images, resamples=0).logits)
    assert vitrail.compare(*pair, images).differing == ()
    judged = [vitrail.audit(images, checkpoint=each) for each in pair]
    assert judged[0].agreement == judged[1].agreement
    assert judged[0].suspects == judged[1].suspects


# ---- a look inside -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [*METHODS])
def test_explanations(method: str, pair: Pair, image: Image.Image) -> None:
    same(pair, lambda each: vitrail.explain(each, image, method).map)


def test_explanations_of_a_batch(pair: Pair, image: Image.Image) -> None:
    batch = torch.stack([pair[0].transform(image), pair[0].transform(image.rotate(90))])
    same(pair, lambda each: [found.map for found in explain_pixels(each.model, on(each.model, batch), check=False)])


def test_a_trace_lies_where_its_pixels_lie(pair: Pair, image: Image.Image, tmp_path: Path) -> None:
    there = pair[1]
    pixels = on(there.model, there.transform(image)[None])
    mask = torch.ones(4, 4)  # wherever it lies
    mask[1, 2] = 0
    vitrail.save(there, tmp_path / "own.safetensors")
    for given in (there, there.model, tmp_path / "own.safetensors"):
        trace = vitrail.trace(given, pixels, head_mask=mask)
        tensors = [trace.tokens, trace.pooled, trace.logits, *trace.hidden, *trace.attention, trace.pool_weights]
        assert {each.device for each in tensors} == {pixels.device}
    for ask in (
        lambda each, given: vitrail.trace(each, given).attention[-1],
        lambda each, given: vitrail.trace(each, given, rows=[0, 3]).attention[0],
        lambda each, given: vitrail.trace(each, given, head_mask=mask).logits,
    ):
        same(pair, lambda each, ask=ask: ask(each, on(each.model, each.transform(image)[None])))


def test_figures(pair: Pair, image: Image.Image, tmp_path: Path) -> None:
    pixels = torch.stack([pair[0].transform(image), pair[0].transform(image.rotate(90))])
    same(pair, lambda each: attention_distances(each.model, on(each.model, pixels)))
    same(pair, lambda each: np.concatenate(token_norms(each.model, on(each.model, pixels))))
    same(pair, lambda each: principal_colours(each.model.features(on(each.model, pixels)).patches))
    same(pair, lambda each: looks(traced(each.model, on(each.model, pixels[:1])), 1, (4, 4)))
    assert [each.name for each in figures_of_weights(pair[1])] == ["positions"]
    assert tour(pair[1], image, tmp_path / "tour").prediction.labels == pair[0].predict(image)[0].labels


@pytest.mark.parametrize("way", ["gradient", "ablation"])
def test_heads_are_ranked(way: str, pair: Pair, images: Dataset) -> None:
    few = batches_of(pair[0], images, 8)[:2]
    same(pair, lambda each: importance(each.model, few, way).heads)


def test_heads_are_cut(pair: Pair, images: Dataset) -> None:
    pruned = [vitrail.prune(each, images, keep=0.5, channels=True, progress=False) for each in pair]
    assert pruned[0].heads == pruned[1].heads
    assert placed(pruned[1].checkpoint.model) == {"pretend"}
    for name, here in pruned[0].checkpoint.model.state_dict().items():
        assert torch.equal(here, pruned[1].checkpoint.model.state_dict()[name].cpu())


# ---- networks of other kinds -------------------------------------------------------------------------------------

BASE = ViTConfig(image_size=16, patch_size=4, width=24, depth=2, heads=2, mlp_width=48, classes=3)
KINDS = {
    "token merging": replace(BASE, merge_per_block=3),
    "rotary": replace(BASE, positions=Positions(kind="none"), rotary=Rotary(kind="mixed")),
    "relative": replace(BASE, positions=Positions(kind="relative")),
    "sines": replace(BASE, positions=Positions(kind="sincos-2d")),
    "attention pool, SwiGLU, registers": replace(BASE, pool="map", mlp="swiglu", activation="silu", registers=2),
    "axial": replace(BASE, axial=True),
}


@pytest.mark.parametrize("kind", KINDS)
def test_networks_of_every_kind(kind: str) -> None:
    torch.manual_seed(0)
    here = ViT(KINDS[kind]).eval()
    there = Checkpoint(here, Preprocess(size=16)).to("pretend").model
    pixels = torch.randn(2, 3, 16, 16)
    larger = torch.randn(1, 3, 24, 16)
    for given in (pixels, larger):
        same((here, there), lambda each, given=given: each(on(each, given)))
        same((here, there), lambda each, given=given: vitrail.trace(each, on(each, given)).tokens)
        same((here, there), lambda each, given=given: each.features(on(each, given)).patches)


def test_a_network_merges_the_same_tokens_of_a_photo(pair: Pair, image: Image.Image) -> None:
    merging = [replace(each, model=with_merging(each.model, 2), ood=None) for each in pair]
    same((merging[0], merging[1]), lambda each: each.embed(image))
    flat = Image.new("L", (28, 28), 90)  # all patches are equally alike
    same((merging[0], merging[1]), lambda each: each.embed(flat))
    same((merging[0], merging[1]), lambda each: vitrail.explain(each, image, "rollout", check=False).map)


def test_text_is_drawn_the_same_everywhere() -> None:
    torch.manual_seed(0)
    here = TextDecoder(TextConfig(vocabulary=11, block_size=8, width=24, depth=2, heads=2, mlp_width=48)).eval()
    there = TextDecoder(here.config).to("pretend").eval()
    there.load_state_dict(here.state_dict())
    ids = torch.tensor([[1, 2, 3]])
    same((here, there), lambda each: each(on(each, ids)))
    same((here, there), lambda each: each.loss(on(each, ids), on(each, ids)))
    for options in ({"temperature": 0.0}, {"seed": 3}, {"seed": 3, "top_k": 4}):
        written = [each.generate(on(each, ids), 12, **options) for each in (here, there)]
        assert written[1].device.type == "pretend"
        assert torch.equal(written[0], written[1].cpu())


def test_the_masked_decoder() -> None:
    torch.manual_seed(0)
    here = MaskedDecoder(replace(BASE, classes=48, pool="none"), 32).eval()
    there = MaskedDecoder(here.config, 32).eval()
    there.load_state_dict(here.state_dict())
    there.to("pretend")
    kept, restore = torch.randn(2, 5, 32), torch.stack([torch.randperm(16) for _ in range(2)])
    same((here, there), lambda each: each(on(each, kept), on(each, restore)))


def test_fake_quantisation(pair: Pair, images: Dataset) -> None:
    data = images.select(list(range(16)))
    plans = []
    for each in pair:
        batches = calibration_pixels(each, data, 8)
        assert {pixels.device for pixels in batches} == {device_of(each.model)}
        evened, plan = plan_all_int8(each, batches)
        ranking = rank_sensitivity(evened.model, plan, batches[0])
        plans.append((plan, sorted((name, harm) for name, harm in ranking), fake_quantise(evened.model, plan)))
        assert placed(plans[-1][2]) == placed(each.model)
    (a, harms, _), (b, others, _) = plans
    assert a.int8.keys() == b.int8.keys()
    assert np.allclose([*a.int8.values()], [*b.int8.values()], atol=1e-4)
    assert np.allclose([harm for _, harm in harms], [harm for _, harm in others], atol=1e-4)
    told = [quantise(each, images, precision="bf16", max_drop=5.0).after.drop.value for each in pair]
    assert told[0] == told[1]


def test_a_network_is_adapted_there() -> None:
    """To other channels, classes, sizes and patches."""
    torch.manual_seed(0)
    here = Checkpoint(ViT(BASE).eval(), Preprocess(size=16), ("a", "b", "c"))
    there = here.to("pretend")
    grey, colour = torch.randn(2, 1, 16, 16), torch.randn(2, 3, 24, 24)
    same((here, there), lambda each: with_channels(each, 1).model(on(each.model, grey)))
    same((here, there), lambda each: with_channels(with_channels(each, 1), 3).model(on(each.model, colour)))
    same((here, there), lambda each: adapt_channels(each.model, 1)(on(each.model, grey)))
    same((here, there), lambda each: with_size(each, 24).model(on(each.model, colour)))
    same((here, there), lambda each: resize_kernel(each.model.patches.kernel, (8, 8)))
    for change in (lambda model: with_head(model, 5), lambda model: adapt_channels(model, 5)):
        assert placed(change(there.model)) == {"pretend"}


def test_a_checkpoint_is_saved_from_there(pair: Pair, tmp_path: Path) -> None:
    for name, each in zip("ab", pair, strict=True):
        vitrail.save(each, tmp_path / f"{name}.safetensors")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
