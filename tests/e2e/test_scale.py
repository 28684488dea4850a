"""Ten thousand partitions and two thousand idle consumers cost a node little.

The tests assert SLACK times the promises (bench/promises.py).
"""

import random
import selectors
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.promises import (
    IDLE_CONSUMERS_CPU,
    IDLE_CPU,
    PARTITIONS_CREATED_S,
    PARTITIONS_RESTART_S,
    SLACK,
)
from odradek.node.embedded import EmbeddedBroker
from odradek.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from odradek.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tests.e2e.conftest import Report, StartNode
from tests.e2e.processes import as_text, cpu_seconds, pids_of, resident_mib
from tests.support.waiting import wait_until
from tests.support.wire import WireClient

pytestmark = pytest.mark.slow

PARTITIONS = 10_000
CONSUMERS = 2_000
CONSUMERS_OF_A_PARTITION = 10
LONG_POLL_MS = 300_000
"""Longer than the test: a response means that the consumer was woken."""
WATCHED_S = 10.0
METADATA_VERSION = 12
FETCH_VERSION = 12


def partitions_known(bootstrap: str) -> int:
    """The number of partitions with a leader in the Metadata response."""
    with WireClient(bootstrap, timeout_s=60) as wire:
        answer = wire.ask(MetadataRequest(topics=None), METADATA_VERSION, MetadataResponse)
    partitions = [p for t in answer.topics if not t.is_internal for p in t.partitions]
    assert all(p.error_code == 0 and p.leader_id >= 0 for p in partitions)
    return len(partitions)


def create_topics(bootstrap: str, topics: int, partitions: int) -> None:
    """Create all topics in one request of the admin client."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    new = [NewTopic(f"topic-{n}", num_partitions=partitions) for n in range(topics)]
    created = admin.create_topics(new, operation_timeout=120, request_timeout=120)
    for future in created.values():
        future.result()


def produce(bootstrap: str, places: list[tuple[str, int]], value: str) -> None:
    """Produce one record to each of these partitions."""
    failures: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failures.append(error)

    producer = Producer({"bootstrap.servers": bootstrap, "queue.buffering.max.messages": 100_000})
    for topic, partition in places:
        producer.produce(topic, value.encode(), partition=partition, on_delivery=on_delivery)
    assert producer.flush(120) == 0
    assert not failures


def consume(bootstrap: str, places: list[tuple[str, int]]) -> dict[tuple[str, int], str]:
    """Read the first record of each of these partitions."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    consumer.assign([TopicPartition(topic, partition, 0) for topic, partition in places])
    found: dict[tuple[str, int], str] = {}
    deadline = time.monotonic() + 60
    while len(found) < len(places):
        assert time.monotonic() < deadline, f"only {len(found)} of {len(places)} were read"
        for message in consumer.consume(1000, timeout=0.5):
            assert message.error() is None
            topic, partition, value = message.topic(), message.partition(), message.value()
            assert topic is not None
            assert partition is not None
            assert value is not None
            found.setdefault((topic, partition), value.decode())
    consumer.close()
    return found


def idle_shares(node: EmbeddedBroker) -> dict[str, float]:
    """CPU time of each process, in percent of a core, while there are no new requests."""
    pids = pids_of(node)
    before, began_at = cpu_seconds(pids), time.monotonic()
    with WireClient(node.bootstrap_servers) as wire:
        assert wire.is_silent(WATCHED_S)
    after, watched_s = cpu_seconds(pids), time.monotonic() - began_at
    return {name: 100 * (after[name] - before[name]) / watched_s for name in pids}


@pytest.mark.parametrize(("topics", "partitions"), [(10, 1_000), (1_000, 10)])
def test_ten_thousand_partitions_are_made_rest_and_come_back(
    topics: int, partitions: int, start_node: StartNode, report: Report
) -> None:
    node = start_node()
    begin = time.monotonic()
    create_topics(node.bootstrap_servers, topics, partitions)
    assert partitions_known(node.bootstrap_servers) == PARTITIONS
    creation_s = time.monotonic() - begin
    report(f"{topics} x {partitions} partitions created and told in {creation_s:.2f} s")
    shares = idle_shares(node)
    report(f"idle with them {as_text(shares, '% of a core')}")

    everywhere = [(f"topic-{t}", p) for t in range(topics) for p in range(partitions)]
    some = random.Random(1).sample(everywhere, 100)
    begin = time.monotonic()
    produce(node.bootstrap_servers, everywhere, "before")
    report(f"a record into each of them in {time.monotonic() - begin:.2f} s")
    assert consume(node.bootstrap_servers, some) == dict.fromkeys(some, "before")
    shares_used = idle_shares(node)
    report(f"idle with a record in each {as_text(shares_used, '% of a core')}")
    report(f"{as_text(resident_mib(pids_of(node)), 'MiB resident')}")

    begin = time.monotonic()
    node.stop()
    stop_s = time.monotonic() - begin
    restarts = []
    for is_killed in (False, True):
        if is_killed:
            node.kill()
        begin = time.monotonic()
        node.start()
        assert partitions_known(node.bootstrap_servers) == PARTITIONS
        restarts.append(time.monotonic() - begin)
    report(
        f"stopped in {stop_s:.2f} s; started until all are told: after a stop {restarts[0]:.2f} s,"
        f" after SIGKILL {restarts[1]:.2f} s"
    )
    produce(node.bootstrap_servers, some, "after")
    assert consume(node.bootstrap_servers, some) == dict.fromkeys(some, "before")

    assert creation_s < PARTITIONS_CREATED_S * SLACK
    assert max(restarts) < PARTITIONS_RESTART_S * SLACK
    assert sum(shares.values()) < 100 * IDLE_CPU * SLACK
    assert sum(shares_used.values()) < 100 * IDLE_CPU * SLACK


class LongPollConsumers:
    """Consumers in long polls: each has sent one Fetch and waits."""

    def __init__(self, bootstrap: str, topic: str, count: int, partitions: int) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._selector = selectors.DefaultSelector()
        self.wires: list[tuple[WireClient, int]] = []
        for number in range(count):
            wire = WireClient(bootstrap, timeout_s=60)
            self.wires.append((wire, number % partitions))
            self._selector.register(wire.socket, selectors.EVENT_READ, number)

    def ask(self, number: int, offset: int) -> None:
        """Send a Fetch from `offset` on for one of them."""
        wire, partition = self.wires[number]
        wanted = FetchPartition(
            partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20
        )
        request = FetchRequest(
            max_wait_ms=LONG_POLL_MS,
            min_bytes=1,
            max_bytes=1 << 20,
            topics=[FetchTopic(topic=self._topic, partitions=[wanted])],
        )
        wire.post(request, FETCH_VERSION)

    def woken(self, timeout_s: float) -> set[int]:
        """The consumers that get a response within this time."""
        return {key.data for key, _ in self._selector.select(timeout_s)}

    def take(self, number: int) -> int:
        """The bytes of records in the response to this one."""
        answer = self.wires[number][0].receive(FetchResponse)
        (partition,) = answer.responses[0].partitions
        assert partition.error_code == 0
        return len(partition.records or b"")

    def close(self) -> None:
        self._selector.close()
        for wire, _ in self.wires:
            wire.close()


@contextmanager
def idlers(node: EmbeddedBroker, count: int) -> Iterator[LongPollConsumers]:
    """This many consumers, each waiting at the log end of its partition of a new topic."""
    partitions = count // CONSUMERS_OF_A_PARTITION
    node.create_topic("news", partitions=partitions)
    with ExitStack() as stack:
        waiting = LongPollConsumers(node.bootstrap_servers, "news", count, partitions)
        stack.callback(waiting.close)
        for number in range(count):
            waiting.ask(number, 0)
        yield waiting


def test_two_thousand_idle_consumers_cost_little_and_only_those_concerned_wake(
    start_node: StartNode, report: Report
) -> None:
    node = start_node()
    resident = sum(resident_mib(pids_of(node)).values())
    begin = time.monotonic()
    with idlers(node, CONSUMERS) as waiting:
        report(
            f"{CONSUMERS} consumers connected and waiting after {time.monotonic() - begin:.2f} s"
        )
        shares = idle_shares(node)
        report(f"while they wait {as_text(shares, '% of a core')}")
        report(f"{resident:.0f} MiB before them, {as_text(resident_mib(pids_of(node)), 'MiB')}")
        assert waiting.woken(0) == set()

        begin = time.monotonic()
        produce(node.bootstrap_servers, [("news", 7)], "extra")
        concerned = {n for n, (_, partition) in enumerate(waiting.wires) if partition == 7}
        wait_until(lambda: waiting.woken(1.0) == concerned, what="those concerned wake")
        report(f"{len(concerned)} woken {1000 * (time.monotonic() - begin):.0f} ms after produce()")
        assert all(waiting.take(number) > 0 for number in concerned)
        assert waiting.woken(0.5) == set()

        # A record in every partition, all at the same time.
        for number in concerned:
            waiting.ask(number, 1)
        begin = time.monotonic()
        everywhere = [("news", n) for n in range(CONSUMERS // CONSUMERS_OF_A_PARTITION)]
        produce(node.bootstrap_servers, everywhere, "for all")
        wait_until(lambda: len(waiting.woken(0)) == CONSUMERS, what="everybody wakes")
        report(f"all woken {1000 * (time.monotonic() - begin):.0f} ms after produce()")
        assert all(waiting.take(number) > 0 for number in range(CONSUMERS))
    assert sum(shares.values()) < 100 * IDLE_CONSUMERS_CPU * SLACK
