"""A speed that was measured, and the bytes that each way moves -> Forecast: what a long training would take."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias, get_args

from vitrail.checks import check_choice, check_int, check_number
from vitrail.errors import InputError

Way: TypeAlias = Literal["exact", "ddp", "shard"]
# How often all values of a network cross between processes in a step. Gradients: sums of a share to each process, and
# the whole sum back to all. With sharded weights: gathered for the way there, again for the way back, gradients summed.
CROSSINGS: Final[dict[str, int]] = {"exact": 2, "ddp": 2, "shard": 3}


class Forecast(NamedTuple):
    """What a training takes; times are of steps alone, without validation and pauses."""

    images_per_second: float  # of all processes together
    bytes_sent: float  # by each process, each step
    exchanging: float  # the share of a step's time in which nothing is computed
    hours: float


def forecast(
    *,
    parameters: int,
    images: int,
    epochs: float,
    batch: int,
    images_per_second: float,
    processes: int = 1,
    bandwidth: float = 0.0,
    way: Way = "exact",
    value_bytes: int = 4,
) -> Forecast:
    """How long a training of so many epochs takes, from the measured speed of one process.

    - parameters: of the network.
    - images: in an epoch.
    - epochs: how often every image is seen.
    - batch: images of a step, of all processes together.
    - images_per_second: that one process trains on, measured.
    - processes: how many train together, each as fast as the one that was measured.
    - bandwidth: bytes a second that a process can send while it receives as many.
    - way: "exact", "ddp", or "shard".
    - value_bytes: of each value that is sent: 4, or 2 where weights travel in bf16.
    """
    numbers = {"parameters": parameters, "images": images, "batch": batch, "processes": processes}
    for name, value in numbers.items():
        check_int(name, value, 1, 1 << 62, InputError)
    for name, amount in {"epochs": epochs, "images_per_second": images_per_second}.items():
        check_number(name, amount, 0.0, 1e18, error=InputError)
        if not amount:
            raise InputError(f"{name}: expected more than 0, got {amount!r}")
    check_choice("way", way, get_args(Way))
    if processes > 1 and not bandwidth > 0:
        raise InputError(
            f"bandwidth: expected the bytes a second that {processes} processes can send, got {bandwidth!r}"
        )
    sent = bytes_sent(way, parameters * value_bytes, processes)
    computing = batch / processes / images_per_second
    exchanging = sent / bandwidth if processes > 1 else 0.0
    step = computing + exchanging  # one after the other: what overlaps is a gain that is not counted on
    return Forecast(batch / step, sent, exchanging / step, images * epochs / batch * step / 3600)


def bytes_sent(way: Way, network_bytes: float, processes: int) -> float:
    """What each process sends in a step: of all that crosses, its own part stays with it."""
    return CROSSINGS[way] * network_bytes * (processes - 1) / processes
