"""Kafka's own console tools, that is its own Java clients."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conformance.dialogue import DialogueCluster, append, describe_topic, unique
from tests.support.java import run_java_tool, why_no_java_tools
from tests.support.wire import WireClient

pytestmark = [
    pytest.mark.java,
    pytest.mark.skipif(bool(why_no_java_tools()), reason=why_no_java_tools() or "Java is there"),
]

TIMEOUT_S = 60.0
PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
TOPICS = "org.apache.kafka.tools.TopicCommand"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
CONFIGS = "kafka.admin.ConfigCommand"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
ELECTIONS = "org.apache.kafka.tools.LeaderElectionCommand"
REASSIGNMENTS = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
FEATURES = "org.apache.kafka.tools.FeatureCommand"
PRODUCER_TEST = "org.apache.kafka.tools.ProducerPerformance"
CONSUMER_TEST = "org.apache.kafka.tools.ConsumerPerformance"

Tool = Callable[..., str]


@pytest.fixture
def tool(cluster: DialogueCluster, tmp_path: Path) -> Tool:
    """Runs a tool against the broker under test; what it prints. It must end well."""

    def run(name: str, *arguments: str, stdin: str = "") -> str:
        done = run_java_tool(
            name,
            "--bootstrap-server",
            cluster.bootstrap,
            *arguments,
            directory=tmp_path,
            stdin=stdin,
            timeout_s=TIMEOUT_S,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_the_console_producer_and_consumer(tool: Tool) -> None:
    """Keys, headers and null values, to a topic that is made on the way; idempotent, acks=all."""
    topic = unique("created-by-java")
    tool(
        PRODUCER,
        "--topic",
        topic,
        "--compression-codec",
        "zstd",
        *("--reader-property", "parse.key=true", "--reader-property", "parse.headers=true"),
        *("--reader-property", "null.marker=NULL"),
        stdin="a:1,b:2\tkey\tvalue\nNULL\tNULL\tNULL\n",
    )
    properties = ["print.key", "print.headers", "print.offset", "print.partition"]
    out = tool(
        CONSUMER,
        "--topic",
        topic,
        "--from-beginning",
        *("--max-messages", "2", "--timeout-ms", "20000"),
        *(f"--formatter-property={name}=true" for name in properties),
    )
    assert out.splitlines() == [
        "Partition:0\tOffset:0\ta:1,b:2\tkey\tvalue",
        "Partition:0\tOffset:1\tNO_HEADERS\tnull\tnull",
    ]


def test_a_console_consumer_in_a_group_commits(
    tool: Tool, wire: WireClient, topic: str, group: str
) -> None:
    append(wire, topic, b"one", b"two", b"three")
    arguments = ["--topic", topic, "--group", group, "--timeout-ms", "20000"]
    early = ["--command-property", "auto.offset.reset=earliest"]
    assert tool(CONSUMER, *arguments, *early, "--max-messages", "2").split() == ["one", "two"]
    described = tool(GROUPS, "--describe", "--group", group)
    (row,) = [line.split() for line in described.splitlines() if topic in line]
    assert row[:6] == [group, topic, "0", "2", "3", "1"]
    assert tool(CONSUMER, *arguments, "--max-messages", "1").split() == ["three"]


def test_the_topics_tool(cluster: DialogueCluster, tool: Tool) -> None:
    topic = unique("topic")
    created = tool(
        TOPICS, "--create", "--topic", topic, "--partitions", "3", "--config", "retention.ms=99"
    )
    assert f"Created topic {topic}" in created
    tool(TOPICS, "--alter", "--topic", topic, "--partitions", "4")
    described = tool(TOPICS, "--describe", "--topic", topic)
    replicas = cluster.replication_factor
    assert re.search(
        rf"PartitionCount: 4\s+ReplicationFactor: {replicas}\s+Configs:.*retention.ms=99", described
    )
    ids = rf"\d+(?:,\d+){{{replicas - 1}}}"
    row = rf"Partition: \d+\s+Leader: \d+\s+Replicas: {ids}\s+Isr: {ids}"
    assert len(re.findall(row, described)) == 4
    assert topic in tool(TOPICS, "--list").split()
    tool(TOPICS, "--delete", "--topic", topic)
    assert topic not in tool(TOPICS, "--list").split()


def test_the_configs_tool(tool: Tool, topic: str) -> None:
    entity = ["--entity-type", "topics", "--entity-name", topic]
    change = "cleanup.policy=[compact,delete],max.message.bytes=5000"
    tool(CONFIGS, "--alter", *entity, "--add-config", change)
    described = tool(CONFIGS, "--describe", *entity)
    assert "cleanup.policy=compact,delete" in described
    assert "max.message.bytes=5000" in described
    tool(CONFIGS, "--alter", *entity, "--delete-config", "cleanup.policy")
    everything = tool(CONFIGS, "--describe", "--all", *entity)
    assert "cleanup.policy=delete" in everything
    assert "segment.bytes=" in everything
    brokers = tool(CONFIGS, "--describe", "--all", "--entity-type", "brokers")
    assert "num.partitions=" in brokers


def test_the_groups_tool_resets_offsets(
    tool: Tool, wire: WireClient, topic: str, group: str
) -> None:
    append(wire, topic, *[b"x"] * 10)
    target = ["--group", group, "--topic", topic]
    out = tool(GROUPS, "--reset-offsets", "--to-offset", "4", "--execute", *target)
    assert re.search(rf"{topic}\s+0\s+4", out)
    assert group in tool(GROUPS, "--list").split()
    out = tool(GROUPS, "--reset-offsets", "--shift-by", "3", "--execute", *target)
    assert re.search(rf"{topic}\s+0\s+7", out)
    state = tool(GROUPS, "--describe", "--group", group, "--state")
    assert re.search(rf"{group}\s.*Empty\s+0", state)
    tool(GROUPS, "--delete", "--group", group)
    assert group not in tool(GROUPS, "--list").split()


def test_the_offsets_tool(tool: Tool, wire: WireClient, cluster: DialogueCluster) -> None:
    topic = cluster.new_topic(2)
    append(wire, topic, b"a", b"b", partition=1)
    assert tool(OFFSETS, "--topic", topic).split() == [f"{topic}:0:0", f"{topic}:1:2"]
    for special, expected in (("earliest", "0"), ("max-timestamp", "0"), ("-1", "2")):
        out = tool(OFFSETS, "--topic-partitions", f"{topic}:1", "--time", special)
        assert out.split() == [f"{topic}:1:{expected}"]


def test_the_elections_tool(tool: Tool, topic: str) -> None:
    target = ["--election-type", "preferred", "--topic", topic, "--partition", "0"]
    assert f"Valid replica already elected for partitions {topic}-0" in tool(ELECTIONS, *target)


@pytest.mark.no_restarts("the tool refuses a plan with a broker that is down")
def test_the_reassignments_tool(tool: Tool, wire: WireClient, topic: str, tmp_path: Path) -> None:
    replicas = describe_topic(wire, topic).partitions[0].replica_nodes[::-1]
    partition = {"topic": topic, "partition": 0, "replicas": replicas}
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [partition]}))
    named = ["--reassignment-json-file", str(plan)]
    assert "Successfully started" in tool(REASSIGNMENTS, "--execute", *named)
    assert f"{topic}-0 is completed" in tool(REASSIGNMENTS, "--verify", *named)
    assert "No partition reassignments found." in tool(REASSIGNMENTS, "--list")


def test_the_features_tool(tool: Tool) -> None:
    (line,) = (
        line for line in tool(FEATURES, "describe").splitlines() if "metadata.version" in line
    )
    assert re.search(r"SupportedMinVersion: \S+\s+SupportedMaxVersion: \S+", line)


def test_a_small_load_test(cluster: DialogueCluster, tool: Tool, tmp_path: Path) -> None:
    topic = cluster.new_topic(3)
    done = run_java_tool(
        PRODUCER_TEST,
        *("--topic", topic, "--num-records", "20000", "--record-size", "500"),
        *("--throughput", "-1", "--producer-props"),
        *(f"bootstrap.servers={cluster.bootstrap}", "acks=all", "compression.type=lz4"),
        directory=tmp_path,
        timeout_s=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "20000 records sent" in done.stdout
    limits = ["--num-records", "20000", "--timeout", "20000"]
    out = tool(CONSUMER_TEST, "--topic", topic, *limits)
    row = out.splitlines()[-1].split(", ")
    assert int(row[4]) == 20_000
