"""The cluster as the environment names it, and `odradek -b HOST -X PROPERTY=VALUE pipe ...`.

The options are those of the whole command line, which checks them only for its own commands. Both
functions give settings of a job, so properties of Kafka's clients have `kafka.` in front.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.jobs.settings import parse_properties

BOOTSTRAP_VARIABLE: Final = "ODRADEK_BOOTSTRAP"
CLIENT_CONFIG_VARIABLE: Final = "ODRADEK_CLIENT_CONFIG"


def root_settings() -> dict[str, str]:
    """Of `-b`, `--client-config` and `-X`, the last one before the others. They come before the
    file of a job. PipelineError for a property that cannot be read, and for a profile."""
    options = click.get_current_context().find_root().params
    if options.get("cluster_profile"):
        raise PipelineError(
            "odradek pipe knows no profiles: name the cluster with -b, and its properties with -X"
            " or --client-config"
        )
    file = options.get("client_config")
    found = _of_clients(_read_properties(Path(file)) if file else {})
    found |= _of_clients(parse_properties(options.get("properties") or ()))
    if options.get("bootstrap"):
        found["bootstrap.servers"] = str(options["bootstrap"])
    return found


def environment_settings() -> dict[str, str]:
    """Of the variables that all commands know; everything else comes before them."""
    file = os.environ.get(CLIENT_CONFIG_VARIABLE)
    found = _of_clients(_read_properties(Path(file)) if file else {})
    bootstrap = os.environ.get(BOOTSTRAP_VARIABLE)
    return found | ({"bootstrap.servers": bootstrap} if bootstrap else {})


def _of_clients(properties: Mapping[str, str]) -> dict[str, str]:
    return {f"kafka.{name}": value for name, value in properties.items()}


def _read_properties(file: Path) -> dict[str, str]:
    """One KEY=VALUE a line; empty lines and those with `#` in front are left out."""
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise PipelineError(f"{file} cannot be read: {error}") from error
    found = {}
    for number, line in enumerate(lines, 1):
        name, equals, value = line.partition("=")
        if not line or line.startswith("#"):
            continue
        if not equals or not name.strip():
            # Without the line, which may be a password.
            raise PipelineError(f"{file}: line {number} is no KEY=VALUE")
        found[name.strip()] = value.strip()
    return found
