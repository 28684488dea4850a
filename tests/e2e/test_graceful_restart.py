"""A node that is stopped (SIGTERM) and started again is not felt by clients.

What waits on the node is answered with the error that sends the client elsewhere, and the node goes
on answering while clients turn to others.
"""

import gc
import itertools
import json
import logging
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import (
    Consumer,
    KafkaError,
    Message,
    Producer,
    ShareConsumer,
    TopicPartition,
)

from odradek.cluster.metadata.image import ConfigResourceType
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.configs import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from odradek.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from odradek.protocol.messages.metadata import MetadataRequest, MetadataResponse
from odradek.protocol.messages.offsets import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
)
from odradek.protocol.messages.partitions import PartitionOffset, TopicOffsets
from odradek.protocol.messages.produce import ProduceResponse
from odradek.protocol.messages.topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tests.conformance.dialogue import METADATA, PRODUCE, append, batch_of, produce_request
from tests.conformance.members import RawMember, stabilise
from tests.conformance.test_franz_go import program
from tests.e2e.checker import Value
from tests.e2e.cluster import Cluster, running_cluster
from tests.e2e.conftest import Report
from tests.e2e.soak_clients import LibraryMember, ReadingGroup
from tests.support.waiting import wait_until
from tests.support.wire import WireClient

OFFSETS = "__consumer_offsets"
TOPIC = "orders"
LONG_MS = 120_000
ETL_RECORDS = 30_000
RESTART_EVERY_S = 7.0
PAUSE_S_MAX = 6.0
"""Two heartbeat intervals. Measured: 0.1 s, as members read on until they learn of a rebalance."""

__all__ = ["program"]


@contextmanager
def stopping(nodes: Cluster, node_id: int) -> Iterator[None]:
    """The node stops while the block runs."""
    thread = threading.Thread(target=nodes[node_id].stop)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def coordinator_of(wire: WireClient, group: str) -> int:
    """The group's coordinator, once this connection's node names one."""

    def found() -> list[int]:
        answer = wire.ask(FindCoordinatorRequest(key=group), 3, FindCoordinatorResponse)
        return [] if answer.error_code else [answer.node_id]

    return wait_until(found, what=f"{group} has a coordinator")[0]


def test_a_newcomer_that_waits_is_sent_to_the_next_coordinator_and_keeps_its_id(
    tmp_path: Path,
) -> None:
    """Its group has a stored generation."""
    with running_cluster(tmp_path) as nodes, ExitStack() as stack:

        def connect(node_id: int) -> WireClient:
            return stack.enter_context(WireClient(nodes[node_id].bootstrap_servers))

        old = coordinator_of(connect(0), "g")
        nodes.wait_until_whole(OFFSETS)
        stable, newcomer = RawMember(connect(old), "g"), RawMember(connect(old), "g")
        stabilise(stable)
        newcomer.get_id()
        newcomer.post_join()
        wait_until(lambda: stable.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS)
        given = newcomer.id
        with stopping(nodes, old):
            joined = newcomer.joined()
            assert (joined.error_code, joined.member_id) == (ErrorCode.NOT_COORDINATOR, given)
            assert stable.heartbeat() == ErrorCode.NOT_COORDINATOR
            # The stopping node still answers, over old connections and new ones.
            new = coordinator_of(newcomer.wire, "g")
            assert new != old
            with WireClient(nodes[old].bootstrap_servers) as late:
                late.ask(MetadataRequest(topics=[]), METADATA, MetadataResponse)
        newcomer.wire, stable.wire = connect(new), connect(new)
        newcomer.post_join()
        wait_until(lambda: stable.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS)
        stable.post_join()
        for member, member_id in ((newcomer, given), (stable, stable.id)):
            joined = member.joined()
            assert (joined.error_code, joined.member_id) == (ErrorCode.NONE, member_id)
            assert joined.generation_id == 2


def test_requests_that_wait_for_others_are_answered_when_nobody_can_take_over(
    tmp_path: Path,
) -> None:
    """The other nodes are gone: an append waits for its followers, a command for a quorum."""
    with running_cluster(tmp_path) as nodes, ExitStack() as stack:
        nodes.create_at("t", [[0, 1, 2]], {"min.insync.replicas": "1"})

        def connect() -> WireClient:
            return stack.enter_context(WireClient(nodes[0].bootstrap_servers))

        appending, deleting, creating = connect(), connect(), connect()
        append(appending, "t", b"first", b"second")
        for node_id in (1, 2):
            nodes[node_id].kill()
        request = produce_request("t", {0: batch_of(b"third")})
        request.timeout_ms = LONG_MS
        appending.post(request, PRODUCE)
        deletion = TopicOffsets(name="t", partitions=[PartitionOffset(partition_index=0, offset=1)])
        deleting.post(DeleteRecordsRequest(topics=[deletion], timeout_ms=LONG_MS), 2)
        topic = CreatableTopic(name="new", num_partitions=1, replication_factor=1)
        creating.post(CreateTopicsRequest(topics=[topic], timeout_ms=LONG_MS), 5)
        assert creating.is_silent(0.5)
        assert appending.is_silent(0.05)
        assert deleting.is_silent(0.05)
        with stopping(nodes, 0):
            ((appended,),) = (
                each.partition_responses for each in appending.receive(ProduceResponse).responses
            )
            assert appended.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            ((deleted,),) = (
                each.partitions for each in deleting.receive(DeleteRecordsResponse).topics
            )
            assert deleted.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            (created,) = creating.receive(CreateTopicsResponse).topics
            assert created.error_code == ErrorCode.REQUEST_TIMED_OUT
            for wire in (appending, deleting, creating):
                wire.wait_until_closed()
        assert "did not finish in time" not in nodes[0].log()


def read_from_the_start(nodes: Cluster, share_group: str) -> None:
    """Share groups begin at the end unless they are told otherwise."""
    earliest = IncrementalAlterableConfig(name="share.auto.offset.reset", value="earliest")
    resource = IncrementalAlterConfigsResource(
        resource_type=ConfigResourceType.GROUP, resource_name=share_group, configs=[earliest]
    )
    answer = nodes[0].ask(IncrementalAlterConfigsRequest(resources=[resource]))
    assert answer.responses[0].error_code == ErrorCode.NONE


class Member(threading.Thread):
    """A consumer that reads values until it is stopped. `told` are the errors that it was told."""

    def __init__(self, consumer: Consumer | ShareConsumer, topic: str, told: list[str]) -> None:
        super().__init__(daemon=True)
        self._consumer = consumer
        self._topic = topic
        self._told = told
        self._is_over = threading.Event()
        self.values: Counter[bytes] = Counter()
        self.assignments = 0
        self.start()

    def run(self) -> None:
        if isinstance(self._consumer, ShareConsumer):
            self._consumer.subscribe([self._topic])
        else:
            self._consumer.subscribe([self._topic], on_assign=self._on_assign)
        while not self._is_over.is_set():
            polled = self._consumer.poll(0.1)
            messages = [polled] if isinstance(polled, Message) else polled or ()
            for message in messages:
                error, value = message.error(), message.value()
                if error is not None:
                    self._told.append(str(error))
                elif value is not None:
                    self.values[value] += 1
        self._consumer.close()

    def _on_assign(self, _consumer: Consumer, _partitions: list[TopicPartition]) -> None:
        self.assignments += 1

    def stop(self) -> None:
        self._is_over.set()
        self.join(60)
        assert not self.is_alive(), "a member hangs"


@pytest.mark.slow
def test_a_group_with_stable_members_is_not_rebalanced_by_restarts(
    tmp_path: Path, report: Report
) -> None:
    """confluent-kafka: a cooperative group of static members, a consumer group, a share group."""
    told: list[str] = []

    def on_error(error: KafkaError) -> None:
        if error.code() not in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
            told.append(str(error))

    with running_cluster(tmp_path) as nodes:
        nodes[0].create_topic(TOPIC, partitions=6, configs={"min.insync.replicas": "2"})
        client = {
            "bootstrap.servers": nodes.bootstrap_servers,
            "error_cb": on_error,
            "log_level": 0,
        }
        reading = {**client, "auto.offset.reset": "earliest"}
        cooperative = {
            **reading,
            "group.id": "static",
            "partition.assignment.strategy": "cooperative-sticky",
        }
        static = [
            Member(Consumer({**cooperative, "group.instance.id": f"i-{n}"}), TOPIC, told)
            for n in range(3)
        ]
        consumer = {**reading, "group.id": "consumer", "group.protocol": "consumer"}
        dynamic = [Member(Consumer(consumer), TOPIC, told) for _ in range(2)]
        sharing = {**client, "group.id": "share"}
        read_from_the_start(nodes, "share")
        share = [Member(ShareConsumer(sharing), TOPIC, told) for _ in range(2)]
        producer = Producer({**client, "enable.idempotence": True})
        count = 0

        def write(until: float) -> None:
            nonlocal count
            while time.monotonic() < until:
                producer.produce(TOPIC, b"%d" % count)
                producer.poll(0.01)
                count += 1

        def read(members: list[Member]) -> Counter[bytes]:
            return sum((member.values for member in members), Counter())

        write(time.monotonic() + 1.0)
        groups = {"static": static, "consumer": dynamic, "share": share}
        for name, members in groups.items():
            wait_until(
                lambda members=members: len(read(members)) >= count,  # type: ignore[misc]  # mypy#15459
                timeout_s=60,
                what=f"{name} reads",
            )
        before = [member.assignments for member in static]
        over = threading.Event()
        restarting = threading.Thread(target=restart_in_turn, args=(nodes, over.is_set))
        restarting.start()
        write(time.monotonic() + 3.2 * RESTART_EVERY_S)
        over.set()
        restarting.join()
        assert producer.flush(30) == 0
        for name, members in groups.items():
            wait_until(
                lambda members=members: len(read(members)) == count,  # type: ignore[misc]  # mypy#15459
                timeout_s=60,
                what=f"{name} has read everything",
            )
        assert [member.assignments for member in static] == before, "no rebalance"
        for member in (*static, *dynamic, *share):
            member.stop()
        assert told == []
        assert set(read(static).values()) == {1}
        assert set(read(dynamic).values()) == {1}
        twice = sum(times > 1 for times in read(share).values())
        report(f"{count} records; the share group got {twice} of them again")


def restart_in_turn(nodes: Cluster, is_over: Callable[[], bool]) -> None:
    """Stop and start one node after the other until it is over."""
    for node_id in itertools.cycle(nodes.nodes):
        due = time.monotonic() + RESTART_EVERY_S

        def is_due(due: float = due) -> bool:
            return is_over() or time.monotonic() >= due

        wait_until(is_due, timeout_s=2 * RESTART_EVERY_S, what="the next restart is due")
        if is_over():
            return
        nodes[node_id].stop()
        nodes.start(node_id)


def run_under_restarts(tmp_path: Path, program: Path, *arguments: str) -> str:
    """What the franz-go program tells when it has ended, while one node after the other restarts.
    It must succeed."""
    with running_cluster(tmp_path) as nodes:
        with WireClient(nodes[0].bootstrap_servers) as wire:
            coordinator_of(wire, "any")
        nodes.wait_until_whole(OFFSETS)
        client = subprocess.Popen(
            [program, "-bootstrap", nodes.bootstrap_servers, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            restart_in_turn(nodes, lambda: client.poll() is not None)
            told, complaint = client.communicate()
        finally:
            client.kill()
            client.wait()
    assert client.returncode == 0, complaint + told
    return told


@pytest.mark.slow
def test_groups_of_franz_go_do_not_feel_restarts(
    tmp_path: Path, program: Path, report: Report
) -> None:
    """Classic and consumer groups, static and not, whose members come and go all the time."""
    arguments = ["-timeout", "75s", "-name", "franz", "restarts"]
    pauses = json.loads(run_under_restarts(tmp_path, program, *arguments))
    report(", ".join(f"{name} {value:.1f}" for name, value in pauses.items()))
    pauses.pop("records")
    assert max(pauses.values()) < PAUSE_S_MAX


@pytest.mark.slow
def test_an_etl_of_franz_go_does_not_feel_restarts(
    tmp_path: Path, program: Path, report: Report
) -> None:
    """Transactions that consume, transform and produce, in six kinds of groups (etl.go)."""
    arguments = ["-timeout", "170s", "-records", str(ETL_RECORDS), "-name", "etl", "etl"]
    began = time.monotonic()
    run_under_restarts(tmp_path, program, *arguments)
    report(f"{ETL_RECORDS} records through two stages in {time.monotonic() - began:.0f} s")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_members_of_aiokafka_and_kafka_python_read_everything_during_restarts(
    tmp_path: Path, report: Report, caplog: pytest.LogCaptureFixture
) -> None:
    """They get no error. Each group has two members."""
    caplog.set_level(logging.ERROR, "asyncio")
    caplog.set_level(logging.CRITICAL + 1, "kafka")
    written: dict[int, list[tuple[int, Value]]] = {}

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        assert error is None
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        written.setdefault(partition, []).append((offset, Value(0, offset)))

    with running_cluster(tmp_path) as nodes:
        nodes[0].create_topic(TOPIC, partitions=6, configs={"min.insync.replicas": "2"})
        groups = [ReadingGroup("aiokafka"), ReadingGroup("kafka-python")]
        members = [
            LibraryMember(group, nodes.bootstrap_servers, TOPIC, is_async=group is groups[0])
            for group in groups
            for _ in range(2)
        ]
        for member in members:
            member.start()
        # Idempotent: an append that waits for followers when its leader stops is refused, and the
        # next leader may have it, so the retry of another producer could be a second record.
        producer = Producer(
            {
                "bootstrap.servers": nodes.bootstrap_servers,
                "enable.idempotence": True,
                "log_level": 0,
            }
        )
        over = threading.Event()
        restarting = threading.Thread(target=restart_in_turn, args=(nodes, over.is_set))
        restarting.start()
        until = time.monotonic() + 3.2 * RESTART_EVERY_S
        while time.monotonic() < until:
            producer.produce(TOPIC, b"value", on_delivery=on_delivery)
            producer.poll(0.01)
        over.set()
        restarting.join()
        assert producer.flush(30) == 0
        for group in groups:
            wait_until(
                lambda group=group: group.unread(written) == 0,  # type: ignore[misc]  # mypy#15459
                timeout_s=60,
                what=f"{group.name} has read everything",
            )
        for member in members:
            member.stop()
        assert [group.found(written) for group in groups] == [[], []]
        report(", ".join(f"{each.name} {each.restart_count} new clients" for each in groups))
    # kafka-python leaves sockets open when a connection fails: collected while that is ignored.
    del members, member
    gc.collect()
