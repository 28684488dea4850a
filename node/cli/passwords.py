"""Passwords and other secrets for commands: from a prompt, a file, standard input or the
environment.

Never from an argument: every user of the machine can read those.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import click

R = TypeVar("R")

STANDARD_INPUT: Final = "-"


def secret_options(name: str, title: str) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """`--<name>-file` and `--<name>-env`, for `read_secret`."""

    def with_options(command: Callable[..., R]) -> Callable[..., R]:
        file = click.option(
            f"--{name}-file",
            metavar="FILE",
            help=f"The {title} is the first line of this file; - is standard input.",
        )
        variable = click.option(
            f"--{name}-env", metavar="NAME", help=f"The {title} is in this environment variable."
        )
        return file(variable(command))

    return with_options


password_options = secret_options("password", "password")


def read_password(what: str, file: str | None, variable: str | None) -> str:
    """The password, not empty. Without a file and a variable a terminal is asked for it, twice.
    Raises UsageError if there is neither, ClickException if it cannot be read."""
    return read_secret(what, file, variable, name="password", is_new=True)


def read_secret(
    what: str, file: str | None, variable: str | None, *, name: str, is_new: bool
) -> str:
    """As `read_password`, with the options of `secret_options(name)`. A terminal is asked twice
    only for a secret that is new."""
    options = f"--{name}-file", f"--{name}-env"
    if file is not None and variable is not None:
        raise click.UsageError(f"Give one of {' and '.join(options)}.")
    if file is not None:
        secret = _first_line(what, file)
    elif variable is not None:
        secret = os.environ.get(variable, "")
        if not secret:
            raise click.ClickException(f"the environment variable {variable} has no {what}")
    elif sys.stdin.isatty():
        secret = str(click.prompt(what, hide_input=True, confirmation_prompt=is_new, err=True))
    else:
        raise click.UsageError(
            f"There is no terminal to ask for the {what}. Give {' or '.join(options)}."
        )
    if not secret:
        raise click.ClickException(f"the {what} is empty")
    return secret


def _first_line(what: str, file: str) -> str:
    try:
        if file == STANDARD_INPUT:
            return sys.stdin.readline().rstrip("\r\n")
        with Path(file).open(encoding="utf-8") as stream:
            return stream.readline().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"cannot read the {what} from {file}: {error}") from error
