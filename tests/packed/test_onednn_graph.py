"""Attention as one kernel of oneDNN's compiler: the numbers of the formula, for each shape, or none at all."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_hook

from shipping.packs import VARIANTS, attending, checkpoint
from vitrail.packed import onednn_graph
from vitrail.packed import torchscript_program as program
from vitrail.packed.onednn_graph import graph_kernel
from vitrail.packed.packed_runtime import Packed
from vitrail.packed.packed_vit import CompiledForward
from vitrail.quantisation.quant_plan import QuantPlan, quantisable


@pytest.fixture(autouse=True)
def _nothing_kept() -> Iterator[None]:
    kept, shapes = dict(onednn_graph._kernels), set(onednn_graph._shapes)
    onednn_graph._kernels.clear()
    onednn_graph._shapes.clear()
    yield
    onednn_graph._kernels.clear()
    onednn_graph._shapes.clear()
    onednn_graph._kernels.update(kept)
    onednn_graph._shapes.update(shapes)


def views(images: int, tokens: int, heads: int, kind: torch.dtype) -> tuple[Tensor, ...]:
    """q, k and v as a qkv layer gives them: views into one table."""
    return torch.randn(images, tokens, 3, heads, 16).to(kind).permute(2, 0, 3, 1, 4).unbind(0)


@pytest.mark.parametrize("kind, within", [(torch.bfloat16, 0.03), (torch.float32, 1e-5)])
@pytest.mark.parametrize("images, tokens, heads", [(1, 29, 3), (1, 1, 1), (8, 29, 3), (2, 197, 4)])
@pytest.mark.parametrize("biased", ["", "row", "all"])
@pytest.mark.parametrize("scale", [0.25, 1.0])
def test_it_gives_what_the_formula_gives(
    kind: torch.dtype, within: float, images: int, tokens: int, heads: int, biased: str, scale: float
) -> None:
    q, k, v = views(images, tokens, heads, kind)
    q.mul_(0.25 / scale)
    bias = {"": None, "row": torch.randn(images, 1, 1, tokens), "all": torch.randn(images, heads, tokens, tokens)}
    added = None if bias[biased] is None else bias[biased].to(kind)
    kernel = graph_kernel(q, k, v, added, scale)
    assert kernel is not None
    with torch.autograd.profiler.profile() as heard:
        found = kernel.forward(q, k, v, q if added is None else added)
    assert any(each.name.startswith("LlgaPartition") for each in heard.function_events)  # and no way round it
    logits = q.double() @ k.double().mT * scale
    expected = (logits if added is None else logits + added.double()).softmax(-1) @ v.double()
    assert found.dtype == kind
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=within)
    assert graph_kernel(q, k, v, added, scale) is kernel  # kept


def test_others_are_left_to_other_ways() -> None:
    q, k, v = views(1, 29, 3, torch.float32)
    assert graph_kernel(q[:, :, :1], k, v, None, 0.25) is None  # one query
    assert graph_kernel(*(each[:0] for each in (q, k, v)), None, 0.25) is None  # no image
    assert graph_kernel(*(each.double() for each in (q, k, v)), None, 0.25) is None
    tokens = int((onednn_graph.MOST_SCORES / 2) ** 0.5) + 1
    assert (
        graph_kernel(*views(1, tokens, 2, torch.float32), None, 0.25) is None
    )  # memory would grow with the square of tokens
    assert list(onednn_graph._kernels.values()) == [None]  # of doubles: the others were not even tried


def test_asking_the_compiler_changes_nothing_for_others() -> None:
    assert not torch.jit.onednn_fusion_enabled()
    assert graph_kernel(*views(1, 29, 3, torch.float32), None, 0.25) is not None
    assert not torch.jit.onednn_fusion_enabled()


def test_a_kernel_that_is_not_right_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    given = views(2, 29, 3, torch.float32)
    right = onednn_graph._Formula
    monkeypatch.setattr(onednn_graph, "_Formula", lambda scale, biased: right(scale * 1.01, biased))
    assert graph_kernel(*given, None, 1.0) is None
    onednn_graph._kernels.clear()
    monkeypatch.undo()
    assert graph_kernel(*given, None, 1.0) is not None


def test_without_the_compiler_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.jit, "enable_onednn_fusion")
    assert graph_kernel(*views(2, 29, 3, torch.float32), None, 1.0) is None
    onednn_graph._kernels.clear()
    monkeypatch.undo()
    monkeypatch.setattr(torch.jit, "enable_onednn_fusion", lambda wanted: None)  # there, and to no avail
    assert graph_kernel(*views(2, 29, 3, torch.float32), None, 1.0) is None


def test_autocast_around_it_changes_no_kernel() -> None:
    q, k, v = views(2, 29, 3, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        kernel = graph_kernel(q, k, v, None, 0.25)
    assert kernel is not None
    exact = (q.double() @ k.double().mT * 0.25).softmax(-1) @ v.double()
    torch.testing.assert_close(kernel.forward(q, k, v, q).double(), exact, rtol=0, atol=1e-5)


def test_no_more_than_are_kept_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn_graph, "MOST_SHAPES", 2)
    found = [graph_kernel(*views(1, tokens, 1, torch.float32), None, 1.0) for tokens in (5, 6, 7, 5)]
    assert found[0] is not None
    assert found[0] is found[3]
    assert (found[1] is None, found[2] is None) == (False, True)


def test_hooks_on_all_modules_stay_out_of_it() -> None:
    heard: list[str] = []
    given = views(1, 29, 3, torch.float32)
    hook = register_module_forward_hook(lambda each, *_: heard.append(type(each).__name__))
    try:
        kernel = graph_kernel(*given, None, 1.0)
        assert kernel is not None
        found = kernel.forward(*given, given[0])
    finally:
        hook.remove()
    assert heard == []
    assert graph_kernel(*given, None, 1.0) is kernel
    assert torch.equal(kernel.forward(*given, given[0]), found)


@pytest.mark.parametrize("most", range(9))  # the network below asks for eight kernels, of four shapes
def test_the_limit_of_kernels_never_comes_between_two_ways(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many kernels were made before: a shape has them for every scale of its queries, or for none."""
    attending(monkeypatch, "kernels")
    monkeypatch.setattr(onednn_graph, "MOST_SHAPES", most)
    made = checkpoint(width=64, **VARIANTS["pruned"])
    plan = QuantPlan("bf16", dict.fromkeys(quantisable(made.model), (-3.0, 3.0)))
    first, second = (Packed(made, plan).model for _ in range(2))
    pixels = 2 * torch.randn(3, 3, 48, 32)
    with torch.inference_mode():
        short = first(pixels)
        first.encoder.blocks[1].attention.qkv.register_forward_hook(lambda *_: None)  # from now on the usual way
        assert torch.equal(first(pixels), short)
        for ours, theirs in zip(first.features(pixels)[:2], second.features(pixels)[:2], strict=True):
            assert torch.equal(ours, theirs)


def test_many_threads_make_one_kernel() -> None:
    given = views(2, 31, 3, torch.float32)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: graph_kernel(*given, None, 0.25), range(16)))
    assert found[0] is not None
    assert len({id(each) for each in found}) == 1


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_program_has_kernels_for_every_shape_on_its_way(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "AT_ONCE", 3 * 17 * 48)  # pieces of three images
    packed = Packed(checkpoint(merge_per_block=2, merge_by="tokens"), QuantPlan(precision)).model
    compiled, kind = packed.compiled, next(packed.parameters()).dtype
    assert isinstance(compiled, CompiledForward)
    given: list[dict[int, object]] = []
    run = compiled.run
    monkeypatch.setattr(compiled, "run", lambda *way: (given.append(way[-1]), run(*way))[1])
    pixels = torch.randn(7, 3, 32, 32).to(kind)
    threads = torch.get_num_threads()
    with torch.inference_mode():
        try:
            for count in (threads, threads + 1, threads):
                torch.set_num_threads(count)
                packed(pixels)  # makes them
                with torch.autograd.profiler.profile() as heard:
                    packed(pixels)
                names = [each.name for each in heard.function_events]
                assert sum(name.startswith("LlgaPartition") for name in names) == 6  # two blocks of three pieces
        finally:
            torch.set_num_threads(threads)
    # of 7 images 3, 3 and 1; 17 tokens in the first block, two fewer in the next, and the last is of one query
    names = [(3, 17, 4, False), (3, 15, 4, True), (1, 17, 4, False), (1, 15, 4, True)]
    assert set(given[0]) == {program.shape_key(*each, False) for each in names}
    assert given[0] is given[1] is given[4]  # those for so many threads, there and back
    assert all(given[0][name] is not given[2][name] for name in given[0])
