"""The command line. Nothing here imports torch before a command needs it."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from errno import EDQUOT, ENOSPC
from functools import cache
from pathlib import Path
from typing import Any

import typer

from fedtailor.cli import (
    auditing,
    federation,
    inspecting,
    landscaping,
    reporting,
    reproducing,
    running,
    tuning,
    using,
)
from fedtailor.core import __version__
from fedtailor.core.errors import BadInput
from fedtailor.core.inputs.plain_text import printable

FULL = (ENOSPC, EDQUOT)  # what a disk says that takes no more

# Threads that wait by spinning make small operators many times slower as soon as anything else uses
# a core. To be said before torch is loaded; whoever knows better has said it in the environment.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# A process that ends looks for garbage among all objects, torch's many modules among them, for half
# a second and more. What is frozen it leaves alone; the memory goes with the process.
atexit.register(gc.freeze)

app = typer.Typer(
    name="fedtailor",
    help="Personalised federated learning: many clients learn together, each ends with a model "
    "tailored to it.\n\nStart with: fedtailor compare local fedavg fedala",
    no_args_is_help=True,
    rich_markup_mode="rich",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
running.add_to(app)
tuning.add_to(app)
inspecting.add_to(app)
using.add_to(app)
federation.add_to(app)
reporting.add_to(app)
landscaping.add_to(app)
auditing.add_to(app)
reproducing.add_to(app)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"fedtailor {__version__}")
        raise typer.Exit


@app.callback()
def _everything(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version and exit."
    ),
) -> None:
    pass


# typer has carried its own copy of click since 0.2x: take the class that it really raises
_UsageError: Any = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


def _one_line(error: Any) -> str:
    text = " ".join(error.format_message().split())
    command = getattr(getattr(error, "ctx", None), "command_path", "fedtailor")
    return f"{text} (see {command} --help)"


@cache
def _command() -> Any:
    """All commands with their options, which take a while to put together."""
    return typer.main.get_command(app)


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line. Bad input ends with one line and exit code 2."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        code = _command()(args=[_at_home(word) for word in given], standalone_mode=False)
    except BadInput as error:
        _end(str(error), 2)
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # its message is the help itself
            typer.echo(error.format_message(), err=True)
            sys.exit(2)
        _end(_one_line(error), 2)
    except (KeyboardInterrupt, typer.Abort):
        _end("stopped", 130)
    except BrokenPipeError:
        sys.exit(0)  # somebody only wanted the first lines
    except OSError as error:
        if error.errno not in FULL:
            raise
        where = f"'{error.filename}'" if error.filename else "a file"
        _end(f"{where} cannot be written ({error.strerror}): make room, then go on with resume", 2)
    sys.exit(code if isinstance(code, int) else 0)


def _at_home(word: str) -> str:
    """`--out=~/runs` with the home folder: shells leave that to the program, unlike `--out ~/runs`.

    Example:
      >>> _at_home("--out=~/runs") == f"--out={Path.home()}/runs"
      True
    """
    flag, equals, path = word.rpartition("=") if word.startswith("--") else ("", "", word)
    return f"{flag}{equals}{Path(path).expanduser()}" if path.startswith("~/") else word


def _end(message: str, code: int) -> None:
    sys.stderr.write(f"fedtailor: {printable(' '.join(message.split()))}\n")
    sys.exit(code)
