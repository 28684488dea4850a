"""`odradek format --hardened`: the node that it makes serves its admin and nobody else."""

import json
import os
import shlex
import signal
import ssl
import subprocess
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Consumer, KafkaError, Producer

from odradek.node.blocking_client import BlockingClient, NotABrokerError
from odradek.node.child import python_command
from odradek.node.cli.main import cli
from odradek.protocol.messages.metadata import MetadataRequest
from tests.support.java import run_java_tool, why_no_java_tools
from tests.support.ports import free_pair, free_port
from tests.support.waiting import LIVENESS_S, wait_until

pytestmark = pytest.mark.e2e

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
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


def commands_of_the_page(*beginnings: str) -> list[list[str]]:
    """The arguments of the commands of docs/security.md that begin so."""
    text = PAGE.read_text().replace("\\\n", " ")
    lines = [line for block in text.split("```")[1::2] for line in block.splitlines()]
    starts = tuple(f"odradek {each}" for each in beginnings)
    found = [shlex.split(line)[1:] for line in lines if line.startswith(starts)]
    assert found
    return found


class HardenedCluster:
    """Nodes that were formatted with --hardened, the others from the bundle of the first."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folders = [folder / f"node-{index}" for index in range(count)]
        self.ports = [free_port() for _ in range(count)]
        self.environment = {**os.environ, "XDG_CONFIG_HOME": str(folder)}
        peers = ",".join(f"{index}@127.0.0.1:{free_pair()}" for index in range(count))
        for index, (own, port) in enumerate(zip(self.folders, self.ports, strict=True)):
            arguments = ["--into", str(own), "--advertise", f"localhost:{port}"]
            arguments += ["--listen", f"127.0.0.1:{port}", "--node-id", str(index)]
            if index:
                arguments += ["--from", str(self.folders[0] / "cluster.bundle")]
            else:
                arguments += ["--add-profile", "prod"]
                arguments += ["--set", f"peers={peers}"] if count > 1 else []
            self.odradek("format", "--hardened", *arguments, *SMALL, *SMALLER)

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


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HardenedCluster]:
    cluster = HardenedCluster(tmp_path_factory.mktemp("hardened"), 1)
    with cluster.running():
        yield cluster


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


def test_the_profile_and_real_clients_work_at_once(one: HardenedCluster) -> None:
    one.odradek("-p", "prod", "topic", "create", "orders")
    file = str(one.folders[0] / "admin.properties")
    rows = json.loads(one.odradek("--client-config", file, "topic", "list", "-o", "json"))
    assert "orders" in [row["topic"] for row in rows]
    assert round_trip(one.properties(), "orders") == VALUES


def test_a_stranger_gets_nothing(one: HardenedCluster) -> None:
    port = one.ports[0]
    with pytest.raises(NotABrokerError), BlockingClient("127.0.0.1", port, 10) as plain:
        plain.ask(MetadataRequest())
    trusting = ssl.create_default_context(cafile=one.folders[0] / "authority.pem")
    with (
        pytest.raises(NotABrokerError),
        BlockingClient("localhost", port, 10, tls=trusting) as unknown,
    ):
        unknown.ask(MetadataRequest())
    with pytest.raises(ssl.SSLCertVerificationError):
        BlockingClient("localhost", port, 10, tls=ssl.create_default_context())
    wrong = one.run("-p", "prod", "-X", "sasl.password=wrong", "topic", "list")
    assert wrong.exit_code == 1
    assert "authentication failed" in wrong.output


def test_a_user_without_acls_may_do_nothing(one: HardenedCluster) -> None:
    one.odradek("-p", "prod", "topic", "create", "secret", "--if-not-exists")
    one.odradek("-p", "prod", "user", "add", "bob", "--password-file", "-", stdin="bob's password")
    own = ("-X", "sasl.username=bob", "-X", "sasl.password=bob's password")
    assert json.loads(one.odradek("-p", "prod", *own, "topic", "list", "-o", "json")) == []
    assert one.run("-p", "prod", *own, "topic", "create", "mine").exit_code == 1
    failures: list[KafkaError | None] = []
    producer = Producer(one.properties(sasl_username="bob", sasl_password="bob's password"))
    producer.produce("secret", b"", on_delivery=lambda error, _: failures.append(error))
    producer.flush(LIVENESS_S)
    assert [each and each.code() for each in failures] == [KafkaError.TOPIC_AUTHORIZATION_FAILED]


@pytest.mark.skipif(bool(why_no_java_tools()), reason=why_no_java_tools())
def test_the_file_for_java_is_what_kafkas_tools_need(one: HardenedCluster, tmp_path: Path) -> None:
    one.odradek("-p", "prod", "topic", "create", "of-java", "--if-not-exists")
    ran = run_java_tool(
        *("org.apache.kafka.tools.TopicCommand", "--list"),
        *("--bootstrap-server", f"localhost:{one.ports[0]}"),
        *("--command-config", str(one.folders[0] / "admin-java.properties")),
        directory=tmp_path,
    )
    assert "of-java" in ran.stdout.splitlines(), ran.stderr


def test_no_secret_is_in_a_log_or_in_the_arguments_of_a_process(one: HardenedCluster) -> None:
    password = one.properties()["sasl.password"]
    secret = (one.folders[0] / "cluster.secret").read_text().strip()
    log = (one.folders[0] / "node.log").read_text()
    arguments = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    described = one.odradek("-p", "prod", "config", "list", "broker", "0", "--all")
    for each in (password, secret):
        assert each not in log
        assert each not in arguments.stdout
        assert each not in described


def test_the_doctor_finds_nothing_serious(one: HardenedCluster) -> None:
    ran = one.run("-p", "prod", "doctor", "--security", "-o", "json")
    assert ran.exit_code == 0, ran.output
    document = json.loads(ran.stdout)
    assert document["findings"] == []
    [address] = document["addresses"]
    assert (address["protocol"], address["mechanisms"]) == ("SASL_SSL", ["SCRAM-SHA-512"])
    assert (address["strangers"], address["ways_in"]) == ("stay outside", [])
    # What one would find on the node itself: the bundle, which should be elsewhere.
    config = ("--config", str(one.folders[0] / "node.toml"))
    told = json.loads(one.odradek("-p", "prod", "doctor", "--security", *config, "-o", "json"))
    severities = {each["address"]: each["severity"] for each in told["findings"]}
    assert severities[str(one.folders[0] / "cluster.bundle")] == "warning"
    assert "serious" not in severities.values()


def test_the_commands_of_the_page_do_what_it_says(one: HardenedCluster, tmp_path: Path) -> None:
    (tmp_path / "shop.password").write_text("a password")
    for command in commands_of_the_page("-p prod acl", "-p prod user", "-p prod quota"):
        moved = [each.replace("shop.password", str(tmp_path / "shop.password")) for each in command]
        one.odradek(*moved)
    one.odradek("-p", "prod", "topic", "create", "orders", "--if-not-exists")
    shop = one.properties(sasl_username="shop", sasl_password="a password")
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


def test_three_hardened_nodes_replicate(tmp_path: Path) -> None:
    three = HardenedCluster(tmp_path, 3)
    with three.running():
        three.odradek("-p", "prod", "topic", "create", "orders", "--partitions", "3")
        [row] = json.loads(three.odradek("-p", "prod", "topic", "list", "-o", "json"))
        assert (row["partitions"], row["replication_factor"]) == (3, 3)
        for port in three.ports:
            servers = {"bootstrap_servers": f"localhost:{port}"}
            topic = f"via-{port}"
            three.odradek("-p", "prod", "topic", "create", topic)
            assert round_trip(three.properties(**servers), topic) == VALUES
        status = json.loads(three.odradek("-p", "prod", "cluster", "status", "-o", "json"))
        assert status["under_replicated"] == 0
