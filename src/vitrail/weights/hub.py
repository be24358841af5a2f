"""hf:owner/name -> a local folder, through huggingface_hub; only where someone writes it so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from vitrail.errors import CheckpointError, InputError, MissingExtraError

NAME: Final = re.compile(r"hf:(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?")


def fetch(source: str) -> Path:
    """The folder of "hf:owner/name" or "hf:owner/name@revision", from the local cache or the network."""
    match = NAME.fullmatch(source)
    if match is None:
        raise InputError(f"expected hf:owner/name, or hf:owner/name@revision, got {source!r}")
    try:
        import huggingface_hub
    except ImportError:
        raise MissingExtraError(f"{source} needs huggingface_hub: pip install 'vitrail[hub]'") from None
    repo, revision = match["repo"], match["revision"]
    try:
        names = huggingface_hub.list_repo_files(repo, revision=revision)
        wanted = [] if any(name.endswith(".safetensors") for name in names) else ["*.bin", "*.npz", "*.pth", "*.pt"]
        patterns = ["*.json", "*.safetensors", *wanted]
        return Path(huggingface_hub.snapshot_download(repo, revision=revision, allow_patterns=patterns))
    except Exception as first:  # many kinds, from several libraries: offline, gated, unknown, timeouts
        try:
            return Path(huggingface_hub.snapshot_download(repo, revision=revision, local_files_only=True))
        except Exception:
            reason = str(first).strip().splitlines()[0][:200] if str(first).strip() else type(first).__name__
            raise CheckpointError(
                f"{source} could not be fetched and is not in the local cache ({reason}): "
                "check the name and the connection, or copy the files here and load the folder"
            ) from None
