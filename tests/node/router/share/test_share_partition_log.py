"""The log of a share partition as its group may read it, over a real store."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.cluster.metadata.group_settings import ShareGroupSettings
from odradek.coordinator.share.acquisition import LogBatch, ReadPosition
from odradek.node.router.share.share_partition_log import READ_BYTES_MIN, SharePartitionLog
from odradek.protocol.control_records import ControlType
from tests.support.fetching import end_transaction, fetch_harness, transactional
from tests.support.router_harness import RouterHarness
from tests.support.stores import NOW_MS, batch_of

EVERYTHING = 1 << 30


@pytest.fixture
def harness(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> Iterator[RouterHarness]:
    with fetch_harness(tmp_path, loop) as harness:
        yield harness


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def log_of(
    harness: RouterHarness,
    group_settings: ShareGroupSettings = ShareGroupSettings(),  # noqa: B008 - a frozen value
) -> SharePartitionLog:
    store, number = harness.place("t")
    reader = harness.services.logs.reader(store)
    assert reader is not None
    return SharePartitionLog(reader, number, group_settings)


def batches(log: SharePartitionLog, position: ReadPosition) -> list[LogBatch]:
    found = log.read(position, 1, EVERYTHING, min_one_batch=True)
    return [] if found is None else found.batches


def initial_offset(group_log: SharePartitionLog, now_ms: int) -> int:
    return asyncio.run(group_log.initial_offset(0, now_ms))


def test_a_group_reads_up_to_the_high_watermark_or_the_last_stable_offset(
    harness: RouterHarness,
) -> None:
    harness.append("t", batch_of(2), transactional(3, 0))
    uncommitted = log_of(harness)
    committed = log_of(harness, ShareGroupSettings(is_read_committed=True))
    assert (uncommitted.start_offset, uncommitted.end_offset) == (0, 5)
    assert committed.end_offset == 2
    assert batches(uncommitted, ReadPosition(0, None)) == [LogBatch(0, 2), LogBatch(2, 5)]
    assert batches(committed, ReadPosition(0, None)) == [LogBatch(0, 2)]


def test_markers_are_void_and_aborted_records_are_with_read_committed(
    harness: RouterHarness,
) -> None:
    harness.append("t", transactional(2, 0))
    end_transaction(harness, ControlType.ABORT)
    uncommitted = log_of(harness)
    committed = log_of(harness, ShareGroupSettings(is_read_committed=True))
    marker = LogBatch(2, 3, is_void=True)
    assert batches(uncommitted, ReadPosition(0, None)) == [LogBatch(0, 2), marker]
    assert batches(committed, ReadPosition(0, None)) == [LogBatch(0, 2, is_void=True), marker]


def test_committed_records_between_aborted_ones_of_the_same_producer_are_read(
    harness: RouterHarness,
) -> None:
    ends = [ControlType.ABORT, ControlType.COMMIT] * 3
    for number, end in enumerate(ends):
        harness.append("t", transactional(2, 2 * number))
        end_transaction(harness, end)
    committed = log_of(harness, ShareGroupSettings(is_read_committed=True))
    records = batches(committed, ReadPosition(0, None))[::2]
    assert [batch.is_void for batch in records] == [end is ControlType.ABORT for end in ends]


def test_nothing_is_read_beyond_the_end_of_the_position_or_the_log(harness: RouterHarness) -> None:
    harness.append("t", batch_of(2), batch_of(2))
    log = log_of(harness)
    assert batches(log, ReadPosition(0, 2)) == [LogBatch(0, 2)]
    assert batches(log, ReadPosition(2, 2)) == []
    assert batches(log, ReadPosition(4, None)) == []


def test_a_read_has_about_the_wanted_bytes_and_not_more_than_the_limit(
    harness: RouterHarness,
) -> None:
    for _ in range(4):
        harness.append("t", batch_of(1, size=READ_BYTES_MIN // 2))
    log = log_of(harness)
    little = log.read(ReadPosition(0, None), 1, EVERYTHING, min_one_batch=True)
    much = log.read(ReadPosition(0, None), EVERYTHING, EVERYTHING, min_one_batch=True)
    bounded = log.read(ReadPosition(0, None), EVERYTHING, 1, min_one_batch=True)
    assert little is not None
    assert much is not None
    assert bounded is not None
    assert len(bounded.batches) == 1
    assert len(little.batches) < len(much.batches) == 4
    assert log.read(ReadPosition(0, None), EVERYTHING, 1, min_one_batch=False) is None


def test_a_read_has_the_average_record_size(harness: RouterHarness) -> None:
    harness.append("t", batch_of(10, size=100))
    found = log_of(harness).read(ReadPosition(0, None), 1, EVERYTHING, min_one_batch=True)
    assert found is not None
    assert found.record_bytes is not None
    assert 100 < found.record_bytes < 150


def test_the_initial_offset_is_the_end_the_start_or_at_a_time(harness: RouterHarness) -> None:
    harness.append("t", batch_of(2), batch_of(3))
    assert initial_offset(log_of(harness), NOW_MS) == 5
    assert (
        initial_offset(log_of(harness, ShareGroupSettings(auto_offset_reset="earliest")), NOW_MS)
        == 0
    )
    long_ago = log_of(harness, ShareGroupSettings(auto_offset_reset="by_duration:PT1S"))
    assert initial_offset(long_ago, NOW_MS) == 0
    assert initial_offset(long_ago, NOW_MS + 2_000) == 5
