"""Every command of docs/security.md, as it is printed there and in that order, on fresh folders."""

import json
import os
import re
import shlex
import signal
import tomllib
from pathlib import Path
from shutil import copy2

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, KafkaError, Producer

from odradek.node.cli.main import cli
from tests.e2e.hardened import SMALL, SMALLER, started
from tests.support.ports import free_port
from tests.support.waiting import LIVENESS_S, wait_until

pytestmark = pytest.mark.e2e

PAGE = (Path(__file__).parents[2] / "docs" / "security.md").read_text().replace("\\\n", " ")
BLOCKS = PAGE.split("```")[1::2]
COMMANDS = [line for block in BLOCKS for line in block.splitlines() if line.startswith("odradek ")]
PROSE = "".join(PAGE.split("```")[::2])
NAMED = re.findall(r"`(odradek [^`]+)`", PROSE)
"""Commands within sentences."""
ONLY_NAMED = {"odradek token expire", "odradek cluster status", "odradek doctor"}
"""Those that need more than is said there."""
FILES = ("shop.password", "FILE", "NEW")


class Machine:
    """A machine that the page speaks of: its folders are in one of ours."""

    def __init__(self, folder: Path, port: int) -> None:
        self.etc = folder / "etc"
        self._replaced = {
            "/etc/odradek": str(self.etc),
            "/var/lib/odradek/data": str(folder / "data"),
            "/var/log/odradek": str(folder / "log"),
            "broker.example:9093": f"localhost:{port}",
            "NAME": "shop",
        }

    def here(self, text: str) -> str:
        for theirs, ours in self._replaced.items():
            text = text.replace(theirs, ours)
        return text


class Reader:
    """Somebody who runs the commands of the page."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.done: list[str] = []
        self._environment = {**os.environ, "XDG_CONFIG_HOME": str(folder)}

    def machine(self, name: str) -> Machine:
        return Machine(self.folder / name, self.port)

    def run(self, command: str, machine: Machine, *more: str) -> str:
        """What the command prints."""
        self.done.append(command)
        arguments = [*shlex.split(machine.here(command))[1:], *more]
        ran = CliRunner().invoke(cli, arguments, env=self._environment)
        assert ran.exit_code == 0, (command, ran.output)
        return ran.stdout

    def properties(self, machine: Machine, **changes: str) -> dict[str, str | int]:
        """librdkafka's, of the admin unless changed."""
        lines = (machine.etc / "admin.properties").read_text().splitlines()
        own = dict(line.split("=", 1) for line in lines)
        changed = {key.replace("_", "."): value for key, value in changes.items()}
        return {**own, "log_level": 0, **changed}


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reader:
    monkeypatch.chdir(tmp_path)
    for name in FILES:
        (tmp_path / name).write_text("a password")
    return Reader(tmp_path)


def test_every_command_of_the_page_works_as_it_is_printed(reader: Reader) -> None:
    first, *rest = COMMANDS
    machine = reader.machine("one")
    reader.run(first, machine, *SMALL, *SMALLER)
    start, *rest = rest
    assert shlex.split(start)[1:] == ["node", "start", "--config", "/etc/odradek/node.toml"]
    reader.done.append(start)
    node = started(machine.etc)
    try:
        assert node.stdout
        assert node.stdout.readline(), (machine.etc / "node.log").read_text()
        formats = [each for each in rest if each.startswith("odradek format ")]
        format_three(reader, formats)
        for command in rest:
            if command not in formats:
                reader.run(command, machine)
        users_have_their_rights(reader, machine)
        copy2(machine.etc / "cluster.bundle", "cluster.bundle")
        copy2(machine.etc / "admin.properties", "admin.properties")
        for command in NAMED:
            if command.startswith("odradek format "):
                format_by_hand(reader, command)
            elif command not in ONLY_NAMED:
                reader.run(command, machine)
    finally:
        node.send_signal(signal.SIGTERM)
        node.communicate(timeout=60)
    assert len(reader.done) == len(COMMANDS) + len(set(NAMED) - ONLY_NAMED)
    assert set(NAMED) >= ONLY_NAMED
    new = read_authority("new/cluster.bundle")
    assert new != read_authority("cluster.bundle"), "new-authority has made another one"


def read_authority(bundle: str) -> str:
    return str(json.loads(Path(bundle).read_text())["authority_certificate"])


def format_three(reader: Reader, commands: list[str]) -> None:
    """The nodes of a cluster of three, and of a later one with what the page says of it."""
    names = ("a", "b", "c")
    for name, command in zip(names, commands, strict=True):
        machine = reader.machine(name)
        reader.run(command, machine)
        if name == "a":
            copy2(machine.etc / "cluster.bundle", "cluster.bundle")
        config = tomllib.loads((machine.etc / "node.toml").read_text())
        assert config["node"]["id"] == names.index(name)
        assert config["peers"].count("@") == 3
    [later] = re.findall(r"formatted from the bundle, too, with `(--set [^`]+)`", PROSE)
    again = commands[1].replace("--node-id 1", "--node-id 3")
    reader.run(f"{again} {later}", reader.machine("later"))
    reader.done.pop()


def format_by_hand(reader: Reader, command: str) -> None:
    """The configuration that the page shows, with files of the node `a`."""
    machine = reader.machine("by-hand")
    machine.etc.mkdir(parents=True)
    for name in ("broker.pem", "cluster.secret"):
        copy2(reader.machine("a").etc / name, machine.etc)
    [toml] = [block for block in BLOCKS if block.startswith("toml")]
    (machine.etc / "node.toml").write_text(machine.here(toml.removeprefix("toml")))
    reader.run(command.replace("node.toml", str(machine.etc / "node.toml")), machine)


def users_have_their_rights(reader: Reader, machine: Machine) -> None:
    shop = reader.properties(machine, sasl_username="shop", sasl_password="a password")
    producer = Producer({**shop, "transactional.id": "shop-1"})
    producer.init_transactions(LIVENESS_S)
    producer.begin_transaction()
    producer.produce("orders", b"")
    producer.commit_transaction(LIVENESS_S)
    consumer = Consumer({**shop, "group.id": "billing", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    refused = wait_until(lambda: consumer.poll(0.2))
    consumer.close()
    error = refused and refused.error()
    assert error
    assert error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED
