"""The cluster as the whole command line and the environment name it, by `odradek` itself."""

from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from odradek.node.cli.main import cli
from odradek.pipeline.cli.root_options import (
    BOOTSTRAP_VARIABLE,
    CLIENT_CONFIG_VARIABLE,
    environment_settings,
    root_settings,
)
from odradek.pipeline.errors import PipelineError


@pytest.fixture(autouse=True)
def show() -> Iterator[None]:
    """A command of `odradek` that shows what it is told."""

    @cli.command("show-cluster")
    def command() -> None:
        try:
            click.echo(sorted({**environment_settings(), **root_settings()}.items()))
        except PipelineError as error:
            raise click.ClickException(str(error)) from error

    yield
    del cli.commands["show-cluster"]


def shown(*arguments: str) -> str:
    return CliRunner().invoke(cli, [*arguments, "show-cluster"]).output.strip()


def test_properties_before_the_command_come_before_those_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("# a login\n\nsasl.username = root\nsasl.password=a=b\n")
    assert shown("-b", "a:1", "--client-config", str(file)) == str(
        [
            ("bootstrap.servers", "a:1"),
            ("kafka.sasl.password", "a=b"),
            ("kafka.sasl.username", "root"),
        ]
    )
    assert "('kafka.sasl.username', 'app')" in shown(
        "-X", "sasl.username=app", "--client-config", str(file)
    )


def test_the_environment_comes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "client.properties"
    file.write_text("client.id=a\n")
    monkeypatch.setenv(CLIENT_CONFIG_VARIABLE, str(file))
    monkeypatch.setenv(BOOTSTRAP_VARIABLE, "b:2")
    assert shown() == "[('bootstrap.servers', 'b:2'), ('kafka.client.id', 'a')]"
    assert shown("-b", "c:3", "-X", "client.id=d") == (
        "[('bootstrap.servers', 'c:3'), ('kafka.client.id', 'd')]"
    )


def test_a_file_that_cannot_be_read_is_told_without_what_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "client.properties"
    file.write_text("client.id=a\nhush\n")
    said = shown("--client-config", str(file))
    assert said == f"Error: {file}: line 2 is no KEY=VALUE"
    monkeypatch.setenv(CLIENT_CONFIG_VARIABLE, str(tmp_path))
    assert "cannot be read" in shown()


def test_a_profile_is_refused_and_not_passed_over() -> None:
    assert "odradek pipe knows no profiles: name the cluster with -b" in shown("-p", "production")
