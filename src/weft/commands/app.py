"""What all commands share: the Typer app, how errors end them, how they print.

Exit codes: 0 done, 1 the work failed, 2 wrong use or bad input, 130 interrupted, 143 terminated.
With --json one document goes to stdout; everything else always goes to stderr.
"""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console, RenderableType
from typer.core import TyperGroup
from typer.exceptions import TyperException

from weft.errors import InputError, WeftError, printable

# How commands are listed: as a newcomer meets them.
ORDER = (
    "demo", "models", "strategies", "profile", "plan", "compare", "simulate", "train", "infer", "web", "top",
    "node", "fleet", "keys", "doctor", "chaos", "reproduce",
)  # fmt: skip
INTERRUPTED = 128 + signal.SIGINT  # as in shells
TERMINATED = 128 + signal.SIGTERM


class Terminated(KeyboardInterrupt):
    """The command was ended by `kill`. It ends as with Ctrl-C: nodes and temporary files are removed."""


def end_in_order(number: int, frame: FrameType | None) -> None:
    """Turns SIGTERM into an exception, so that a command ends as it does with Ctrl-C."""
    raise Terminated


class Debugging:
    """Whether `--debug` was given: then internal errors show where they come from."""

    wanted = False


debugging = Debugging()


class Commands(TyperGroup):
    """Ends a command that failed with one line on stderr and the documented exit code."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        """`--debug` may stand anywhere in a command line."""
        if parent is None:
            debugging.wanted = "--debug" in args
        left = [word for word in args if word != "--debug"]
        with one_line():
            return super().make_context(info_name, left, parent, **extra)

    def list_commands(self, ctx: Any) -> list[str]:
        """In the order in which people need them; a command that has no place there comes last."""
        names = super().list_commands(ctx)
        return [*(n for n in ORDER if n in names), *(n for n in names if n not in ORDER)]

    def invoke(self, ctx: Any) -> Any:
        try:
            with one_line():
                return super().invoke(ctx)
        except WeftError as error:
            say(f"error: {error}")
            raise typer.Exit(error.exit_code) from None
        except Terminated:
            say("terminated")
            raise typer.Exit(TERMINATED) from None
        except KeyboardInterrupt:
            say("interrupted")
            raise typer.Exit(INTERRUPTED) from None
        except (typer.Exit, typer.Abort, TyperException):
            raise
        except Exception as error:
            # A defect of Weft. People get a line that they can report.
            if debugging.wanted:
                traceback.print_exception(error)
            how = "" if debugging.wanted else "; --debug shows where it comes from"
            say(f"internal error: {type(error).__name__}: {error}{how}")
            raise typer.Exit(WeftError.exit_code) from None


@contextmanager
def one_line() -> Iterator[None]:
    """Tells wrong use (an unknown option, a missing argument) as all other errors are told."""
    try:
        yield
    except TyperException as error:
        words = " ".join(error.format_message().split())
        if words.startswith("Usage:"):
            raise  # nothing was asked for: the help is the answer
        words = words.replace("Value error, ", "")
        command = getattr(getattr(error, "ctx", None), "command_path", "weft")
        say(f"error: {words[:1].lower()}{words[1:].rstrip('.')}; see `{command} --help`")
        raise typer.Exit(InputError.exit_code) from None


app = typer.Typer(
    name="weft",
    cls=Commands,
    help="Weave one neural network through many devices: plan, price, run.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from weft.version import __version__

        print(f"weft {__version__}")
        raise typer.Exit


@app.callback()
def _all_commands(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
    debug: Annotated[
        bool,
        typer.Option(
            "--debug", help="Show where an internal error comes from. Any command takes it."
        ),
    ] = False,
) -> None:
    """Weave one neural network through many devices: plan, price, run."""


def say(text: str) -> None:
    """Prints a line for people on stderr, so that stdout has only the document."""
    print(printable(text), file=sys.stderr, flush=True)


def show(renderable: RenderableType) -> None:
    """Prints a table on stdout, as wide as the terminal, or a hundred columns without a terminal."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=100)
    console.print(renderable)


def show_json(document: object) -> None:
    """Prints one JSON document on standard output."""
    print(msgspec.json.format(msgspec.json.encode(document), indent=1).decode())


@contextmanager
def writing(what: str, path: Path) -> Iterator[None]:
    """If a file cannot be written, raises an error with its path."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{what} {path}: {error.strerror or error}") from None
