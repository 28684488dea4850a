"""Fetch as clients see it (B.1): which batches are returned, when, and the errors."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.cluster.controller.commands import DeleteTopics, TopicReference
from odradek.cluster.metadata.acls import AclOperation, ResourceType
from odradek.node.bus.messages import DeleteRecords
from odradek.node.router.handlers.fetch import ABORTED_PER_TURN, handle_fetch
from odradek.node.worker.turn_requests import RouterState
from odradek.protocol.compression import Codec
from odradek.protocol.control_records import ControlType
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.fetch import AbortedTransaction, FetchEpochEndOffset
from odradek.protocol.messages.responses import LeaderIdAndEpoch, NodeEndpoint
from odradek.storage.reader import BATCHES_PER_READ_MAX
from tests.support.controller_harness import topic_id
from tests.support.fetching import (
    NEWEST,
    answers,
    bases,
    bytes_of,
    end_transaction,
    fetch,
    fetch_harness,
    one,
    request,
    transactional,
    waiting,
)
from tests.support.message_sets import iter_messages
from tests.support.router_harness import RouterHarness
from tests.support.stores import NOW_MS, batch_of

BY_NAME = 12
READ_COMMITTED = 1


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture
def harness(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> Iterator[RouterHarness]:
    with fetch_harness(tmp_path, loop) as harness:
        yield harness


# -- which batches ---------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(4, NEWEST + 1))
def test_the_first_batch_is_the_one_that_contains_the_offset(
    harness: RouterHarness, version: int
) -> None:
    harness.append("t", batch_of(3), batch_of(4), batch_of(2))
    assert bases(one(harness, 0, version)) == [0, 3, 7]
    assert bases(one(harness, 5, version)) == [3, 7], "the client drops what it has"
    data = one(harness, 8, version)
    assert bases(data) == [7]
    assert (data.error_code, data.high_watermark, data.last_stable_offset) == (0, 9, 9)
    assert data.log_start_offset == (0 if version >= 5 else -1)


def test_a_fetch_at_the_end_of_the_log_is_empty_without_an_error(harness: RouterHarness) -> None:
    harness.append("t", batch_of(3))
    data = one(harness, 3)
    assert (data.error_code, data.high_watermark, bytes_of(data)) == (ErrorCode.NONE, 3, b"")


@pytest.mark.parametrize("offset", [-1, 1, 6, 2**62])
def test_an_offset_outside_the_log_is_out_of_range(harness: RouterHarness, offset: int) -> None:
    harness.append("t", batch_of(2), batch_of(3))
    store, number = harness.place("t")
    harness.turns.run([(RouterState(), DeleteRecords(1, store, number, 2))], NOW_MS)
    data = one(harness, offset)
    assert data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert data.log_start_offset == 2
    assert not data.records


def test_the_first_batch_is_returned_even_above_the_limits(harness: RouterHarness) -> None:
    harness.append("t", batch_of(1, size=5_000), batch_of(1, size=5_000))
    assert bases(one(harness, 0, max_bytes=1)) == [0]
    assert bases(one(harness, 0, partition_max_bytes=1)) == [0]
    assert bases(one(harness, 0, max_bytes=0)) == [0]


def test_only_the_first_partition_with_data_may_pass_the_limits(harness: RouterHarness) -> None:
    for partition in (1, 2):
        harness.append("t", batch_of(1, size=5_000), partition=partition)
    found = fetch(harness, request({0: 0, 1: 0, 2: 0}, max_bytes=1))
    assert [bytes_of(found[index]) != b"" for index in range(3)] == [False, True, False]
    assert found[2].error_code == ErrorCode.NONE
    assert found[2].high_watermark == 1
    found = fetch(harness, request({1: 0, 2: 0}, partition_max_bytes=1))
    assert [bytes_of(found[index]) != b"" for index in (1, 2)] == [True, False]


def test_partitions_share_max_bytes_in_the_order_of_the_request(
    harness: RouterHarness,
) -> None:
    for partition in (0, 1):
        harness.append("t", *[batch_of(1, size=1_000)] * 3, partition=partition)
    size = len(batch_of(1, size=1_000))
    asked = request({1: 0, 0: 0}, max_bytes=4 * size)
    found = fetch(harness, asked)
    assert bases(found[1]) == [0, 1, 2]
    assert bases(found[0]) == [0]
    found = fetch(harness, request({1: 0, 0: 0}, partition_max_bytes=2 * size))
    assert [bases(found[1]), bases(found[0])] == [[0, 1], [0, 1]]


def test_fetch_max_bytes_of_the_broker_limits_every_request(
    tmp_path: Path, loop: asyncio.AbstractEventLoop
) -> None:
    harness = RouterHarness(tmp_path, static={"fetch.max.bytes": "2048"}, loop=loop)
    harness.controller.has("t", 1, 1)
    harness.follow()
    harness.append("t", *[batch_of(1, size=900)] * 4)
    assert bases(one(harness, 0)) == [0, 1]
    harness.close()


def test_segments_of_large_batches_are_held_until_the_response_is_sent(
    harness: RouterHarness,
) -> None:
    harness.append("t", batch_of(1, size=100_000))
    pending = harness.begin_request(handle_fetch, request({0: 0}), NEWEST)
    assert pending.is_done
    assert pending.context.holds != []


def test_records_are_never_null(harness: RouterHarness) -> None:
    """Kafka never sends null records, and older clients cannot read them."""
    found = fetch(harness, request({0: 0, 1: 7, 9: 0}))
    assert [found[index].records for index in (0, 1, 9)] == [b"", b"", b""]


# -- what cannot be fetched ------------------------------------------------------------------------


@pytest.mark.parametrize("version", [4, BY_NAME, 13, NEWEST])
def test_unknown_topics_have_an_error_by_name_and_one_by_id(
    harness: RouterHarness, version: int
) -> None:
    topic_code = (
        ErrorCode.UNKNOWN_TOPIC_ID if version >= 13 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )
    data = fetch(harness, request({0: 0}, topic="nowhere"), version)[0]
    assert (data.error_code, data.high_watermark) == (topic_code, -1)
    for partition in (3, -1):
        data = fetch(harness, request({partition: 0}), version)[partition]
        assert data.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_topics_are_answered_by_name_or_by_id_as_requested(harness: RouterHarness) -> None:
    (by_id,) = harness.call(handle_fetch, request({0: 0}), 13).responses
    assert by_id.topic_id == topic_id(1)
    (by_name,) = harness.call(handle_fetch, request({0: 0}), 12).responses
    assert by_name.topic == "t"


@pytest.mark.parametrize("topic", ["t", "nowhere"])
def test_a_denied_topic_is_refused_whether_it_exists_or_not(
    harness: RouterHarness, topic: str
) -> None:
    harness.append("t", batch_of())
    harness.deny(AclOperation.READ, ResourceType.TOPIC, topic)
    data = fetch(harness, request({0: 0}, topic=topic), BY_NAME)[0]
    assert data.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert not data.records
    data = fetch(harness, request({0: 0}, topic=topic), NEWEST)[0]
    # An id that exists says so, as in Kafka: nobody guesses 128 bits.
    by_id = {"t": ErrorCode.TOPIC_AUTHORIZATION_FAILED}.get(topic, ErrorCode.UNKNOWN_TOPIC_ID)
    assert data.error_code == by_id
    assert not data.records


def test_an_error_of_one_partition_ends_the_wait(harness: RouterHarness) -> None:
    harness.append("t", batch_of())
    pending = harness.begin_request(
        handle_fetch, request({0: 0, 9: 0}, min_bytes=1 << 20, max_wait_ms=60_000), NEWEST
    )
    assert pending.is_done
    found = answers(pending.response())
    assert bases(found[0]) == [0]
    assert found[9].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# -- leader epochs (KIP-320, KIP-595) --------------------------------------------------------------


def test_an_old_leader_epoch_is_fenced_and_a_future_one_unknown(harness: RouterHarness) -> None:
    harness.lead("t", 5)
    harness.append("t", batch_of())
    codes = {
        epoch: one(harness, 0, current_leader_epoch=epoch).error_code for epoch in (-1, 4, 5, 6)
    }
    assert codes == {
        -1: ErrorCode.NONE,
        4: ErrorCode.FENCED_LEADER_EPOCH,
        5: ErrorCode.NONE,
        6: ErrorCode.UNKNOWN_LEADER_EPOCH,
    }


def test_the_epoch_is_checked_before_the_leader(
    tmp_path: Path, loop: asyncio.AbstractEventLoop
) -> None:
    harness = RouterHarness(tmp_path, brokers=2, loop=loop)
    harness.controller.has("t", 1, 1)
    harness.follow()
    harness.lead("t", 5, leader=1)
    assert one(harness, 0).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    data = one(harness, 0, current_leader_epoch=4)
    assert data.error_code == ErrorCode.FENCED_LEADER_EPOCH
    harness.close()


def test_a_former_leader_names_the_current_leader(
    tmp_path: Path, loop: asyncio.AbstractEventLoop
) -> None:
    """KIP-951: the client needs no Metadata request."""
    harness = RouterHarness(tmp_path, brokers=2, loop=loop)
    harness.controller.has("t", 1, 1)
    harness.follow()
    harness.lead("t", 5, leader=1)
    for version, options in ((15, {}), (16, {}), (NEWEST, {"current_leader_epoch": 4})):
        response = harness.call(handle_fetch, request({0: 0}, **options), version)  # type: ignore[arg-type]  # ints
        assert answers(response)[0].error_code in (6, 74)
        told = answers(response)[0].current_leader, response.node_endpoints
        if version < 16:
            assert told == (None, [])
        else:
            leader = LeaderIdAndEpoch(leader_id=1, leader_epoch=5)
            assert told == (
                leader,
                [NodeEndpoint(node_id=1, host="host-1", port=9093, rack="rack-1")],
            )
    harness.close()


def test_a_diverging_log_gets_the_diverging_epoch(harness: RouterHarness) -> None:
    """Epoch 1: offsets 0 and 1; epoch 4: offset 2 to 4."""
    harness.lead("t", 1)
    harness.append("t", batch_of(2))
    harness.lead("t", 4)
    harness.append("t", batch_of(3))
    # (offset, last fetched epoch) of followers whose logs diverge, and the diverging epoch.
    for asked, ours in {
        (4, 1): FetchEpochEndOffset(epoch=1, end_offset=2),
        (3, 3): FetchEpochEndOffset(epoch=1, end_offset=2),
        (9, 4): FetchEpochEndOffset(epoch=4, end_offset=5),
    }.items():
        data = one(harness, asked[0], last_fetched_epoch=asked[1], max_wait_ms=60_000)
        assert (data.error_code, data.diverging_epoch) == (ErrorCode.NONE, ours), asked
        assert not data.records
    for asked in ((2, 1), (4, 4), (5, 4)):
        data = one(harness, asked[0], last_fetched_epoch=asked[1])
        assert (data.error_code, data.diverging_epoch) == (ErrorCode.NONE, None), asked
    assert one(harness, 3, last_fetched_epoch=5).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


# -- transactions ----------------------------------------------------------------------------------


def test_read_committed_ends_before_the_first_open_transaction(harness: RouterHarness) -> None:
    harness.append("t", batch_of(2), transactional(3, 0), batch_of(1))
    data = one(harness, 0, isolation_level=READ_COMMITTED)
    assert bases(data) == [0]
    assert (data.high_watermark, data.last_stable_offset) == (6, 2)
    assert data.aborted_transactions == []
    data = one(harness, 0)
    assert bases(data) == [0, 2, 5]
    assert (data.last_stable_offset, data.aborted_transactions) == (2, None)
    end_transaction(harness, ControlType.COMMIT)
    data = one(harness, 0, isolation_level=READ_COMMITTED)
    assert bases(data) == [0, 2, 5, 6]
    assert data.aborted_transactions == []


def test_every_aborted_transaction_that_overlaps_is_listed(harness: RouterHarness) -> None:
    """Offsets: 0-2 of 7, 3 of 8, 4 aborts 7, 5 aborts 8, 6 plain, 7 of 7, 8 commits it."""
    harness.append("t", transactional(3, 0), transactional(1, 0, producer_id=8))
    end_transaction(harness, ControlType.ABORT)
    end_transaction(harness, ControlType.ABORT, producer_id=8)
    harness.append("t", batch_of(1), transactional(1, 3))
    end_transaction(harness, ControlType.COMMIT)
    first = AbortedTransaction(producer_id=7, first_offset=0)
    second = AbortedTransaction(producer_id=8, first_offset=3)
    listed = {
        offset: one(harness, offset, isolation_level=READ_COMMITTED).aborted_transactions
        for offset in (0, 1, 4, 5, 6, 8)
    }
    assert listed == {
        0: [first, second],
        1: [first, second],
        4: [first, second],
        5: [second],
        6: [],
        8: [],
    }
    assert one(harness, 0).aborted_transactions is None


def test_the_records_end_where_the_list_of_aborted_transactions_does(
    harness: RouterHarness,
) -> None:
    """Each transaction is a record and its marker; a last one is open from the beginning on."""
    count = ABORTED_PER_TURN + 50
    harness.append("t", transactional(1, 0, producer_id=8))
    for number in range(count):
        harness.append("t", transactional(1, number))
        end_transaction(harness, ControlType.ABORT)
    end_transaction(harness, ControlType.ABORT, producer_id=8)
    offset = 0
    for stop in (ABORTED_PER_TURN, count):
        data = one(harness, offset, isolation_level=READ_COMMITTED)
        first_offsets = [each.first_offset for each in data.aborted_transactions or ()]
        assert first_offsets == [*range(offset + 1 - offset % 2, 2 * stop, 2), 0]
        offset = bases(data)[-1] + 1
        assert offset == 2 * stop + (1 if stop < count else 2)


def test_partitions_of_many_batches_are_read_in_turns(
    harness: RouterHarness, loop: asyncio.AbstractEventLoop
) -> None:
    """Each of them takes as long as a slice of the loop may."""
    batches = [batch_of(1)] * BATCHES_PER_READ_MAX
    for partition in (0, 1):
        harness.append("t", *batches, partition=partition)
    response = harness.call_in_turns(handle_fetch, request({0: 0, 1: 0}, max_bytes=50 << 20), loop)
    for data in answers(response).values():
        assert bases(data) == [*range(BATCHES_PER_READ_MAX)]


def test_a_waiting_read_committed_fetch_is_woken_by_the_commit(
    harness: RouterHarness,
) -> None:
    harness.append("t", transactional(1, 0))
    asked = request({0: 0}, isolation_level=READ_COMMITTED, max_wait_ms=60_000)
    pending = harness.begin_request(handle_fetch, asked, NEWEST)
    harness.append("t", batch_of(1))
    assert not pending.is_done, "the high watermark moved, what is stable did not"
    end_transaction(harness, ControlType.COMMIT)
    assert bases(answers(harness.answer_to(pending))[0]) == [0, 1, 2]


# -- waiting ---------------------------------------------------------------------------------------


def test_a_fetch_at_the_end_is_answered_by_the_next_append(harness: RouterHarness) -> None:
    harness.append("t", batch_of(2))
    pending = waiting(harness, request({0: 2, 1: 0}, max_wait_ms=60_000))
    harness.append("t", batch_of(1), partition=2)
    assert not pending.is_done, "nobody asked for that partition"
    harness.append("t", batch_of(3))
    assert bases(answers(pending.response())[0]) == [2]


def test_a_fetch_waits_for_min_bytes(harness: RouterHarness) -> None:
    batch = batch_of(1, size=1_000)
    pending = waiting(harness, request({0: 0, 1: 0}, min_bytes=2 * len(batch), max_wait_ms=60_000))
    harness.append("t", batch)
    assert not pending.is_done
    harness.append("t", batch, partition=1)
    found = answers(pending.response())
    assert [bases(found[0]), bases(found[1])] == [[0], [0]]


def test_a_fetch_does_not_wait_for_bytes_that_the_log_has(harness: RouterHarness) -> None:
    """A read ends at the end of a segment; the next fetch gets the rest."""
    batch = batch_of(1, size=1_000)
    harness.append("t", batch)
    store, _ = harness.place("t")
    harness.partitions.stores[store].roll(NOW_MS)
    harness.append("t", batch)
    asked = {"min_bytes": 2 * len(batch), "max_wait_ms": 60_000}
    first = harness.begin_request(handle_fetch, request({0: 0}, **asked), NEWEST)  # type: ignore[arg-type]  # ints
    assert bases(answers(first.response())[0]) == [0]
    waiting(harness, request({0: 1}, **asked))  # type: ignore[arg-type]  # ints
    harness.append("t", batch, partition=1)
    small = request({0: 1, 1: 0}, max_bytes=len(batch), **asked)  # type: ignore[arg-type]  # ints
    assert harness.begin_request(handle_fetch, small, NEWEST).is_done, (
        "no more than that may ever come"
    )


def test_fewer_bytes_than_min_bytes_are_returned_after_max_wait(harness: RouterHarness) -> None:
    harness.append("t", batch_of(2))
    pending = waiting(harness, request({0: 0}, min_bytes=1 << 20, max_wait_ms=20))
    data = answers(harness.answer_to(pending))[0]
    assert (data.error_code, bases(data)) == (ErrorCode.NONE, [0])


def test_a_wakeup_does_not_extend_the_wait(harness: RouterHarness) -> None:
    pending = waiting(harness, request({0: 0}, min_bytes=1 << 20, max_wait_ms=60_000))
    harness.now_ms += 30_000
    harness.append("t", batch_of())
    assert not pending.is_done
    harness.now_ms += 30_000
    harness.append("t", batch_of())
    assert bases(answers(pending.response())[0]) == [0, 1]


@pytest.mark.parametrize("options", [{"min_bytes": 0, "max_wait_ms": 60_000}, {"max_wait_ms": 0}])
def test_a_fetch_without_min_bytes_or_max_wait_does_not_wait(
    harness: RouterHarness, options: dict[str, int]
) -> None:
    pending = harness.begin_request(handle_fetch, request({0: 0}, **options), NEWEST)  # type: ignore[arg-type]  # ints
    assert pending.is_done
    assert bytes_of(answers(pending.response())[0]) == b""


def test_a_fetch_without_partitions_does_not_wait(harness: RouterHarness) -> None:
    assert harness.call(handle_fetch, request({}, max_wait_ms=60_000), NEWEST).responses == []


def test_a_waiting_fetch_is_answered_when_its_topic_is_deleted(harness: RouterHarness) -> None:
    pending = waiting(harness, request({0: 0}, max_wait_ms=60_000))
    harness.controller.topics(DeleteTopics((TopicReference("t"),)))
    harness.follow()
    harness.services.fetch_purgatory.wake_all()
    assert answers(pending.response())[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_a_waiting_fetch_is_answered_at_once_when_the_router_stops(harness: RouterHarness) -> None:
    pending = waiting(harness, request({0: 0}, max_wait_ms=60_000))
    harness.services.fetch_purgatory.end_all()
    assert bytes_of(answers(pending.response())[0]) == b""


# -- message sets ----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(4))
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
def test_old_versions_get_message_sets(harness: RouterHarness, version: int, codec: Codec) -> None:
    harness.append("t", batch_of(3, codec=codec), batch_of(2, codec=codec))
    data = one(harness, 1, version)
    assert data.error_code == ErrorCode.NONE
    messages = [message for message in iter_messages(bytes_of(data)) if message.offset >= 1]
    assert [message.offset for message in messages] == [1, 2, 3, 4]
    assert {message.value for message in messages} == {b"a" * 10}
    assert {message.magic for message in messages} == {0 if version < 2 else 1}
    assert {message.timestamp for message in messages} == {-1 if version < 2 else NOW_MS}


@pytest.mark.parametrize("version", range(10))
def test_zstd_batches_are_refused_before_version_10(harness: RouterHarness, version: int) -> None:
    """KIP-110: only the partition that cannot be converted is refused."""
    harness.append("t", batch_of(2, codec=Codec.ZSTD))
    harness.append("t", batch_of(2), partition=1)
    found = fetch(harness, request({0: 0, 1: 0}), version)
    if version < 4:
        assert found[0].error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        assert not found[0].records
    else:
        assert bases(found[0]) == [0]
    assert bytes_of(found[1])
    assert found[1].error_code == ErrorCode.NONE


def test_control_batches_are_removed_by_down_conversion(harness: RouterHarness) -> None:
    harness.append("t", transactional(1, 0))
    end_transaction(harness, ControlType.COMMIT)
    harness.append("t", batch_of(1))
    messages = list(iter_messages(bytes_of(one(harness, 0, 3))))
    assert [message.offset for message in messages] == [0, 2]
