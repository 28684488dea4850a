"""Nodes that `odradek format --hardened` made, as real processes, and what their clients need."""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result
from confluent_kafka import Consumer, Producer

from odradek.node.child import python_command
from odradek.node.cli.main import cli
from tests.support.ports import free_pair, free_port
from tests.support.waiting import LIVENESS_S, wait_until

SMALL = ("--set", "profile=dev", "--set", "workers=1", "--set", "arena.bytes=32MiB")
SMALLER = ("--set", "socket.request.max.bytes=8388608")
VALUES = [b"%d" % index for index in range(50)]


def started(folder: Path) -> subprocess.Popen[bytes]:
    """The node that was formatted there."""
    command = ("node", "start", "--config", str(folder / "node.toml"), "--output", "json")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ODRADEK_")}
    with (folder / "node.log").open("ab") as log:
        return subprocess.Popen(
            python_command("odradek", *command),
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
        )


class HardenedCluster:
    """Nodes that were formatted with --hardened, the others from the bundle of the first."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folders = [folder / f"node-{index}" for index in range(count)]
        self.ports = [free_port() for _ in range(count)]
        self.environment = {**os.environ, "XDG_CONFIG_HOME": str(folder)}
        self.peers = [f"127.0.0.1:{free_pair()}" for _ in range(count)]
        peers = ",".join(f"{index}@{address}" for index, address in enumerate(self.peers))
        for index, (own, port) in enumerate(zip(self.folders, self.ports, strict=True)):
            arguments = ["--from", str(self.folders[0] / "cluster.bundle")]
            if index == 0:
                arguments = ["--add-profile", "prod"]
                arguments += ["--set", f"peers={peers}"] if count > 1 else []
            self.format(own, index, port, *arguments)

    def format(self, folder: Path, node_id: int, port: int, *more: str) -> None:
        """Make a node."""
        own = ("--into", str(folder), "--node-id", str(node_id))
        addresses = ("--advertise", f"localhost:{port}", "--listen", f"127.0.0.1:{port}")
        self.odradek("format", "--hardened", *own, *addresses, *SMALL, *SMALLER, *more)

    def run(self, *arguments: str, stdin: str = "") -> Result:
        return CliRunner().invoke(cli, arguments, input=stdin, env=self.environment)

    def odradek(self, *arguments: str, stdin: str = "") -> str:
        """What the command line prints."""
        ran = self.run(*arguments, stdin=stdin)
        assert ran.exit_code == 0, ran.output
        return ran.stdout

    def properties(self, **changes: str) -> dict[str, Any]:
        """librdkafka's, of the admin unless changed."""
        lines = (self.folders[0] / "admin.properties").read_text().splitlines()
        own = dict(line.split("=", 1) for line in lines)
        changed = {key.replace("_", "."): value for key, value in changes.items()}
        return {**own, "log_level": 0, **changed}

    @contextmanager
    def running(self) -> Iterator[None]:
        nodes = [started(folder) for folder in self.folders]
        try:
            with ThreadPoolExecutor(len(nodes)) as pool:
                for line in pool.map(lambda node: node.stdout and node.stdout.readline(), nodes):
                    assert line, [(each / "node.log").read_text() for each in self.folders]
            yield
        finally:
            for node in nodes:
                node.send_signal(signal.SIGTERM)
            for node in nodes:
                node.communicate(timeout=60)


def round_trip(properties: Mapping[str, Any], topic: str) -> list[bytes | None]:
    producer = Producer({**properties, "acks": "all"})
    for value in VALUES:
        producer.produce(topic, value)
    assert producer.flush(LIVENESS_S) == 0
    consumer = Consumer({**properties, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[bytes | None] = []

    def has_all() -> bool:
        found.extend(each.value() for each in consumer.consume(50, 0.2) if not each.error())
        return len(found) >= len(VALUES)

    try:
        wait_until(has_all)
    finally:
        consumer.close()
    return found
