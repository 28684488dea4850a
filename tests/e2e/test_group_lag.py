"""The lag of a group is the same in every command that shows it, and in /metrics.

On three nodes, with real consumers: one that commits as it reads, one that never commits, one that
commits in some partitions only, one that reads transactions, and members of a share group.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.request import urlopen

import msgspec
import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer, ShareConsumer, TopicPartition

from odradek.node.cli.main import cli
from odradek.node.supervisor import STATE_NAME, NodeState
from tests.e2e.cluster import Cluster, running_cluster
from tests.support.waiting import wait_until

TOPIC = "orders"
PARTITIONS = 3
RECORDS = 40
"""Of each partition."""
SETTINGS = {"http.listen": "127.0.0.1:0", "offsets.topic.replication.factor": "3"}
_SAMPLE = re.compile(r'odradek_group_lag_(\w+)\{[^}]*group="([^"]*)",topic="([^"]*)"[^}]*\} (\S+)')

Told = dict[str, tuple[object, object, object]]
"""By output: records, bytes (None where it has none) and partitions without a commit."""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("lag"), settings=SETTINGS) as nodes:
        nodes.create_at(TOPIC, [[0, 1, 2], [1, 2, 0], [2, 0, 1]])
        producer = Producer({"bootstrap.servers": nodes.bootstrap_servers, "linger.ms": 50})
        for number in range(RECORDS * PARTITIONS):
            producer.produce(TOPIC, b"x" * 100, partition=number % PARTITIONS)
        assert not producer.flush(30)
        yield nodes


def run(nodes: Cluster, *arguments: str) -> Any:  # noqa: ANN401  # a JSON document
    environment = {"ODRADEK_BOOTSTRAP": nodes.bootstrap_servers}
    ran = CliRunner().invoke(cli, [*arguments, "-o", "json"], env=environment)
    assert ran.exit_code == 0, ran.output
    return json.loads(ran.stdout)


def metrics_of(nodes: Cluster, group: str) -> tuple[object, object, object]:
    """The samples of the group's coordinator; the others have none."""
    found: dict[str, float] = {"uncommitted_partitions": 0.0}
    for node in nodes.nodes.values():
        state = msgspec.json.decode((node.data / STATE_NAME).read_bytes(), type=NodeState)
        with urlopen(f"http://{state.http}/metrics") as answer:
            text = answer.read().decode()
        samples = [m.groups() for m in _SAMPLE.finditer(text)]
        found |= {name: float(value) for name, name_of, _, value in samples if name_of == group}
    return found.get("records"), found.get("bytes"), found["uncommitted_partitions"]


def told(nodes: Cluster, group: str, lag: int) -> Told:
    """What each output says of the group, whose lag is expected to be this."""
    [by_group] = run(nodes, "group", "lag", group, "--by", "group")
    rows = run(nodes, "group", "lag", group)
    [in_list] = [row for row in run(nodes, "group", "list") if row["group"] == group]
    explained = run(nodes, "group", "explain", group)
    [described] = run(nodes, "group", "describe", group)
    waited = run(nodes, "group", "wait", group, "--lag", str(lag))
    sums = {"lag --by group": by_group, "list": in_list, "explain": explained, "wait": waited}
    return {
        **{
            name: (row["lag"], row.get("bytes"), row["uncommitted_partitions"])
            for name, row in sums.items()
        },
        "lag": _summed(rows),
        "describe": _summed(described["offsets"]),
        "metrics": metrics_of(nodes, group),
    }


def _summed(rows: list[dict[str, object]]) -> tuple[int, int, int]:
    return (
        sum(int(str(row["lag"])) for row in rows),
        sum(int(str(row["bytes"])) for row in rows),
        sum(row["counted_from"] == "log start" for row in rows),
    )


def wait_until_all_say(nodes: Cluster, group: str, records: int, uncommitted: int) -> int:
    """All outputs agree, within the second that /metrics may be old. Returns the bytes."""
    found: Told = {}

    def agreed() -> set[object]:
        nonlocal found
        found = told(nodes, group, records)
        counts = {(lag, without) for lag, _, without in found.values()}
        sizes = {size for _, size, _ in found.values() if size is not None}
        return sizes if counts == {(records, uncommitted)} and len(sizes) == 1 else set()

    try:
        [size] = wait_until(agreed, timeout_s=30.0, what=f"all say {records}")
    except AssertionError as error:
        error.add_note(str(found))
        raise
    return int(float(str(size)))


@contextmanager
def reader(nodes: Cluster, group: str, protocol: str, **properties: object) -> Iterator[Consumer]:
    consumer = Consumer(
        {
            "bootstrap.servers": nodes.bootstrap_servers,
            "group.id": group,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **properties,
        }
    )
    consumer.subscribe([TOPIC])
    try:
        yield consumer
    finally:
        consumer.close()


def read(consumer: Consumer, count: int) -> None:
    seen = 0

    def is_read() -> bool:
        nonlocal seen
        found = [m for m in consumer.consume(1, timeout=0.2) if m.error() is None]
        seen += len(found)
        return seen >= count

    wait_until(is_read, timeout_s=60.0)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_consumer_that_commits_as_it_reads(nodes: Cluster, protocol: str) -> None:
    group = f"commits-{protocol}"
    with reader(nodes, group, protocol) as consumer:
        read(consumer, RECORDS * PARTITIONS)
        sizes = []
        for committed in (1, 2, RECORDS // 2, RECORDS):
            positions = [TopicPartition(TOPIC, index, committed) for index in range(PARTITIONS)]
            consumer.commit(offsets=positions, asynchronous=False)
            left = (RECORDS - committed) * PARTITIONS
            sizes.append(wait_until_all_say(nodes, group, left, 0))
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == len(sizes), "bytes shrink with every record"
    assert sizes[-1] == 0


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_consumer_that_reads_and_never_commits(nodes: Cluster, protocol: str) -> None:
    group = f"never-{protocol}"
    with reader(nodes, group, protocol) as consumer:
        read(consumer, RECORDS * PARTITIONS)
        wait_until_all_say(nodes, group, RECORDS * PARTITIONS, PARTITIONS)
        explained = run(nodes, "group", "explain", group)
        assert "and nothing is committed there" in str(explained["findings"])
        environment = {"ODRADEK_BOOTSTRAP": nodes.bootstrap_servers}
        listed = CliRunner().invoke(cli, ["group", "list"], env=environment)
        assert "UNCOMMITTED PARTITIONS" in listed.stdout
        assert "counted from the start of the log" in listed.stderr


def test_a_partition_without_a_commit(nodes: Cluster) -> None:
    group = "some"
    with reader(nodes, group, "consumer") as consumer:
        read(consumer, 1)
        consumer.commit(offsets=[TopicPartition(TOPIC, 1, RECORDS - 5)], asynchronous=False)
        wait_until_all_say(nodes, group, 5 + 2 * RECORDS, 2)
    # The group is empty now, and reads what it has committed in.
    wait_until_all_say(nodes, group, 5 + 2 * RECORDS, 2)


def test_records_of_an_open_transaction_are_lag_and_markers_are_not(nodes: Cluster) -> None:
    topic, group = "payments", "audit"
    nodes.create_at(topic, [[0, 1, 2]])
    producer = Producer(
        {"bootstrap.servers": nodes.bootstrap_servers, "transactional.id": "payments"}
    )
    producer.init_transactions(30)
    for _ in range(2):
        producer.begin_transaction()
        producer.produce(topic, b"paid", partition=0)
        producer.commit_transaction(30)
    consumer = Consumer({"bootstrap.servers": nodes.bootstrap_servers, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    wait_until_all_say(nodes, group, 1, 0)
    producer.begin_transaction()
    producer.produce(topic, b"not yet", partition=0)
    producer.flush(30)
    wait_until_all_say(nodes, group, 2, 0)
    producer.abort_transaction(30)
    consumer.close()


def test_a_share_group(nodes: Cluster) -> None:
    group = "jobs"
    environment = {"ODRADEK_BOOTSTRAP": nodes.bootstrap_servers}
    early = ["config", "set", "group", group, "share.auto.offset.reset=earliest"]
    assert CliRunner().invoke(cli, early, env=environment).exit_code == 0
    consumer = ShareConsumer({"bootstrap.servers": nodes.bootstrap_servers, "group.id": group})
    consumer.subscribe([TOPIC])
    done = 0

    def is_read() -> bool:
        nonlocal done
        done += len(consumer.poll(0.2))
        return done == RECORDS * PARTITIONS

    wait_until(is_read, timeout_s=60.0)
    # What was polled is accepted by the next poll.
    assert not consumer.poll(0.2)
    consumer.close()
    assert wait_until_all_say(nodes, group, 0, 0) == 0
    producer = Producer({"bootstrap.servers": nodes.bootstrap_servers})
    for number in range(4):
        producer.produce(TOPIC, b"x" * 100, partition=number % 2)
    assert not producer.flush(30)
    assert wait_until_all_say(nodes, group, 4, 0) > 400
