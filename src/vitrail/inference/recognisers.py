"""open_model, the front door: a path or a name -> the runtime that answers for it, by one table of recognisers.

Whatever stands behind a path is imported once the path is recognised: an exported file never imports torch, our own
checkpoint none of the other families. Rooms right of this one are named as text, here and nowhere else.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from vitrail.checks import short_repr
from vitrail.errors import InputError, nearest
from vitrail.files import HUB, best_of_run, path_text
from vitrail.inference.runtime import Runtime, check_runtime
from vitrail.types import Device

if TYPE_CHECKING:
    from vitrail.checkpoint import Checkpoint, Safetensors

PACKED: Final = {"packed": "fp32", "packed-bf16": "bf16"}  # runtimes that a checkpoint can be given, and what they use
AUTO: Final = "auto"  # an accelerator where there is one
CPU: Final = "cpu"


@dataclass(frozen=True)
class Header:
    """What tells one kind of path from another; a header inside the file is parsed once."""

    path: str

    @cached_property
    def safetensors(self) -> Safetensors | None:
        """What a .safetensors file says of itself, checked; None of anything else."""
        if not self.path.endswith(".safetensors") or not os.path.isfile(self.path):
            return None
        with open(self.path, "rb") as file:
            if file.read(9)[8:] != b"{":  # only called so; whoever reads all kinds of weights says what it is
                return None
        read: Callable[[str], Safetensors] = _late("vitrail.checkpoint:read_safetensors")
        return read(self.path)

    def says(self, key: str) -> bool:
        return self.safetensors is not None and key in self.safetensors.metadata


class Recogniser(NamedTuple):
    """A kind of path, how it is told, and what opens it: the text "module:name", and the options it takes."""

    kind: str
    recognises: Callable[[Header], bool]
    opener: str
    options: tuple[str, ...] = ()
    is_checkpoint: bool = False  # so that a runtime may be asked for


def _is_exported(header: Header) -> bool:
    known: Callable[[str], bool] = _late("vitrail.exporters:is_exported")
    return known(header.path)


# The first that recognises a path opens it. Those that read no file come first, those that import little before others.
RECOGNISERS: Final = (
    Recogniser(
        "built in", lambda header: header.path.startswith("vitrail:"), "vitrail.checkpoint:load", ("device",), True
    ),
    Recogniser(
        "Vitrail's own", lambda header: header.says("vitrail"), "vitrail.checkpoint:load", ("header", "device"), True
    ),
    Recogniser("packed", lambda header: header.says("vitrail.packed"), "vitrail.packed:open_packed", ("header",)),
    Recogniser(
        "another family's",
        lambda header: header.safetensors is not None or os.path.isdir(header.path) or header.path.startswith(HUB),
        "vitrail.weights:load",
        ("header", "override", "leave_out", "device"),
        True,
    ),
    Recogniser("exported", _is_exported, "vitrail.exporters.exported:open_exported", ("few_images",)),
    Recogniser(
        "another family's", lambda header: True, "vitrail.weights:load", ("override", "leave_out", "device"), True
    ),
)


def open_model(
    path: str | os.PathLike[str],
    *,
    runtime: str = "",
    override: Mapping[str, Any] | None = None,
    leave_out: Sequence[str] = (),
    few_images: bool = False,
    device: Device = CPU,
) -> Runtime:
    """What a path holds, ready to answer: our checkpoint or a run's folder, "vitrail:fashion", another family's file or
    folder, a packed network, an exported file.

    A checkpoint can be asked by another `runtime` than "eager": "packed" or "packed-bf16". `override` and `leave_out`
    are for other families' files, as in `vitrail.load`. For a `few` images alone, a runtime need not prepare for many.
    A checkpoint computes on its `device`; all others choose theirs by themselves, and refuse to be sent elsewhere.
    """
    header = Header(best_of_run(path_text(path)))
    kind = next(each for each in RECOGNISERS if each.recognises(header))
    _check_options(header.path, kind, runtime, override, leave_out)
    if not kind.is_checkpoint or runtime in PACKED:
        device = _stay(device, f"the runtime {runtime}" if kind.is_checkpoint else f"{header.path} is {kind.kind} and")
    header_read = header.safetensors if "header" in kind.options else None
    given = {"override": override, "leave_out": leave_out, "few_images": few_images, "device": device}
    options = {"header": header_read, **given}
    opened: Runtime = _late(kind.opener)(header.path, **{name: options[name] for name in kind.options})
    return _packed(opened, PACKED[runtime]) if runtime in PACKED else opened


def open_checkpoint(
    path: str | os.PathLike[str],
    *,
    override: Mapping[str, Any] | None = None,
    leave_out: Sequence[str] = (),
    device: Device = CPU,
) -> Checkpoint:
    """The same for those who need the network itself: a path that holds another runtime is an error."""
    opened = open_model(path, override=override, leave_out=leave_out, device=device)
    kind: type[Checkpoint] = _late("vitrail.checkpoint:Checkpoint")
    if not isinstance(opened, kind):
        raise InputError(
            f"expected a checkpoint, and {os.fspath(path)} is made for its runtime alone: use the weights it was made "
            "from"
        )
    return opened


def as_checkpoint(
    given: Checkpoint | str | os.PathLike[str], device: Device | None = None, usual: Device = CPU
) -> Checkpoint:
    """A checkpoint where it lies, or on a device; a path, or the folder of a run, opened there, else on the usual."""
    if isinstance(given, str | os.PathLike):
        return open_checkpoint(given, device=usual if device is None else device)
    kind: type[Checkpoint] = _late("vitrail.checkpoint:Checkpoint")
    if not isinstance(given, kind):
        raise InputError(
            f"checkpoint: expected Checkpoint, or the path of one, got {short_repr(given)}: see vitrail.load"
        )
    return given if device is None else given.to(device)


def _packed(checkpoint: Runtime, precision: str) -> Runtime:
    plan = _late("vitrail.quantisation.quant_plan:QuantPlan")(precision)
    packed: Runtime = _late("vitrail.packed:Packed")(checkpoint, plan)
    return packed


def as_runtime(given: Runtime | str | os.PathLike[str], device: Device | None = None) -> Runtime:
    """A runtime as it is, a checkpoint on a device if one is named; a path opened, by itself on an accelerator."""
    if isinstance(given, str | os.PathLike):
        return open_model(given, device=AUTO if device is None else device)
    check_runtime(given)
    if device is None:
        return given
    if callable(move := getattr(given, "to", None)):
        moved: Runtime = move(device)
        return moved
    _stay(device, f"{type(given).__name__} is no checkpoint and")
    return given


def _stay(device: Device, why: str) -> str:
    """The cpu; or an error where a runtime that computes by itself is sent elsewhere."""
    if str(device).partition(":")[0] not in (AUTO, CPU):
        raise InputError(
            f"device {str(device)!r:.40}: {why} computes on the cpu, or where its own runtime does: leave the device "
            "out, or use the weights by themselves"
        )
    return CPU


def _check_options(
    path: str, kind: Recogniser, runtime: str, override: Mapping[str, Any] | None, leave_out: Sequence[str]
) -> None:
    """Refuse what has no meaning for this kind of path, before it is opened."""
    given = [] if "override" in kind.options else [*(override or {}), *leave_out]
    if runtime and not kind.is_checkpoint:
        given.append(f"runtime={runtime!r}")
    if given:
        raise InputError(
            f"{path} is {kind.kind} and says everything itself: open it without {', '.join(given)}, or use the weights "
            "it was made from"
        )
    if runtime in ("", "eager", *PACKED):
        return
    targets = _late("vitrail.exporters:TARGETS")
    if runtime in targets:
        raise InputError(
            f"{path} is a checkpoint: `vitrail export {path} NAME{targets[runtime].suffix}` makes a file for {runtime}"
        )
    raise InputError(f"no runtime {runtime!r}: {nearest(runtime, ('eager', *PACKED, *targets))}")


def _late(name: str) -> Any:
    """What a text "module:name" stands for, imported now."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
