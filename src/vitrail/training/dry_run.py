"""What can be known of a training before it: what the linter says, the rates of its layers, and a rate that suits."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vitrail.data.samples import Dataset
from vitrail.errors import MissingExtraError
from vitrail.reporting.axes import Axis
from vitrail.reporting.charts import Line, Series, curves
from vitrail.reporting.svg import check_png, save_chart
from vitrail.training.autotune import LossAtRate, find_rate
from vitrail.training.job import Job
from vitrail.training.optimisers import Rate, show_rates
from vitrail.training.options import Options, resolve
from vitrail.training.planning import lint_plan, make_plan, with_fitting_batch
from vitrail.training.recipe_lint import Finding
from vitrail.training.runs import make_parts, prepare_model


@dataclass(frozen=True)
class DryRun:
    """What was found out; empty where it was not asked for."""

    findings: tuple[Finding, ...]
    rates: tuple[Rate, ...] = ()
    tried: tuple[LossAtRate, ...] = ()
    suggested: float | None = None
    files: tuple[Path, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The result for machines."""
        plain = asdict(self)
        for name in ("findings", "rates", "tried"):
            plain[name] = [each._asdict() for each in getattr(self, name)]
        return plain | {"files": [str(each) for each in self.files]}


def run_dry(
    data: str | os.PathLike[str] | Dataset, options: Options, *, rates: bool = False, search: bool = False
) -> DryRun:
    """Everything up to the first step, and no further."""
    preset = resolve(options)
    prepared, choice = prepare_model(data, preset, options)
    preset = with_fitting_batch(prepared, choice, preset, options)
    plan = make_plan(prepared, choice, preset, options)
    findings = lint_plan(plan, prepared)
    layer_rates = tuple(show_rates(choice.model, plan.recipe)) if rates else ()
    if not search:
        return DryRun(findings, layer_rates)
    folder = Path(options.out)
    parts = make_parts(plan, prepared, options)
    job = Job(plan=plan, model=choice.model, train=parts["train"], val=None, folder=folder, threads=options.threads)
    tried, best = find_rate(job)
    files: tuple[Path, ...] = ()
    try:
        files = (draw_rates(folder / "learning-rates.png", tried, best),)
    except MissingExtraError as error:
        options.callbacks.log(f"no plot: {error}")
    return DryRun(findings, layer_rates, tuple(tried), best, files)


def draw_rates(path: Path, tried: list[LossAtRate], best: float) -> Path:
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
