"""`odradek format --hardened`: the node that it makes serves its admin and nobody else."""

import json
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Producer

from odradek.node.blocking_client import BlockingClient, NotABrokerError
from odradek.protocol.messages.metadata import MetadataRequest
from tests.e2e.hardened import VALUES, HardenedCluster, round_trip
from tests.support.java import run_java_tool, why_no_java_tools
from tests.support.waiting import LIVENESS_S

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HardenedCluster]:
    cluster = HardenedCluster(tmp_path_factory.mktemp("hardened"), 1)
    with cluster.running():
        yield cluster


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


def test_every_group_of_commands_works_with_a_profile(one: HardenedCluster) -> None:
    """Those that other tests here and the page do not run. The same were run against Kafka 4.3.1
    with SASL_SSL and ACLs, where `client`, `explain` and `lag` are refused: only ours know them."""
    commands = (
        *("topic create profiled", "topic describe profiled", "topic explain profiled"),
        *("topic offsets profiled", "topic trim profiled --yes", "config list broker 0"),
        *("config why log.retention.ms", "config set topic profiled retention.ms=200000"),
        *("produce profiled", "consume profiled -n 1 --group readers"),
        *("group list", "group describe readers", "group explain readers", "group lag readers"),
        "group reset-offsets readers --to earliest --topic profiled",
        *("broker list", "cluster status", "client list", "logdir list", "txn list"),
        *("elect profiled", "feature list"),
        *("user list", "quota list", "acl list", "doctor", "group delete readers -y"),
        "topic delete profiled --yes",
    )
    for command in commands:
        ran = one.run("-p", "prod", *command.split(), stdin="a record\n")
        assert ran.exit_code == 0, (command, ran.output)


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
