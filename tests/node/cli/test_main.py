"""The command as a whole: its imports, help and errors."""

import importlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from odradek.node.cli.main import COMMANDS, cli, further_commands
from tests.node.cli.conftest import Run

README = Path(__file__).parents[3] / "README.md"


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_loads_and_explains_itself(name: str, odradek: Run) -> None:
    ran = odradek(name, "--help")
    assert ran.exit_code == 0
    assert ran.stdout.startswith(f"Usage: cli {name}")


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_module_of_a_command_has_a_docstring(name: str) -> None:
    assert importlib.import_module(COMMANDS[name][0]).__doc__


def test_help_imports_neither_a_kafka_client_nor_the_broker() -> None:
    """Every command starts up, also `serve`."""
    program = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from odradek.node.cli.main import cli\n"
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


def documented_commands() -> list[str]:
    """Every `odradek ...` of the README's code blocks, without pipes and redirections."""
    blocks = README.read_text().split("```")[1::2]
    return re.findall(r"\bodradek ([^|<>#&)\n]+)", "\n".join(blocks))


@pytest.mark.parametrize("line", documented_commands())
def test_the_commands_of_the_readme_are_valid(line: str, tmp_path: Path) -> None:
    for name in ("node.toml", "prod.properties"):
        (tmp_path / name).touch()
        line = re.sub(rf"\S*{re.escape(name)}", str(tmp_path / name), line)
    for folder in ("DATA/stores/0", "./secure"):
        line = line.replace(folder, str(tmp_path))
    arguments = shlex.split(line)
    command: click.Command = cli
    context = click.Context(cli, info_name="odradek")
    while isinstance(command, click.Group):
        # Options of the cluster may stand before the command.
        _, (name, *arguments), _ = command.make_parser(context).parse_args(arguments)
        found = command.get_command(context, name)
        assert found is not None, name
        command, context = found, click.Context(found, info_name=name, parent=context)
    command.make_context(context.info_name, arguments)  # raises a usage error


def test_the_readme_shows_every_command() -> None:
    shown = {line.split()[0] for line in documented_commands()}
    assert shown >= COMMANDS.keys()


def test_an_unknown_command_is_wrong_usage(odradek: Run) -> None:
    ran = odradek("frobnicate")
    assert ran.exit_code == 2
    assert "No such command 'frobnicate'" in ran.stderr


def test_the_version_is_printed(odradek: Run) -> None:
    ran = odradek("--version")
    assert ran.exit_code == 0
    assert ran.stdout.startswith("odradek ")


def summaries(group: click.Group, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Each command, and its line in the help of its group on a terminal of 80 columns. Those of
    other packages write their help themselves."""
    context = click.Context(group)
    names = group.list_commands(context)
    for name in names:
        command = group.get_command(context, name)
        assert command is not None
        # As click's Group.format_commands has it.
        yield prefix + name, command.get_short_help_str(78 - 6 - max(map(len, names)))
        if isinstance(command, click.Group) and (prefix or name not in further_commands()):
            yield from summaries(command, f"{prefix}{name} ")


def test_no_summary_of_a_command_is_cut() -> None:
    assert [name for name, text in summaries(cli) if text.endswith("...")] == []


@pytest.mark.parametrize(
    "command",
    [
        ("serve",),
        ("format",),
        ("cluster", "up"),
        ("cluster", "stop-node", "1"),
        ("log", "dump", "."),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("option", [("-b", "kafka"), ("-X", "a=b")], ids=" ".join)
def test_a_command_that_connects_to_no_cluster_refuses_its_options(
    command: tuple[str, ...], option: tuple[str, str], odradek: Run
) -> None:
    ran = odradek(*option, *command)
    assert ran.exit_code == 2
    assert "This command connects to no cluster" in ran.stderr
