"""What a file that holds no weights we read seems to be, and what to do about it: for messages only."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any, Final

HOW: Final = "save the weights as safetensors, or model.state_dict() with torch.save"

# By their first bytes; each continues "FILE ".
_SIGNATURES: Final[tuple[tuple[bytes, str], ...]] = (
    (b"version https://git-lfs", "is a git-LFS pointer, not the weights themselves: run 'git lfs pull'"),
    (b"\x89HDF\r\n\x1a\n", "is an HDF5 file, as Keras writes (.h5): open it there and save the arrays as .npz"),
    (b"GGUF", f"is a GGUF file of language models: {HOW}"),
    (b"\x93NUMPY", "is a lone array (.npy) without a name: put the named arrays into one .npz with numpy.savez"),
    (b"\x1f\x8b", "is a gzip file: unpack it first"),
    (b"BZh", "is a bzip2 file: unpack it first"),
    (b"\xfd7zXZ\0", "is an xz file: unpack it first"),
    (b"7z\xbc\xaf\x27\x1c", "is a 7z archive: unpack it first"),
    (b"Rar!", "is a RAR archive: unpack it first"),
    (b"\x28\xb5\x2f\xfd", "is a Zstandard file: unpack it first"),
    (b"PK\5\6", "is an empty zip archive: get the file anew"),
    (b"\x89PNG", "is an image (PNG), not weights"),
    (b"\xff\xd8\xff", "is an image (JPEG), not weights"),
    (b"GIF8", "is an image (GIF), not weights"),
    (b"BM", "is an image (BMP), not weights"),
    (b"II*\0", "is an image (TIFF), not weights"),
    (b"MM\0*", "is an image (TIFF), not weights"),
    (b"%PDF", "is a PDF document, not weights"),
    (b"model_checkpoint_path:", "belongs to a TensorFlow checkpoint: convert it where TensorFlow is installed"),
)
_HTML = re.compile(rb"\s*(<!--.*?-->\s*)?<(!doctype html|html|head|body|\?xml)", re.IGNORECASE | re.DOTALL)
_TENSORFLOW = re.compile(r"\.(index|data-\d{5}-of-\d{5})$")
_OPTIMISER = "is the state of an optimiser, not of a network: give the file that holds model.state_dict()"


def name_suspect(head: bytes, path: str | os.PathLike[str], tree: Any = None) -> str:
    """What the first bytes of a file (and its values, where known) seem to be, as the end of a sentence."""
    if isinstance(tree, Mapping):
        named = name_tree(tree)
        return named or f"is a pickle of plain values without tensors: {HOW}"
    return (
        _by_signature(head)
        or _by_text(head)
        or _by_protobuf(head)
        or _by_name(path)
        or _by_pickle(head)
        or f"is of no kind known here (it starts with {head[:8].hex(' ')}): expected a .safetensors, .pt, .pth, .bin "
        "or .npz file; if it should be one, get it anew"
    )


def name_archive(names: Iterable[str]) -> str:
    """What a zip archive with these members seems to be, if it is neither a torch file nor an .npz."""
    names = list(names)
    ends = {name.rpartition("/")[2] for name in names}
    if "constants.pkl" in ends or "bytecode.pkl" in ends or any("/code/" in f"/{name}" for name in names):
        return "is a TorchScript archive, which holds code: open it with torch.jit.load and save its state_dict()"
    if any(name.endswith(".h5") for name in names):
        return "is a Keras archive (.keras): open it there and save the arrays as .npz"
    if any(each.startswith("archive_format") or each == "archive_version" for each in ends):
        return "is an archive of torch.export, which holds a program: save the state_dict() of the network"
    if "[Content_Types].xml" in ends:
        return "is an office document, not weights"
    if any(name.endswith((".safetensors", ".pt", ".pth", ".bin", ".npz")) for name in names):
        return "is a zip archive with weights in it: unpack it first"
    listed = ", ".join(f"{name!r:.60}" for name in names[:4])
    return f"is a zip archive of something else ({listed or 'nothing'}): expected what torch.save or numpy.savez writes"


def name_tree(tree: Mapping[Any, Any]) -> str | None:
    """What plain values seem to be if they are not the weights of a network."""
    if "state" in tree and "param_groups" in tree:
        return _OPTIMISER
    return None


def _by_signature(head: bytes) -> str | None:
    if not head:
        return "is empty: get the file anew"
    if not head.strip(b"\0"):
        return "holds nothing but zero bytes: get the file anew"
    for signature, what in _SIGNATURES:
        if head.startswith(signature):
            return what
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "is an image (WebP), not weights"
    if head[257:262] == b"ustar":
        return (
            "is a tar archive: unpack it first; if it is a torch file from before 2017, open it with the torch of "
            "its time and save it anew"
        )
    return None


def _by_text(head: bytes) -> str | None:
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if _HTML.match(head.removeprefix(b"\xef\xbb\xbf")):
        return "is a web page, not weights: the download went wrong"
    try:
        words = text.decode()
    except UnicodeDecodeError as error:
        if error.start < len(text) - 4:  # else the last character was only cut
            return None
        words = text[: error.start].decode()
    if not words or not all(each.isprintable() or each in "\r\n\t" for each in words):
        return None
    if text[:1] in (b"{", b"["):
        return "is JSON, perhaps the answer of a server that had no file: the download went wrong"
    return "is text, not weights"


def _by_protobuf(head: bytes) -> str | None:
    """ONNX and SavedModel start with a version number, then a field of the few that may follow."""
    if len(head) < 8 or head[0] != 0x08:
        return None
    if head[:3] == b"\x08\x01\x12":
        return "is a TensorFlow SavedModel: convert it where TensorFlow is installed"
    if 2 <= head[1] < 32 and head[2] in (0x12, 0x1A, 0x22, 0x28, 0x32, 0x3A, 0x42):
        return "is an ONNX model: convert from the weights that it was exported from"
    return None


def _by_name(path: str | os.PathLike[str]) -> str | None:
    """TensorFlow's checkpoints have no first bytes of their own."""
    if _TENSORFLOW.search(PurePath(path).name):
        return "belongs to a TensorFlow checkpoint: convert it where TensorFlow is installed"
    return None


def _by_pickle(head: bytes) -> str | None:
    if head[:1] == b"\x80" and head[1:2] <= b"\x05":
        return f"is a pickle of something other than weights: {HOW}"
    return None
