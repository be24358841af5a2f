"""The command line: one file a verb. torch is imported inside the verbs, so that --help is quick."""

from __future__ import annotations

import io
import os
import sys
import traceback

import typer

from vitrail.cli.application import COMPLETE, VERBS, load_verbs, prepare_completion
from vitrail.cli.openmp import prepare_openmp
from vitrail.cli.terminal import WRONG_USAGE, ReaderGone, complain, full_output
from vitrail.cli.usage_errors import usage_message
from vitrail.errors import StoppedError, VitrailError
from vitrail.progress import left_to_command_line

__all__ = ["load_verbs", "main"]


def main() -> None:
    """Run a verb; the user's mistake is one line and exit code 2, ours is exit code 1."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # file names need not be text
    arguments = sys.argv[1:] or ["--help"]
    prepare_openmp()
    try:
        if COMPLETE in os.environ:  # a shell asks what may stand where the Tab key was pressed
            prepare_completion()
        with left_to_command_line():
            code = load_verbs(arguments[0])(arguments, standalone_mode=False, prog_name="vitrail")
    except typer.TyperException as error:
        complain(usage_message(error, arguments[0], VERBS))
        code = WRONG_USAGE
    except StoppedError as error:
        complain(str(error))
        code = 128 + error.number
    except VitrailError as error:
        complain(str(error))
        code = WRONG_USAGE
    except (typer.Abort, KeyboardInterrupt):
        code = 130
    except ReaderGone:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except Exception as error:
        if os.environ.get("VITRAIL_DEBUG"):
            traceback.print_exc()
        full = full_output(error)
        complain(full or f"internal error: {type(error).__name__}: {error} (VITRAIL_DEBUG=1 shows where)")
        code = WRONG_USAGE if full else 1
    sys.exit(code if isinstance(code, int) else 0)
