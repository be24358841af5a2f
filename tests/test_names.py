"""The field's words: names that hid what a thing is do not return, and one name means one thing.

Every rule is a function from source text to complaints; small fake trees show that each can fail.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "vitrail"

# Identifiers of the private vocabulary that once stood here, and what the field calls them.
RETIRED = {
    **dict.fromkeys(("few", "suits"), "plain_attention, is_faster"),
    **dict.fromkeys(("gather", "Gather", "gathering", "Attended", "attend"), "kernel"),
    **dict.fromkeys(("joins", "onto"), "residual"),
    **dict.fromkeys(("ShortWay", "take_short_way", "short_way"), "compiled, compile_forward"),
    **dict.fromkeys(("pooled_only", "read_first"), "a last block for pooled tokens"),
    **dict.fromkeys(("heed", "heeds", "heeded"), "cls_attention"),
    **dict.fromkeys(("Place",), "TokenLayout"),
    **dict.fromkeys(("Passed", "Found", "Made", "Told"), "BlockOutput, BatchResult"),
    **dict.fromkeys(("turn", "Rotation"), "apply_rotary, RotaryAngles"),
    **dict.fromkeys(("unseen", "off_line"), "axis, causal_mask, axial_mask"),
    **dict.fromkeys(("anew",), "recompute_on_resize"),
    **dict.fromkeys(("evaluating",), "eval_mode"),
    **dict.fromkeys(("wholes",), "check_int, check_ints"),
    **dict.fromkeys(("shown", "listed"), "short_repr, join_limited"),
    **dict.fromkeys(("About", "Described"), "ModelInfo"),
    **dict.fromkeys(("ordinary",), "is_8bit, full_image, to_uint8, visible_image"),
    **dict.fromkeys(("exactly", "sparingly"), "resize_then_crop, resize_crop_only"),
    **dict.fromkeys(("several", "streamed"), "check_image_list, check_image_stream"),
    **dict.fromkeys(("seems",), "guess_format"),
    **dict.fromkeys(("passes", "Answering", "Waiting"), "run_batches, BatchRunner"),
    **dict.fromkeys(("settling", "settled", "doubting", "doubled", "LoneRuntime", "near_ties"), "nothing: it is gone"),
    **dict.fromkeys(("moves",), "is_video"),
    **dict.fromkeys(("Bytes", "Scale", "Steps"), "Int8Weight, QuantParams"),
    **dict.fromkeys(("deal", "Dealt", "Judged"), "split_for_calibration, BudgetResult"),
    **dict.fromkeys(("Drawn",), "Attribution"),
    **dict.fromkeys(("Missed", "rights"), "Misclassified, predicted, correct"),
    **dict.fromkeys(("Watch", "tell", "Tell"), "Callbacks, log, progress"),
    **dict.fromkeys(("Chosen",), "build_model"),
    **dict.fromkeys(("shelf", "draws", "Wish"), "disk_cache, counter_rng, EngineSpec"),
    **dict.fromkeys(("standins", "StandIn"), "pickle_allowlist"),
    **dict.fromkeys(("WORDS",), "DTYPE_NAMES"),
}
# Files that once stood under a name nobody would search for.
RETIRED_FILES = {
    *("few", "gathering", "modes", "opened", "stored", "about", "ahead", "wire", "weighing", "rounding", "fusing"),
    *("entrance", "artefact", "limits", "judging", "drawing", "covering", "recording", "slimming", "portrait", "known"),
    *("course", "suspects", "writing", "using", "looking", "seeing", "learning", "speeding", "touring", "board"),
    *("trial", "speed", "repeat", "shelf", "draws", "standins", "opcodes", "settling", "packing_up"),
}
ORDINARY_WORDS = {"few", "several", "shown", "listed", "turn"}  # an argument may be called so, a function may not
VAGUE = {"each", "found", "made", "place", "said", "whole"}
LONG = 5  # lines that a vague name may live

# A file name that stands twice is plain by its room: one file a verb, one a family.
PLAIN_BY_ROOM = {"cli", "families"}
SAME_CLASS = {"Attention"}  # the layer of a network, and the explanation that shows its weights: both are called so


def sources(package: Path) -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(package.rglob("*.py")):
        yield path.relative_to(package), ast.parse(path.read_text("utf-8"))


def identifiers(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every name that others may call: functions, classes, arguments, fields, attributes; no locals."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg) and node.arg not in ORDINARY_WORDS:
            yield node.arg, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno
        if isinstance(node, ast.ClassDef | ast.Module):
            for line in node.body:
                targets = line.targets if isinstance(line, ast.Assign) else [getattr(line, "target", None)]
                yield from ((target.id, line.lineno) for target in targets if isinstance(target, ast.Name))


def retired_names(package: Path) -> list[str]:
    return [
        f"{path}:{line} {name}: call it {RETIRED[name]}"
        for path, tree in sources(package)
        for name, line in identifiers(tree)
        if name in RETIRED
    ]


def retired_files(package: Path) -> list[str]:
    return [str(path) for path, _ in sources(package) if path.stem in RETIRED_FILES]


def twin_files(package: Path) -> list[str]:
    """File names that stand twice where no room makes them plain."""
    homes = defaultdict(list)
    for path, _ in sources(package):
        if path.stem != "__init__" and path.parent.name not in PLAIN_BY_ROOM:
            homes[path.name].append(str(path))
    return [f"{name}: {', '.join(paths)}" for name, paths in homes.items() if len(paths) > 1]


def self_named_files(package: Path) -> list[str]:
    """Modules and rooms that hold a function of their own name, which would hide them."""
    complaints = []
    for path, tree in sources(package):
        own = path.parent.name if path.stem == "__init__" else path.stem
        names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        complaints += [f"{path} holds {own}"] if own in names else []
    return complaints


def hidden_rooms(package: Path) -> list[str]:
    """Rooms that a public name of the package would hide, or be hidden by."""
    face = (package / "__init__.py").read_text("utf-8")
    rooms = {path.parent.name for path in package.glob("*/__init__.py")} | {path.stem for path in package.glob("*.py")}
    return sorted(room for room in rooms if re.search(rf'^\s*"{room}": "vitrail', face, re.MULTILINE))


def twin_classes(package: Path) -> list[str]:
    homes = defaultdict(list)
    for path, tree in sources(package):
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name not in SAME_CLASS:
                homes[node.name].append(f"{path}:{node.lineno}")
    return [f"{name}: {', '.join(lines)}" for name, lines in homes.items() if len(lines) > 1]


def vague_locals(package: Path) -> list[str]:
    """Locals that say nothing and live longer than a few lines."""
    complaints = []
    for path, tree in sources(package):
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            lines = defaultdict(list)
            bound = set()
            for node in own_nodes(function):
                if isinstance(node, ast.Name) and node.id in VAGUE:
                    lines[node.id].append(node.lineno)
                    bound |= {node.id} if isinstance(node.ctx, ast.Store) else set()
                elif isinstance(node, ast.arg) and node.arg in VAGUE:
                    lines[node.arg].append(node.lineno)
                    bound.add(node.arg)
            complaints += [
                f"{path}:{min(lines[name])} {name} lives to line {max(lines[name])}"
                for name in sorted(bound)
                if max(lines[name]) - min(lines[name]) > LONG
            ]
    return complaints


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function, comprehensions and inner functions left out: their names are their own."""
    for child in ast.iter_child_nodes(function):
        if isinstance(child, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp | ast.Lambda):
            continue
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        yield child
        yield from own_nodes(child)


RULES = {
    "retired names": retired_names,
    "retired files": retired_files,
    "file names that stand twice": twin_files,
    "modules hidden by a function": self_named_files,
    "rooms hidden by a public name": hidden_rooms,
    "class names that stand twice": twin_classes,
    "locals that say nothing": vague_locals,
}


@pytest.mark.parametrize("rule", RULES)
def test_the_house_speaks_the_language_of_the_field(rule: str) -> None:
    assert RULES[rule](PACKAGE) == []


def test_images_are_called_images() -> None:
    word = "pic" + "ture"
    files = [*PACKAGE.rglob("*.py"), *(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    assert [str(path) for path in files if re.search(rf"{word}s?\b", path.read_text("utf-8"), re.IGNORECASE)] == []


def tree_of(folder: Path, files: dict[str, str]) -> Path:
    package = folder / "vitrail"
    for name, source in {"__init__.py": "", **files}.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(source)
    return package


LONG_FOUND = "def f():\n    found = 1\n" + "    x = 2\n" * 5 + "    return found\n"


@pytest.mark.parametrize(
    "rule, files",
    [
        ("retired names", {"network/a.py": "def f(onto):\n    return onto"}),
        ("retired names", {"network/a.py": "class About:\n    pass"}),
        ("retired names", {"network/a.py": "def f(self):\n    self.heeds = 1"}),
        ("retired files", {"data/shelf.py": ""}),
        ("file names that stand twice", {"data/a.py": "", "network/a.py": ""}),
        ("modules hidden by a function", {"data/fold.py": "def fold():\n    pass"}),
        ("modules hidden by a function", {"data/__init__.py": "def data():\n    pass"}),
        (
            "rooms hidden by a public name",
            {"__init__.py": '_HOMES = {\n    "data": "vitrail.data",\n}', "data/__init__.py": ""},
        ),
        ("class names that stand twice", {"data/a.py": "class A:\n    pass", "network/b.py": "class A:\n    pass"}),
        ("locals that say nothing", {"data/a.py": LONG_FOUND}),
    ],
)
def test_a_name_that_says_nothing_is_found(tmp_path: Path, rule: str, files: dict[str, str]) -> None:
    assert len(RULES[rule](tree_of(tmp_path, files))) == 1


@pytest.mark.parametrize(
    "rule, files",
    [
        ("retired names", {"network/a.py": "def f():\n    few = 1\n    return few"}),
        ("file names that stand twice", {"cli/a.py": "", "network/a.py": "", "data/__init__.py": ""}),
        ("modules hidden by a function", {"data/folding.py": "def fold():\n    pass"}),
        ("locals that say nothing", {"data/a.py": "def f():\n    found = 1\n    return found\n"}),
        ("locals that say nothing", {"data/a.py": "def f(x):\n    y = [each for each in x]\n" + "    y = 1\n" * 9}),
    ],
)
def test_plain_names_are_left_alone(tmp_path: Path, rule: str, files: dict[str, str]) -> None:
    assert RULES[rule](tree_of(tmp_path, files)) == []
