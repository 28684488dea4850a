"""Fixtures of the command line's tests: the command in this process, and a cluster.

The cluster is an Odradek of the session. With TEST_BOOTSTRAP=HOST:PORT the same tests run
against another one, Apache Kafka for instance: what they expect is what any Kafka does.
"""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from uuid import uuid4

import pytest
from click.testing import CliRunner

from odradek.node.cli.main import cli


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command printed and how it ended."""

    exit_code: int
    stdout: str
    stderr: str

    def json(self) -> object:
        """stdout as one JSON document."""
        assert self.exit_code == 0, self.stderr
        document: object = json.loads(self.stdout)
        return document

    def json_lines(self) -> list[dict[str, object]]:
        """stdout as JSON Lines."""
        assert self.exit_code == 0, self.stderr
        return [json.loads(line) for line in self.stdout.splitlines()]


Run = Callable[..., Ran]


@pytest.fixture
def odradek() -> Run:
    """`odradek("topic", "list", stdin=...)`: the command without a cluster."""

    def run(*arguments: str, stdin: str | bytes | None = None, bootstrap: str = "") -> Ran:
        # None takes a variable away: the surrounding shell has no say in what a test expects.
        own = [name for name in os.environ if name.startswith("ODRADEK_")]
        environment = {**dict.fromkeys(own), "ODRADEK_BOOTSTRAP": bootstrap or None}
        result = CliRunner().invoke(cli, arguments, input=stdin, env=environment)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Ran(result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture(scope="session")
def bootstrap(request: pytest.FixtureRequest) -> str:
    """The address of the cluster under test."""
    given = os.environ.get("TEST_BOOTSTRAP")
    if given:
        return given
    servers: str = request.getfixturevalue("kafka_broker").bootstrap_servers
    return servers


@pytest.fixture
def kafka(odradek: Run, bootstrap: str) -> Run:
    """`kafka("topic", "list")`: the command with a cluster behind it."""

    def run(*arguments: str, stdin: str | bytes | None = None) -> Ran:
        return odradek(*arguments, stdin=stdin, bootstrap=bootstrap)

    return run


@pytest.fixture
def topic(kafka: Run) -> Iterator[str]:
    """A new topic with three partitions, for the time of one test."""
    name = f"cli-{uuid4().hex[:12]}"
    created = kafka("topic", "create", name, "--partitions", "3")
    assert created.exit_code == 0, created.stderr
    yield name
    kafka("topic", "delete", name, "--yes", "--if-exists")


@pytest.fixture
def keeps_old_records(kafka: Run, topic: str) -> None:
    """Lets a test write records of 1970, which the default retention would take any moment."""
    assert kafka("config", "set", "topic", topic, "retention.ms=-1").exit_code == 0


@pytest.fixture
def group_name() -> str:
    """A new group id."""
    return f"cli-group-{uuid4().hex[:12]}"
