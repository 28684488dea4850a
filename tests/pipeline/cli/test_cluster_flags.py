"""Which cluster a command means: by its own options, those before it, the environment."""

import click
import pytest
from click.testing import CliRunner

from odradek.pipeline.cli.cluster_flags import takes_cluster
from odradek.pipeline.cli.root_options import BOOTSTRAP_VARIABLE
from odradek.pipeline.jobs.copy_options import ClusterAccess


@click.group()
@click.option("-b", "bootstrap")
@click.option("-X", "properties", multiple=True)
def root(bootstrap: str | None, properties: tuple[str, ...]) -> None:
    """As that of the broker."""


@root.command("show")
@takes_cluster
def show(access: ClusterAccess) -> None:
    """What was given."""
    click.echo(f"{access.bootstrap_servers} {sorted(access.kafka.items())}")


def _show(*arguments: str) -> str:
    result = CliRunner().invoke(root, arguments)
    return result.output.strip()


def test_own_options_come_before_those_of_the_command_line_and_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert _show("show") == "127.0.0.1:9092 []"
    monkeypatch.setenv(BOOTSTRAP_VARIABLE, "env:1")
    assert _show("show") == "env:1 []"
    assert _show("-b", "root:2", "-X", "client.id=a", "show") == "root:2 [('client.id', 'a')]"
    assert _show("-b", "root:2", "-X", "client.id=a", "show", "-b", "own:3") == (
        "own:3 [('client.id', 'a')]"
    )
    assert _show("-X", "client.id=a", "show", "-X", "kafka.client.id=b") == (
        "env:1 [('client.id', 'b')]"
    )


def test_other_properties_are_refused() -> None:
    assert "spark.x is no property here: write -X kafka.NAME=VALUE" in _show(
        "show", "-X", "spark.x=1"
    )
    assert "client.id is no NAME=VALUE" in _show("show", "-X", "client.id")
