"""What a run was trained on: the images to judge its checkpoint by, with those marked that it has seen."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitrail.data.image_scan import fingerprint
from vitrail.data.manifest import Manifest
from vitrail.data.readers import read_data
from vitrail.data.samples import Dataset
from vitrail.errors import ImageError, InputError
from vitrail.evaluation.recorded_paths import find_recorded, recorded_places
from vitrail.files import is_name
from vitrail.images import upright_size

PathOrName = str | os.PathLike[str]


def data_for(checkpoint: PathOrName, data: PathOrName = "", classes: Sequence[str] | None = None) -> Dataset:
    """The images to judge a checkpoint by: those named, or those of the run it comes from.

    A checkpoint of a run knows which images it was trained on: they are marked as such, by name in the run's own
    data and by their content anywhere else, so that they are not mistaken for new ones.
    """
    folder = run_of(checkpoint)
    if folder is None:
        if not data:
            raise InputError(f"{checkpoint} is not of a run, so it does not know its data: name the images")
        return read_data(data, classes=classes)
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
        options = config["options"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder / 'config.json'} is damaged, so the run's images are not known: {error}") from None
    recorded = options["data"]
    own = not data or source_name(data) in map(source_name, recorded_places(folder, config, recorded))
    source = data or _own_images(folder, config, recorded)
    pattern = options["pattern"] if own else None
    dataset = read_data(source, pattern=pattern, classes=classes)
    known = Manifest.from_json((folder / "data.json").read_text("utf-8")).entries
    if own:
        splits = {each.name: each.split for each in known}
        marks = [splits.get(each.name, each.split) for each in dataset.samples]
    else:
        marks = _marks_by_content(dataset, {each.digest: each.split for each in known if each.split != "test"})
    return _marked(dataset, marks, (folder.name,))


def _marks_by_content(dataset: Dataset, seen: Mapping[str, str]) -> list[str]:
    """The split of each image by what a run did with it, "train" or "val"; its own where the run never saw it.

    Where new images are among them, those are what to judge by: images of validation then count as seen.
    """
    digests = [_digest(image) for image in dataset.images]
    images = zip(digests, dataset.images, strict=True)
    has_new = any(digest not in seen and _is_image(image) for digest, image in images)
    return [
        "train" if has_new and digest in seen else seen.get(digest, each.split)
        for digest, each in zip(digests, dataset.samples, strict=True)
    ]


def _own_images(folder: Path, config: Mapping[str, Any], recorded: str) -> str:
    try:
        return find_recorded(folder, config, recorded)
    except InputError as error:
        raise InputError(f"{error}; name the images") from None


def data_for_both(
    first: PathOrName, second: PathOrName, data: PathOrName, classes: Sequence[str] | None = None
) -> Dataset:
    """The images to compare two checkpoints by: what either was trained on or chosen by is marked as such."""
    ranks = {"train": 2, "val": 1}
    one, other = (data_for(each, data, classes) for each in (first, second))
    marks = [
        max(a.split, b.split, key=lambda split: ranks.get(split, 0))
        for a, b in zip(one.samples, other.samples, strict=True)
    ]
    return _marked(one, marks, (*one.marked_by, *other.marked_by))


def _marked(dataset: Dataset, splits: Sequence[str], runs: tuple[str, ...]) -> Dataset:
    pairs = zip(dataset.samples, splits, strict=True)
    return replace(dataset, samples=tuple(each._replace(split=split) for each, split in pairs), marked_by=runs)


def source_name(source: PathOrName) -> str:
    """A source of images by a name that two spellings of it share."""
    name = os.fspath(source)
    return name if name.startswith("vitrail:") else os.path.realpath(name)


def _digest(image: Any) -> str:
    try:
        return fingerprint(image)[1].hex()
    except OSError:  # it will be found unreadable later
        return ""


def _is_image(image: Any) -> bool:
    try:
        return upright_size(image) is not None
    except (ImageError, InputError, OSError):
        return False


def run_of(checkpoint: PathOrName) -> Path | None:
    """The run's folder that a checkpoint lies in, if it does."""
    if is_name(os.fspath(checkpoint)):
        return None
    path = Path(checkpoint)
    folder = path if path.is_dir() else path.parent
    return folder if (folder / "config.json").is_file() and (folder / "data.json").is_file() else None
