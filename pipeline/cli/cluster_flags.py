"""The options that name a cluster, for commands that look at jobs and need no file of theirs.

`-b` and `-X` may also stand before the command, as for all commands of `odradek`.
"""

import functools
from collections.abc import Callable
from typing import Any, Final, ParamSpec, TypeVar

import click

from odradek.pipeline.cli.root_options import environment_settings, root_settings
from odradek.pipeline.errors import PipelineError
from odradek.pipeline.jobs.copy_options import ClusterAccess
from odradek.pipeline.jobs.settings import parse_properties, with_prefix

P = ParamSpec("P")
R = TypeVar("R")

BOOTSTRAP_DEFAULT: Final = "127.0.0.1:9092"


def takes_cluster(command: Callable[P, R]) -> Callable[..., R]:
    """Give a click command `--bootstrap-servers` and `-X`; it is called with `access` for both."""

    @functools.wraps(command)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        kwargs["access"] = _access(kwargs)
        return command(*args, **kwargs)

    decorated: Callable[..., R] = click.option(
        "-X",
        "--property",
        "cluster_properties",
        multiple=True,
        metavar="kafka.NAME=VALUE",
        help="A property of Kafka's clients.",
    )(wrapper)
    return click.option(
        "--bootstrap",
        "-b",
        "--bootstrap-servers",
        "bootstrap_servers",
        default=None,
        help=f"Any broker of the cluster.  [default: {BOOTSTRAP_DEFAULT}]",
    )(decorated)


def _access(parameters: dict[str, Any]) -> ClusterAccess:
    try:
        named = {**environment_settings(), **root_settings()}
        given = parse_properties(parameters.pop("cluster_properties"))
    except PipelineError as error:
        raise click.UsageError(str(error)) from error
    unknown = [name for name in given if not name.startswith("kafka.")]
    if unknown:
        raise click.UsageError(f"{unknown[0]} is no property here: write -X kafka.NAME=VALUE")
    bootstrap = parameters.pop("bootstrap_servers") or named.get("bootstrap.servers")
    return ClusterAccess(
        bootstrap_servers=str(bootstrap or BOOTSTRAP_DEFAULT),
        kafka=with_prefix({**named, **given}, "kafka."),
    )
