"""What docs/operating.md says of the unit, and docs/operations.md of backup and restore."""

import configparser
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from odradek.node.child import ChildTimeouts, python_command
from odradek.node.cli.main import cli
from odradek.node.config import load
from odradek.node.embedded import EmbeddedBroker
from tests.support.operations_page import PAGE as OPERATIONS
from tests.support.operations_page import chapters
from tests.support.ports import free_port

PAGE = Path(__file__).parents[2] / "docs" / "operating.md"
DATA = "/var/lib/odradek/data"
ROUNDS = 3
"""Of a shutdown, each with ChildTimeouts.stop."""


def block(kind: str, containing: str) -> str:
    """A block of the page."""
    blocks = (each.partition("\n") for each in PAGE.read_text().split("```")[1::2])
    [text] = [text for language, _, text in blocks if language == kind and containing in text]
    return text


@pytest.fixture
def unit() -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # keys have capitals
    parser.read_string(block("ini", "[Service]"))
    return parser


def test_the_unit_has_time_for_the_whole_shutdown(unit: configparser.RawConfigParser) -> None:
    settings = load(options={"data": "/data"}, environment={})
    needed_s = settings.controlled_shutdown_ms / 1000 + ROUNDS * ChildTimeouts().stop
    assert unit.getint("Service", "TimeoutStopSec") >= needed_s
    assert unit.get("Service", "KillMode") == "mixed"


def test_the_unit_starts_a_command_that_exists(unit: configparser.RawConfigParser) -> None:
    program, *arguments = shlex.split(unit.get("Service", "ExecStart"))
    assert Path(program).name == "odradek"
    context = cli.make_context("odradek", [*arguments[:2], "--help"], resilient_parsing=True)
    node = cli.get_command(context, arguments[0])
    assert node is not None
    assert arguments[2] in {
        option
        for parameter in node.get_command(context, arguments[1]).params  # type: ignore[attr-defined]
        for option in parameter.opts
    }


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_finds_no_fault_in_the_unit(tmp_path: Path) -> None:
    text = block("ini", "[Service]").replace("/opt/odradek/bin/odradek", sys.executable)
    path = tmp_path / "odradek.service"
    path.write_text(text.replace("User=odradek", "User=root"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    # Of this unit: others on the machine may have faults.
    assert [line for line in done.stderr.splitlines() if "odradek.service" in line] == []


@pytest.mark.e2e
def test_the_service_manager_learns_when_the_node_serves_clients(tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "node.toml").write_text(
        block("toml", "node.id")
        .replace(DATA, str(tmp_path / "data"))
        .replace("10.0.0.1:9092", f"127.0.0.1:{port}")
        .replace("127.0.0.1:8080", "127.0.0.1:0")
    )
    arguments = ("--config", str(tmp_path / "node.toml"))
    subprocess.run(python_command("odradek", "format", *arguments), check=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(30)
        environment = {**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify")}
        command = python_command("odradek", "node", "start", *arguments)
        with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as node:
            try:
                assert manager.recv(100) == b"READY=1"
                socket.create_connection(("127.0.0.1", port)).close()
            finally:
                node.send_signal(signal.SIGTERM)
                assert node.wait(60) == 0


def follow(title: str, broker: EmbeddedBroker, folder: Path) -> None:
    """Do what a chapter of docs/operations.md says, in `folder`."""
    (chapter,) = (each for each in chapters(OPERATIONS.read_text()) if each.title == title)
    for step in chapter.steps:
        if step.command.startswith("systemctl"):
            {"stop": broker.stop, "start": broker.start}[step.command.split()[1]]()
        else:
            moved = step.command.replace("/var/lib/odradek", str(folder))
            subprocess.run(shlex.split(moved.replace("/backup", str(folder))), check=True)


def produce(broker: EmbeddedBroker, values: range) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for value in values:
        producer.produce("orders", str(value))
    assert producer.flush(30) == 0


def read(broker: EmbeddedBroker) -> tuple[list[str], int]:
    """Every record, and the committed offset of the group."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "readers",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    try:
        consumer.assign([TopicPartition("orders", 0, 0)])
        values = []
        while (message := consumer.poll(30)) is not None and message.error() is None:
            values.append((message.value() or b"").decode())
        [committed] = consumer.committed([TopicPartition("orders", 0)], 30)
        return values, committed.offset
    finally:
        consumer.close()


@pytest.mark.e2e
def test_a_node_is_restored_from_its_backup(tmp_path: Path) -> None:
    broker = EmbeddedBroker(tmp_path, settings={"node.id": "4"})
    with broker:
        broker.create_topic("orders", configs={"retention.ms": "-1"})
        produce(broker, range(1000))
        consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "readers"})
        consumer.commit(offsets=[TopicPartition("orders", 0, 700)], asynchronous=False)
        consumer.close()
        follow("A node", broker, tmp_path)
        size = disk_bytes(tmp_path / "odradek")
        assert size < 2 * disk_bytes(tmp_path / "data")  # the holes are kept
        produce(broker, range(1000, 1500))
        assert len(read(broker)[0]) == 1500
        follow("A single node", broker, tmp_path)
        assert read(broker) == ([str(value) for value in range(1000)], 700)
        # The node goes on from there.
        produce(broker, range(5))
        assert len(read(broker)[0]) == 1005


def disk_bytes(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())
