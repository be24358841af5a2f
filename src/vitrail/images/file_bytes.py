"""FileBytes: the bytes of an image with what messages call it: a file that was read once, a member of a shard."""

from __future__ import annotations

from typing import Self


class FileBytes(bytes):
    """Bytes of one image, named."""

    name: str

    def __new__(cls, data: bytes, name: str) -> Self:
        """The same bytes, with a name."""
        named = super().__new__(cls, data)
        named.name = name
        return named

    def __reduce__(self) -> tuple[type[FileBytes], tuple[bytes, str]]:
        return FileBytes, (bytes(self), self.name)
