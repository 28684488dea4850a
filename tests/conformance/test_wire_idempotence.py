"""Idempotent producers: InitProducerId (22) without a transaction, and sequences in Produce."""

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.partitions import TopicPartitions
from odradek.protocol.messages.produce import PartitionProduceResponse
from odradek.protocol.messages.transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from tests.conformance.dialogue import batch_of, fetch, produce, values_of
from tests.support.waiting import wait_until
from tests.support.wire import WireClient

LAST_SEQUENCE = 2**31 - 1


class Producer:
    """An idempotent producer that sends exactly the sequences it is told to."""

    def __init__(self, wire: WireClient, topic: str) -> None:
        self.wire = wire
        self.topic = topic
        answer = new_producer_id(wire)
        assert answer.error_code == ErrorCode.NONE
        self.id = answer.producer_id
        self.epoch = answer.producer_epoch

    def send(self, sequence: int, *values: bytes) -> PartitionProduceResponse:
        """Produce one batch that begins with that sequence."""
        batch = batch_of(
            *(values or (b"%d" % sequence,)),
            producer_id=self.id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
        )
        return produce(self.wire, self.topic, batch)


def new_producer_id(wire: WireClient, version: int = 4) -> InitProducerIdResponse:
    """A fresh producer id. A broker that is fetching its next block of ids is asked again."""
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)

    def has_ids() -> InitProducerIdResponse | None:
        answer = wire.ask(request, version, InitProducerIdResponse)
        return None if answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else answer

    answer = wait_until(has_ids, what="the broker has producer ids")
    assert answer is not None
    return answer


@pytest.fixture
def producer(wire: WireClient, topic: str) -> Producer:
    """A producer with an id of its own, at epoch 0."""
    return Producer(wire, topic)


@pytest.mark.parametrize("version", range(6))
def test_producer_ids_are_given_once(wire: WireClient, version: int) -> None:
    answers = [new_producer_id(wire, version) for _ in range(20)]
    assert {answer.error_code for answer in answers} == {ErrorCode.NONE}
    assert {answer.producer_epoch for answer in answers} == {0}
    assert len({answer.producer_id for answer in answers}) == 20
    assert min(answer.producer_id for answer in answers) >= 0


def test_a_duplicate_is_answered_with_its_original_offset(producer: Producer) -> None:
    """B.1: "keep the last 5 batches; an exact duplicate returns NONE with the ORIGINAL base
    offset".
    """
    for sequence in range(5):
        assert producer.send(sequence).base_offset == sequence
    for sequence in (4, 0, 2, 1, 3):
        again = producer.send(sequence)
        assert again.error_code == ErrorCode.NONE
        assert again.base_offset == sequence
    assert producer.send(5).base_offset == 5
    data = fetch(producer.wire, producer.topic, 0)
    assert values_of(data) == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_a_duplicate_older_than_five_batches_is_out_of_order(producer: Producer) -> None:
    """B.1: "keep the last 5 batches"."""
    for sequence in range(6):
        assert producer.send(sequence).error_code == ErrorCode.NONE
    assert producer.send(1).base_offset == 1
    assert producer.send(0).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_batch_with_a_known_start_but_another_end_is_no_duplicate(producer: Producer) -> None:
    assert producer.send(0, b"a", b"b").error_code == ErrorCode.NONE
    assert producer.send(0, b"a").error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_gap_is_out_of_order(producer: Producer) -> None:
    """B.1: "a gap is OUT_OF_ORDER_SEQUENCE_NUMBER (45)"."""
    assert producer.send(0, b"a", b"b").base_offset == 0
    assert producer.send(3).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producer.send(2).base_offset == 2


def test_an_older_epoch_is_refused(producer: Producer) -> None:
    """B.1: "older epoch INVALID_PRODUCER_EPOCH (47)"."""
    producer.epoch = 3
    assert producer.send(0).error_code == ErrorCode.NONE
    producer.epoch = 2
    assert producer.send(1).error_code == ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_new_epoch_starts_at_sequence_0(producer: Producer) -> None:
    """B.1: "new epoch must start at sequence 0"."""
    assert producer.send(0).error_code == ErrorCode.NONE
    producer.epoch = 1
    assert producer.send(1).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producer.send(0, b"new epoch").base_offset == 1


def test_an_unknown_producer_may_begin_anywhere(producer: Producer) -> None:
    """B.1: "unknown pid (expired) accepts any first sequence (KIP-360)"."""
    assert producer.send(1234).base_offset == 0
    assert producer.send(1235).base_offset == 1


def test_sequences_wrap_to_0(producer: Producer) -> None:
    """B.1: "sequences wrap from 2147483647 to 0"."""
    assert producer.send(LAST_SEQUENCE - 1, b"a", b"b").base_offset == 0
    assert producer.send(0, b"c").base_offset == 2
    assert producer.send(LAST_SEQUENCE - 1, b"a", b"b").base_offset == 0
    assert producer.send(1, b"d").base_offset == 3


def test_sequences_may_wrap_inside_a_batch(producer: Producer) -> None:
    """B.1: "sequences wrap from 2147483647 to 0"."""
    assert producer.send(LAST_SEQUENCE - 1, b"a", b"b", b"c", b"d").base_offset == 0
    assert producer.send(2, b"e").base_offset == 4


def test_producers_do_not_disturb_each_other(wire: WireClient, topic: str) -> None:
    one, other = Producer(wire, topic), Producer(wire, topic)
    assert [one.send(0).base_offset, other.send(0).base_offset] == [0, 1]
    assert [one.send(1).base_offset, other.send(1).base_offset] == [2, 3]
    assert one.send(0).base_offset == 0
    assert other.send(0).base_offset == 1


def test_producers_of_a_partition_can_be_described(producer: Producer) -> None:
    """B.11: "last sequence, timestamp, coordinator epoch, current txn start offset (-1 none)"."""
    assert producer.send(0, b"a", b"b").error_code == ErrorCode.NONE
    request = DescribeProducersRequest(
        topics=[TopicPartitions(name=producer.topic, partitions=[0, 9])]
    )
    (topic,) = producer.wire.ask(request, 0, DescribeProducersResponse).topics
    known, unknown = sorted(topic.partitions, key=lambda partition: partition.partition_index)
    assert known.error_code == ErrorCode.NONE
    (state,) = known.active_producers
    assert (state.producer_id, state.producer_epoch) == (producer.id, producer.epoch)
    assert (state.last_sequence, state.current_txn_start_offset) == (1, -1)
    assert state.last_timestamp > 0
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
