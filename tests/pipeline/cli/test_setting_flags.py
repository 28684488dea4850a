"""Settings from a file, options and the environment."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from odradek.pipeline.cli.pipe import pipe
from odradek.pipeline.cli.root_options import BOOTSTRAP_VARIABLE
from odradek.pipeline.cli.setting_flags import checked, given_settings, takes_settings
from odradek.pipeline.errors import PipelineError

ONE = {
    "name": (None, "A name."),
    "bootstrap.servers": ("127.0.0.1:9092", "A broker."),
    "rows.per.transaction": ("100k", "Records."),
}
TWO = {"source.bootstrap.servers": (None, "A broker.")}


@click.group()
@click.option("-b", "bootstrap")
@click.option("-X", "properties", multiple=True)
def root(bootstrap: str | None, properties: tuple[str, ...]) -> None:
    """As that of the broker."""


@root.command("one")
@takes_settings(ONE)
def one(**parameters: object) -> None:
    """Of one cluster."""
    click.echo(sorted(given_settings(parameters, ONE).items()))


@root.command("two")
@takes_settings(TWO)
def two(**parameters: object) -> None:
    """Of two clusters."""
    click.echo(sorted(given_settings(parameters, TWO).items()))


@root.command("wrong")
def wrong() -> None:
    """Has wrong settings."""

    def fail() -> None:
        raise PipelineError("name is not set")

    checked(fail)


def _told(*arguments: str) -> str:
    return CliRunner().invoke(root, arguments).output.strip()


def test_options_come_before_properties_and_these_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("name: filed\nrows.per.transaction: 5\nkafka: {client.id: c}\n")
    assert _told("one", str(file), "--name", "given", "-X", "rows.per.transaction=6") == (
        "[('kafka.client.id', 'c'), ('name', 'given'), ('rows.per.transaction', '6')]"
    )


def test_the_cluster_of_the_command_line_and_of_the_environment_is_the_one_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = ("-b", "root:1", "-X", "client.id=r")
    assert _told(*before, "one") == "[('bootstrap.servers', 'root:1'), ('kafka.client.id', 'r')]"
    assert _told(*before, "one", "-b", "own:2").startswith("[('bootstrap.servers', 'own:2')")
    assert _told(*before, "two") == "[]"
    monkeypatch.setenv(BOOTSTRAP_VARIABLE, "env:3")
    assert _told("one") == "[('bootstrap.servers', 'env:3')]"
    assert _told("two", "--source-bootstrap-servers", "a:1") == (
        "[('source.bootstrap.servers', 'a:1')]"
    )


def test_help_shows_defaults_and_wrong_settings_are_wrong_usage() -> None:
    assert "Records.  [default: 100k]" in _told("one", "--help")
    result = CliRunner().invoke(root, ["wrong"])
    assert (result.exit_code, "Error: name is not set" in result.output) == (2, True)


@pytest.mark.parametrize("command", ["offload", "verify", "upsert", "replay", "mirror"])
def test_what_cannot_be_read_is_wrong_usage_in_all_commands(command: str, tmp_path: Path) -> None:
    arguments = [command, "--once"] if command in ("offload", "upsert", "mirror") else [command]
    wrong = [["-X", "nonsense"], [str(tmp_path / "absent.yaml")]]
    results = [CliRunner().invoke(pipe, [*arguments, *each]) for each in wrong]
    assert [result.exit_code for result in results] == [2, 2], [each.output for each in results]
    assert "nonsense is no NAME=VALUE" in results[0].output
