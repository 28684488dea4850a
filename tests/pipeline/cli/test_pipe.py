"""The group of commands: help without Spark, each command, and a command that there is not."""

import pytest
from click.testing import CliRunner

from odradek.pipeline.cli.pipe import COMMANDS, pipe


def test_the_help_names_every_command() -> None:
    ran = CliRunner().invoke(pipe, ["--help"])
    assert ran.exit_code == 0
    for name in ("offload", "verify", "lag", "replay", "mirror", "upsert", "dlq", "maintain"):
        assert f"  {name}" in ran.stdout
        assert name in COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_tells_what_it_does(name: str) -> None:
    ran = CliRunner().invoke(pipe, [name, "--help"])
    assert ran.exit_code == 0, ran.output
    assert ran.stdout.startswith("Usage: pipe " + name)


def test_another_name_is_wrong_usage() -> None:
    assert CliRunner().invoke(pipe, ["onload"]).exit_code == 2
