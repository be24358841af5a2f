"""The application that every verb joins: one module a verb, imported when it is typed."""

from __future__ import annotations

from importlib import import_module
from typing import Final

import typer

VERBS: Final = (  # the order of --help; each is a module of this room
    *("demo", "train", "rerun", "audit", "evaluate", "compare", "predict", "embed", "explain", "inspect", "prune"),
    *("optimize", "bench", "export", "convert", "models", "doctor"),
)

app = typer.Typer(
    help="Vitrail: vision transformers you can see through.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def _group() -> None:
    """Vitrail: vision transformers you can see through."""  # with a callback, one verb alone is a verb too


def load_verbs(typed: str = "") -> typer.Typer:
    """The application with the verb that was typed; with all of them where that is none of them."""
    for verb in (typed,) if typed in VERBS else VERBS:
        import_module(f"vitrail.cli.{verb}")
    app.registered_commands.sort(key=lambda command: VERBS.index(command.name or ""))
    return app
