"""A command line that cannot be understood -> one line: what is wrong, what is near it, which --help tells more."""

from __future__ import annotations

import re
from typing import Any, Final

from vitrail.errors import nearest

# What typer says of a value, and how it is said here.
EXPECTED: Final = (
    (r"valid integer", "expected a whole number"),
    (r"valid number", "expected a number"),
    (r"greater than or equal to (\S+)", r"expected \1 or more"),
    (r"less than or equal to (\S+)", r"expected \1 or less"),
)

INSTEAD: Final = {  # of verbs that other programs have
    "help": "`vitrail VERB --help`",
    "version": "`vitrail --version`",
}


def usage_message(error: Any, typed: str, verbs: tuple[str, ...]) -> str:
    """What typer found wrong with what was typed after a verb, in words of this command line."""
    verb = typed if typed in verbs else ""
    about = f"(`vitrail {verb} --help` tells more)" if verb else "(`vitrail --help` lists the verbs)"
    return f"{_wrong(error, verb, verbs)} {about}"


def _wrong(error: Any, verb: str, verbs: tuple[str, ...]) -> str:
    parameter = getattr(error, "param", None)
    if hasattr(error, "possibilities"):
        return f"{verb or 'vitrail'} has no option {error.option_name}{_near(error.option_name, error.ctx)}"
    if hasattr(error, "param_type") and parameter is not None:
        kind = "" if parameter.param_type_name == "argument" else f"{parameter.opts[-1]} "
        what = f": {parameter.help.rstrip('.')}" if parameter.help else ""
        return f"{verb}: {kind}{parameter.metavar or parameter.name} is missing{what}"
    message = str(error.format_message()).rstrip(".")
    if match := re.match(r"No such command '(.*?)'", message):
        if match[1] in INSTEAD:
            return f"no verb {match[1]!r}: type {INSTEAD[match[1]]}"
        hint = nearest(match[1], verbs)
        return f"no verb {match[1]!r}" + (f": {hint}" if hint.startswith("did") else "")
    if match := re.match(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", message):
        return f"{verb or 'vitrail'}: nothing is expected where {match[1]!r} stands"
    if match := re.match(r"Option '(.*?)' requires an argument", message):
        return f"{verb or 'vitrail'}: {match[1]} needs a value after it"
    if parameter is not None:
        name = parameter.metavar if parameter.param_type_name == "argument" else parameter.opts[-1]
        return f"{name}: {_expected(str(error.message).rstrip('.'))}"
    return message


def _expected(message: str) -> str:
    for pattern, words in EXPECTED:
        if match := re.search(pattern, message):
            return match.expand(words).replace(".0 or", " or")
    return message


def _near(option: str, context: Any) -> str:
    """The options of that verb that are spelled alike."""
    names = [name for param in context.command.get_params(context) for name in (*param.opts, *param.secondary_opts)]
    hint = nearest(option, [name for name in names if name.startswith("--")])
    return f": {hint}" if hint.startswith("did") else ""
