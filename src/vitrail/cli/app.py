"""The application that every verb joins."""

from __future__ import annotations

import typer

app = typer.Typer(
    help="Vitrail: vision transformers you can see through.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
