"""The verb recipes: what a training can follow by name, what it is for and what it reached."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitrail.cli.application import app
from vitrail.cli.completion import recipe_names
from vitrail.cli.options import AsJson, offer
from vitrail.cli.terminal import left_table, print_json, say, show
from vitrail.errors import InputError, nearest

if TYPE_CHECKING:
    from vitrail.training.published import Preset


@app.command("recipes")
def list_recipes(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A recipe to show in full; default: a table of all.",
            autocompletion=offer(recipe_names),
        ),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """List the recipes that `vitrail train --recipe NAME` follows: what for, how long, and what they reached."""
    from vitrail.training.published import RECIPES

    if name and name not in RECIPES:
        raise InputError(f"no recipe {name!r}: {nearest(name, RECIPES)} (`vitrail recipes` lists them)")
    if name:
        _show_recipe(name, RECIPES[name], as_json)
        return
    rows = [_row(each, preset) for each, preset in RECIPES.items()]
    if as_json:
        print_json({"recipes": rows})
        return
    table = left_table("recipe", "length", "from, and reached")
    table.columns[-1].no_wrap = False
    for row in rows:
        table.add_row(row["name"], row["length"], row["note"] + ("" if row["trainable"] else " Not trained here yet."))
    show(table)
    say(f"{len(rows)} recipes; `vitrail recipes NAME` shows one in full, `vitrail train DATA --recipe NAME` follows it")


def _row(name: str, preset: Preset) -> dict[str, Any]:
    """A recipe in short."""
    from vitrail.training.recipe import TRAINABLE

    return {
        "name": name,
        "model": preset.model or None,
        "size": preset.size or None,
        "epochs": None if preset.steps else preset.recipe.epochs,
        "steps": preset.steps,
        "length": _length(preset),
        "batch": preset.recipe.batch,
        "trainable": preset.recipe.objective in TRAINABLE,
        "note": preset.note,
    }


def _length(preset: Preset) -> str:
    if preset.steps:
        return f"{preset.steps:,} steps"
    if preset.recipe.tune == "head":
        return "the head alone"
    epochs = preset.recipe.epochs
    return "1 epoch" if epochs == 1 else f"{epochs:g} epochs"


def _show_recipe(name: str, preset: Preset, as_json: bool) -> None:
    """Every setting of a recipe, and of the network that it was made for."""
    settings = preset.recipe.to_dict()
    if as_json:
        print_json(_row(name, preset) | {"recipe": settings, "changes": _plain(preset), "sweep": list(preset.sweep)})
        return
    say(f"{name}: {preset.note}")
    table = left_table("setting", "value")
    if preset.model:
        table.add_row("network", preset.model)
    for setting, value in _plain(preset).items():
        table.add_row(f"network: {setting}", _in_words(value))
    if preset.size:
        table.add_row("size", f"{preset.size} pixels")
    if preset.steps:
        table.add_row("steps", f"{preset.steps:,}")
    for setting, value in settings.items():
        if isinstance(value, dict):
            for part, own in value.items():
                table.add_row(f"{setting}: {part}", _in_words(own))
        elif not (setting == "epochs" and preset.steps):
            table.add_row(setting, "as the network says" if value is None else _in_words(value))
    if preset.sweep:
        table.add_row("learning rates tried", ", ".join(map(str, preset.sweep)))
    show(table)
    say(f"try it            vitrail train DATA --recipe {name}")


def _in_words(value: Any) -> str:
    """A setting as people write it."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_in_words(own)}" for name, own in value.items())
    if isinstance(value, list | tuple):  # of fractions: from one to the other
        return (" to " if any(isinstance(each, float) for each in value) else ", ").join(map(_in_words, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() else f"{value:.4g}"
    return "none" if value is None else str(value)


def _plain(preset: Preset) -> dict[str, Any]:
    """What its network has other than the preset's, as plain values."""
    plain: dict[str, Any] = {}
    for name, value in preset.changes.items():
        settings = [each.name for each in fields(value)] if hasattr(value, "__dataclass_fields__") else []
        plain[name] = {each: getattr(value, each) for each in settings} if settings else value
    return plain
