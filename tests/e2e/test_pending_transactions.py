"""A transaction is decided, and its markers cannot be written yet: the client may only retry."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from odradek.coordinator.ownership import shard_of
from odradek.node.config import DEFAULT_STORE_COUNT
from odradek.node.embedded import EmbeddedBroker
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import FindCoordinatorRequest
from odradek.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from odradek.protocol.messages.partitions import TopicPartitions
from odradek.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from odradek.storage.layout import store_index
from tests.e2e.conftest import StartNode
from tests.support.waiting import wait_until
from tests.support.wire import WireClient

TOPIC = "t"
GROUP = "g"
KEY_TYPE_TRANSACTION = 1
WORKERS = 2
PENDING = ErrorCode.CONCURRENT_TRANSACTIONS


def stores(node: EmbeddedBroker, topic: str) -> list[int]:
    """The stores of the topic's partitions."""
    answer = node.ask(MetadataRequest(topics=[MetadataRequestTopic(name=topic)]))
    [found] = answer.topics
    count = len(found.partitions)
    return [store_index(found.topic_id, at, DEFAULT_STORE_COUNT) for at in range(count)]


@contextmanager
def frozen(node: EmbeddedBroker, process: str) -> Iterator[None]:
    pid = node.processes[process]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


class Producer:
    """A transactional producer that sends what it is told to."""

    def __init__(self, wire: WireClient, transactional_id: str) -> None:
        self.wire = wire
        self.transactional_id = transactional_id
        self.owner = (-1, -1)

    def init(self) -> int:
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id, transaction_timeout_ms=60_000
        )
        answer = self.wire.ask(request, 5, InitProducerIdResponse)
        if not answer.error_code:
            self.owner = answer.producer_id, answer.producer_epoch
        return answer.error_code

    def add(self, epoch: int) -> int:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.owner[0],
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=[TopicPartitions(name=TOPIC, partitions=list(range(4)))],
        )
        answer = self.wire.ask(request, 3, AddPartitionsToTxnResponse)
        [topic] = answer.results_by_topic_v3_and_below
        return max(found.error_code for found in topic.partitions)

    def add_offsets(self, epoch: int) -> int:
        request = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.owner[0],
            producer_epoch=epoch,
            group_id=GROUP,
        )
        return self.wire.ask(request, 3, AddOffsetsToTxnResponse).error_code

    def end(self, epoch: int, *, is_commit: bool, version: int = 5) -> tuple[int, int]:
        """The error code and the next epoch."""
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.owner[0],
            producer_epoch=epoch,
            committed=is_commit,
        )
        answer = self.wire.ask(request, version, EndTxnResponse)
        return answer.error_code, answer.producer_epoch


def test_every_request_is_concurrent_until_the_markers_are_written(start_node: StartNode) -> None:
    node = start_node({"workers": str(WORKERS)})
    node.create_topic(TOPIC, partitions=4)

    def is_found(key_type: int) -> bool:
        asked = FindCoordinatorRequest(key_type=key_type, coordinator_keys=["x"])
        return not node.ask(asked).coordinators[0].error_code

    wait_until(lambda: is_found(0) and is_found(KEY_TYPE_TRANSACTION), what="coordinators")
    places = stores(node, "__transaction_state")
    # The worker that stops has markers to write, and not the coordinator's log.
    transactional_id = next(
        name for name in map(str, range(100)) if places[shard_of(name, len(places))] % WORKERS == 1
    )
    with WireClient(node.bootstrap_servers) as wire:
        producer = Producer(wire, transactional_id)
        assert producer.init() == ErrorCode.NONE
        epoch = producer.owner[1]
        assert producer.add(epoch) == ErrorCode.NONE
        with frozen(node, "worker-0"):
            error, following = producer.end(epoch, is_commit=True)
            assert (error, following) == (ErrorCode.NONE, epoch + 1)
            for is_commit in (True, False):
                assert producer.end(following, is_commit=is_commit)[0] == PENDING
                assert producer.end(epoch, is_commit=is_commit)[0] == PENDING
            assert producer.add(following) == PENDING
            assert producer.add_offsets(following) == PENDING
            assert producer.init() == PENDING
            # A client that keeps its epoch is fenced at once.
            code, _ = producer.end(epoch, is_commit=True, version=4)
            assert code == ErrorCode.PRODUCER_FENCED

        def left() -> bool:
            error, _ = producer.end(following, is_commit=False)
            assert error in (PENDING, ErrorCode.NONE)
            return not error

        wait_until(left, what="an abort of what was not begun is done")
        assert producer.end(following, is_commit=False)[0] in (PENDING, ErrorCode.NONE)
