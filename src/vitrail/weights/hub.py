"""hf:owner/name and timm:name -> a local folder or file: from $VITRAIL_WEIGHTS, the local cache, or the network.

Only where someone writes such a name is anything looked for outside, through huggingface_hub; what is in the folder or
the cache already is not fetched.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final, NamedTuple

from vitrail.errors import CheckpointError, InputError, MissingExtraError, VitrailError
from vitrail.weights.reading.model_folders import find_weights

VARIABLE: Final = "VITRAIL_WEIGHTS"  # names a folder of checkpoints, for machines without a network
NAME: Final = re.compile(r"(?:hf:(?P<repo>[\w.-]+/[\w.-]+)|timm:(?P<timm>\w[\w.-]*))(?:@(?P<revision>[\w.-][\w./-]*))?")
FILES: Final = "config.json, model.safetensors and, where there is one, preprocessor_config.json"
TIMEOUT: Final = 10.0  # seconds until a hub that does not answer is given up
REFUSALS: Final = {  # kinds of errors whose own words are a status and a request number
    "GatedRepoError": "its owner asks for consent: give it on its page, then log in with `hf auth login`",
    "RepositoryNotFoundError": "there is none of this name, or it is private",
    "RevisionNotFoundError": "it has no such revision",
}


class Name(NamedTuple):
    """A checkpoint by name."""

    source: str  # as it was written
    owner: str
    name: str
    revision: str | None

    @property
    def repo(self) -> str:
        return f"{self.owner}/{self.name}"


def fetch(source: str) -> Path:
    """The folder or file of "hf:owner/name" or "timm:name", either with "@revision"; timm publishes as hf:timm/name."""
    asked = parse(source)
    looked_for = places(asked)
    for place in looked_for:
        if place.exists():
            return place
    return _from_hub(asked, looked_for)


def parse(source: str) -> Name:
    """What a name says, or an error."""
    match = NAME.fullmatch(source)
    if match is None or ".." in source:
        raise InputError(f"expected hf:owner/name or timm:name, either with @revision, got {source!r}")
    owner, _, name = (match["repo"] or f"timm/{match['timm']}").partition("/")
    return Name(source, owner, name, match["revision"])


def places(asked: Name) -> list[Path]:
    """Where it may lie in the folder that $VITRAIL_WEIGHTS names, the first of them first; none without the folder.

    With a revision only what is called so counts: nothing else says which one it is.
    """
    given = os.environ.get(VARIABLE, "")
    if not given:
        return []
    folder = Path(given).expanduser()
    if not folder.is_dir():
        raise InputError(f"{VARIABLE} names {given!r}, which is no folder: name the folder of your checkpoints")
    mark = f"@{asked.revision}" if asked.revision else ""
    stems = [f"{asked.owner}/{asked.name}{mark}", f"{asked.owner}--{asked.name}{mark}", f"{asked.name}{mark}"]
    return [folder / f"{stem}{ending}" for stem in stems for ending in ("", ".safetensors")]


def _from_hub(asked: Name, looked_for: list[Path]) -> Path:
    """From the local cache of huggingface_hub, else from the network."""
    try:
        import huggingface_hub
    except ImportError:
        raise MissingExtraError(
            f"{asked.source} {_not_here(looked_for)}; to fetch it: pip install 'vitrail[hub]'; {_by_hand(asked)}"
        ) from None
    cached = _cached(huggingface_hub, asked)
    if cached is not None:
        return cached
    try:
        # One question, asked once: list_repo_files asks six times, for half a minute, where there is no network.
        published = huggingface_hub.model_info(asked.repo, revision=asked.revision, timeout=TIMEOUT)
        names = [file.rfilename for file in published.siblings or ()]
        wanted = [] if any(name.endswith(".safetensors") for name in names) else ["*.bin", "*.npz", "*.pth", "*.pt"]
        patterns = ["*.json", "*.safetensors", *wanted]
        return Path(huggingface_hub.snapshot_download(asked.repo, revision=asked.revision, allow_patterns=patterns))
    except Exception as error:  # many kinds, from several libraries: offline, gated, unknown, timeouts
        raise CheckpointError(
            f"{asked.source} could not be fetched ({_reason(error)}), {_not_here(looked_for)}, nor in the cache of "
            f"huggingface_hub: check the name and the connection; {_by_hand(asked)}"
        ) from None


def _cached(hub: Any, asked: Name) -> Path | None:
    """A folder in the cache that holds weights; others fetch parts of a repository."""
    try:
        folder = Path(hub.snapshot_download(asked.repo, revision=asked.revision, local_files_only=True))
    except Exception:  # not there; of many kinds, as above
        return None
    try:
        find_weights(folder)
    except VitrailError:
        return None
    return folder


def _reason(error: Exception) -> str:
    """In one line: why it could not be fetched."""
    for kind in type(error).__mro__:  # a gated repository counts as one that is not found, too
        if kind.__name__ in REFUSALS:
            return REFUSALS[kind.__name__]
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


def _not_here(looked_for: list[Path]) -> str:
    if not looked_for:
        return f"is in no folder of yours ({VARIABLE} is not set)"
    folders = ", ".join(str(place) for place in looked_for[::2])  # each with a file of that name beside it
    return f"is not in {VARIABLE} (looked for {folders}, and for .safetensors files of these names)"


def _by_hand(asked: Name) -> str:
    return (
        f"without a network, copy {FILES} of {asked.repo} from another machine into a folder FOLDER/{asked.repo}, and "
        f"set {VARIABLE}=FOLDER"
    )
