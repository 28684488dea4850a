"""Real consumers are rewound while they consume and records keep coming.

Every record from the new position is delivered once more, in order; nothing outside of the named
partitions is; and the undo brings the group back to where it was. Rewinding is asked for on the
command line.
"""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer, TopicPartition

from node.cli.main import cli
from node.embedded import EmbeddedBroker
from tests.e2e.cluster import running_cluster
from tests.e2e.conftest import Report
from tests.support.waiting import wait_until

PARTITIONS = 4
REWOUND = (1, 2)
NEW_POSITION = 20
RECORDS_BEFORE = 100
PAUSE_S = 0.01
"""Between two records of a partition."""
FAST: Mapping[str, str | int] = {"session.timeout.ms": 10_000, "heartbeat.interval.ms": 200}
LIBRDKAFKA: Mapping[str, Mapping[str, str | int]] = {
    "range": {"partition.assignment.strategy": "range", **FAST},
    "cooperative-sticky": {"partition.assignment.strategy": "cooperative-sticky", **FAST},
    "consumer": {"group.protocol": "consumer"},
}


class Deliveries:
    """The offsets that were delivered, by partition, in the order in which they were."""

    def __init__(self) -> None:
        self.offsets: dict[int, list[int]] = {index: [] for index in range(PARTITIONS)}

    def add(self, partition: int, offset: int) -> None:
        self.offsets[partition].append(offset)

    def forget(self) -> None:
        """What counts begins now: how the members came together does not."""
        for offsets in self.offsets.values():
            del offsets[:-1]

    @property
    def jumps(self) -> dict[int, list[tuple[int, int]]]:
        """Where the offset after one was not the next."""
        return {
            partition: [(one, other) for one, other in pairwise(offsets) if other != one + 1]
            for partition, offsets in self.offsets.items()
        }

    def have_come(self, count: int) -> bool:
        """Whether so many were delivered of every partition."""
        return all(len(offsets) >= count for offsets in self.offsets.values())


@contextmanager
def running(*targets: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run these until the block is left; each is told to stop and waited for."""
    stop = threading.Event()
    threads = [threading.Thread(target=target, args=(stop,)) for target in targets]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)


def producer_of(node: EmbeddedBroker, topic: str) -> Callable[[threading.Event], None]:
    """Sends a record to every partition again and again."""

    def produce(stop: threading.Event) -> None:
        producer = Producer({"bootstrap.servers": node.bootstrap_servers, "linger.ms": 0})
        while not stop.wait(PAUSE_S):
            for partition in range(PARTITIONS):
                producer.produce(topic, b"x", partition=partition)
            producer.poll(0)
        producer.flush(10)

    return produce


def confluent_of(
    node: EmbeddedBroker, topic: str, kind: str, seen: Deliveries
) -> Callable[[threading.Event], None]:
    """A member of confluent-kafka."""

    def consume(stop: threading.Event) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": node.bootstrap_servers,
                "group.id": topic,
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 100,
                "log_level": 0,
                **LIBRDKAFKA[kind],
            }
        )
        consumer.subscribe([topic])
        while not stop.is_set():
            message = consumer.poll(0.05)
            if message is not None and message.error() is None:
                partition, offset = message.partition(), message.offset()
                assert partition is not None
                assert offset is not None
                seen.add(partition, offset)
        consumer.close()

    return consume


def aiokafka_of(
    node: EmbeddedBroker, topic: str, seen: Deliveries
) -> Callable[[threading.Event], None]:
    """A member of aiokafka."""

    async def consume(stop: threading.Event) -> None:
        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=node.bootstrap_servers,
            group_id=topic,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=100,
            heartbeat_interval_ms=200,
            session_timeout_ms=10_000,
        )
        await consumer.start()
        while not stop.is_set():
            batches = await consumer.getmany(timeout_ms=50)
            for partition, messages in batches.items():
                for message in messages:
                    seen.add(partition.partition, message.offset)
        await consumer.stop()

    return lambda stop: asyncio.run(consume(stop))


def odradek(node: EmbeddedBroker, *arguments: str) -> dict[int, tuple[int, int]]:
    """A command about a group; (previous, actual) offset by partition."""
    ran = CliRunner().invoke(cli, ["group", *arguments, "-b", node.bootstrap_servers, "-o", "json"])
    assert ran.exit_code == 0, ran.stderr
    return {
        row["partition"]: (row["previous_offset"], row["actual_offset"])
        for row in json.loads(ran.stdout)
    }


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    settings = {"group.initial.rebalance.delay.ms": "0"}
    with EmbeddedBroker(tmp_path_factory.mktemp("node"), settings=settings) as node:
        yield node


@pytest.mark.parametrize("kind", [*LIBRDKAFKA, "aiokafka"])
def test_a_group_that_consumes_is_rewound_and_brought_back(
    node: EmbeddedBroker, kind: str, report: Report
) -> None:
    """Issue 5: "every record from the new position is seen again, none outside the named
    partitions, the undo restores"."""
    topic = f"rewound-{kind}"
    seen = Deliveries()
    node.create_topic(topic, partitions=PARTITIONS)
    if kind == "aiokafka":
        members = [aiokafka_of(node, topic, seen) for _ in range(2)]
    else:
        members = [confluent_of(node, topic, kind, seen) for _ in range(2)]
    with running(producer_of(node, topic), *members):
        wait_until(lambda: seen.have_come(RECORDS_BEFORE), what="the group consumes", timeout_s=60)
        seen.forget()
        named = f"{topic}:{','.join(str(index) for index in REWOUND)}"
        started = time.monotonic()
        rewound = odradek(node, "rewind", topic, "-t", named, "--to", str(NEW_POSITION))
        report(f"rewound in {1000 * (time.monotonic() - started):.0f} ms")
        assert {index: offset for index, (_, offset) in rewound.items()} == dict.fromkeys(
            REWOUND, NEW_POSITION
        )
        wait_until(
            lambda: all(
                any(jump[1] == NEW_POSITION for jump in seen.jumps[index])
                and seen.offsets[index][-1] > rewound[index][0]
                for index in REWOUND
            ),
            what="what was rewound is read again",
            timeout_s=60,
        )
        undone = odradek(node, "undo", topic)
        wait_until(
            lambda: all(len(seen.jumps[index]) == 2 for index in REWOUND),
            what="the undo is read from",
            timeout_s=60,
        )
        reached = max(seen.offsets[0][-1], seen.offsets[3][-1])
        wait_until(
            lambda: all(offsets[-1] > reached + 20 for offsets in seen.offsets.values()),
            what="everything goes on",
            timeout_s=60,
        )
    assert {index: offset for index, (_, offset) in undone.items()} == {
        index: before for index, (before, _) in rewound.items()
    }
    for index in range(PARTITIONS):
        if index not in REWOUND:
            assert seen.jumps[index] == [], f"partition {index} was not named"
            continue
        first, second = seen.jumps[index]
        assert (first[0] + 1, first[1]) == (rewound[index][0], NEW_POSITION)
        assert (second[0] + 1, second[1]) == (undone[index][0], rewound[index][0])


def test_any_node_tells_who_rewinds_and_every_leader_how_far_its_partitions_reach(
    tmp_path: Path,
) -> None:
    """The group's coordinator leads one partition of three at most; the others are asked."""
    with running_cluster(tmp_path, settings={"auto.leader.rebalance.enable": "false"}) as nodes:
        nodes.create_at("t", [[0], [1], [2]])
        producer = Producer({"bootstrap.servers": nodes.bootstrap_servers})
        for number in range(30):
            producer.produce("t", b"x", partition=number % 3, timestamp=1_000 + number)
        assert producer.flush(30) == 0
        consumer = Consumer({"bootstrap.servers": nodes.bootstrap_servers, "group.id": "g"})
        consumer.commit(
            offsets=[TopicPartition("t", index, 10) for index in range(3)], asynchronous=False
        )
        consumer.close()
        for node_id, arguments, offset in (
            (0, ("--to", "4"), 4),
            (1, ("--to-datetime", "1018"), 6),
            (2, ("--to", "latest"), 10),
        ):
            moved = odradek(nodes[node_id], "rewind", "g", "-t", "t", *arguments)
            assert {index: to for index, (_, to) in moved.items()} == dict.fromkeys(
                range(3), offset
            )
