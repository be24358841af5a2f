"""Images to work with: read from folders, tables and arrays, checked, split, and written down."""

from vitrail.data.exclusions import exclude
from vitrail.data.image_scan import Scan, scan
from vitrail.data.manifest import Entry, Manifest, differences, record
from vitrail.data.readers import read_data, read_unlabelled
from vitrail.data.samples import Dataset, Sample
from vitrail.data.splits import Split, split

__all__ = [
    "Dataset",
    "Entry",
    "Manifest",
    "Sample",
    "Scan",
    "Split",
    "differences",
    "exclude",
    "read_data",
    "read_unlabelled",
    "record",
    "scan",
    "split",
]
