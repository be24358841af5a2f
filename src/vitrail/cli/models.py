"""The verb models: the presets and their sizes; checkpoints to start from."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from vitrail.cli.application import app
from vitrail.cli.options import AsJson
from vitrail.cli.terminal import print_json, say, show, table_of


@app.command("models")
def list_models(
    pretrained: Annotated[
        bool, typer.Option("--pretrained", help="List checkpoints to start from instead, with their licences.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the presets with their sizes, or checkpoints to start from."""
    if pretrained:
        _list_pretrained(as_json)
    else:
        _list_presets(as_json)


def _list_presets(as_json: bool) -> None:
    from vitrail.insight.cost import count_parameters
    from vitrail.network.presets import PRESETS
    from vitrail.network.surgery import build_empty

    rows: list[dict[str, Any]] = []
    for name, config in PRESETS.items():
        rows.append(
            {
                "name": name,
                "parameters": count_parameters(build_empty(config)),
                "width": config.width,
                "depth": config.depth,
                "heads": config.heads,
                "mlp_width": config.mlp_width,
                "patch": list(config.cell),
                "image_size": list(config.image_size),
                "tokens": config.tokens,
                "classes": config.classes,
            }
        )
    if as_json:
        print_json({"models": rows})
        return
    table = table_of("name", "parameters", "width/depth/\nheads/mlp", "patch", "image", "tokens", "classes")
    for row in rows:
        shape = "/".join(str(row[key]) for key in ("width", "depth", "heads", "mlp_width"))
        sizes = (row["patch"][0], row["image_size"][0], row["tokens"], row["classes"])
        table.add_row(row["name"], _count(row["parameters"]), shape, *map(str, sizes))
    show(table)
    say(f"{len(rows)} presets; `vitrail inspect NAME` shows one; `vitrail models --pretrained` lists checkpoints")


def _count(parameters: int) -> str:
    return f"{parameters / 1e6:.2f} M" if parameters >= 10_000 else f"{parameters:,}"


def _list_pretrained(as_json: bool) -> None:
    from vitrail.insight.cost import count_parameters
    from vitrail.network.surgery import build_empty
    from vitrail.weights.hub import VARIABLE
    from vitrail.weights.pretrained import PRETRAINED

    rows: list[dict[str, Any]] = [
        {
            "name": each.name,
            "parameters": count_parameters(build_empty(each.config)),
            "image_size": list(each.config.image_size),
            "learned": each.learned,
            "licence": each.licence,
            "good_for": each.good_for,
            "preset": each.preset,
        }
        for each in PRETRAINED
    ]
    if as_json:
        print_json({"pretrained": rows})
        return
    for row in rows:
        say(row["name"])
        say(f"  for {row['good_for']}")
        size = f"{row['parameters'] / 1e6:.1f} M parameters, about {4 * row['parameters'] / 1e6:.0f} MB to fetch"
        say(f"  {size}; images of {row['image_size'][0]} pixels")
        say(f"  {row['learned']}; licence: {row['licence']}")
    say("start from one with `vitrail train DATA --from NAME`; read its licence before you ship")
    say(
        f"fetched once, then from the cache; without a network, from the folder that {VARIABLE} names (docs/weights.md)"
    )
