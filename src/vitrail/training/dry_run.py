"""What can be known of a training before it: what the linter says, the rates of its layers, and a rate that suits."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vitrail.data.manifest import record
from vitrail.data.samples import Dataset
from vitrail.errors import MissingExtraError
from vitrail.reporting.axes import Axis
from vitrail.reporting.charts import Line, Series, curves
from vitrail.reporting.svg import check_png, save_chart
from vitrail.training.autotune import Tried, find_rate
from vitrail.training.loop import Job
from vitrail.training.optimisers import Rate, show_rates
from vitrail.training.recipe_lint import Finding
from vitrail.training.runs import Options, choose_network, findings_of, make_parts, make_plan, prepare_data, resolve


@dataclass(frozen=True)
class Trial:
    """What was found out; empty where it was not asked for."""

    findings: tuple[Finding, ...]
    rates: tuple[Rate, ...] = ()
    tried: tuple[Tried, ...] = ()
    suggested: float | None = None
    files: tuple[Path, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The result for machines."""
        plain = asdict(self)
        for name in ("findings", "rates", "tried"):
            plain[name] = [each._asdict() for each in getattr(self, name)]
        return plain | {"files": [str(each) for each in self.files]}


def trial(
    data: str | os.PathLike[str] | Dataset,
    options: Options,
    *,
    rates: bool = False,
    search: bool = False,
    tell: Callable[[str], None] = lambda text: None,
) -> Trial:
    """Everything up to the first step, and no further."""
    preset = resolve(options)
    prepared = prepare_data(data, preset, options)
    chosen = choose_network(prepared, preset, options)
    plan = make_plan(prepared, chosen, preset, options)
    found = findings_of(plan, prepared)
    shown = tuple(show_rates(chosen.model, plan.recipe)) if rates else ()
    if not search:
        return Trial(found, shown)
    folder = Path(options.out)
    parts = make_parts(plan, prepared.dataset, record(prepared.dataset, prepared.entries), options)
    job = Job(plan=plan, model=chosen.model, train=parts["train"], val=None, folder=folder, threads=options.threads)
    tried, best = find_rate(job)
    files: tuple[Path, ...] = ()
    try:
        files = (draw_rates(folder / "learning-rates.png", tried, best),)
    except MissingExtraError as error:
        tell(f"no plot: {error}")
    return Trial(found, shown, tuple(tried), best, files)


def draw_rates(path: Path, tried: list[Tried], best: float) -> Path:
    """The loss over the learning rate, with the suggestion marked."""
    chart = curves(
        [Series("loss, smoothed", [(each.lr, each.loss) for each in tried])],
        Axis("learning rate", log=True),
        Axis("loss, smoothed"),
        "Where the loss falls fastest",
        lines=[Line(best, f"suggested: {best:.2g}")],
        size=(560.0, 320.0),
    )
    check_png()
    path.parent.mkdir(parents=True, exist_ok=True)
    return save_chart(chart, path)
