"""Groups are rewound while their members consume and new records come.

Every record from the new position is delivered again, in order. No record outside of the named
partitions is. An undo returns the group to its old position. The commands of the command line are
used.
"""

import asyncio
import json
import os
import shutil
import signal
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer
from click.testing import CliRunner
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer

from odradek.node.cli.main import cli
from odradek.node.embedded import EmbeddedBroker
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from odradek.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from odradek.protocol.messages.share import (
    AcknowledgementBatch,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareGroupDescribeRequest,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    ShareRequestPartition,
    ShareRequestTopic,
)
from tests.e2e.cluster import running_cluster
from tests.e2e.conftest import Report
from tests.e2e.processes import pids_of
from tests.support.java import run_java_tool, why_no_java_tools
from tests.support.waiting import wait_until
from tests.support.wire import WireClient

JAVA = Path(__file__).parents[1] / "conformance" / "java"
WHY_NO_JAVA = why_no_java_tools() or ("" if shutil.which("javac") else "needs javac on the PATH")
PARTITIONS = 6
MEMBERS = 3
REWOUND = (1, 2)
NEW_POSITION = 20
RECORDS_BEFORE = 100
PAUSE_S = 0.01
"""Pause between two records of a partition."""
COMMIT_MS = 50
"""Members commit all the time, so that some commits race with the rewind. Not more often:
librdkafka does not look up offsets while a commit is in flight."""
FAST: Mapping[str, str | int] = {"session.timeout.ms": 10_000, "heartbeat.interval.ms": 200}
LIBRDKAFKA: Mapping[str, Mapping[str, str | int]] = {
    "range": {"partition.assignment.strategy": "range", **FAST},
    "cooperative-sticky": {"partition.assignment.strategy": "cooperative-sticky", **FAST},
    "consumer": {"group.protocol": "consumer"},
}


class Deliveries:
    """The delivered offsets by partition, in order."""

    def __init__(self) -> None:
        self.offsets: dict[int, list[int]] = {index: [] for index in range(PARTITIONS)}

    def add(self, partition: int, offset: int) -> None:
        self.offsets[partition].append(offset)

    def forget(self) -> None:
        """Start to count now: deliveries before the group was stable do not count."""
        for offsets in self.offsets.values():
            del offsets[:-1]

    @property
    def jumps(self) -> dict[int, list[tuple[int, int]]]:
        """Places where the next offset was not the successor."""
        return {
            partition: [(one, other) for one, other in pairwise(offsets) if other != one + 1]
            for partition, offsets in self.offsets.items()
        }

    def have_come(self, count: int) -> bool:
        """Whether `count` records of every partition were delivered."""
        return all(len(offsets) >= count for offsets in self.offsets.values())


@contextmanager
def running(*targets: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run these in threads until the end of the block."""
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


def producer_of(
    node: EmbeddedBroker, *topics: str, pause_s: float = PAUSE_S
) -> Callable[[threading.Event], None]:
    """Produces a record to every partition over and over."""

    def produce(stop: threading.Event) -> None:
        producer = Producer({"bootstrap.servers": node.bootstrap_servers, "linger.ms": 0})
        while not stop.wait(pause_s):
            for topic in topics:
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
                "auto.commit.interval.ms": COMMIT_MS,
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
            auto_commit_interval_ms=COMMIT_MS,
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


def kafka_python_of(
    node: EmbeddedBroker, topic: str, seen: Deliveries
) -> Callable[[threading.Event], None]:
    """A member of kafka-python."""

    def consume(stop: threading.Event) -> None:
        consumer = KafkaConsumer(
            topic,
            bootstrap_servers=node.bootstrap_servers,
            group_id=topic,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=COMMIT_MS,
            heartbeat_interval_ms=200,
            session_timeout_ms=10_000,
        )
        while not stop.is_set():
            for partition, messages in consumer.poll(timeout_ms=50).items():
                for message in messages:
                    seen.add(partition.partition, message.offset)
        consumer.close()

    return consume


def odradek(node: EmbeddedBroker, *arguments: str) -> dict[int, tuple[int, int]]:
    """A command about a group; returns (previous, actual) offset by partition."""
    # The slowest member determines the duration, and its machine may be busy.
    where = ("-b", node.bootstrap_servers, "--timeout", "90", "-o", "json")
    ran = CliRunner().invoke(cli, ["group", *arguments, *where])
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


def members_of(
    node: EmbeddedBroker, kind: str, topic: str, seen: Deliveries
) -> list[Callable[[threading.Event], None]]:
    """The members of a group, by client library and protocol."""
    if kind == "aiokafka":
        return [aiokafka_of(node, topic, seen) for _ in range(MEMBERS)]
    if kind == "kafka-python":
        return [kafka_python_of(node, topic, seen) for _ in range(MEMBERS)]
    return [confluent_of(node, topic, kind, seen) for _ in range(MEMBERS)]


@pytest.mark.parametrize("kind", [*LIBRDKAFKA, "aiokafka", "kafka-python"])
def test_a_group_that_consumes_is_rewound_and_brought_back(
    node: EmbeddedBroker, kind: str, report: Report
) -> None:
    """Issue 5: "every record from the new position is seen again, none outside the named
    partitions, the undo restores"."""
    topic = f"rewound-{kind}"
    seen = Deliveries()
    node.create_topic(topic, partitions=PARTITIONS)
    members = members_of(node, kind, topic, seen)
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
        reached = max(
            seen.offsets[index][-1] for index in range(PARTITIONS) if index not in REWOUND
        )
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


def test_a_tool_that_sets_offsets_rewinds_a_group_that_allows_it(node: EmbeddedBroker) -> None:
    """The request by which any admin client sets offsets. Kafka refuses it while a group has
    members."""
    topic = group = "by-commit"
    node.create_topic(topic, partitions=PARTITIONS)
    seen = Deliveries()
    admin = AdminClient({"bootstrap.servers": node.bootstrap_servers})
    offsets = [TopicPartition(topic, index, NEW_POSITION) for index in REWOUND]

    def errors() -> set[str]:
        [future] = admin.alter_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group, offsets)], request_timeout=30
        ).values()
        found = future.result().topic_partitions
        return {at.error.name() for at in found if at.error is not None}

    member = confluent_of(node, topic, "consumer", seen)
    with running(producer_of(node, topic), member):
        wait_until(lambda: seen.have_come(RECORDS_BEFORE), what="the group consumes", timeout_s=60)
        assert errors() == {"UNKNOWN_MEMBER_ID"}
        enable = "group.rewind.by.commit.enable=true"
        where = ("-b", node.bootstrap_servers)
        told = CliRunner().invoke(cli, ["config", "set", "group", group, enable, *where])
        assert told.exit_code == 0, told.stderr
        wait_until(lambda: not errors(), what="the commit rewinds the group", timeout_s=30)
        wait_until(
            lambda: all(
                NEW_POSITION in [other for _, other in seen.jumps[index]] for index in REWOUND
            ),
            what="what was rewound is read again",
            timeout_s=60,
        )
        assert not any(seen.jumps[index] for index in range(PARTITIONS) if index not in REWOUND)


class ShareMember:
    """A member of a share group that speaks the wire protocol: no Python client has share groups
    yet."""

    def __init__(self, node: EmbeddedBroker, group: str, topic: str) -> None:
        self.group = group
        self.wire = WireClient(node.bootstrap_servers)
        self.member_id = str(uuid.uuid4())
        self.member_epoch = self.session_epoch = 0
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
        self.topic_id = node.ask(request).topics[0].topic_id
        self.topic = topic
        # The first FindCoordinator creates the coordinator's topic.
        find = FindCoordinatorRequest(coordinator_keys=[group])
        wait_until(
            lambda: not self.wire.ask(find, 4, FindCoordinatorResponse).coordinators[0].error_code,
            what="the group has a coordinator",
            timeout_s=30,
        )

    def send_heartbeat(self) -> bool:
        """Send heartbeats; returns whether both partitions are assigned."""
        request = ShareGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=self.member_epoch,
            subscribed_topic_names=[self.topic],
        )
        answer = self.wire.ask(request, 1, ShareGroupHeartbeatResponse)
        assert not answer.error_code, answer
        self.member_epoch = answer.member_epoch
        given = answer.assignment.topic_partitions if answer.assignment else []
        return any(len(topic.partitions) == 2 for topic in given)

    def leave(self) -> None:
        """Leave the group, which is then Empty."""
        request = ShareGroupHeartbeatRequest(
            group_id=self.group, member_id=self.member_id, member_epoch=-1
        )
        assert not self.wire.ask(request, 1, ShareGroupHeartbeatResponse).error_code
        self.wire.close()

    def fetch(self) -> dict[int, list[int]]:
        """Acquire the available records; returns the offsets by partition."""
        request = ShareFetchRequest(
            group_id=self.group,
            member_id=self.member_id,
            share_session_epoch=self.session_epoch,
            max_wait_ms=200,
            min_bytes=1,
            max_bytes=1 << 20,
            max_records=100,
            batch_size=100,
            topics=[
                ShareRequestTopic(
                    topic_id=self.topic_id,
                    partitions=[ShareRequestPartition(partition_index=index) for index in (0, 1)],
                )
            ]
            if self.session_epoch == 0
            else [],
        )
        self.session_epoch += 1
        answer = self.wire.ask(request, 2, ShareFetchResponse)
        assert not answer.error_code, answer
        return {
            partition.partition_index: [
                offset
                for each in partition.acquired_records
                for offset in range(each.first_offset, each.last_offset + 1)
            ]
            for topic in answer.responses
            for partition in topic.partitions
        }

    def accept(self, partition: int, first: int, last: int) -> ErrorCode:
        """Accept the offsets [first, last]."""
        batch = AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=[1])
        request = ShareAcknowledgeRequest(
            group_id=self.group,
            member_id=self.member_id,
            share_session_epoch=self.session_epoch,
            topics=[
                ShareRequestTopic(
                    topic_id=self.topic_id,
                    partitions=[
                        ShareRequestPartition(
                            partition_index=partition, acknowledgement_batches=[batch]
                        )
                    ],
                )
            ],
        )
        self.session_epoch += 1
        answer = self.wire.ask(request, 2, ShareAcknowledgeResponse)
        assert not answer.error_code, answer
        return ErrorCode(answer.responses[0].partitions[0].error_code)

    def fetch_until(self, partition: int, last: int) -> dict[int, list[int]]:
        """Fetch up to a record of a partition."""
        found: dict[int, list[int]] = {0: [], 1: []}
        deadline = time.monotonic() + 30
        while last not in found[partition]:
            assert time.monotonic() < deadline, found
            for index, offsets in self.fetch().items():
                found[index] += offsets
        return found


def sharing(node: EmbeddedBroker, topic: str) -> ShareMember:
    """A member of the share group that has acquired all of ten records in each of two
    partitions."""
    node.create_topic(topic, partitions=2)
    where = ("-b", node.bootstrap_servers)
    told = CliRunner().invoke(
        cli, ["config", "set", "group", topic, "share.auto.offset.reset=earliest", *where]
    )
    assert told.exit_code == 0, told.stderr
    producer = Producer({"bootstrap.servers": node.bootstrap_servers})
    for number in range(20):
        producer.produce(topic, b"x", partition=number % 2)
    assert producer.flush(30) == 0
    member = ShareMember(node, topic, topic)
    wait_until(member.send_heartbeat, what="the member has its partitions", timeout_s=30)
    first = member.fetch_until(1, 9)
    if 9 not in first[0]:
        first[0] += member.fetch_until(0, 9)[0]
    assert first == {0: list(range(10)), 1: list(range(10))}
    return member


def test_a_share_group_is_rewound_while_records_are_locked(node: EmbeddedBroker) -> None:
    """B.14: "set start offset with state epoch +1 per partition, in-flight locks dropped (121 for
    late acks)"."""
    topic = group = "shared"
    member = sharing(node, topic)
    assert member.accept(0, 0, 9) is ErrorCode.NONE
    assert member.accept(1, 0, 5) is ErrorCode.NONE
    assert odradek(node, "rewind", group, "-t", f"{topic}:1", "--to", "2") == {1: (6, 2)}
    # The member's locks were dropped.
    assert member.accept(1, 6, 9) is ErrorCode.INVALID_RECORD_STATE
    again = member.fetch_until(1, 9)
    assert again == {0: [], 1: list(range(2, 10))}
    assert member.accept(1, 2, 9) is ErrorCode.NONE
    assert odradek(node, "undo", group) == {1: (10, 6)}
    assert member.fetch_until(1, 9)[1] == [6, 7, 8, 9]
    member.wire.close()


def test_a_share_group_goes_back_to_where_it_began_when_a_snapshot_was_taken(
    node: EmbeddedBroker,
) -> None:
    """With members and without, and after its coordinator has moved."""
    topic = group = "remembered"
    member = sharing(node, topic)
    assert member.accept(0, 0, 3) is ErrorCode.NONE
    assert member.accept(1, 0, 5) is ErrorCode.NONE
    where = ("-b", node.bootstrap_servers)
    taken = CliRunner().invoke(cli, ["group", "snapshot", "create", group, "s", *where])
    assert taken.exit_code == 0, taken.stderr
    assert member.accept(0, 4, 9) is ErrorCode.NONE
    assert member.accept(1, 6, 9) is ErrorCode.NONE
    back = ("rewind", group, "--to-snapshot", "s")
    both, one = {0: (10, 4), 1: (10, 6)}, {1: (10, 6)}
    assert odradek(node, *back, "--dry-run") == both
    assert odradek(node, *back, "-t", f"{topic}:1") == one
    assert member.fetch_until(1, 9) == {0: [], 1: [6, 7, 8, 9]}
    assert odradek(node, "undo", group) == {1: (6, 10)}
    member.leave()
    os.kill(pids_of(node)["router-0"], signal.SIGKILL)
    assert odradek(node, *back) == both
    assert odradek(node, "undo", group, "--dry-run") == {0: (4, 10), 1: (6, 10)}
    late = ShareMember(node, group, topic)
    wait_until(late.send_heartbeat, what="another member has its partitions", timeout_s=30)
    again = late.fetch_until(1, 9)
    if 9 not in again[0]:
        again[0] += late.fetch_until(0, 9)[0]
    assert again == {0: [4, 5, 6, 7, 8, 9], 1: [6, 7, 8, 9]}
    late.wire.close()


def test_any_node_tells_who_rewinds_and_every_leader_how_far_its_partitions_reach(
    tmp_path: Path,
) -> None:
    """The group's coordinator leads at most one partition of three. It asks the other leaders."""
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


def settled_offsets(node: EmbeddedBroker, group: str) -> dict[int, int]:
    """The offsets from which on no record of a share group changes its member: all members have
    their final assignment, and all earlier records are acknowledged.

    During a rebalance Kafka's client still delivers records that it has fetched from a partition
    that another member owns now. It sends no acknowledgement for them, and the lock ends 30 s
    later.
    """

    def is_together() -> bool:
        request = ShareGroupDescribeRequest(group_ids=[group])
        (described,) = node.ask(request).groups
        return len(described.members) == MEMBERS and all(
            member.member_epoch == described.assignment_epoch
            and sum(len(topic.partitions) for topic in member.assignment.topic_partitions)
            == PARTITIONS // MEMBERS
            for member in described.members
        )

    def ends() -> dict[int, tuple[int, int]]:
        return odradek(node, "rewind", group, "-t", group, "--to", "latest", "--dry-run")

    wait_until(is_together, what="the members come together", timeout_s=60)
    there = {index: end for index, (_, end) in ends().items()}
    wait_until(
        lambda: all((start or 0) >= there[index] for index, (start, _) in ends().items()),
        what="what was there is acknowledged",
        timeout_s=90,
    )
    return {index: end for index, (_, end) in ends().items()}


@pytest.mark.java
@pytest.mark.skipif(bool(WHY_NO_JAVA), reason=WHY_NO_JAVA or "Java is there")
def test_kafkas_own_consumers_of_every_kind_are_rewound(
    tmp_path: Path, node: EmbeddedBroker
) -> None:
    """Three members each of the eager, sticky, cooperative, consumer and share protocol, while
    new records come."""
    kinds = ("range", "sticky", "cooperative", "consumer", "share")
    where = ("-b", node.bootstrap_servers)
    for kind in kinds:
        node.create_topic(kind, partitions=PARTITIONS)
    reset = ["config", "set", "group", "share", "share.auto.offset.reset=earliest", *where]
    assert CliRunner().invoke(cli, reset).exit_code == 0
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(
            run_java_tool,
            str(JAVA / "RewoundConsumers.java"),
            *(node.bootstrap_servers, str(PARTITIONS)),
            directory=tmp_path,
        )
        rewound = {}
        exact_from = {kind: dict.fromkeys(range(PARTITIONS), 0) for kind in kinds}
        with running(producer_of(node, *kinds, pause_s=5 * PAUSE_S)):

            def is_far(kind: str) -> bool:
                plan = odradek(node, "rewind", kind, "-t", kind, "--to", "0", "--dry-run")
                return all((before or 0) >= RECORDS_BEFORE for before, _ in plan.values())

            for kind in kinds:
                wait_until(partial(is_far, kind), what=f"{kind} consumes", timeout_s=60)
                if kind == "share":
                    exact_from[kind] = settled_offsets(node, kind)
                named = f"{kind}:{','.join(str(index) for index in REWOUND)}"
                rewound[kind] = odradek(node, "rewind", kind, "-t", named, "--to", "20")
        producer = Producer({"bootstrap.servers": node.bootstrap_servers})
        for kind in kinds:
            for index in range(PARTITIONS):
                producer.produce(kind, b"end", partition=index)
        assert producer.flush(30) == 0
        ended = run.result()
    assert ended.returncode == 0, ended.stdout + ended.stderr
    lines = [line.split() for line in ended.stdout.splitlines()]
    for kind in kinds:
        times = Counter(
            (int(line[2]), int(line[3])) for line in lines if line[:2] == ["RECORD", kind]
        )
        for index in range(PARTITIONS):
            before, to = rewound[kind].get(index, (0, NEW_POSITION))
            assert to == NEW_POSITION
            end = 1 + max(offset for partition, offset in times if partition == index)
            for offset in range(end):
                is_again = to <= offset < before
                found = times[index, offset]
                where_it_is = f"{kind}: {index}@{offset} of {to} to {before}"
                if offset < exact_from[kind][index]:
                    assert found >= 1 + (is_again and index in REWOUND), where_it_is
                elif index not in REWOUND or offset < to:
                    assert found == 1, where_it_is
                else:
                    # Records that were read and not committed are delivered again as well.
                    assert found in (1 + is_again, 2), where_it_is
