"""Fetch from the closest replica (KIP-392): the preferred read replica, and follower reads."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from odradek.cluster.metadata.broker_settings import LEADER_SELECTOR, RACK_AWARE_SELECTOR
from odradek.cluster.metadata.image import ConfigResourceType
from odradek.cluster.metadata.records import BrokerChanged, PartitionChanged
from odradek.node.router.handlers.fetch import handle_fetch
from odradek.protocol.control_records import ControlType
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.fetch import AbortedTransaction
from tests.support.fetching import (
    NEWEST,
    answers,
    bases,
    end_transaction,
    fetch,
    one,
    request,
    transactional,
    waiting,
)
from tests.support.router_harness import RouterHarness
from tests.support.stores import batch_of

READ_COMMITTED = 1


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture
def three_racks(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> Iterator[RouterHarness]:
    """Three brokers, each in its own rack, with replicas of one partition. This broker leads it and
    has five committed records."""
    harness = RouterHarness(
        tmp_path, brokers=3, loop=loop, static={"replica.selector.class": RACK_AWARE_SELECTOR}
    )
    harness.controller.has("t", 1, 1, 3)
    harness.follow()
    harness.lead("t", 5)
    harness.append("t", batch_of(2), batch_of(3))
    commit(harness, 5)
    yield harness
    harness.close()


def commit(harness: RouterHarness, offset: int) -> None:
    store, number = harness.place("t")
    harness.partitions.stores[store].set_high_watermark(number, offset)
    harness.turns.notify(store, (number,))


def set_partition(harness: RouterHarness, **changes: object) -> None:
    topic = harness.image.topics_by_name["t"]
    before = topic.partitions[0]
    after = msgspec.structs.replace(before, partition_epoch=before.partition_epoch + 1, **changes)
    harness.controller.write(PartitionChanged(topic.topic_id, 0, after))
    harness.follow()


@pytest.mark.parametrize("version", range(11, NEWEST + 1))
def test_the_preferred_read_replica_is_in_the_consumers_rack(
    three_racks: RouterHarness, version: int
) -> None:
    data = one(three_racks, 2, version, rack_id="rack-2", max_wait_ms=60_000)
    assert (data.error_code, data.preferred_read_replica) == (ErrorCode.NONE, 2)
    assert not data.records
    assert (data.high_watermark, data.last_stable_offset, data.log_start_offset) == (5, 5, 0)
    # Also at the end, where the leader would have waited.
    assert (
        one(three_racks, 5, version, rack_id="rack-2", max_wait_ms=60_000).preferred_read_replica
        == 2
    )


@pytest.mark.parametrize("rack", ["", "rack-0", "rack-7"])
def test_the_leader_serves_a_consumer_without_a_replica_in_its_rack(
    three_racks: RouterHarness, rack: str
) -> None:
    data = one(three_racks, 2, rack_id=rack)
    assert data.preferred_read_replica == -1
    assert bases(data) == [2]


def test_a_replica_that_cannot_serve_is_not_preferred(three_racks: RouterHarness) -> None:
    assert one(three_racks, 0, rack_id="rack-2").preferred_read_replica == 2
    three_racks.link.unreachable = frozenset({2})
    assert one(three_racks, 0, rack_id="rack-2").preferred_read_replica == -1
    three_racks.link.unreachable = frozenset()
    set_partition(three_racks, in_sync_replicas=(0, 1))
    assert one(three_racks, 0, rack_id="rack-2").preferred_read_replica == -1
    set_partition(three_racks, in_sync_replicas=(0, 1, 2))
    three_racks.controller.write(BrokerChanged(2, is_fenced=True, is_in_controlled_shutdown=False))
    three_racks.follow()
    assert one(three_racks, 0, rack_id="rack-2").preferred_read_replica == -1
    three_racks.controller.write(BrokerChanged(2, is_fenced=False, is_in_controlled_shutdown=False))
    three_racks.follow()
    assert one(three_racks, 0, rack_id="rack-2").preferred_read_replica == 2
    assert bases(one(three_racks, 0, rack_id="rack-2", replica_id=2, version=14)) == [0, 2]


def test_offsets_that_are_not_committed_or_out_of_range_are_answered_by_the_leader(
    three_racks: RouterHarness,
) -> None:
    three_racks.append("t", batch_of(2))
    above = one(three_racks, 6, rack_id="rack-2")
    assert (above.error_code, above.preferred_read_replica) == (ErrorCode.NONE, -1)
    beyond = one(three_racks, 8, rack_id="rack-2")
    assert (beyond.error_code, beyond.preferred_read_replica) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)


def test_an_incremental_response_has_the_preferred_read_replica(three_racks: RouterHarness) -> None:
    asked = request({0: 5}, session_epoch=0)
    session_id = three_racks.call(handle_fetch, asked, NEWEST).session_id
    assert session_id
    again = request({0: 5}, session_id=session_id, session_epoch=1, rack_id="rack-1")
    assert fetch(three_racks, again)[0].preferred_read_replica == 1


def test_the_replica_selector_can_change_at_run_time(
    tmp_path: Path, loop: asyncio.AbstractEventLoop
) -> None:
    harness = RouterHarness(tmp_path, brokers=3, loop=loop)
    harness.controller.has("t", 1, 1, 3)
    harness.follow()
    harness.lead("t", 5)
    chosen = []
    for selector in (LEADER_SELECTOR, RACK_AWARE_SELECTOR, LEADER_SELECTOR):
        harness.controller.set_config(
            ConfigResourceType.BROKER, "", replica_selector_class=selector
        )
        harness.follow()
        chosen.append(one(harness, 0, rack_id="rack-2").preferred_read_replica)
    assert chosen == [-1, 2, -1]
    harness.close()


def test_a_follower_serves_consumers_up_to_its_high_watermark(three_racks: RouterHarness) -> None:
    three_racks.append("t", batch_of(2))
    three_racks.lead("t", 6, leader=1)
    for version in range(NEWEST + 1):
        data = one(three_racks, 0, version)
        if version < 11:
            assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        else:
            assert data.error_code == ErrorCode.NONE
            assert bases(data) == [0, 2]
            assert (data.high_watermark, data.last_stable_offset) == (5, 5)
    assert one(three_racks, 6).error_code == ErrorCode.NONE
    assert (
        one(three_racks, 0, replica_id=2, version=14).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    )


def test_a_follower_checks_the_epoch_first(three_racks: RouterHarness) -> None:
    three_racks.lead("t", 6, leader=1)
    codes = [one(three_racks, 0, current_leader_epoch=epoch).error_code for epoch in (5, 6, 7)]
    assert codes == [
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
    ]


def test_out_of_range_on_a_follower_has_no_offsets(three_racks: RouterHarness) -> None:
    """librdkafka returns to the leader if its offset is above the high watermark in the response,
    and resets its offset otherwise."""
    store, number = three_racks.place("t")
    three_racks.partitions.stores[store].log_starts.move({number: 2})
    three_racks.lead("t", 6, leader=1)
    for offset in (0, 6):
        data = one(three_racks, offset)
        told = data.high_watermark, data.last_stable_offset, data.log_start_offset
        assert (data.error_code, told) == (ErrorCode.OFFSET_OUT_OF_RANGE, (-1, -1, -1))


def test_a_follower_out_of_sync_answers_offset_not_available(three_racks: RouterHarness) -> None:
    three_racks.lead("t", 6, leader=1)
    set_partition(three_racks, in_sync_replicas=(1, 2))
    assert one(three_racks, 0, rack_id="rack-1").error_code == ErrorCode.OFFSET_NOT_AVAILABLE
    set_partition(three_racks, replicas=(1, 2))
    assert one(three_racks, 0, rack_id="rack-1").error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_consumer_without_a_rack_is_sent_away_by_a_follower_out_of_sync(
    three_racks: RouterHarness,
) -> None:
    """It was not sent here, and aiokafka does not know OFFSET_NOT_AVAILABLE."""
    three_racks.lead("t", 6, leader=1)
    assert one(three_racks, 0).error_code == ErrorCode.NONE
    set_partition(three_racks, in_sync_replicas=(1, 2))
    assert one(three_racks, 0).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_fetch_from_a_follower_waits_until_its_high_watermark_moves(
    three_racks: RouterHarness,
) -> None:
    three_racks.append("t", batch_of(2))
    three_racks.lead("t", 6, leader=1)
    pending = waiting(three_racks, request({0: 5}, max_wait_ms=60_000))
    commit(three_racks, 7)
    assert bases(answers(pending.response())[0]) == [5]


def test_a_read_committed_fetch_from_a_follower_ends_at_its_last_stable_offset(
    three_racks: RouterHarness,
) -> None:
    three_racks.append("t", transactional(2, 0), transactional(1, 0, producer_id=8))
    commit(three_racks, 8)
    end_transaction(three_racks, ControlType.ABORT)
    commit(three_racks, 9)
    three_racks.lead("t", 6, leader=1)
    data = one(three_racks, 0, isolation_level=READ_COMMITTED)
    assert bases(data) == [0, 2, 5]
    assert (data.high_watermark, data.last_stable_offset) == (9, 7)
    assert data.aborted_transactions == [AbortedTransaction(producer_id=7, first_offset=5)]
