"""Where a run computes: as asked for, on the faster device, or where it was before; and what is promised elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import torch

from vitrail.checkpoint.devices import AUTO, describe_device, device_names, find_device
from vitrail.training.autotune import measure_speed
from vitrail.training.job import Job
from vitrail.training.plan import Plan
from vitrail.training.processes import current

SMALL: Final = 10_000_000  # parameters: a network up to here may be faster on the cpu, so both are timed
# Of a plan: what may be others when a run goes on elsewhere, with what they were before they were recorded.
PLACE: Final = {"device": "cpu", "threads": 1, "processes": 1}


def find_again(plan: Plan, name: str) -> torch.device:
    """The device that a run goes on with: of the kind it was started on, where nobody names another."""
    alike = [each for each in map(find_device, device_names()) if describe_device(each) == plan.device]
    return alike[0] if name == AUTO and alike else find_device(name)


def on_faster_device(job: Job) -> Job:
    """The job on the accelerator it is on, or on the cpu where a small network is trained faster there."""
    accelerator = next(job.model.parameters()).device
    count = sum(each.numel() for each in job.model.parameters())
    only_there = job.plan.recipe.precision == "tf32"
    if accelerator.type == "cpu" or count > SMALL or not job.plan.steps or only_there:
        return job
    seconds = {}
    for device in (torch.device("cpu"), accelerator):
        job.model.to(device)
        seconds[device] = measure_speed(job).step
    best = min(seconds, key=lambda device: seconds[device])
    job.model.to(best)
    timed = ", ".join(f"{device.type} {1000 * time:.3g} ms a step" for device, time in seconds.items())
    job.callbacks.log(f"trained on {describe_device(best)}: {timed}")
    return replace(job, plan=replace(job.plan, device=describe_device(best)))


def place_of(device: torch.device, plan: Plan) -> dict[str, Any]:
    """What the bits of a result depend on besides the plan's own settings, as it is now."""
    processes = 1 if plan.virtual_workers else current().world
    return {"device": describe_device(device), "threads": torch.get_num_threads(), "processes": processes}


def last_place(config: Mapping[str, Any]) -> dict[str, Any]:
    """Where a run was last, by its record."""
    moves: Sequence[Mapping[str, Any]] = config.get("elsewhere", ())
    last = moves[-1] if moves else config["plan"]
    return {name: last.get(name, value) for name, value in PLACE.items()}


def moved_note(config: Mapping[str, Any]) -> tuple[str, ...]:
    """What is to be said of a run that did not stay where it was started; nothing of others."""
    moves: Sequence[Mapping[str, Any]] = config.get("elsewhere", ())
    if not moves:
        return ()
    places = [last_place({"plan": config["plan"]}), *moves]
    told = ", then ".join(map(_words_of, places))
    return (f"trained on {told}: its numbers repeat to rounding, not to the bit",)


def _words_of(place: Mapping[str, Any]) -> str:
    several = f" in {place['processes']} processes" if place.get("processes", 1) > 1 else ""
    return f"{place['device']} with {place['threads']} threads{several}"
