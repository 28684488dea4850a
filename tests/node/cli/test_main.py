"""The command as a whole: what it loads, what it says, how it fails."""

import importlib
import os
import subprocess
import sys

import pytest

from node.cli.main import COMMANDS
from tests.node.cli.conftest import Run


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_loads_and_explains_itself(name: str, odradek: Run) -> None:
    ran = odradek(name, "--help")
    assert ran.exit_code == 0
    assert ran.stdout.startswith(f"Usage: cli {name}")


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_module_of_a_command_has_a_docstring(name: str) -> None:
    assert importlib.import_module(COMMANDS[name][0]).__doc__


def test_help_imports_neither_a_kafka_client_nor_the_broker() -> None:
    """Start-up is part of every command, `serve` above all."""
    program = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from node.cli.main import cli\n"
        "assert CliRunner().invoke(cli, ['--help']).exit_code == 0\n"
        "heavy = {'confluent_kafka', 'rich', 'asyncio', 'zmq', 'lmdb', 'uvloop'}\n"
        "print(sorted(heavy & sys.modules.keys()))\n"
    )
    printed = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert printed.stdout == "[]\n"


def test_an_unknown_command_is_wrong_usage(odradek: Run) -> None:
    ran = odradek("frobnicate")
    assert ran.exit_code == 2
    assert "No such command 'frobnicate'" in ran.stderr


def test_the_version_is_told(odradek: Run) -> None:
    ran = odradek("--version")
    assert ran.exit_code == 0
    assert ran.stdout.startswith("odradek ")
