"""The options that tell a job on the command line: `--value-format` is `value.format` in YAML.

Used by the commands that read JobOptions.
"""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from odradek.pipeline.cli.setting_flags import checked, given_settings, takes_settings
from odradek.pipeline.jobs.setting_names import SETTINGS

P = ParamSpec("P")
R = TypeVar("R")

_PROPERTIES_HELP = "Any other setting: kafka.NAME of Kafka's clients, spark.NAME, catalog.NAME, ..."


def takes_job(command: Callable[P, R]) -> Callable[..., R]:
    """Give a click command the argument FILE and an option for each setting; it is called with
    `options`, the checked JobOptions, in place of all of them. What is wrong is wrong usage."""

    @functools.wraps(command)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        # Here, as `--help` needs no Arrow.
        from odradek.pipeline.jobs.job_options import job_options

        kwargs["options"] = checked(lambda: job_options(given_settings(kwargs, SETTINGS)))
        return command(*args, **kwargs)

    decorated: Callable[..., R] = takes_settings(SETTINGS, _PROPERTIES_HELP)(wrapper)
    return decorated
