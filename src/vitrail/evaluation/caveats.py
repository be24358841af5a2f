"""Images and the network they judge -> a caveat: a sentence where they trained it or chose it, else nothing."""

from __future__ import annotations

from collections import Counter
from typing import Final

from vitrail.data.samples import Dataset
from vitrail.evaluation.seen_images import source_name
from vitrail.inference.runtime import Origin
from vitrail.reporting.html_page import counted

CHOSEN: Final = (
    "Measured on validation images, by which the best epoch, the temperature and the minimum confidence were chosen: "
    "expect a little less on new images."
)
TRAINED: Final = "Measured on images it was trained on: this says nothing about new images."


def caveat_for(images: Dataset, provenance: Origin | None) -> str:
    """What limits a score on these images; empty where nothing says that the network has met them before.

    A run's own checkpoint knows its images: `data_for` marks them, and the provenance names their source. The splits
    of any other data say nothing of what this network has seen.
    """
    own = (
        provenance is not None and bool(provenance.run) and source_name(provenance.source) == source_name(images.source)
    )
    if not (own or images.marked_by):
        return ""
    return caveat_of(Counter(each.split for each in images.samples))


def caveat_of(splits: Counter[str]) -> str:
    """The same from how many images of each of the network's own splits there are."""
    trained, chosen, total = splits["train"], splits["val"], splits.total()
    if not trained + chosen:
        return ""
    if trained == total:
        return TRAINED
    if chosen == total:
        return CHOSEN
    return (
        f"Of the {counted(total, 'image')}, {trained + chosen:,} were used to train this network or to choose it: "
        "expect less on new images."
    )
