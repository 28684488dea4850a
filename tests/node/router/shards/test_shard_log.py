"""A shard's partition in a real store: before it exists, in slices, with transactional batches."""

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from odradek.coordinator.loader import LogEntry, TransactionalEntry
from odradek.coordinator.outcome import TransactionMarker
from odradek.node.bus.messages import Appended
from odradek.node.router.shards.shard_log import READ_BYTES, StoreShardLog
from odradek.node.router.worker_client import WorkerClient
from odradek.protocol.control_records import (
    ControlType,
    EndTransactionMarker,
    build_end_transaction_batch,
)
from odradek.protocol.errors import ErrorCode
from odradek.protocol.records import TRANSACTIONAL, Record, build_batch
from tests.support.controller_harness import topic_id
from tests.support.group_harness import GroupHarness


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[GroupHarness]:
    with GroupHarness(tmp_path) as harness:
        yield harness


def log_of(harness: GroupHarness) -> StoreShardLog:
    return StoreShardLog(harness.services.logs, cast("WorkerClient", harness.bus), topic_id(1), 0)


def append(harness: GroupHarness, log: StoreShardLog, batch: bytes) -> int:
    reply = log.append(batch, 0, log.bounds()[1])
    harness.bus.turn()
    answer = reply.result()
    assert isinstance(answer, Appended)
    assert answer.error_code == ErrorCode.NONE
    return answer.base_offset


def batch(*keys: bytes, value: bytes = b"value") -> bytes:
    return build_batch([Record(at, 1_000, key, value) for at, key in enumerate(keys)])


def read_all(log: StoreShardLog) -> list[LogEntry]:
    offset, end_offset = log.bounds()
    entries: list[LogEntry] = []
    while offset < end_offset:
        more, offset = log.read(offset, end_offset)
        entries += more
    return entries


def test_a_partition_that_does_not_exist_yet_is_not_led_here(harness: GroupHarness) -> None:
    log = log_of(harness)
    for reply in (log.barrier(), log.append(batch(b"a"), 0, 0)):
        assert reply.result().error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_appended_records_are_read_in_order(harness: GroupHarness) -> None:
    harness.have_topic("t", 1)
    log = log_of(harness)
    assert append(harness, log, batch(b"a", b"b")) == 0
    assert append(harness, log, batch(b"c")) == 2
    assert log.bounds() == (0, 3)
    assert read_all(log) == [(b"a", b"value"), (b"b", b"value"), (b"c", b"value")]


def test_a_batch_is_appended_only_at_the_expected_log_end(harness: GroupHarness) -> None:
    harness.have_topic("t", 1)
    log = log_of(harness)
    append(harness, log, batch(b"a", b"b"))
    for offset in (0, 1, 3):
        refused = log.append(batch(b"c"), 0, offset)
        harness.bus.turn()
        assert refused.result().error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert append(harness, log, batch(b"c")) == 2


def test_a_long_log_is_read_in_slices(harness: GroupHarness) -> None:
    harness.have_topic("t", 1)
    log = log_of(harness)
    for _ in range(6):
        append(harness, log, batch(b"a", b"b", value=bytes(READ_BYTES // 3)))
    entries, offset = log.read(0, 12)
    assert 0 < len(entries) < 12
    assert offset == len(entries)
    assert len(read_all(log)) == 12


def test_a_read_from_the_middle_of_a_batch_skips_earlier_records(harness: GroupHarness) -> None:
    harness.have_topic("t", 1)
    log = log_of(harness)
    append(harness, log, batch(b"a", b"b", b"c"))
    assert log.read(1, 3) == ([(b"b", b"value"), (b"c", b"value")], 3)


def test_the_barrier_is_answered_after_earlier_requests(harness: GroupHarness) -> None:
    harness.have_topic("t", 1)
    log = log_of(harness)
    harness.bus.is_away = True
    appended = log.append(batch(b"a"), 0, 0)
    barrier = log.barrier()
    assert not barrier.is_done
    harness.bus.come_back()
    harness.turn_loop()
    assert appended.is_done
    assert barrier.result().error_code == ErrorCode.NONE
    assert log.bounds() == (0, 1)


def test_transactional_records_are_read_with_producers_and_markers(harness: GroupHarness) -> None:
    harness.have_topic("t", 1)
    log = log_of(harness)
    records = [Record(0, 1_000, b"a", b"value")]
    append(
        harness,
        log,
        build_batch(records, attributes=TRANSACTIONAL, producer_id=7, producer_epoch=2),
    )
    end = build_end_transaction_batch(
        EndTransactionMarker(ControlType.COMMIT, 4),
        timestamp_ms=1_000,
        producer_id=7,
        producer_epoch=2,
    )
    assert append(harness, log, end) == 1
    assert read_all(log) == [
        TransactionalEntry(7, 2, b"a", b"value"),
        TransactionMarker(7, 2, 4, is_commit=True),
    ]
