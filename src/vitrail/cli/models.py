"""The verb models: the presets and their sizes."""

from __future__ import annotations

from typing import Any

from vitrail.cli.application import app
from vitrail.cli.options import AsJson
from vitrail.cli.terminal import print_json, say, show, table_of


@app.command("models")
def list_models(as_json: AsJson = False) -> None:
    """List the presets with their sizes."""
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
    table = table_of("name", "parameters", "width/depth/heads/mlp", "patch", "image", "tokens", "classes")
    for row in rows:
        shape = "/".join(str(row[key]) for key in ("width", "depth", "heads", "mlp_width"))
        sizes = (row["patch"][0], row["image_size"][0], row["tokens"], row["classes"])
        table.add_row(row["name"], f"{row['parameters'] / 1e6:.2f} M", shape, *map(str, sizes))
    show(table)
    say(f"{len(rows)} presets; `vitrail inspect NAME` shows one")
