"""Passwords for commands: from a prompt, a file, standard input or the environment.

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


def password_options(command: Callable[..., R]) -> Callable[..., R]:
    """`--password-file` and `--password-env`, for `read_password`."""
    file = click.option(
        "--password-file",
        metavar="FILE",
        help="The password is the first line of this file; - is standard input.",
    )
    variable = click.option(
        "--password-env", metavar="NAME", help="The password is in this environment variable."
    )
    return file(variable(command))


def read_password(what: str, file: str | None, variable: str | None) -> str:
    """The password, not empty. Without a file and a variable a terminal is asked for it, twice.
    Raises UsageError if there is neither, ClickException if it cannot be read."""
    if file is not None and variable is not None:
        raise click.UsageError("Give one of --password-file and --password-env.")
    if file is not None:
        password = _first_line(file)
    elif variable is not None:
        password = os.environ.get(variable, "")
        if not password:
            raise click.ClickException(f"the environment variable {variable} has no {what}")
    elif sys.stdin.isatty():
        password = str(click.prompt(what, hide_input=True, confirmation_prompt=True, err=True))
    else:
        raise click.UsageError(
            f"There is no terminal to ask for the {what}. Give --password-file or --password-env."
        )
    if not password:
        raise click.ClickException(f"the {what} is empty")
    return password


def _first_line(file: str) -> str:
    try:
        if file == STANDARD_INPUT:
            return sys.stdin.readline().rstrip("\r\n")
        with Path(file).open(encoding="utf-8") as stream:
            return stream.readline().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"cannot read the password from {file}: {error}") from error
