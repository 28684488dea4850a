"""The options that tell a job on the command line: `--value-format` is `value.format` in YAML.

What the command line says comes before the file. Used by the commands that read JobOptions.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import click

from odradek.pipeline.cli.root_options import environment_settings, root_settings
from odradek.pipeline.errors import PipelineError
from odradek.pipeline.jobs.setting_names import SETTINGS
from odradek.pipeline.jobs.settings import parse_properties, read_settings

P = ParamSpec("P")
R = TypeVar("R")


def takes_job(command: Callable[P, R]) -> Callable[..., R]:
    """Give a click command the argument FILE and an option for each setting; it is called with
    `options`, the checked JobOptions, in place of all of them. What is wrong is wrong usage."""

    @functools.wraps(command)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        # Here, as `--help` needs no Arrow.
        from odradek.pipeline.jobs.job_options import job_options

        try:
            kwargs["options"] = job_options(_settings(kwargs))
        except PipelineError as error:
            raise click.UsageError(str(error)) from error
        return command(*args, **kwargs)

    decorated: Callable[..., R] = click.option(
        "-X",
        "--property",
        "job_properties",
        multiple=True,
        metavar="NAME=VALUE",
        help="Any other setting: kafka.NAME of Kafka's clients, spark.NAME, catalog.NAME, ...",
    )(wrapper)
    for name, (default, help_text) in reversed([*SETTINGS.items()]):
        flags = [f"--{name.replace('.', '-')}", _parameter(name)]
        if name == "bootstrap.servers":
            flags[:0] = ["--bootstrap", "-b"]
        shown = help_text if default is None else f"{help_text}  [default: {default}]"
        decorated = click.option(*flags, default=None, help=shown)(decorated)
    file = click.Path(dir_okay=False, path_type=Path)
    return click.argument("job_file", metavar="[FILE]", required=False, type=file)(decorated)


def _settings(parameters: dict[str, Any]) -> dict[str, str]:
    """The settings in the command's parameters, which are taken out of these."""
    properties = parse_properties(parameters.pop("job_properties"))
    options = {name: parameters.pop(_parameter(name)) for name in SETTINGS}
    given = {name: value for name, value in options.items() if value is not None}
    found = read_settings(parameters.pop("job_file"), {**root_settings(), **properties, **given})
    return {**environment_settings(), **found}


def _parameter(name: str) -> str:
    return f"setting_{name.replace('.', '_')}"
