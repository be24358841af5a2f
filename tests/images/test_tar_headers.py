"""tar_members: what Python's own tarfile lists, and every claim that is not true refused."""

from __future__ import annotations

import io
import random
import tarfile
from collections.abc import Callable

import pytest

from vitrail.errors import InputError
from vitrail.images.tar_headers import LARGEST_HEADER, TarMember, tar_members


def listed(raw: bytes) -> list[TarMember]:
    return list(tar_members(lambda start, count: raw[start : start + count], len(raw), "x.tar"))


def packed(kind: int, *members: tuple[str, bytes], **more: object) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=kind) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            for word, value in more.items():
                setattr(info, word, value)
            tar.addfile(info, io.BytesIO(data))
    return file.getvalue()


LONG = "folder/" * 30 + "name.jpg"


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_file_is_found_where_it_is(kind: int) -> None:
    members = [
        ("a.jpg", b"abc"),
        ("b/c.jpg", b""),
        (LONG, b"x" * 513),
        ("b/caf\N{LATIN SMALL LETTER E WITH ACUTE}", b"e"),
    ]
    raw = packed(kind, *members)
    found = listed(raw)
    assert [(each.name, raw[each.start : each.start + each.size]) for each in found] == members
    with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
        assert [(each.name, each.offset_data, each.size) for each in tar] == [tuple(each) for each in found]


def test_folders_are_passed_and_a_dot_before_a_name_is_left_out() -> None:
    raw = packed(tarfile.USTAR_FORMAT, ("./a.jpg", b"abc"))
    folder = packed(tarfile.USTAR_FORMAT, ("b", b""), type=tarfile.DIRTYPE)[:512]
    assert listed(folder + raw) == [TarMember("a.jpg", 1024, 3)]
    assert listed(b"") == listed(bytes(1024)) == []


@pytest.mark.fault("I12")
@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../a.jpg", "a/../../b.jpg", "..", "C:/a.jpg", "a\\..\\..\\b.jpg", "\\a"]
)
@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_names_that_lead_out_are_refused(name: str, kind: int) -> None:
    with pytest.raises(InputError, match=r"^x.tar: the name .* is absolute or leads out of the folder: refused$"):
        listed(packed(kind, (name, b"x")))


@pytest.mark.fault("I12")
@pytest.mark.parametrize(
    "kind, told",
    [
        (tarfile.LNKTYPE, "a hard link"),
        (tarfile.SYMTYPE, "a symbolic link"),
        (tarfile.CHRTYPE, "a device"),
        (tarfile.BLKTYPE, "a device"),
        (tarfile.FIFOTYPE, "a pipe"),
        (tarfile.GNUTYPE_SPARSE, "a sparse file"),
    ],
)
def test_what_is_no_ordinary_file_is_refused(kind: bytes, told: str) -> None:
    raw = packed(tarfile.GNU_FORMAT, ("a.jpg", b""), type=kind, linkname="b")
    with pytest.raises(InputError, match=f"^x.tar: 'a.jpg' is {told}: expected ordinary files alone$"):
        listed(raw)


def test_sparse_files_of_the_newer_kind_are_refused() -> None:
    raw = packed(tarfile.PAX_FORMAT, ("a.jpg", b"x"), pax_headers={"GNU.sparse.major": "1", "GNU.sparse.size": "9"})
    with pytest.raises(InputError, match="'a.jpg' is a sparse file"):
        listed(raw)


def resealed(raw: bytes, change: Callable[[bytearray], None]) -> bytes:
    """The same with its first header changed, and a checksum that fits."""
    header = bytearray(raw[:512])
    change(header)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + raw[512:]


def sized(field: bytes) -> Callable[[bytearray], None]:
    def change(header: bytearray) -> None:
        header[124:136] = field

    return change


@pytest.mark.fault("I12")
@pytest.mark.parametrize(
    "field, told",
    [
        (b"77777777777\0", r"'a.jpg' claims 8,589,934,591 bytes at byte 512, but the file has 10,240"),
        (b"\x80" + (2**60).to_bytes(11, "big"), "claims 1,152,921,504,606,846,976 bytes"),
        (b"\xff" * 12, "no size in the header at byte 0"),  # -1, on which some readers hang
        (b"\xff" * 10 + b"\xfe\x00", "no size in the header at byte 0"),
        (b"-0000000010\0", "no size in the header|claims"),
        (b"9zzzzzzzzzz\0", "no size in the header at byte 0"),
    ],
)
def test_sizes_that_are_lies_are_refused(field: bytes, told: str) -> None:
    with pytest.raises(InputError, match=told):
        listed(resealed(packed(tarfile.USTAR_FORMAT, ("a.jpg", b"abc")), sized(field)))


@pytest.mark.parametrize("size", ["-5", "9" * 30, "1e3", "0x10", " 3"])
def test_sizes_in_extended_headers_are_held_to_it_too(size: str) -> None:
    raw = packed(tarfile.PAX_FORMAT, ("a.jpg", b"abc"), pax_headers={"size": size})
    with pytest.raises(InputError, match="the size .* in the extended header before byte"):
        listed(raw)


def test_extended_headers_that_are_damaged_too_long_or_for_all_are_refused() -> None:
    raw = packed(tarfile.PAX_FORMAT, (LONG, b"abc"))
    assert len(listed(raw)) == 1
    with pytest.raises(InputError, match="the extended header at byte 0 is damaged"):
        listed(raw[:512] + b"99999 path=" + raw[523:])
    with pytest.raises(InputError, match=f"an extended header of {LARGEST_HEADER + 1:,} bytes: refused"):
        listed(resealed(raw, sized(b"%011o\0" % (LARGEST_HEADER + 1))))

    def for_all(header: bytearray) -> None:
        header[156:157] = b"g"

    with pytest.raises(InputError, match="speaks of all members: refused"):
        listed(resealed(raw, for_all))
    with pytest.raises(InputError, match="it ends behind an extended header"):
        listed(raw[:1024] + bytes(1024))


@pytest.mark.parametrize(
    "start, told",
    [(b"\x1f\x8b", "compressed .gzip.: unpack it"), (b"BZh", "bzip2"), (b"PK", "damaged, or no tar file")],
)
def test_what_is_no_tar_file_is_told(start: bytes, told: str) -> None:
    with pytest.raises(InputError, match=f"^x.tar: no header at byte 0: .*{told}"):
        listed(start + bytes(600))


def test_damage_anywhere_is_a_refusal_or_changes_names_and_sizes_alone() -> None:
    """Never another error, never a member beyond the file, never an endless loop."""
    dice = random.Random(0)
    whole = packed(tarfile.PAX_FORMAT, ("a.jpg", b"abc"), (LONG, b"x" * 700), ("b.cls", b"1"))
    refused = 0
    for _ in range(1500):
        raw = bytearray(whole)
        for _ in range(dice.randint(1, 3)):
            raw[dice.randrange(len(raw))] = dice.randrange(256)
        cut = bytes(raw[: dice.randint(0, len(raw))] if dice.random() < 0.3 else raw)
        try:
            for member in listed(cut):
                assert member.start + member.size <= len(cut)
        except InputError:
            refused += 1
    assert refused > 500
