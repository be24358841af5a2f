"""Empty files for readers that open none."""

from __future__ import annotations

from pathlib import Path


def touch(root: Path, *names: str) -> Path:
    """Reading opens no image, so empty files do."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root
