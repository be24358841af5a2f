"""convert: a checkpoint of any family -> the files of another, written, read back, and compared before they stay."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

from vitrail.checkpoint import Checkpoint, Setting, save
from vitrail.checks import join_limited
from vitrail.errors import CheckpointError, InputError, nearest
from vitrail.files import path_text, reason
from vitrail.images import Preprocess
from vitrail.network.config import Positions, ViTConfig
from vitrail.network.surgery import eval_mode
from vitrail.reporting.object_card import Card
from vitrail.system_calls import replace_file
from vitrail.weights.families import FAMILIES
from vitrail.weights.family import Description, Family
from vitrail.weights.loading import load
from vitrail.weights.name_tables import to_theirs
from vitrail.weights.overrides import setting_text
from vitrail.weights.reading.npz_arrays import write_npz

OWN: Final = "vitrail"
ENDINGS: Final = {  # how the name of what is written ends
    "safetensors": (".safetensors",),
    "folder": ("", ".safetensors"),
    "npz": (".npz",),
    "pickle": (".pth", ".pt", ".bin"),
}
FILES: Final = (".npz", ".npy", ".pth", ".pt", ".bin", ".onnx", ".json")
TRAINING: Final = (  # what a network at rest does not compute with
    *("dropout", "attention_dropout", "drop_path", "patch_dropout", "initialisation", "head_bias_init", "fixed_size"),
)


@dataclass(frozen=True, repr=False)
class ParityReport:
    """What was written, and how it was shown to be the same network."""

    source: str
    out: str
    family: str
    tensors: int  # that were written
    identical: int  # tensors of ours that came back with the same bits
    largest_difference: float  # between the logits of both networks on random pixels
    relative_difference: float  # the same, as a share of the largest logit
    argmax_agreement: float  # share of the random images with the same first answer
    preprocess_carried: bool
    classes_carried: bool
    not_carried: tuple[str, ...]  # what stays behind: tensors beside the network, or how other sizes are resampled
    settings: tuple[Setting, ...]  # as read back from what was written

    def card(self) -> Card:
        """What it says of itself in a REPL and in a notebook."""
        carried = {"preprocessing": self.preprocess_carried, "class names": self.classes_carried}
        left = [f"{name} (keep by hand)" for name, is_carried in carried.items() if not is_carried]
        apart = f"logits differ by at most {self.largest_difference:.3g} on random pixels"
        return Card(
            f"ParityReport: {self.out} for {self.family}, from {self.source}",
            (
                ("written", f"{self.tensors:,} tensors; {self.identical:,} read back, bit for bit the same"),
                ("both run", f"{apart}; {100 * self.argmax_agreement:.0f} % same answers"),
                ("carried", " and ".join(name for name, is_carried in carried.items() if is_carried)),
                ("not carried", "; ".join((*left, *self.not_carried))),
            ),
        )

    def __repr__(self) -> str:
        return self.card().as_text()

    def _repr_html_(self) -> str:
        return self.card().as_html()


def convert(
    source: str | os.PathLike[str] | Checkpoint,
    out: str | os.PathLike[str],
    *,
    to: str,
    override: Mapping[str, Any] | None = None,
    leave_out: Sequence[str] = (),
) -> ParityReport:
    """Write a checkpoint the way a family does, and prove it: mapped back bit for bit, both networks run.

    A setting that changes answers and has no target there is refused by name, and nothing is left behind; what else
    stays behind is in the report.

    - source: a Checkpoint, or the path of one, of any family.
    - out: the file or folder to write; the name must be free.
    - to: the family, such as "timm"; "vitrail" is our own file.
    - override: settings that a file's tensors leave open, as in `vitrail.load`.
    - leave_out: parts of a file to leave out, as in `vitrail.load`.
    """
    family = _family(to)
    target = _free_path(out, family)
    if not isinstance(source, Checkpoint):
        name, checkpoint = path_text(source), load(source, override=override, leave_out=leave_out)
    elif override or leave_out:
        raise InputError("override and leave_out belong to a file that is read; this checkpoint is already loaded")
    else:
        name, checkpoint = source.provenance.source, source
    temporary = target.with_name(f".{target.stem}.{os.getpid()}{target.suffix}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        written = _write(checkpoint, family, temporary)
        report = _compare(checkpoint, temporary, to)
        replace_file(temporary, target)
    except OSError as error:
        raise CheckpointError(f"could not write {target}: {reason(error)}") from error
    finally:
        with suppress(OSError):
            if temporary.is_dir():
                shutil.rmtree(temporary)
            else:
                temporary.unlink()
    left = (*written.left, *report.not_carried)
    return replace(report, source=name, out=str(target), tensors=written.tensors, not_carried=left)


def differences(ours: ViTConfig, theirs: ViTConfig) -> list[str]:
    """Settings in which two networks at rest compute differently, each as "name: X, and it would come back as Y"."""
    one, other = _at_rest(ours), _at_rest(theirs)
    return [f"{name}: {one[name]}, and it would come back as {other[name]}" for name in one if one[name] != other[name]]


def _at_rest(config: ViTConfig) -> dict[str, Any]:
    """Every setting that changes numbers, in a form in which equal networks are equal."""
    values = {each.name: getattr(config, each.name) for each in fields(config) if each.name not in TRAINING}
    values["head_width"] = config.per_head
    values["layer_scale"] = None if config.layer_scale is None else "yes"
    if config.rotary is not None:
        values["rotary"] = (config.rotary.kind, config.rotary.theta)
    positions: Positions = values.pop("positions")
    kind = "learned" if positions.kind.startswith("sincos") else positions.kind  # the table is in the file
    values["positions"] = (kind, positions.at)
    if kind == "none":
        del values["image_size"]  # no tensor is made for it
    else:
        values["slots"] = config.slots  # resampling counts at other sizes only: told, not refused
    if not config.classes:
        del values["head_bias"]
    return values


def _family(to: str) -> Family | None:
    """The family of a name; None for our own file."""
    if to == OWN:
        return None
    if not isinstance(to, str) or to not in FAMILIES:
        raise InputError(f"no family {to!r}: {nearest(str(to), [OWN, *FAMILIES])}")
    return FAMILIES[to]


def _free_path(out: str | os.PathLike[str], family: Family | None) -> Path:
    """Where to write: a name that is free, and ends as what will stand there does."""
    target = Path(path_text(out))
    container = family.container if family else "safetensors"
    expected = ENDINGS[container]
    if target.suffix not in expected and (container != "folder" or target.suffix in FILES):
        named = " or ".join(f"NAME{ending}" for ending in expected)
        raise InputError(f"expected {named}, as {family.name if family else OWN} is written, got {target.name!r}")
    try:
        there = target.exists() or target.is_symlink()
    except OSError as error:
        raise InputError(f"could not write {target}: {reason(error)}") from None
    if there:
        raise InputError(f"{target} is already there: choose another name, or move it away")
    return target


class _Written(NamedTuple):
    """How many tensors were written, the names of those of ours that were not, and what else to know."""

    tensors: int
    left: tuple[str, ...]


def _write(checkpoint: Checkpoint, family: Family | None, path: Path) -> _Written:
    """The family's files at a path."""
    if family is None:
        save(checkpoint, path)
        return _Written(len(checkpoint.tensors()), ())
    if checkpoint.model.config.kept_heads is not None:
        raise CheckpointError(f"{family.name} cannot carry kept_heads: its blocks all have the same heads")
    description = family.outline(checkpoint)
    ours = {name: value.detach().cpu() for name, value in checkpoint.tensors().items()}
    blank = ours["patches.projection.weight"]
    for name, shape in description.extras.items():
        ours.setdefault(f"extras.{name}", blank.new_zeros(shape))
    given, without = to_theirs(family.table(description), ours, description.config)
    lost = [name for name in without if not name.startswith("extras.")]
    if lost:
        raise CheckpointError(f"{family.name} has no place for {join_limited(lost, ', ')}: choose another family")
    _put(given, description, family, path)
    memory = ("ood: what tells images unlike the training ones",) if checkpoint.ood is not None else ()
    return _Written(len(given), (*without, *description.warnings, *memory))


def _put(tensors: dict[str, Tensor], description: Description, family: Family, path: Path) -> None:
    if family.container == "npz":
        write_npz(path, tensors)
    elif family.container == "pickle":
        torch.save({family.wrapper: tensors} if family.wrapper else tensors, path)
    elif path.suffix == ".safetensors":
        save_file(tensors, path, {"format": "pt"})
    else:
        path.mkdir()
        save_file(tensors, path / family.weights, {"format": "pt"})
        for name, values in family.sidecars(description).items():
            (path / name).write_text(json.dumps(values, indent=2, allow_nan=False) + "\n", "utf-8")


def _compare(checkpoint: Checkpoint, path: Path, to: str) -> ParityReport:
    """Read back what was written and hold it against the checkpoint: settings, bits, answers."""
    try:
        back = load(path)
    except CheckpointError as error:
        reason = str(error).replace(str(path), "the file")
        raise CheckpointError(f"{to}: what was written does not say enough to be read again: {reason}") from error
    config = checkpoint.model.config
    if to != OWN and back.provenance.family != to:
        raise CheckpointError(f"what was written for {to} would be read as {back.provenance.family}: not converted")
    changed = differences(config, back.model.config)
    if checkpoint.decoder is not None and back.decoder is not None:
        changed += [f"decoder's {each}" for each in differences(checkpoint.decoder.config, back.decoder.config)]
    if changed:
        raise CheckpointError(
            f"{to} cannot carry every setting of this network: {'; '.join(changed)}; to convert all the same, "
            "change them when loading, with override={...} (or --set NAME=VALUE)"
        )
    ours, theirs = checkpoint.tensors(), back.tensors()
    unequal = [name for name in ours if name in theirs and not _same_bits(ours[name].detach().cpu(), theirs[name])]
    absent = [name for name in ours if name not in theirs and not name.startswith("extras.")]
    if unequal or absent:
        raise CheckpointError(
            f"{to}: mapped back, tensors differ or are gone: {join_limited([*unequal, *absent], ', ')}"
        )
    first, second = (_answers(each, config.image_size) for each in (checkpoint, back))
    largest, scale = _apart(first, second)
    if not largest <= 1e-5 * scale:  # also where one of them is no number
        raise CheckpointError(f"{to}: read back, the network answers differently, by {largest:.3g} of {scale:.3g}")
    return ParityReport(
        source="",
        out="",
        family=to,
        tensors=0,
        identical=len(ours) - len(unequal) - len([name for name in ours if name not in theirs]),
        largest_difference=largest,
        relative_difference=largest / scale if scale else 0.0,
        argmax_agreement=float((first.argmax(-1) == second.argmax(-1)).float().mean()),
        preprocess_carried=_same_pixels(checkpoint.preprocess, back.preprocess),
        classes_carried=checkpoint.classes == back.classes,
        not_carried=() if to == OWN else _resampling(config, back.model.config),
        settings=back.provenance.settings,
    )


def _resampling(ours: ViTConfig, theirs: ViTConfig) -> tuple[str, ...]:
    """Where both read their positions on other grids in different ways, so that they differ at other sizes."""
    one, other = ours.positions.resample, theirs.positions.resample
    if ours.positions.kind in ("none", "relative") or one == other:
        return ()
    return (f"resample: {setting_text(one)}; at other sizes it will be {setting_text(other)}",)


def _same_pixels(one: Preprocess, other: Preprocess) -> bool:
    """Whether both make the same pixels: crops of 0.9 and of 224 / 248 are one."""
    plain, like = one.to_dict() | {"crop": one.scaled()}, other.to_dict() | {"crop": other.scaled()}
    return plain == like


def _same_bits(one: Tensor, other: Tensor) -> bool:
    """Also those of zeros: 0.0 and -0.0 are equal, and not the same."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(*(each.contiguous().flatten().view(torch.uint8) for each in (one, other)))


def _apart(one: Tensor, other: Tensor) -> tuple[float, float]:
    """The largest difference of two networks' answers, and their scale: half precision may overflow, in both alike."""
    same = (one == other) | (one.isnan() & other.isnan())
    difference = (one - other).abs().masked_fill(same, 0.0)
    finite = one.nan_to_num(0.0, 0.0, 0.0).abs()
    return (float(difference.max()), float(finite.max())) if one.numel() else (0.0, 1.0)


def _answers(checkpoint: Checkpoint, size: tuple[int, int]) -> Tensor:
    """What a network says of the same two images of noise."""
    generator = torch.Generator().manual_seed(0)
    model = checkpoint.model
    pixels = torch.randn(2, model.config.channels, *size, generator=generator)
    first = next(model.parameters())
    with eval_mode(model), torch.inference_mode():
        answers: Tensor = model(pixels.to(first.device, first.dtype)).float().cpu()
    return answers
