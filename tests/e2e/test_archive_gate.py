"""The retention gate on three nodes: the log goes as far as the group of the archive has committed,
and no further, whoever leads; above the cap it goes, and is counted and logged.

Retention runs twice a second and wants all records gone at once. That nothing went is believed when
the node says how much it holds back: retention has run then.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import msgspec
import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from odradek.node.cli.main import cli
from odradek.node.supervisor import STATE_NAME, NodeState
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import FindCoordinatorRequest
from tests.e2e.cluster import WAIT_S, Cluster, running_cluster
from tests.support.java import run_java_tool, why_no_java_tools
from tests.support.waiting import wait_until

LEADER = 0
RECORDS = 40
RECORD_BYTES = 1_000
SETTINGS = {
    "http.listen": "127.0.0.1:0",
    "log.retention.check.interval.ms": "500",
    "offsets.topic.num.partitions": "6",
    "offsets.topic.replication.factor": "3",
}
REPLICAS = [[LEADER, 1, 2]]
ALL_GOES = {"retention.ms": "1"}
_SAMPLE = r'odradek_{}\{{[^}}]*topic="{}"[^}}]*\}} (\S+)'


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("gate"), settings=SETTINGS) as nodes:
        yield nodes


@pytest.fixture(scope="module")
def group(nodes: Cluster) -> str:
    """A group whose coordinator does not lead the topics."""

    def coordinator(name: str) -> int:
        request = FindCoordinatorRequest(key_type=0, coordinator_keys=[name])
        (found,) = nodes[LEADER].ask(request).coordinators
        return -1 if found.error_code != ErrorCode.NONE else found.node_id

    def elsewhere() -> str:
        names = (f"pipe.orders-{number}" for number in range(50))
        return next((name for name in names if coordinator(name) not in (-1, LEADER)), "")

    return wait_until(elsewhere, timeout_s=WAIT_S, what="a group is coordinated elsewhere")


def run(nodes: Cluster, *arguments: str) -> Any:  # noqa: ANN401  # a JSON document
    environment = {"ODRADEK_BOOTSTRAP": nodes.bootstrap_servers}
    ran = CliRunner().invoke(cli, [*arguments, "-o", "json"], env=environment)
    assert ran.exit_code == 0, ran.output
    return json.loads(ran.stdout) if ran.stdout else None


def produce(nodes: Cluster, topic: str, count: int = RECORDS) -> None:
    """Each record in a batch of its own."""
    producer = Producer(
        {"bootstrap.servers": nodes.bootstrap_servers, "batch.num.messages": 1, "acks": "all"}
    )
    for _ in range(count):
        producer.produce(topic, b"x" * RECORD_BYTES, partition=0)
    assert not producer.flush(60)


def commit(nodes: Cluster, group: str, topic: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": nodes.bootstrap_servers, "group.id": group})
    try:
        consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    finally:
        consumer.close()


def log_start(nodes: Cluster, topic: str) -> int:
    [row] = run(nodes, "topic", "explain", topic)["partitions"]
    start = row["start_offset"]
    return -1 if start is None else int(start)


def wait_for_start(nodes: Cluster, topic: str, offset: int) -> None:
    wait_until(
        lambda: log_start(nodes, topic) >= offset,
        timeout_s=WAIT_S,
        what=f"the log of {topic} starts at {offset}",
    )
    assert log_start(nodes, topic) == offset


def metric(nodes: Cluster, name: str, topic: str, node_id: int = LEADER) -> float:
    """The value of a node for a topic of one partition; -1 without."""
    node = nodes[node_id]
    state = msgspec.json.decode((node.data / STATE_NAME).read_bytes(), type=NodeState)
    with urlopen(f"http://{state.http}/metrics") as answer:
        text = answer.read().decode()
    found = re.search(_SAMPLE.format(name, topic), text)
    return -1.0 if found is None else float(found[1])


def wait_for_held(nodes: Cluster, topic: str, records: int, node_id: int = LEADER) -> None:
    """Wait until the leader says that it holds so many records back."""
    wait_until(
        lambda: (
            records * RECORD_BYTES
            <= metric(nodes, "archive_held_bytes", topic, node_id)
            < (records + 1) * 1.1 * RECORD_BYTES
        ),
        timeout_s=WAIT_S,
        what=f"{records} records of {topic} are held back",
    )


def findings(nodes: Cluster, topic: str) -> list[str]:
    return [str(found["finding"]) for found in run(nodes, "topic", "explain", topic)["findings"]]


def test_the_log_goes_as_far_as_the_group_has_committed_on_all_replicas(
    nodes: Cluster, group: str
) -> None:
    nodes.create_at("orders", REPLICAS, {**ALL_GOES, "odradek.archive.group": group})
    nodes.create_at("free", REPLICAS, ALL_GOES)
    produce(nodes, "orders")
    produce(nodes, "free")
    wait_for_start(nodes, "free", RECORDS)
    wait_for_held(nodes, "orders", RECORDS)
    assert log_start(nodes, "orders") == 0
    wait_until(
        lambda: any(
            f"waits for group {group}, which has" in what for what in findings(nodes, "orders")
        ),
        timeout_s=WAIT_S,
        what="explain says that the group has committed nothing",
    )
    commit(nodes, "another", "orders", RECORDS)
    for offset in (10, 25):
        commit(nodes, group, "orders", offset)
        wait_for_start(nodes, "orders", offset)
        wait_for_held(nodes, "orders", RECORDS - offset)
        assert log_start(nodes, "orders") == offset
    wait_until(
        lambda: [metric(nodes, "log_start_offset", "orders", n) for n in (1, 2)] == [25, 25],
        timeout_s=WAIT_S,
        what="the followers have followed",
    )
    wait_until(
        lambda: any(
            f"Retention of orders-0 waits for group {group} at offset 25: it keeps" in what
            for what in findings(nodes, "orders")
        ),
        timeout_s=WAIT_S,
        what="explain names the offset",
    )
    assert metric(nodes, "archive_lost_bytes_total", "orders") == 0


def test_a_leader_that_is_killed_deletes_nothing_more_nor_does_the_next_one(
    nodes: Cluster, group: str
) -> None:
    nodes.create_at("alone", [[LEADER]], {**ALL_GOES, "odradek.archive.group": group})
    nodes.create_at("led", REPLICAS, {**ALL_GOES, "odradek.archive.group": group})
    for topic in ("alone", "led"):
        produce(nodes, topic)
        commit(nodes, group, topic, 15)
        wait_for_start(nodes, topic, 15)
    nodes[LEADER].kill()
    wait_until(
        lambda: nodes.leader_of("led", at=1) != LEADER, timeout_s=WAIT_S, what="another node leads"
    )
    leader = nodes.leader_of("led", at=1)
    wait_for_held(nodes, "led", RECORDS - 15, leader)
    assert log_start(nodes, "led") == 15
    commit(nodes, group, "led", 20)
    wait_for_start(nodes, "led", 20)
    nodes[LEADER].start()
    wait_for_held(nodes, "alone", RECORDS - 15)
    assert log_start(nodes, "alone") == 15
    commit(nodes, group, "alone", 30)
    wait_for_start(nodes, "alone", 30)
    nodes.wait_until_whole("led")


def test_above_the_cap_the_log_goes_counted_and_logged_once(nodes: Cluster, group: str) -> None:
    configs = {
        **ALL_GOES,
        "odradek.archive.group": group,
        "odradek.archive.max.bytes": str(20 * RECORD_BYTES),
    }
    nodes.create_at("capped", REPLICAS, configs)
    commit(nodes, group, "capped", 2)
    produce(nodes, "capped", 3)
    wait_for_start(nodes, "capped", 2)  # The leader knows what is committed.
    produce(nodes, "capped", RECORDS - 3)
    leader = nodes.leader_of("capped")
    wait_until(
        lambda: metric(nodes, "archive_lost_bytes_total", "capped", leader) > 18 * RECORD_BYTES,
        timeout_s=WAIT_S,
        what="the log is at its cap",
    )
    start = log_start(nodes, "capped")
    assert RECORDS - 21 <= start <= RECORDS - 18, "the cap, and batches have headers"
    wait_for_held(nodes, "capped", RECORDS - start, leader)
    produce(nodes, "capped", 5)
    wait_for_start(nodes, "capped", start + 5)
    lines = [json.loads(line) for line in nodes[leader].log().splitlines() if "{" in line]
    said = [line for line in lines if "retention deletes records that the group" in line["event"]]
    assert [(line["topic"], line["group"], line["offset"]) for line in said] == [
        ("capped", group, 2)
    ]
    # DeleteRecords is an order.
    run(nodes, "topic", "trim", "capped", "--before", str(start + 7), "--yes")
    assert log_start(nodes, "capped") == start + 7
    nodes.wait_until_said(leader, "DeleteRecords has deleted records that the group of the archive")


def test_without_the_config_retention_goes_on(nodes: Cluster, group: str) -> None:
    nodes.create_at("released", REPLICAS, {**ALL_GOES, "odradek.archive.group": group})
    produce(nodes, "released")
    leader = nodes.leader_of("released")
    wait_for_held(nodes, "released", RECORDS, leader)
    assert log_start(nodes, "released") == 0
    run(nodes, "config", "unset", "topic", "released", "odradek.archive.group")
    wait_for_start(nodes, "released", RECORDS)
    assert metric(nodes, "archive_held_bytes", "released", leader) == -1
    assert findings(nodes, "released") == []


def test_what_the_tools_say_to_values_that_are_none(nodes: Cluster) -> None:
    environment = {"ODRADEK_BOOTSTRAP": nodes.bootstrap_servers}
    for setting, reason in (
        ("odradek.archive.max.bytes=-2", "Value must be at least -1"),
        ("odradek.archive.max.ms=30d", "Not a number of type LONG"),
        ("odradek.archive.grup=g", "Unknown topic config name: odradek.archive.grup"),
    ):
        command = ["topic", "create", "refused", "--config", setting]
        ran = CliRunner().invoke(cli, command, env=environment)
        assert ran.exit_code != 0
        assert reason in " ".join(ran.output.split()), ran.output
    admin = AdminClient({"bootstrap.servers": nodes.bootstrap_servers})
    assert "refused" not in admin.list_topics(timeout=30).topics


@pytest.mark.skipif(bool(why_no_java_tools()), reason=why_no_java_tools() or "Java is there")
def test_kafkas_own_tools_set_and_show_the_gate(nodes: Cluster, group: str, tmp_path: Path) -> None:
    """All but kafka-topics --create, which knows the names of Kafka's configs and asks nobody."""
    nodes.create_at("tooled", [[LEADER]], ALL_GOES)
    server = ("--bootstrap-server", nodes.bootstrap_servers)
    about = ("--entity-type", "topics", "--entity-name", "tooled")
    configs = "kafka.admin.ConfigCommand"
    added = f"odradek.archive.group={group},odradek.archive.max.bytes=4096"
    done = run_java_tool(
        configs, *server, *about, "--alter", "--add-config", added, directory=tmp_path
    )
    assert "Completed updating config for topic tooled." in done.stdout, done.stdout + done.stderr
    done = run_java_tool(configs, *server, *about, "--describe", directory=tmp_path)
    assert f"odradek.archive.group={group} sensitive=false" in done.stdout
    refused = run_java_tool(
        configs,
        *server,
        *about,
        *("--alter", "--add-config", "odradek.archive.max.ms=-7"),
        directory=tmp_path,
    )
    assert (
        "Invalid value -7 for configuration odradek.archive.max.ms: Value must be at least -1"
        in refused.stdout + refused.stderr
    )
    create = ("--create", "--topic", "by-kafka", "--config", "odradek.archive.group=g")
    topics = "org.apache.kafka.tools.TopicCommand"
    refused = run_java_tool(topics, *server, *create, directory=tmp_path)
    assert "Unknown topic config name: odradek.archive.group" in refused.stdout + refused.stderr
