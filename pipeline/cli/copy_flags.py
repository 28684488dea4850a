"""The settings of `replay` and `mirror` on the command line: `--topics-prefix` is `topics.prefix`.

As those of jobs (job_flags.py): a YAML file, options of the same names before it, and -X NAME=VALUE
for what has no option of its own.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from odradek.pipeline.cli.root_options import environment_settings, root_settings
from odradek.pipeline.errors import PipelineError
from odradek.pipeline.jobs.settings import parse_properties, read_settings

F = TypeVar("F", bound=Callable[..., Any])
Options = TypeVar("Options")


def takes_settings(settings: Mapping[str, tuple[str | None, str]]) -> Callable[[F], F]:
    """Give a click command the argument FILE, an option for each setting, and -X. The command
    gets them as they are; `given_settings` reads them."""

    def decorate(command: F) -> F:
        decorated = click.option(
            "-X",
            "--property",
            "job_properties",
            multiple=True,
            metavar="NAME=VALUE",
            help="Any other setting, such as kafka.security.protocol=SSL.",
        )(command)
        for name, (default, help_text) in reversed(list(settings.items())):
            shown = f"{help_text}  [default: {default}]" if default else help_text
            flags = [f"--{name.replace('.', '-')}", name.replace(".", "_")]
            if name == "bootstrap.servers":
                flags[:0] = ["--bootstrap", "-b"]
            decorated = click.option(*flags, default=None, help=shown)(decorated)
        file = click.Path(dir_okay=False, path_type=Path)
        return click.argument("settings_file", metavar="[FILE]", required=False, type=file)(
            decorated
        )

    return decorate


def given_settings(parameters: Mapping[str, Any], names: Mapping[str, object]) -> dict[str, str]:
    """All that the file, -X and the options say, the latter before the former.

    Options of the whole command line (`odradek -b HOST -X NAME=VALUE pipe ...`) and variables are
    of the one cluster, so `mirror`, which has two, does without them.
    """
    properties = parse_properties(parameters["job_properties"])
    options = {name: parameters[name.replace(".", "_")] for name in names}
    given = {name: value for name, value in options.items() if value is not None}
    if "bootstrap.servers" not in names:
        return read_settings(parameters["settings_file"], {**properties, **given})
    found = read_settings(parameters["settings_file"], {**root_settings(), **properties, **given})
    return {**environment_settings(), **found}


def checked(make: Callable[[], Options]) -> Options:
    """What is wrong with the settings is wrong usage: exit code 2."""
    try:
        return make()
    except PipelineError as error:
        raise click.UsageError(str(error)) from error
