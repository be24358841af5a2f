"""A folder with one of everything that can be wrong, audited once."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from evaluation.photos import brighter, mirrored, photo, scaled
from vitrail.auditing.audit_page import write_audit
from vitrail.auditing.auditor import Audit, audit
from vitrail.data.readers import read_data


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes in train and test, and one of everything that can be wrong."""
    folder = tmp_path_factory.mktemp("planted")
    seeds = iter(range(1000))

    def put(name: str, image: Image.Image) -> Image.Image:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path)
        return image

    for place in range(14):
        put(f"train/cat/{place}.png", photo(next(seeds)))
    for place in range(5):
        put(f"train/dog/{place}.png", photo(next(seeds)))
        put(f"test/cat/{place}.png", photo(next(seeds)))
        put(f"test/dog/{place}.png", photo(next(seeds)))
    leak = put("test/cat/exact_leak.png", photo(next(seeds)))
    put("train/cat/exact_leak.bmp", leak)
    leak = put("test/dog/near_leak.png", photo(next(seeds)))
    put("train/dog/near_leak.jpg", brighter(1.05)(leak))
    twin = put("train/cat/twin_a.png", photo(next(seeds)))
    put("train/cat/twin_b.tif", twin)
    put("train/cat/twin_c.png", twin)
    near = put("train/dog/near_a.png", photo(next(seeds)))
    put("train/dog/near_b.png", mirrored(scaled(1.5)(near)))
    two = put("train/cat/two_labels.png", photo(next(seeds)))
    put("train/dog/two_labels.png", two)
    put("train/dog/page.png", Image.new("RGB", (80, 80), (250, 250, 250)))
    put("train/dog/huge.png", photo(next(seeds), (900, 750)))
    (folder / "train/cat/torn.jpg").write_bytes(b"\xff\xd8\xff\xe0 and no more")
    (folder / "train/cat/empty.png").write_bytes(b"")
    return folder


@pytest.fixture(scope="module")
def found(root: Path) -> Audit:
    return audit(str(root))


@pytest.fixture
def written(found: Audit, root: Path, tmp_path: Path) -> dict[str, Path]:
    files = write_audit(found, tmp_path / "deep" / "audit", read_data(str(root)))
    return {path.name: path for path in files}
