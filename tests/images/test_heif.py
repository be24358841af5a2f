"""HEIC, as phones write it: the values of the source, upright, under the limits; without the extra it is named."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vitrail.errors import ImageError
from vitrail.images import Limits, Preprocess, decode, describe_bands, upright_size
from vitrail.images.heif import is_heif
from vitrail.inference import frames

pillow_heif = pytest.importorskip("pillow_heif")


def smooth(width: int = 128, height: int = 64) -> Image.Image:
    """Slow colours that differ in every corner."""
    down, across = np.mgrid[0:height, 0:width]
    bands = (255 * across / width, 255 * down / height, 255 * (1 - across / width))
    return Image.fromarray(np.stack(bands, axis=-1).astype(np.uint8))


def heic(image: Image.Image, **options: Any) -> bytes:
    file = io.BytesIO()
    pillow_heif.from_pillow(image).save(file, **{"quality": 95, "chroma": 444, **options})
    return file.getvalue()


def distance(one: Image.Image, other: Image.Image) -> int:
    assert one.size == other.size
    return int(np.abs(np.asarray(one).astype(int) - np.asarray(other)).max())


@pytest.mark.fault("I5")
def test_a_heic_image_has_the_values_of_its_source(tmp_path: Path) -> None:
    image = smooth()
    data = heic(image)
    registered = set(Image.registered_extensions())  # other libraries in this process may have added some
    path = tmp_path / "a.heic"
    path.write_bytes(data)
    for source in (data, path):
        decoded = decode(source)
        assert decoded.mode == "RGB"
        assert distance(decoded, image) <= 6
        assert distance(decode(source, "L"), image.convert("L")) <= 4
        assert upright_size(source) == (64, 128)
        assert describe_bands(source)[:3] == (64, 128, 3)
        assert np.abs(Preprocess(size=32)(source) - Preprocess(size=32)(image)).max() <= 0.05
    assert distance(next(frames(data)), image) <= 6
    assert len(list(frames(data))) == 1
    assert set(Image.registered_extensions()) == registered


@pytest.mark.fault("I6")
def test_eight_orientations_of_heic_are_the_upright_image() -> None:
    """The file's own turn counts, once; what EXIF says besides does not turn it again."""
    upright, flip = smooth(), Image.Transpose
    stored = {2: flip.FLIP_LEFT_RIGHT, 3: flip.ROTATE_180, 4: flip.FLIP_TOP_BOTTOM, 5: flip.TRANSPOSE,
              6: flip.ROTATE_90, 7: flip.TRANSVERSE, 8: flip.ROTATE_270}  # fmt: skip
    for orientation in range(1, 9):
        image = upright if orientation == 1 else upright.transpose(stored[orientation])
        exif = Image.Exif()
        exif[0x0112] = orientation

        data = heic(image, exif=exif.tobytes())
        assert distance(decode(data), upright) <= 6, orientation
        assert upright_size(data) == (64, 128), orientation


@pytest.mark.fault("I6")
def test_an_exif_orientation_of_which_the_file_knows_nothing_turns_nothing() -> None:
    image, exif = smooth(), Image.Exif()
    exif[0x0112] = 1
    tag = struct.pack(">HHIH", 0x0112, 3, 1, 1)
    data = heic(image, exif=exif.tobytes())
    assert data.count(tag) == 1
    lying = data.replace(tag, struct.pack(">HHIH", 0x0112, 3, 1, 6))
    assert distance(decode(lying), image) <= 6
    assert upright_size(lying) == (64, 128)


def test_transparency_grey_and_ten_bits() -> None:
    clear = smooth().convert("RGBA")
    clear.putalpha(0)
    assert distance(decode(heic(clear)), Image.new("RGB", (128, 64), "white")) <= 2
    grey = smooth().convert("L")
    assert distance(decode(heic(grey)), grey.convert("RGB")) <= 4
    wide = Image.fromarray(np.asarray(grey).astype(np.uint16) * 257)
    assert distance(decode(heic(wide), "L"), grey) <= 4


@pytest.mark.fault("I2")
def test_the_size_of_a_heic_is_checked_before_anything_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    data = heic(smooth())
    monkeypatch.setattr(pillow_heif.HeifImageFile, "load", lambda *_: pytest.fail("decoded"))
    for limits, field in (
        (Limits(pixels=128 * 64 - 1), "pixels"),
        (Limits(side=127), "side"),
        (Limits(aspect=1.5), "aspe"),
    ):
        with pytest.raises(ImageError, match=f"refused, 128x64 is over the limit .*raise Limits.{field}"):
            decode(data, limits=limits)
    lie = data.replace(struct.pack(">II", 128, 64), struct.pack(">II", 16_000, 16_000))
    assert lie != data
    with pytest.raises(ImageError, match="refused, 16000x16000"):
        decode(lie)


@pytest.mark.fault("I2")
def test_a_heic_that_is_larger_than_it_says_is_refused() -> None:
    data = heic(smooth(512, 512))
    small = data.replace(struct.pack(">II", 512, 512), struct.pack(">II", 64, 64))
    with pytest.raises(ImageError, match="damaged or cut short"):
        decode(small)


@pytest.mark.fault("I2")
def test_tiles_count_together() -> None:
    """One small piece may be told to stand for all tiles, each as large as it likes."""
    data = heic(smooth(256, 192), tile_size=64)
    assert distance(decode(data), smooth(256, 192)) <= 12
    assert decode(data, limits=Limits(pixels=256 * 192)).size == (256, 192)
    tile = struct.pack(">II", 64, 64)
    assert data.count(tile) == 1
    with pytest.raises(ImageError, match="refused, 16000x12000"):
        decode(data.replace(tile, struct.pack(">II", 4000, 4000)))


@pytest.mark.fault("I4")
def test_cut_and_overlaid_heic_files_are_refused() -> None:
    data = heic(smooth())
    for length in range(12, len(data), max(1, len(data) // 40)):
        with pytest.raises(ImageError, match="damaged or cut short|not an image|not enough memory"):
            decode(data[:length])
    assert data.count(b"hvc1") == 1
    with pytest.raises(ImageError, match="laid together from others"):
        decode(data.replace(b"hvc1", b"iovl"))


def test_what_is_heic_by_its_first_bytes() -> None:
    def start(*brands: bytes) -> bytes:
        return (
            struct.pack(">I", 12 + 4 * len(brands)) + b"ftyp" + brands[0] + bytes(4) + b"".join(brands[1:]) + bytes(40)
        )

    assert is_heif(start(b"heic"))
    assert is_heif(start(b"mif1", b"miaf", b"heic"))
    assert not is_heif(start(b"avif", b"mif1"))
    assert not is_heif(start(b"isom", b"mp42"))
    assert not is_heif(start(b"mif1", b"miaf") + b"heic")  # behind the box
    assert not is_heif(b"\x89PNG\r\n\x1a\n" + b"heic" * 9)
    assert not is_heif(b"")


@pytest.mark.fault("I5")
def test_without_the_extra_the_error_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.heic").write_bytes(heic(smooth()))
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(ImageError) as told:
        decode(tmp_path / "a.heic")
    name = tmp_path / "a.heic"
    assert str(told.value) == f"{name} is a HEIC image: reading it needs pillow-heif: pip install 'vitrail[heif]'"


@pytest.mark.parametrize(
    "fault, told",
    [
        ("OSError('libheif.so.1: broken')", "OSError: libheif.so.1: broken"),
        ("ImportError('DLL load failed')", "ImportError: DLL load failed"),
        ("SystemExit(1)", "SystemExit: 1"),
    ],
)
def test_an_extra_that_does_not_load_is_no_missing_one_and_no_damage(
    fault: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.heic").write_bytes(heic(smooth()))
    (tmp_path / "pillow_heif.py").write_text(f"raise {fault}")
    monkeypatch.delitem(sys.modules, "pillow_heif")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImageError) as error:
        decode(tmp_path / "a.heic")
    assert str(error.value) == (
        f"{tmp_path / 'a.heic'} is a HEIC image: pillow-heif is installed, but does not load ({told}): "
        "pip install --force-reinstall pillow-heif"
    )


def test_the_library_is_loaded_for_heic_alone() -> None:
    program = (
        "import io, sys; from PIL import Image; from vitrail.images import decode; file = io.BytesIO();"
        "Image.new('RGB', (8, 8)).save(file, 'PNG'); decode(file.getvalue()); print('pillow_heif' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"
