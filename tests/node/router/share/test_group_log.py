"""The log of a share partition as its group may read it, over a real store."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.coordinator.share.acquisition import LogBatch, Position
from odradek.coordinator.share.terms import Terms
from odradek.node.router.share.group_log import READ_BYTES_MIN, GroupLog
from odradek.protocol.control_records import ControlType
from tests.support.fetching import end_transaction, fetch_room, transactional
from tests.support.router_room import RouterRoom
from tests.support.stores import NOW_MS, batch_of

EVERYTHING = 1 << 30


@pytest.fixture
def room(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> Iterator[RouterRoom]:
    with fetch_room(tmp_path, loop) as room:
        yield room


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def log_of(room: RouterRoom, terms: Terms = Terms()) -> GroupLog:  # noqa: B008 - a frozen value
    store, number = room.place("t")
    reader = room.services.logs.reader(store)
    assert reader is not None
    return GroupLog(reader, number, terms)


def batches(log: GroupLog, position: Position) -> list[LogBatch]:
    found = log.read(position, 1, EVERYTHING, min_one_batch=True)
    return [] if found is None else found.batches


def test_a_group_reads_to_the_high_watermark_or_to_what_is_stable(room: RouterRoom) -> None:
    room.append("t", batch_of(2), transactional(3, 0))
    uncommitted = log_of(room)
    committed = log_of(room, Terms(is_read_committed=True))
    assert (uncommitted.start_offset, uncommitted.end_offset) == (0, 5)
    assert committed.end_offset == 2
    assert batches(uncommitted, Position(0, None)) == [LogBatch(0, 2), LogBatch(2, 5)]
    assert batches(committed, Position(0, None)) == [LogBatch(0, 2)]


def test_markers_are_for_nobody_and_aborted_records_only_for_who_wants_them(
    room: RouterRoom,
) -> None:
    room.append("t", transactional(2, 0))
    end_transaction(room, ControlType.ABORT)
    uncommitted = log_of(room)
    committed = log_of(room, Terms(is_read_committed=True))
    marker = LogBatch(2, 3, is_void=True)
    assert batches(uncommitted, Position(0, None)) == [LogBatch(0, 2), marker]
    assert batches(committed, Position(0, None)) == [LogBatch(0, 2, is_void=True), marker]


def test_nothing_is_read_behind_the_end_of_a_position_or_of_the_log(room: RouterRoom) -> None:
    room.append("t", batch_of(2), batch_of(2))
    log = log_of(room)
    assert batches(log, Position(0, 2)) == [LogBatch(0, 2)]
    assert batches(log, Position(2, 2)) == []
    assert batches(log, Position(4, None)) == []


def test_about_as_much_is_read_as_is_wanted_and_no_more_than_may_be(room: RouterRoom) -> None:
    for _ in range(4):
        room.append("t", batch_of(1, size=READ_BYTES_MIN // 2))
    log = log_of(room)
    little = log.read(Position(0, None), 1, EVERYTHING, min_one_batch=True)
    much = log.read(Position(0, None), EVERYTHING, EVERYTHING, min_one_batch=True)
    bounded = log.read(Position(0, None), EVERYTHING, 1, min_one_batch=True)
    assert little is not None
    assert much is not None
    assert bounded is not None
    assert len(bounded.batches) == 1
    assert len(little.batches) < len(much.batches) == 4
    assert log.read(Position(0, None), EVERYTHING, 1, min_one_batch=False) is None


def test_the_size_of_records_is_told_by_what_was_read(room: RouterRoom) -> None:
    room.append("t", batch_of(10, size=100))
    found = log_of(room).read(Position(0, None), 1, EVERYTHING, min_one_batch=True)
    assert found is not None
    assert found.record_bytes is not None
    assert 100 < found.record_bytes < 150


def test_a_group_begins_at_the_end_at_the_start_or_at_a_time(room: RouterRoom) -> None:
    room.append("t", batch_of(2), batch_of(3))
    assert log_of(room).beginning(0, NOW_MS) == 5
    assert log_of(room, Terms(begins_earliest=True)).beginning(0, NOW_MS) == 0
    long_ago = log_of(room, Terms(begins_before_ms=1_000))
    assert long_ago.beginning(0, NOW_MS) == 0
    assert long_ago.beginning(0, NOW_MS + 2_000) == 5
