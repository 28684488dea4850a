"""Settings on the command line: `--topics-prefix` is `topics.prefix` of a YAML file.

The file is an argument, options of the same names come before it, and -X NAME=VALUE is for what has
no option of its own. Used by the commands of jobs (job_flags.py), `replay` and `mirror`.
"""

from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from odradek.pipeline.cli.root_options import environment_settings, root_settings
from odradek.pipeline.errors import PipelineError
from odradek.pipeline.jobs.settings import parse_properties, read_settings

F = TypeVar("F", bound=Callable[..., Any])
Options = TypeVar("Options")

_FILE: Final = "settings_file"
_PROPERTIES: Final = "settings_properties"


def takes_settings(
    settings: Mapping[str, tuple[str | None, str]],
    properties_help: str = "Any other setting, such as kafka.security.protocol=SSL.",
) -> Callable[[F], F]:
    """Give a click command the argument FILE, an option for each setting, and -X. The command
    gets them as they are; `given_settings` reads them.

    `settings` has the default of each, which is shown and not set, and its help.
    """

    def decorate(command: F) -> F:
        decorated = click.option(
            "-X",
            "--property",
            _PROPERTIES,
            multiple=True,
            metavar="NAME=VALUE",
            help=properties_help,
        )(command)
        for name, (default, help_text) in reversed([*settings.items()]):
            flags = [f"--{name.replace('.', '-')}", _parameter(name)]
            if name == "bootstrap.servers":
                flags[:0] = ["--bootstrap", "-b"]
            shown = f"{help_text}  [default: {default}]" if default else help_text
            decorated = click.option(*flags, default=None, help=shown)(decorated)
        file = click.Path(dir_okay=False, path_type=Path)
        return click.argument(_FILE, metavar="[FILE]", required=False, type=file)(decorated)

    return decorate


def given_settings(
    parameters: MutableMapping[str, Any], names: Mapping[str, object]
) -> dict[str, str]:
    """All that the file, -X and the options say, the latter before the former. They are taken out
    of the command's parameters.

    Options of the whole command line (`odradek -b HOST -X NAME=VALUE pipe ...`) and variables are
    of the one cluster, so `mirror`, which has two, does without them.
    """
    file = parameters.pop(_FILE)
    properties = parse_properties(parameters.pop(_PROPERTIES))
    options = {name: parameters.pop(_parameter(name)) for name in names}
    given = {name: value for name, value in options.items() if value is not None}
    if "bootstrap.servers" not in names:
        return read_settings(file, {**properties, **given})
    found = read_settings(file, {**root_settings(), **properties, **given})
    return {**environment_settings(), **found}


def checked(make: Callable[[], Options]) -> Options:
    """What is wrong with the settings is wrong usage: exit code 2."""
    try:
        return make()
    except PipelineError as error:
        raise click.UsageError(str(error)) from error


def _parameter(name: str) -> str:
    return f"setting_{name.replace('.', '_')}"
