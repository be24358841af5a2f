"""The promises of the house: who may import whom, what import costs, which names and verbs are public.

Every rule is a function from source text to complaints; small fake trees show that each can fail.
"""

from __future__ import annotations

import ast
import io
import json
import os
import re
import subprocess
import sys
import tokenize
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from house_map import ROOMS as LINE

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "vitrail"

PART_OF = {
    "checks": "errors",
    "settings": "errors",
    "cores": "types",
    "threads": "checkpoint",
    "progress": "types",
    "system_calls": "errors",
}  # files that belong to a room
WITHOUT_TORCH = ("errors", "types", "files", "images", "inference", "reporting")
LIGHT_EXTRAS = {
    "rich",
    "av",
    "onnxruntime",
    "openvino",
    "pillow_heif",
    "pyarrow",
    "resvg_py",
}  # what those rooms may import too, inside functions

PUBLIC = [
    "Audit",
    "Checkpoint",
    "Comparison",
    "Evaluation",
    "Explanation",
    "ExportReport",
    "ParityReport",
    "Prediction",
    "Preprocess",
    "Recipe",
    "Run",
    "TextConfig",
    "TextDecoder",
    "Trace",
    "ViT",
    "ViTConfig",
    "VitrailError",
    "audit",
    "bench",
    "compare",
    "convert",
    "create",
    "embed",
    "evaluate",
    "explain",
    "export",
    "load",
    "optimize",
    "predict",
    "prune",
    "prune_heads",
    "save",
    "shard",
    "trace",
    "train",
]
VERBS = [
    *("audit", "bench", "compare", "convert", "demo", "doctor", "embed", "evaluate"),
    *("explain", "export", "inspect", "models", "optimize", "predict", "prune", "recipes", "rerun", "shard", "train"),
]

NOT_IN_NETWORK = {
    *("builtins", "ctypes", "fileinput", "ftplib", "getpass", "glob", "http", "importlib", "io", "logging"),
    *("mmap", "multiprocessing", "os", "pathlib", "pickle", "platform", "pkgutil", "shelve", "shutil"),
    *("socket", "sqlite3", "ssl", "subprocess", "sys", "syslog", "tempfile", "urllib", "zipfile"),
}
CALLS_NOT_IN_NETWORK = {
    *("open", "print", "input", "exec", "eval", "json.load", "json.dump"),
    *("torch.load", "torch.save", "torch.hub.load", "torch.hub.load_state_dict_from_url", "torch.from_file"),
}


FORWARD_PATH = ("patches", "stem", "positions", "tokens", "attention", "encoder", "heads", "merging", "vit")
RUNTIME = re.compile("packed|onnx|openvino|torchscript", re.IGNORECASE)

UNTESTED = 80  # lines up to which a module needs no tests of its name
REASONS: dict[str, str] = {}  # of larger modules, by "room/name": why their tests stand in a file of another name


# A checkpoint's methods are public verbs: this file names the rooms that they stand in, inside methods and for types.
VERBS_AS_METHODS = "vitrail.checkpoint.checkpoint"


class Import(NamedTuple):
    """One imported module, with what surrounds it."""

    name: str
    line: int
    typing_only: bool  # under `if TYPE_CHECKING:`, so never run
    at_import: bool  # runs when the module is imported


def imports_of(source: str, module: str, is_package: bool = False) -> Iterator[Import]:
    """Every import in a module, relative ones resolved; `from vitrail import x` counts as vitrail.x."""

    def walk(node: ast.AST, typing_only: bool, at_import: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, typing_only, at_import)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")
                parents = parents[: len(parents) - node.level + int(is_package)]
                base = ".".join([*parents, base]).rstrip(".")
            names = [f"{base}.{alias.name}" for alias in node.names] if base == "vitrail" else [base]
            yield from (Import(name, node.lineno, typing_only, at_import) for name in names)
        elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            for child in node.body:
                yield from walk(child, True, at_import)
            for child in node.orelse:
                yield from walk(child, typing_only, at_import)
        else:
            inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            for child in ast.iter_child_nodes(node):
                yield from walk(child, typing_only, at_import and not inside)

    yield from walk(ast.parse(source), False, True)


class Module(NamedTuple):
    """One file of the package."""

    path: Path
    name: str  # vitrail.network.vit
    room: str  # network; the face (vitrail itself, __main__) has no room: ""

    @property
    def imports(self) -> list[Import]:
        return list(imports_of(self.path.read_text("utf-8"), self.name, self.path.stem == "__init__"))


def modules(package: Path) -> list[Module]:
    found = []
    for path in sorted(package.rglob("*.py")):
        parts = list(path.relative_to(package.parent).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        room = parts[1] if len(parts) > 1 and parts[1] != "__main__" else ""
        found.append(Module(path, ".".join(parts), PART_OF.get(room, room)))
    return found


def room_of(imported: str) -> str | None:
    """The room an import enters; "" for vitrail's own face, None for other people's modules."""
    top, *rest = imported.split(".")
    if top != "vitrail":
        return None
    room = rest[0] if rest else ""
    return PART_OF.get(room, room)


def wrong_directions(package: Path) -> list[str]:
    complaints = []
    for module in modules(package):
        if not module.room:
            continue
        if module.room not in LINE:
            complaints.append(f"{module.name}: the room {module.room!r} has no place in the line")
            continue
        for each in module.imports:
            room = room_of(each.name)
            if room is None or room in ("__version__", module.room):
                continue
            if module.name == VERBS_AS_METHODS and (each.typing_only or not each.at_import):
                continue
            if room not in LINE[: LINE.index(module.room)]:
                complaints.append(f"{module.name}:{each.line} imports {each.name}, which is not left of it")
    return complaints


def eager_faces(package: Path) -> list[str]:
    """Imports of `vitrail/__init__.py` that run on `import vitrail`, other than the standard library's."""
    face = Module(package / "__init__.py", "vitrail", "")
    run = [each for each in face.imports if each.at_import and not each.typing_only]
    return [
        f"vitrail:{each.line} imports {each.name}"
        for each in run
        if each.name.split(".")[0] not in sys.stdlib_module_names
    ]


def heavy_imports(package: Path) -> list[str]:
    """Libraries other than numpy and Pillow in the rooms that do without torch; extras inside functions only."""
    light = {"numpy", "PIL", "vitrail", *sys.stdlib_module_names}

    def allowed(each: Import) -> set[str]:
        return light if each.at_import else light | LIGHT_EXTRAS

    return [
        f"{module.name}:{each.line} imports {each.name}"
        for module in modules(package)
        if module.room in WITHOUT_TORCH
        for each in module.imports
        if not each.typing_only and each.name.split(".")[0] not in allowed(each)
    ]


def worldly_network(package: Path) -> list[str]:
    """Where the network reaches for disk, environment, logging or anyone but torch."""
    complaints = []
    allowed = {"torch", "vitrail", *sys.stdlib_module_names} - NOT_IN_NETWORK
    for module in modules(package):
        if module.room != "network":
            continue
        for each in module.imports:
            if each.name.split(".")[0] not in allowed:
                complaints.append(f"{module.name}:{each.line} imports {each.name}")
        for node in ast.walk(ast.parse(module.path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in CALLS_NOT_IN_NETWORK:
                complaints.append(f"{module.name}:{node.lineno} calls {ast.unparse(node.func)}")
    return complaints


def long_network(package: Path) -> list[str]:
    """The network is read in one sitting: so many lines in all, and so many from pixels to logits."""
    lines = {module.path.stem: _lines(module.path) for module in modules(package) if module.room == "network"}
    both = {"network/": (sum(lines.values()), 2300), "the forward path": (sum(map(lines.get, FORWARD_PATH)), 1400)}
    return [f"{name}: {count} lines, at most {most}" for name, (count, most) in both.items() if count > most]


def wide_forwards(package: Path) -> list[str]:
    """A `forward` of the network that takes more than six things beside itself."""
    complaints = []
    for module in modules(package):
        for node in ast.walk(ast.parse(module.path.read_text("utf-8"))) if module.room == "network" else ():
            if isinstance(node, ast.FunctionDef) and node.name == "forward":
                given = node.args
                count = len(given.posonlyargs + given.args + given.kwonlyargs) - 1
                if count > 6 or given.vararg or given.kwarg:
                    complaints.append(f"{module.name}:{node.lineno} forward takes {count}")
    return complaints


def words_of_runtimes(package: Path) -> list[str]:
    """Whoever runs or exports a network is not spoken of in it."""
    return [
        f"{module.name}:{number} {line.strip()}"
        for module in modules(package)
        if module.room == "network"
        for number, line in enumerate(module.path.read_text("utf-8").splitlines(), 1)
        if RUNTIME.search(line)
    ]


def few_comments(package: Path) -> list[str]:
    """The network has ten comments in a hundred lines or more, shapes first; those for tools do not count."""
    counts = {"lines": 0, "comments": 0}
    for module in modules(package):
        if module.room == "network":
            counts["lines"] += _lines(module.path)
            counts["comments"] += len(comments_of(module.path.read_text("utf-8")))
    enough = counts["comments"] * 10 >= counts["lines"]
    return [] if enough else [f"network/: {counts['comments']} comments in {counts['lines']} lines"]


def without_tests(package: Path, tests: Path, reasons: Mapping[str, str]) -> list[str]:
    """Tests mirror the rooms: room/name.py of more than a few lines has a test_name.py in the tests of its room."""
    complaints, excused = [], set()
    for module in modules(package):
        *rooms, file = module.path.relative_to(package).parts
        name = "/".join([*rooms[:1], module.path.stem])
        if file.startswith("__") or _lines(module.path) <= UNTESTED:
            continue
        folder, test = tests.joinpath(*rooms[:1]), f"test_{file}"
        if any(folder.rglob(test)) if rooms else (tests / test).is_file():
            continue
        if name in reasons:
            excused.add(name)
        else:
            complaints.append(f"{name}: {_lines(module.path)} lines and no {test}")
    return complaints + [f"{name}: a reason that nothing needs" for name in reasons.keys() - excused]


def comments_of(source: str) -> list[str]:
    """Lines that are comments, and comments at the end of lines."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return [
        token.string
        for token in tokens
        if token.type == tokenize.COMMENT and not token.string.startswith(("# type:", "# noqa"))
    ]


def _lines(path: Path) -> int:
    return len(path.read_text("utf-8").splitlines())


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter that knows the package and nothing of this one."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "120", "NO_COLOR": "1"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, check=False)


def loaded_by(statement: str) -> set[str]:
    """The top-level modules that a statement leaves in sys.modules; it must run silently."""
    listing = "import json, sys; print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    run = python("-W", "error", "-c", f"{statement}\n{listing}")
    assert (run.returncode, run.stderr) == (0, "")
    first, *more = run.stdout.splitlines()
    assert not more, f"{statement!r} prints: {run.stdout}"
    return set(json.loads(first))


# Imports


def test_rooms_import_only_what_stands_left_of_them() -> None:
    assert wrong_directions(PACKAGE) == []


def test_the_face_imports_lazily() -> None:
    assert eager_faces(PACKAGE) == []


def test_light_rooms_import_numpy_and_pillow_only() -> None:
    assert heavy_imports(PACKAGE) == []


def test_charts_are_drawn_by_one_kit() -> None:
    tops = {each.name.split(".")[0] for module in modules(PACKAGE) for each in module.imports}
    assert "matplotlib" not in tops
    drawers = [module.name for module in modules(PACKAGE) if any(each.name == "resvg_py" for each in module.imports)]
    assert drawers == ["vitrail.reporting.svg"]


def test_the_network_touches_no_disk_environment_or_log() -> None:
    assert worldly_network(PACKAGE) == []


def test_the_network_is_read_in_one_sitting() -> None:
    assert long_network(PACKAGE) == []
    assert few_comments(PACKAGE) == []


def test_no_forward_of_the_network_takes_more_than_six() -> None:
    assert wide_forwards(PACKAGE) == []


def test_the_network_has_no_word_of_any_runtime() -> None:
    assert words_of_runtimes(PACKAGE) == []


def test_every_module_of_some_size_has_tests_of_its_name() -> None:
    assert without_tests(PACKAGE, ROOT / "tests", REASONS) == []
    assert len(REASONS) <= 10


def test_import_is_silent_and_cheap() -> None:
    assert {"torch", "numpy", "PIL", "typer", "rich"}.isdisjoint(loaded_by("import vitrail"))


def test_images_and_inference_never_import_torch() -> None:
    loaded = loaded_by("import vitrail, vitrail.errors, vitrail.images, vitrail.inference")
    assert "numpy" in loaded
    assert "torch" not in loaded


def test_the_list_of_export_targets_imports_nothing_heavy() -> None:
    assert {"torch", "numpy", "PIL", "onnx", "onnxruntime", "openvino"}.isdisjoint(
        loaded_by("import vitrail.exporters")
    )


def tree(folder: Path, files: dict[str, str]) -> Path:
    package = folder / "vitrail"
    for name, source in files.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(source)
    return package


def test_a_right_tree_has_no_complaints(tmp_path: Path) -> None:
    package = tree(
        tmp_path,
        {
            "__init__.py": "import typing\nif typing.TYPE_CHECKING:\n    from vitrail.network import ViT\n",
            "__main__.py": "from vitrail.cli import main\n",
            "errors.py": "",
            "images/__init__.py": "import numpy\nfrom PIL import Image\nfrom vitrail.images.decoding import read\n",
            "images/decoding.py": "from vitrail.errors import ImageError\n",
            "network/__init__.py": "from .vit import ViT\n",
            "network/vit.py": "import math, torch\nfrom ..errors import ConfigError\nfrom . import config\n",
            "network/config.py": "import json\njson.dumps({})\n",
            "checkpoint/checkpoint.py": "def f():\n    from vitrail.inference import predict\n",
            "inference/__init__.py": "def f():\n    from vitrail.checkpoint import Checkpoint\n",
            "insight/trace.py": "from vitrail.network import vit\nfrom vitrail import __version__\n",
            "cli.py": "import typer\ndef f():\n    from vitrail.insight import trace\n",
        },
    )
    assert wrong_directions(package) == []
    assert eager_faces(package) == []
    assert heavy_imports(package) == []
    assert worldly_network(package) == []


@pytest.mark.parametrize(
    "name, source",
    [
        ("network/vit.py", "from vitrail.checkpoint import Checkpoint"),
        ("network/vit.py", "from ..insight.trace import trace"),
        ("network/vit.py", "def f():\n    import vitrail.data.folders"),
        ("network/__init__.py", "from ..cli import main"),
        ("errors.py", "from vitrail.images import Preprocess"),
        ("images/decoding.py", "from vitrail import network"),
        ("data/folders.py", "from vitrail import load"),
        ("data/folders.py", "import vitrail"),
        ("helpers.py", ""),
        ("checkpoint/checkpoint.py", "from vitrail.inference import predict"),
        ("checkpoint/provenance.py", "def f():\n    from vitrail.inference import predict"),
    ],
)
def test_a_wrong_direction_is_found(tmp_path: Path, name: str, source: str) -> None:
    assert len(wrong_directions(tree(tmp_path, {name: source}))) == 1


@pytest.mark.parametrize("source", ["import torch", "from vitrail.network import ViT", "from . import cli"])
def test_an_eager_face_is_found(tmp_path: Path, source: str) -> None:
    assert len(eager_faces(tree(tmp_path, {"__init__.py": source}))) == 1


@pytest.mark.parametrize("name", ["images.py", "images/decoding.py", "inference/runtime.py", "errors.py"])
def test_a_heavy_import_is_found(tmp_path: Path, name: str) -> None:
    assert len(heavy_imports(tree(tmp_path, {name: "def f():\n    import torch"}))) == 1
    assert heavy_imports(tree(tmp_path, {name: "if TYPE_CHECKING:\n    import torch"})) == []
    assert len(heavy_imports(tree(tmp_path, {name: "import av"}))) == 1
    assert heavy_imports(tree(tmp_path, {name: "def f():\n    import av"})) == []
    assert len(heavy_imports(tree(tmp_path, {name: "import onnxruntime"}))) == 1
    assert heavy_imports(tree(tmp_path, {name: "def f():\n    import onnxruntime"})) == []


@pytest.mark.parametrize(
    "source",
    [
        "import os",
        "from pathlib import Path",
        "import logging",
        "import requests",
        "from PIL import Image",
        "open('x')",
        "print('x')",
        "torch.load('x')",
        "json.dump({}, f)",
    ],
)
def test_a_worldly_network_is_found(tmp_path: Path, source: str) -> None:
    assert len(worldly_network(tree(tmp_path, {"network/vit.py": source}))) == 1


PATH_FILES = {f"network/{name}.py": "x = 1  # (B, T, D)\n" * 150 for name in FORWARD_PATH}


def test_a_long_network_is_found(tmp_path: Path) -> None:
    package = tree(tmp_path, {**PATH_FILES, "network/text.py": "x = 1\n" * 950})
    assert long_network(package) == []  # 1,350 and 950
    (package / "network/text.py").write_text("x = 1\n" * 951)
    assert long_network(package) == ["network/: 2301 lines, at most 2300"]
    (package / "network/text.py").write_text("")
    (package / "network/vit.py").write_text("x = 1\n" * 201)
    assert long_network(package) == ["the forward path: 1401 lines, at most 1400"]
    (package / "data").mkdir()
    (package / "data/long.py").write_text("x = 1\n" * 5000)  # of another room
    assert len(long_network(package)) == 1


@pytest.mark.parametrize(
    "takes, found",
    [
        ("self, a, b, c, d, e, f", 0),
        ("self, a, b, c, d, e, f, g", 1),
        ("self, a, b, c, *, d, e, f, g=1", 1),
        ("self, a, /, b, c, d, e, f, g", 1),
        ("self, *everything", 1),
        ("self, **everything", 1),
    ],
)
def test_a_wide_forward_is_found(tmp_path: Path, takes: str, found: int) -> None:
    source = f"class Block:\n    def forward({takes}): ...\n    def other(self, a, b, c, d, e, f, g, h): ...\n"
    assert len(wide_forwards(tree(tmp_path, {"network/encoder.py": source, "packed/x.py": ""}))) == found
    assert wide_forwards(tree(tmp_path / "elsewhere", {"packed/x.py": source})) == []


@pytest.mark.parametrize(
    "word", ["packed", "PackedViT", "ONNX", "onnxruntime", "OpenVINO", "TorchScript", "torchscript"]
)
def test_a_word_of_a_runtime_is_found(tmp_path: Path, word: str) -> None:
    package = tree(tmp_path, {"network/vit.py": f"x = 1\n# as {word} has it\n", "packed/x.py": f"# {word}"})
    assert words_of_runtimes(package) == [f"vitrail.network.vit:2 # as {word} has it"]


def test_too_few_comments_are_found(tmp_path: Path) -> None:
    bare, said = "x = 1\n" * 9, "x = 1  # (B, T, D)\n"
    assert few_comments(tree(tmp_path / "a", {"network/vit.py": bare + said})) == []
    assert few_comments(tree(tmp_path / "b", {"network/vit.py": bare + "# why\n"})) == []
    assert few_comments(tree(tmp_path / "c", {"network/vit.py": bare + bare + said})) != []
    assert few_comments(tree(tmp_path / "d", {"network/vit.py": bare + "x = 1  # noqa: B010\n"})) != []
    assert few_comments(tree(tmp_path / "e", {"network/vit.py": bare + 'x = "# text"\n'})) != []


def test_a_module_without_tests_is_found(tmp_path: Path) -> None:
    long, short = "x = 1\n" * 81, "x = 1\n" * 80
    sources = {"network/vit.py": long, "weights/families/clip.py": long, "files.py": long, "network/__init__.py": long}
    package = tree(tmp_path, {**sources, "network/stem.py": short})
    tests = tmp_path / "tests"
    for name in ("network/test_vit.py", "weights/deep/test_clip.py", "test_files.py"):
        (tests / name).parent.mkdir(parents=True, exist_ok=True)
        (tests / name).touch()
    assert without_tests(package, tests, {}) == []
    assert without_tests(package, tests, {"files": "none"}) == ["files: a reason that nothing needs"]
    (tests / "test_files.py").rename(tests / "network" / "test_files.py")
    (tests / "network" / "test_vit.py").rename(tests / "test_vit.py")
    assert without_tests(package, tests, {}) == [
        "files: 81 lines and no test_files.py",
        "network/vit: 81 lines and no test_vit.py",
    ]
    assert without_tests(package, tests, {"files": "why", "network/vit": "why"}) == []


# Names, verbs, warnings


def test_public_names_are_pinned() -> None:
    import vitrail

    assert sorted(vitrail.__all__) == PUBLIC
    for name in PUBLIC:
        assert getattr(vitrail, name).__module__.startswith("vitrail."), name
    assert set(PUBLIC) <= set(dir(vitrail))
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = vitrail.no_such_name


def test_verbs_are_pinned() -> None:
    import typer

    from vitrail.cli import load_verbs

    assert sorted(typer.main.get_command(load_verbs()).commands) == VERBS


MODULES = {"predict": 66, "--help": 47, "predict --help": 16}  # of ours, at most, that a command imports


def imported_by(*arguments: str) -> list[str]:
    """Our modules that a command imports."""
    run = python("-X", "importtime", "-m", "vitrail", *arguments)
    assert run.returncode == 0, run.stderr
    names = {line.rpartition("|")[2].strip() for line in run.stderr.splitlines() if line.startswith("import time:")}
    return sorted(name for name in names if name.split(".")[0] == "vitrail")


def test_commands_import_few_of_our_modules(tmp_path: Path) -> None:
    """One verb, one file of our own: no other family, no other verb, nothing that trains, explains or exports."""
    import numpy as np
    from PIL import Image

    import vitrail

    vitrail.save(vitrail.load("vitrail:fashion"), tmp_path / "own.safetensors")
    Image.fromarray(np.zeros((28, 28), np.uint8)).save(tmp_path / "a.png")
    loaded = imported_by("predict", str(tmp_path / "own.safetensors"), str(tmp_path / "a.png"))
    assert "vitrail.network.vit" in loaded
    assert len(loaded) <= MODULES["predict"], loaded
    rooms = {PART_OF.get(name.split(".")[1], name.split(".")[1]) for name in loaded if "." in name}
    assert rooms <= {"cli", "errors", "types", "files", "images", "network", "checkpoint", "inference"}
    for words in ("--help", "predict --help"):
        assert len(imported_by(*words.split())) <= MODULES[words]
    run = python("-c", "import sys, vitrail; print([each for each in sys.modules if each.startswith('vitrail')])")
    assert run.stdout.strip() == "['vitrail']"


def test_help_does_not_import_torch() -> None:
    run = python("-X", "importtime", "-m", "vitrail", "--help")
    assert run.returncode == 0, run.stderr
    imported = {line.rpartition("|")[2].strip().split(".")[0] for line in run.stderr.splitlines()}
    assert "vitrail" in imported
    assert "torch" not in imported
    for verb in VERBS:
        assert re.search(rf"\b{verb}\b", run.stdout), verb


def test_a_warning_from_vitrail_is_an_error_and_others_are_not() -> None:
    def warn_from(module: str) -> None:
        warnings.warn_explicit("look out", UserWarning, "file.py", 1, module=module, registry={})

    for module in ("vitrail", "vitrail.network.vit"):
        with pytest.raises(UserWarning, match="look out"):
            warn_from(module)
    with pytest.warns(UserWarning, match="look out"):
        warn_from("elsewhere")


# Files

MACHINE_PATH = re.compile(r"/(?:work|root)/|(?<![\w.])/home/\w|(?<![\w.])/Users/\w|[A-Z]:\\Users\\")
ADDRESS = re.compile(r"\b(?:https?|file)://([^\s/\"'<>)`]*)(/[^\s\"'<>)`]*)?", re.IGNORECASE)
REGISTRY = re.compile(r"pypi|pythonhosted|artifact|nexus|devpi|mirror|registry|pkg\.dev|anaconda|npm")
OFFICIAL = {"pypi.org", "files.pythonhosted.org", "download.pytorch.org", "registry.npmjs.org"}


def foreign_registries(text: str) -> list[str]:
    """Addresses that name a package index other than the official ones, or a folder of packages."""
    found = []
    for match in ADDRESS.finditer(text):
        host, path = match[1].lower(), match[2] or ""
        is_registry = REGISTRY.search(host) or re.search(r"/simple(/|$)|\.whl", path) or not host
        if is_registry and host not in OFFICIAL:
            found.append(match[0])
    return found


def project_files() -> list[Path]:
    """Files that are, or are about to be, under version control."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout: there is no list of the project's files")
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


def test_no_file_names_a_machine_path_or_a_foreign_registry() -> None:
    complaints = []
    for path in project_files():
        text = path.read_bytes().decode("utf-8", errors="ignore")
        found = [match[0] for match in MACHINE_PATH.finditer(text)] + foreign_registries(text)
        complaints += [f"{path.relative_to(ROOT)}: {each}" for each in found]
    assert complaints == []


def test_machine_paths_and_registries_are_told_apart() -> None:
    slash = "/"
    for bad in (f"{slash}work/x", f"in {slash}root/y", f"{slash}home/ann/z", f"C:\\Users{chr(92)}ann"):
        assert MACHINE_PATH.search(bad), bad
    for good in ("network/x", "src/root.py", "docs.example.org/home/x", "../shared/fixtures"):
        assert not MACHINE_PATH.search(good), good
    scheme = "https:" + 2 * slash
    for bad in (f"{scheme}mirror.example.org/x", f"{scheme}a.example/simple/", "file:" + 3 * slash + "opt/x"):
        assert foreign_registries(f"--index-url {bad}") == [bad]
    for good in ("pypi.org/simple", "download.pytorch.org/whl/cpu", "arxiv.org/abs/2010.11929"):
        assert foreign_registries(scheme + good) == []
