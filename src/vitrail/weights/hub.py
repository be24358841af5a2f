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
REFUSALS: Final = {  # kinds of errors by the name of their class: those where no copy helps
    "GatedRepoError": "its owner asks for consent: give it on its page, then log in with `hf auth login`",
    "RepositoryNotFoundError": "there is none of this name, or it is private",
    "RevisionNotFoundError": "it has no such revision",
}
UNREACHED: Final = {  # and those where it does; of httpx, requests and Python
    "OfflineModeIsEnabled": "HF_HUB_OFFLINE is set",
    "TimeoutException": "the hub did not answer",
    "Timeout": "the hub did not answer",
    "TimeoutError": "the hub did not answer",
    "ConnectError": "no network",
    "ConnectionError": "no network",
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
    return _from_hub(asked)


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
    folder = _own_folder()
    if folder is None:
        return []
    files = [folder / f"{stem}{ending}" for stem in _stems(asked) for ending in ("", ".safetensors")]
    return [*files, *_snapshots(folder / f"models--{asked.owner}--{asked.name}", asked.revision)]


def _own_folder() -> Path | None:
    given = os.environ.get(VARIABLE, "")
    folder = Path(given).expanduser()
    if given and not folder.is_dir():
        raise InputError(f"{VARIABLE} names {given!r}, which is no folder: name the folder of your checkpoints")
    return folder if given else None


def _stems(asked: Name) -> list[str]:
    mark = f"@{asked.revision}" if asked.revision else ""
    return [f"{asked.owner}/{asked.name}{mark}", f"{asked.owner}--{asked.name}{mark}", f"{asked.name}{mark}"]


def _snapshots(copied: Path, revision: str | None) -> list[Path]:
    """In a copy of huggingface_hub's cache: what its `refs` call by that name, or the only one there is."""
    reference = copied / "refs" / (revision or "main")
    if reference.is_file():
        return [copied / "snapshots" / reference.read_text("utf-8").strip()]
    if revision:
        return [copied / "snapshots" / revision]
    every = list((copied / "snapshots").glob("*"))
    return every if len(every) == 1 else []


def names_in_folder() -> list[str]:
    """What lies in the user's folder, as it would be asked for; more than that where folders hold other things."""
    folder = _own_folder()
    if folder is None:
        return []
    names = []
    for path in (*folder.glob("*"), *folder.glob("*/*")):
        stem = path.relative_to(folder).as_posix().removesuffix(".safetensors").removeprefix("models--")
        owner, slash, name = stem.replace("--", "/").rpartition("/")
        names.append(f"hf:{owner}/{name}" if slash and owner != "timm" else f"timm:{name}")
    return sorted(names)


def _from_hub(asked: Name) -> Path:
    """From the local cache of huggingface_hub, else from the network."""
    try:
        import huggingface_hub
    except ImportError:
        raise MissingExtraError(
            f"{asked.source} cannot be fetched without huggingface_hub: pip install 'vitrail[hub]'. {_by_hand(asked)}"
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
        raise CheckpointError(_not_fetched(asked, error)) from None


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


def _not_fetched(asked: Name, error: Exception) -> str:
    """Why it could not be fetched, what name may have been meant, and what to do where only a network is missing."""
    from vitrail.weights.near_names import near_name

    told = f"{asked.source} could not be fetched"
    hint = near_name(asked.source)
    kinds = [kind.__name__ for kind in type(error).__mro__]  # a gated repository counts as one that is not found, too
    for name in kinds:
        if name in REFUSALS:
            return f"{told}: {REFUSALS[name]}{hint and f'; {hint}'}"
    lines = str(error).strip().splitlines()
    other = lines[0][:200] if lines else type(error).__name__
    why = next((UNREACHED[name] for name in kinds if name in UNREACHED), other)
    if hint:
        return f"{told} ({why}): {hint} {_by_hand(asked)}"
    return f"{told} ({why}), and {_not_here(asked)}. {_by_hand(asked)}"


def _not_here(asked: Name) -> str:
    folder = _own_folder()
    if folder is None:
        return f"{VARIABLE} is not set"
    *first, last = _stems(asked)
    return f"{VARIABLE} ({folder}) has no {', '.join(first)} or {last}"


def _by_hand(asked: Name) -> str:
    folder = _own_folder()
    then = f", and set {VARIABLE}=FOLDER" if folder is None else ""
    place = f"{folder or 'FOLDER'}/{asked.repo}"
    return f"Without a network, copy {FILES} of {asked.repo} from another machine into {place}{then}"
