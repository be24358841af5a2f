"""The application that every verb joins: one module a verb, imported when it is typed."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from vitrail import __version__
from vitrail.cli.help_page import HelpRow, HelpSection, page_width, render_help
from vitrail.cli.help_texts import ABOUT, EXAMPLES, EXIT_CODES, RARE, VERB_GROUPS, VERBS_HELP

VERBS: Final = (  # each is a module of this room
    *("demo", "train", "rerun", "recipes", "audit", "evaluate", "compare", "predict", "embed", "explain", "inspect"),
    *("prune", "optimize", "bench", "export", "convert", "shard", "models", "doctor"),
)
COMPLETE: Final = "_VITRAIL_COMPLETE"  # set by a shell that wants to complete a line
SHELLS: Final = ("bash", "zsh", "fish", "powershell")
TYPES: Final = {"int": "N", "float": "N", "str": "TEXT", "path": "PATH"}  # what a value is, as help calls it


class VerbCommand(TyperCommand):
    """A verb whose --help shows examples and common options before the others."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        arguments = [param for param in self.params if param.param_type_name == "argument"]
        options = {param.opts[-1]: _row(param, ctx) for param in self.get_params(ctx) if param not in arguments}
        texts = VERBS_HELP[self.name or ""]
        sections = [HelpSection("Arguments", [_row(param, ctx) for param in arguments])]
        for title, names in texts.groups.items():
            sections.append(HelpSection(title, [options.pop(name) for name in names]))
        sections.append(HelpSection(RARE, [*options.values()]))
        words = [f"vitrail {self.name}", *(_in_usage(param) for param in arguments), "[OPTIONS]"]
        formatter.write(render_help(" ".join(words), self.help or "", texts.examples, sections, page_width()))


class VerbGroup(TyperGroup):
    """All verbs, those first that most people begin with."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        sections = [
            HelpSection(title, [HelpRow(verb, VERBS_HELP[verb].summary) for verb in verbs if verb in self.commands])
            for title, verbs in VERB_GROUPS.items()
        ]
        sections.append(HelpSection("Options", [_row(param, ctx) for param in self.get_params(ctx)]))
        sections.append(HelpSection("Exit codes", [HelpRow(*pair) for pair in EXIT_CODES.items()]))
        usage = "vitrail VERB [OPTIONS]; `vitrail VERB --help` explains a verb"
        formatter.write(render_help(usage, ABOUT, EXAMPLES, sections, page_width()))


def _row(param: Any, ctx: Any) -> HelpRow:
    """A parameter in help: no types of the library, no ranges, its default."""
    name, words = param.get_help_record(ctx)
    name = re.sub(r"<(\w+)[^>]*>", lambda match: TYPES.get(match[1], match[1].upper()), name)
    words, bracket, notes = words.partition("  [")
    kept = [note for note in notes.rstrip("]").split("; ") if note.startswith("default")] if bracket else []
    if param.param_type_name == "argument":
        name = _in_usage(param).strip("[]")
    kept = [re.sub(r"^default: \((.*)\)$", r"default: \1", note) for note in kept]  # words rather than a value
    kept = [re.sub(r"\.0$", "", note) for note in kept]
    return HelpRow(name, " ".join([words, *(f"[{note}]" for note in kept)]))


def _in_usage(param: Any) -> str:
    name = param.metavar or (param.name or "").upper()
    return name if param.required else f"[{name}]"


app = typer.Typer(
    cls=VerbGroup,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"vitrail {__version__}")
        raise typer.Exit


def _show_completion(shell: str) -> None:
    """What a shell needs to complete verbs and options."""
    if not shell:
        return
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    if shell not in SHELLS:
        raise typer.BadParameter(f"expected one of {', '.join(SHELLS)}, got {shell!r}")
    typer.echo(get_completion_script(prog_name="vitrail", complete_var=COMPLETE, shell=shell))
    raise typer.Exit


@app.callback()
def _group(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
    completion: Annotated[
        str,
        typer.Option(
            "--show-completion",
            metavar="SHELL",
            callback=_show_completion,
            is_eager=True,
            help="Print what lets the Tab key complete verbs and options: bash, zsh, fish or powershell.",
        ),
    ] = "",
) -> None:
    """Vitrail: vision transformers you can see through."""  # with a callback, one verb alone is a verb too


def prepare_completion() -> None:
    """Make known how each shell asks for completions, and how it is answered."""
    from typer.completion import completion_init  # type: ignore[attr-defined]

    completion_init()


def load_verbs(typed: str = "") -> typer.Typer:
    """The application with the verb that was typed; with all of them where that is none of them."""
    for verb in (typed,) if typed in VERBS else VERBS:
        import_module(f"vitrail.cli.{verb}")
    for command in app.registered_commands:
        command.cls = VerbCommand
        command.short_help = VERBS_HELP[command.name or ""].summary
    app.registered_commands.sort(key=lambda command: VERBS.index(command.name or ""))
    return app
