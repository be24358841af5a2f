"""Files that mean harm: pickles that would run something, archives that unpack to far more than they weigh.

Each payload would leave a canary file if it ever ran. Everything is written byte by byte, so that no library that
reads such files has a say in what they look like.
"""

from __future__ import annotations

import io
import json
import pickle
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

MAGIC = pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2)
VERSION = pickle.dumps(1001, protocol=2)
MACHINE = pickle.dumps({"protocol_version": 1001, "little_endian": True, "type_sizes": {"int": 4}}, protocol=2)


class Target(NamedTuple):
    """Something that a file may ask to be called: module, name, and arguments that would leave the canary."""

    module: str
    name: str
    arguments: tuple[object, ...]

    @property
    def full(self) -> str:
        return f"{self.module}.{self.name}"


def targets(canary: Path) -> list[Target]:
    """Forty ways to run something, or to reach what can."""
    touch = f"touch {canary}"
    code = f"open({str(canary)!r}, 'w').close()"
    listed = ["touch", str(canary)]
    return [
        Target("os", "system", (touch,)),
        Target("posix", "system", (touch,)),
        Target("nt", "system", (touch,)),
        Target("os", "popen", (touch,)),
        Target("os", "mkdir", (str(canary),)),
        Target("os", "execvp", ("touch", listed)),
        Target("subprocess", "Popen", (listed,)),
        Target("subprocess", "call", (listed,)),
        Target("subprocess", "check_output", (listed,)),
        Target("subprocess", "getoutput", (touch,)),
        Target("builtins", "eval", (code,)),
        Target("builtins", "exec", (code,)),
        Target("__builtin__", "eval", (code,)),
        Target("__builtin__", "execfile", (str(canary),)),
        Target("builtins", "__import__", ("os",)),
        Target("builtins", "getattr", ("os", "system")),
        Target("builtins", "compile", (code, "x", "exec")),
        Target("builtins", "open", (str(canary), "w")),
        Target("io", "open", (str(canary), "w")),
        Target("_io", "FileIO", (str(canary), "w")),
        Target("codecs", "open", (str(canary), "w")),
        Target("runpy", "run_path", (str(canary),)),
        Target("runpy", "_run_code", (code, {})),
        Target("importlib", "import_module", ("antigravity",)),
        Target("torch", "load", (str(canary),)),
        Target("torch.hub", "load", ("x/y", "z")),
        Target("torch.storage", "_load_from_bytes", (b"x",)),
        Target("torch.jit", "load", (str(canary),)),
        Target("numpy", "load", (str(canary), None, True)),
        Target("numpy", "fromfile", (str(canary),)),
        Target("pickle", "loads", (b"cos\nsystem\n.",)),
        Target("marshal", "loads", (b"x",)),
        Target("functools", "partial", (touch,)),
        Target("operator", "attrgetter", ("system",)),
        Target("operator", "methodcaller", ("system", touch)),
        Target("pip", "main", (listed,)),
        Target("ctypes", "CDLL", (str(canary),)),
        Target("socket", "create_connection", (("127.0.0.1", 9),)),
        Target("shutil", "rmtree", (str(canary),)),
        Target("timeit", "timeit", (code,)),
    ]


# ---- pickles, step by step


def text(value: str, protocol: int) -> bytes:
    raw = value.encode()
    if protocol == 0:
        return b"V" + value.replace("\\", "\\u005c").replace("\n", "\\u000a").encode("raw-unicode-escape") + b"\n"
    if protocol >= 4 and len(raw) < 256:
        return b"\x8c" + bytes([len(raw)]) + raw
    return b"X" + struct.pack("<I", len(raw)) + raw


def plain(value: object, protocol: int) -> bytes:
    """A plain value as steps, without start and stop."""
    if isinstance(value, str):
        return text(value, protocol)
    if isinstance(value, bytes):
        return b"C" + bytes([len(value)]) + value
    if isinstance(value, tuple):
        return b"(" + b"".join(plain(each, protocol) for each in value) + b"t"
    if isinstance(value, list):
        return b"(" + b"".join(plain(each, protocol) for each in value) + b"l"
    if isinstance(value, dict):
        return b"(" + b"".join(plain(each, protocol) for pair in value.items() for each in pair) + b"d"
    if isinstance(value, bool):
        return b"I01\n" if value else b"I00\n"
    if isinstance(value, int):
        return b"I" + str(value).encode() + b"\n"
    assert value is None
    return b"N"


def named(module: str, name: str, protocol: int) -> bytes:
    """A step that asks for a name."""
    if protocol >= 4:
        return text(module, protocol) + text(name, protocol) + b"\x93"
    return b"c" + module.encode() + b"\n" + name.encode() + b"\n"


def by_reduce(target: Target, protocol: int) -> bytes:
    return named(target.module, target.name, protocol) + plain(target.arguments, protocol) + b"R"


def by_newobj(target: Target, protocol: int) -> bytes:
    return named(target.module, target.name, protocol) + plain(target.arguments, protocol) + b"\x81"


def by_newobj_ex(target: Target, protocol: int) -> bytes:
    return named(target.module, target.name, protocol) + plain(target.arguments, protocol) + b"}\x92"


def by_inst(target: Target, protocol: int) -> bytes:
    inside = b"".join(plain(each, protocol) for each in target.arguments)
    return b"(" + inside + b"i" + target.module.encode() + b"\n" + target.name.encode() + b"\n"


def by_obj(target: Target, protocol: int) -> bytes:
    inside = b"".join(plain(each, protocol) for each in target.arguments)
    return b"(" + named(target.module, target.name, protocol) + inside + b"o"


def by_build(target: Target, protocol: int) -> bytes:
    """The call is made inside the attributes of a harmless object."""
    start = named("argparse", "Namespace", protocol) + b")\x81"
    return start + b"(" + text("x", protocol) + by_reduce(target, protocol) + b"db"


def by_memory(target: Target, protocol: int) -> bytes:
    """Module and name are remembered early and fetched late."""
    start = text(target.module, 4) + b"q\x05" + b"0" + text(target.name, 4) + b"q\x06" + b"0"
    return start + b"h\x05h\x06\x93q\x070h\x07" + plain(target.arguments, protocol) + b"R"


def by_extension(target: Target, protocol: int) -> bytes:
    """A number in Python's extension registry instead of a name."""
    return b"\x82\x05" + plain(target.arguments, protocol) + b"R"


def program(body: bytes, protocol: int) -> bytes:
    return (b"\x80" + bytes([protocol]) if protocol >= 2 else b"") + body + b"."


# ---- where in the values it stands


def alone(body: bytes, protocol: int) -> bytes:
    return program(body, protocol)


def in_list(body: bytes, protocol: int) -> bytes:
    return program(b"((" + text("weights", protocol) + body + b"tl", protocol)


def in_weights(body: bytes, protocol: int) -> bytes:
    inner = b"(" + text("cls_token", protocol) + body + b"d"
    return program(b"(" + text("state_dict", protocol) + inner + b"d", protocol)


def in_optimiser(body: bytes, protocol: int) -> bytes:
    groups = b"(" + text("state", protocol) + b"(d" + text("param_groups", protocol) + b"(" + body + b"ld"
    return program(b"(" + text("optimizer", protocol) + groups + b"d", protocol)


# ---- in what kind of file


def zip_bytes(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data, method)
    return file.getvalue()


def zip64_bytes(members: dict[str, bytes]) -> bytes:
    """An archive that keeps all its sizes and places where those of huge archives stand; nothing evil about it."""
    body, directory, most = b"", b"", 0xFFFFFFFF
    for name, data in members.items():
        sizes = struct.pack("<2Q", len(data), len(data))
        fields = (45, 0, 0, 0, 0, zlib.crc32(data), most, most, len(name), 4 + len(sizes))
        entry = (45, 45, 0, 0, 0, 0, zlib.crc32(data), most, most, len(name), 28, 0, 0, 0, 0, most)
        directory += b"PK\1\2" + struct.pack("<6H3I5H2I", *entry) + name.encode()
        directory += struct.pack("<2H", 1, 24) + sizes + struct.pack("<Q", len(body))
        body += b"PK\3\4" + struct.pack("<5H3I2H", *fields) + name.encode() + struct.pack("<2H", 1, 16) + sizes + data
    count, end = len(members), len(body) + len(directory)
    record = b"PK\6\6" + struct.pack("<Q2H2I4Q", 44, 45, 45, 0, 0, count, count, len(directory), len(body))
    locator = b"PK\6\7" + struct.pack("<IQI", 0, end, 1)
    return body + directory + record + locator + b"PK\5\6" + struct.pack("<4H2IH", 0, 0, *(0xFFFF,) * 2, most, most, 0)


def torch_zip(pickled: bytes, storages: dict[str, bytes] | None = None) -> bytes:
    members = {"archive/data.pkl": pickled, "archive/byteorder": b"little"}
    members |= {f"archive/data/{key}": value for key, value in (storages or {}).items()}
    return zip_bytes(members | {"archive/version": b"3\n"})


def legacy(pickled: bytes, keys: list[str] | None = None, rest: bytes = b"") -> bytes:
    return MAGIC + VERSION + MACHINE + pickled + pickle.dumps(keys or [], protocol=2) + rest


def old_tar(pickled: bytes) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name in ("sys_info", "pickle", "storages", "tensors"):
            member = tarfile.TarInfo(name)
            member.size = len(pickled)
            archive.addfile(member, io.BytesIO(pickled))
    return file.getvalue()


class Evil(NamedTuple):
    """One file, what it would call, and words of which one must stand in the refusal."""

    name: str
    data: bytes
    words: tuple[str, ...]


Step = Callable[[Target, int], bytes]
Place = Callable[[bytes, int], bytes]
Form = Callable[[bytes], bytes]

WAYS: tuple[tuple[str, Step, Place, Form, str], ...] = (
    ("zip", by_reduce, in_weights, torch_zip, ".pt"),
    ("raw", by_reduce, alone, bytes, ".pkl"),
    ("legacy", by_reduce, in_weights, legacy, ".pth"),
    ("tar", by_reduce, alone, old_tar, ".pt"),
    ("renamed", by_reduce, alone, torch_zip, ".bin"),
    ("safetensors", by_reduce, in_weights, torch_zip, ".safetensors"),
    ("list", by_reduce, in_list, torch_zip, ".pt"),
    ("optimiser", by_reduce, in_optimiser, legacy, ".pt"),
    ("build", by_build, in_weights, torch_zip, ".pt"),
    ("memory", by_memory, in_weights, torch_zip, ".pt"),
    ("inst", by_inst, alone, torch_zip, ".pt"),
    ("obj", by_obj, in_list, legacy, ".pt"),
    ("newobj", by_newobj, in_weights, torch_zip, ".pt"),
    ("newobj ex", by_newobj_ex, alone, torch_zip, ".pt"),
    ("extension", by_extension, in_weights, torch_zip, ".pt"),
)


def pickles(canary: Path) -> Iterator[Evil]:
    """Six hundred files: every target in every way, the protocols in turn."""
    for number, target in enumerate(targets(canary)):
        for turn, (way, step, place, form, ending) in enumerate(WAYS):
            protocol = (number + turn) % 6
            data = form(place(step(target, protocol), protocol))
            words = {"tar": ("tar archive",), "extension": ("EXT1",)}.get(way, (target.full,))
            yield Evil(f"{way}-{target.full}-{protocol}{ending}", data, words)


# ---- tensors, well or badly described


def tensor(
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    offset: int = 0,
    numbers: int = 4,
    key: str = "0",
    kind: str = "FloatStorage",
) -> bytes:
    """The steps of one tensor that looks at a storage."""
    storage = plain(("storage",), 2)[:-1] + named("torch", kind, 2) + plain((key, "cpu", numbers), 2)[1:] + b"Q"
    start = named("torch._utils", "_rebuild_tensor_v2", 2) + b"(" + storage
    rest = b"".join(plain(each, 2) for each in (offset, shape, stride, False, {}))
    return start + rest + b"tR"


def weights(*tensors: bytes) -> bytes:
    """A pickle of tensors under names."""
    inside = b"".join(text(f"weight{number}", 2) + each for number, each in enumerate(tensors))
    return program(b"(" + inside + b"d", 2)


def npy(shape: object, descr: object = "<f4", data: bytes = b"", columns: object = False, length: int = 0) -> bytes:
    """An array file with any header."""
    header = f"{{'descr': {descr!r}, 'fortran_order': {columns!r}, 'shape': {shape!r}, }}"
    header += " " * max(-(len(header) + 11) % 64, length - len(header) - 1) + "\n"
    wide = len(header) > 65_535
    start = b"\x93NUMPY" + (b"\2\0" if wide else b"\1\0") + struct.pack("<I" if wide else "<H", len(header))
    return start + header.encode() + data


def safetensors(header: object, data: bytes = b"") -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + data


# ---- bombs: small files that claim to be large


def bombs() -> dict[str, bytes]:
    """Thirty small files that would take gigabytes, or hours, if they were believed."""
    zeros = bytes(2**26)
    huge = 2**40
    array = npy((2**24,), data=zeros)
    steps = b"".join(b"]" for _ in range(400_000))
    laughs = b"".join(
        b"(" + text("a", 2) + b"h%c" % n + text("b", 2) + b"h%c" % n + b"dq%c" % (n + 1) + b"0" for n in range(99)
    )
    doubling = b"}q\x000" + laughs + b"(" + text("model", 2) + b"h\x63d"
    pairs = b"(l" + b"".join(text(f"n{n}", 2) + b"N\x86a" for n in range(2000)) + b"q\x010"
    copies = named("collections", "OrderedDict", 2) + b"q\x020(" + b"h\x02h\x01\x85R" * 50_000 + b"l"
    long = "x" * 900_000
    encode = named("_codecs", "encode", 2) + b"q\x020" + text(long, 2) + text("latin1", 2) + b"\x86q\x030"
    wide = "\U0001f600" + "x" * 900_000
    header = {"a": {"dtype": "F32", "shape": [huge], "data_offsets": [0, 4 * huge]}}
    found = {
        "pt deflated": zip_bytes({"archive/data.pkl": weights(), "archive/data/0": zeros}, zipfile.ZIP_DEFLATED),
        "pt pickle deflated": zip_bytes({"archive/data.pkl": zeros}, zipfile.ZIP_DEFLATED),
        "pt twice deflated": torch_zip(weights(), {"0": zlib.compress(zeros)})
        + zip_bytes({"archive/data.pkl": zeros}, zipfile.ZIP_DEFLATED),
        "pt size lie": lie(torch_zip(weights(tensor((huge,), (1,), numbers=huge)), {"0": bytes(16)}), 4 * huge),
        "pt overlap": overlapping(40),
        "pt stride 0": torch_zip(weights(tensor((huge,), (0,), numbers=4)), {"0": bytes(16)}),
        "pt stride 0 twice": torch_zip(weights(tensor((2**20, 2**20), (0, 0))), {"0": bytes(16)}),
        "pt stride 1 windows": torch_zip(weights(tensor((2**10, 2**10), (1, 1), numbers=2**12)), {"0": bytes(2**14)}),
        "pt huge storage": torch_zip(weights(tensor((huge,), (1,), numbers=huge)), {"0": bytes(16)}),
        "pt offset": torch_zip(weights(tensor((4,), (1,), offset=huge)), {"0": bytes(16)}),
        "pt many steps": torch_zip(program(b"(" + steps + b"l", 2)),
        "pt deep": torch_zip(program(b"]" * 45_000 + b"a" * 44_999, 2)),
        "pt marks": torch_zip(program(b"(" * 3_000_000, 2)),
        "pt doubling": torch_zip(program(doubling, 2)),
        "pt copies": torch_zip(program(pairs + copies, 2)),
        "pt encode": torch_zip(program(encode + b"(" + b"h\x02h\x03R" * 10_000 + b"l", 2)),
        "pt text length": torch_zip(b"\x80\x04\x8d" + struct.pack("<Q", 2**40) + b"x."),
        "pt number length": torch_zip(b"\x80\x02\x8b" + struct.pack("<I", 2**31) + b"x."),
        "pt digits": torch_zip(b"I" + b"9" * 1_000_000 + b"\n."),
        "pt wide texts": torch_zip(program(b"(" + text(wide, 2) * 20 + b"l", 2)),
        "pt memory": torch_zip(program(b"Nr" + struct.pack("<I", 2**31), 2)),
        "pt small dicts": torch_zip(program(b"]" + (b"(" + b"}NNs" * 40_000 + b"e") * 3, 2)),
        "pt remembered": torch_zip(program(b"N" + b"\x94" * 499_000, 4)),
        "legacy huge storage": legacy(weights(tensor((huge,), (1,), numbers=huge)), ["0"], struct.pack("<Q", huge)),
        "legacy stride 0": legacy(weights(tensor((huge,), (0,), numbers=4)), ["0"], struct.pack("<Q", 4) + bytes(16)),
        "npz deflated": zip_bytes({"a.npy": array}, zipfile.ZIP_DEFLATED),
        "npz many deflated": zip_bytes({f"{n}.npy": array[: 2**22] for n in range(16)}, zipfile.ZIP_DEFLATED),
        "npz 4 TB": zip_bytes({"a.npy": npy((2**40,), data=bytes(64))}),
        "npz long header": zip_bytes({"a.npy": npy((1,), data=bytes(4), length=2**20)}, zipfile.ZIP_DEFLATED),
        "npz deep header": zip_bytes({"a.npy": npy_raw("(" * 60_000)}),
        "safetensors 4 TB": safetensors(header),
        "safetensors header": struct.pack("<Q", 2**31) + b"{" + bytes(64),
    }
    return found


def npy_raw(header: str) -> bytes:
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header.encode()


def lie(archive: bytes, size: int) -> bytes:
    """A torch zip whose directory gives the first storage another size (as far as 32 bits go)."""
    at = archive.rindex(b"PK\1\2", 0, archive.rindex(b"archive/data/0"))
    return archive[: at + 24] + struct.pack("<I", min(size, 0xFFFFFFFE)) + archive[at + 28 :]


def overlapping(count: int) -> bytes:
    """A torch zip whose directory names the same megabyte many times, each time under a new name."""
    body = io.BytesIO()
    entries = []

    def header(name: bytes, data: bytes) -> int:
        at = body.tell()
        fields = (20, 0, 0, 0, 0, zlib.crc32(data), len(data), len(data), len(name), 0)
        body.write(b"PK\3\4" + struct.pack("<5H3I2H", *fields) + name)
        return at

    def entry(name: bytes, data: bytes, at: int) -> None:
        fields = (20, 20, 0, 0, 0, 0, zlib.crc32(data), len(data), len(data), len(name), 0, 0, 0, 0, 0, at)
        entries.append(b"PK\1\2" + struct.pack("<6H3I5H2I", *fields) + name)

    pickled = weights()
    place = header(b"archive/data.pkl", pickled)
    body.write(pickled)
    entry(b"archive/data.pkl", pickled, place)
    data = bytes(2**20)
    place = header(b"archive/data/00", data)
    body.write(data)
    for number in range(count):
        entry(b"archive/data/%02d" % number, data, place)
    start = body.tell()
    directory = b"".join(entries)
    end = b"PK\5\6" + struct.pack("<4H2IH", 0, 0, len(entries), len(entries), len(directory), start, 0)
    return body.getvalue() + directory + end
