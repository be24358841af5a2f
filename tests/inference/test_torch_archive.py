"""Archives of torch.export: what of them may reach torch, and its outputs by name; of programs of a few words."""

from __future__ import annotations

import copy
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from vitrail.errors import CheckpointError, InputError
from vitrail.inference import torch_file, torch_program

GRAPH: dict[str, Any] = {
    "graph_module": {
        "graph": {
            "nodes": [
                {
                    "target": "torch.ops.aten.gelu.default",
                    "inputs": [{"name": "approximate", "arg": {"as_string": "tanh"}, "kind": 1}],
                    "metadata": {},
                }
            ],
            "sizes": [{"as_expr": {"expr_str": "Mul(Integer(8), Symbol('s18', positive=True, integer=True))"}}],
        },
        "in_spec": '[1, {"type": "builtins.tuple", "context": "null", "children_spec": []}]',
    },
    "guards_code": [],
    "range_constraints": {"8*s30": {"min_val": 1}},
    "torch_version": "2.9.1+cpu",
}
WEIGHT: dict[str, Any] = {
    "path_name": "weight_0",
    "use_pickle": False,
    "tensor_meta": {
        "dtype": 7,
        "sizes": [{"as_int": 2}, {"as_int": 3}],
        "strides": [{"as_int": 3}, {"as_int": 1}],
        "storage_offset": {"as_int": 0},
        "device": {"type": "cpu", "index": None},
    },
}


def archive(graph: Any = GRAPH, weight: Any = WEIGHT, **more: bytes) -> bytes:
    """A program with one weight of 24 bytes."""
    found = {
        **dict.fromkeys(("archive_format", "archive_version", "byteorder", ".data/version"), b"1"),
        torch_file.GRAPH: json.dumps(graph).encode(),
        "data/weights/model_weights_config.json": json.dumps({"config": {"w": weight}}).encode(),
        "data/weights/weight_0": bytes(24),
        "data/constants/model_constants_config.json": b'{"config": {}}',
        torch_file.DESCRIPTION: b"words",
    }
    return torch_file.packed(found | more).getvalue()


def read(raw: bytes) -> dict[str, memoryview]:
    return torch_file.entries(memoryview(raw), "x")


def with_weight(**values: Any) -> bytes:
    weight = copy.deepcopy(WEIGHT)
    for name, value in values.items():
        (weight if name in weight else weight["tensor_meta"])[name] = value
    return archive(weight=weight)


def with_graph(change: Callable[[Any], object]) -> bytes:
    graph = copy.deepcopy(GRAPH)
    change(graph)
    return archive(graph)


def with_node(**values: Any) -> bytes:
    return with_graph(lambda graph: graph["graph_module"]["graph"]["nodes"][0].update(values))


def test_an_archive_like_ours_is_read() -> None:
    found = read(archive())
    assert bytes(found["data/weights/weight_0"]) == bytes(24)
    assert torch_file.metadata(found, "x") == {torch_file.DESCRIPTION: "words"}
    again = torch_file.packed(found).getvalue()
    assert again == archive()  # to the byte, whatever the clock says


@pytest.mark.fault("W16")
@pytest.mark.parametrize(
    "raw, words",
    [
        (with_weight(use_pickle=True), "is pickled"),
        (with_weight(use_pickle=0), "is pickled"),
        (with_weight(path_name="opaque_obj_0"), "is pickled"),
        (with_weight(path_name="weight_0/../x"), "is pickled"),
        (with_weight(storage_offset={"as_int": 1}), "claims 28 bytes, and weight_0 has 24"),
        (with_weight(sizes=[{"as_int": 3}, {"as_int": 3}]), "claims 36 bytes"),
        (with_weight(strides=[{"as_int": 4}, {"as_int": 1}]), "claims 28 bytes"),
        (with_weight(strides=[{"as_int": -3}, {"as_int": 1}]), "without its shape, kind or place"),
        (with_weight(strides=[{"as_int": 3}]), "without its shape, kind or place"),
        (with_weight(dtype=8), "claims 48 bytes"),
        (with_weight(dtype=99), "without its shape, kind or place"),
        (with_weight(device={"type": "cuda", "index": 0}), "refused, a tensor"),
        (with_node(target="torch.os.mkdir"), "target: 'torch.os.mkdir'"),
        (with_node(target="torch.hub.load.default"), "target: 'torch.hub.load.default'"),
        (with_node(target="torch.ops.aten._print.default"), "target:"),
        (with_node(target="torch.ops.other.gelu.default"), "target:"),
        (with_node(target="_operator.call"), "target:"),
        (with_node(metadata={"stack_trace": "x"}), "metadata:"),
        (with_node(inputs=[{"name": "x", "arg": {"as_string": "evil"}}]), "text for 'x'"),
        (with_node(inputs=[{"name": "x", "arg": {"as_operator": "torch.os.mkdir"}}]), "of kind 'as_operator'"),
        (with_graph(lambda graph: graph.update(guards_code=["1"])), "guards_code:"),
        (with_graph(lambda graph: graph["range_constraints"].update({"s1.mro()": {}})), "the name 's1.mro"),
        (with_graph(lambda graph: graph.update(expr_str="Symbol.mro()")), "expr_str:"),
        (with_graph(lambda graph: graph.update(in_spec='[1, {"type": "x.y"}]')), "a tree of 'x.y'"),
        (archive(**{torch_file.EXAMPLES: b"pickle"}), "pickled examples"),
        (archive(**{"data/weights/model.pt": b"pickle"}), "it holds 'vitrail/data/weights/model.pt'"),
        (archive(**{"data/weights/model_weights_config.json": b"[]"}), "expected an object of JSON"),
    ],
)
def test_what_no_export_holds_is_refused(raw: bytes, words: str) -> None:
    with pytest.raises(CheckpointError, match=f"x.*{words}"):
        read(raw)


@pytest.mark.fault("W16")
def test_archives_are_plain_and_whole() -> None:
    def packed(kind: int, names: tuple[str, ...]) -> bytes:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", kind) as made:
            for name in names:
                made.writestr(f"vitrail/{name}", b"{}")
        return file.getvalue()

    with pytest.raises(CheckpointError, match="is compressed, which our exports never are"):
        read(packed(zipfile.ZIP_DEFLATED, (torch_file.GRAPH,)))
    with pytest.warns(UserWarning, match="Duplicate name"):
        twice = packed(zipfile.ZIP_STORED, (torch_file.GRAPH, torch_file.GRAPH))
    with pytest.raises(CheckpointError, match="it holds 'vitrail/models/model.json'"):
        read(twice)
    with pytest.raises(CheckpointError, match="expected a program of torch.export, got none with"):
        read(packed(zipfile.ZIP_STORED, (torch_file.GRAPH,)))
    with pytest.raises(CheckpointError, match="x is cut short or damaged"):
        read(archive()[:-200])


# ---- torch -------------------------------------------------------------------------------------------------------


def program(outputs: int, inputs: tuple[str, ...] = ("img",)) -> Any:
    """As torch loads one: its outputs are the mean of every channel, ten times that, and a hundred times."""

    def module(img: torch.Tensor) -> tuple[torch.Tensor, ...]:
        assert torch.is_inference_mode_enabled()
        return tuple(img.mean(dim=(2, 3)) * factor for factor in (1, 10, 100)[:outputs])

    names = SimpleNamespace(user_inputs=inputs, user_outputs=[str(number) for number in range(outputs)])
    loaded = SimpleNamespace(module=lambda: module, graph_signature=names)
    library = SimpleNamespace(
        export=SimpleNamespace(load=lambda file: loaded),
        inference_mode=torch.inference_mode,
        from_numpy=torch.from_numpy,
    )
    return torch_program.program(library, Path("a.pt2"), {torch_file.GRAPH: memoryview(b"{}")})


def test_outputs_of_a_program_go_by_name() -> None:
    img = np.arange(2 * 3 * 16, dtype=np.float32).reshape(2, 3, 4, 4)
    means = img.mean(axis=(2, 3))
    compute = program(3)
    for name, factor in (("logits", 1), ("embedding", 10), ("probs", 100)):
        np.testing.assert_allclose(compute(img, [name])[0], factor * means, rtol=1e-6)
    np.testing.assert_allclose(program(2)(img, ["embedding", "logits"]), [10 * means, means], rtol=1e-6)
    with pytest.raises(InputError, match="torch could not run a.pt2 on"):
        program(2)(img, ["probs"])
    for outputs, inputs in ((1, ("img",)), (4, ("img",)), (2, ("x",)), (2, ("img", "x"))):
        with pytest.raises(CheckpointError, match="a.pt2: expected the input img and 2 or 3 outputs, got"):
            program(outputs, inputs)
