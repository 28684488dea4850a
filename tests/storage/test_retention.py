"""Log starts by age and size, against lists of batches."""

import random
from collections.abc import Generator
from pathlib import Path

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.protocol.records import read_header
from odradek.storage.retention import (
    CountedPrefix,
    live_bytes,
    offset_by_bytes,
    offset_by_time,
    read_sizes,
    retained_offset,
)
from odradek.storage.segment import Extent, Segment
from odradek.storage.settings import LogSettings
from odradek.storage.store import Store
from tests.support.stores import NOW_MS, append_now, batch_of, create, open_store

NEVER = 2**62


def outcome(search: Generator[bool, None, int]) -> int:
    while True:
        try:
            next(search)
        except StopIteration as stop:
            return int(stop.value)


def opener(store: Store) -> "SegmentOpener":
    return SegmentOpener(store)


class SegmentOpener:
    """Opens segments and counts them: unneeded ones must not be opened."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.opened: list[int] = []

    def __call__(self, segment_id: int) -> Segment:
        self.opened.append(segment_id)
        return Segment.open(self._store.directory, segment_id)


def extents_of(store: Store, number: int) -> list[Extent]:
    extents = list(store.catalog.extents.get(number, ()))
    active_id = store.catalog.active_segment_id
    assert active_id is not None
    active = store.partitions()[number].active_extent(active_id)
    return extents if active is None else [*extents, active]


def by_time(store: Store, number: int, timestamp_min: int, *, log_start: int = 0) -> int:
    return outcome(
        offset_by_time(
            extents_of(store, number),
            opener(store),
            number=number,
            log_start_offset=log_start,
            timestamp_min=timestamp_min,
        )
    )


def by_bytes(
    store: Store,
    number: int,
    bytes_min: int,
    *,
    log_start: int = 0,
    known: dict[int, CountedPrefix] | None = None,
) -> int:
    return outcome(
        offset_by_bytes(
            extents_of(store, number),
            opener(store),
            number=number,
            log_start_offset=log_start,
            bytes_min=bytes_min,
            known={} if known is None else known,
        )
    )


def test_older_batches_are_deleted_up_to_the_first_newer_one(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    number = create(store)
    append_now(store, number, *(batch_of(2, timestamp=at) for at in (10, 20, 30, 25, 40)))
    assert by_time(store, number, 10) == 0
    assert by_time(store, number, 11) == 2
    assert by_time(store, number, 26) == 4, "the one of 25 stands behind one of 30"
    assert by_time(store, number, 41) == 10
    store.close()


def test_a_whole_extent_is_checked_without_opening_its_segment(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    number = create(store)
    append_now(store, number, batch_of(3, timestamp=10))
    store.roll(NOW_MS)
    append_now(store, number, batch_of(3, timestamp=50))
    segments = opener(store)
    search = offset_by_time(
        extents_of(store, number), segments, number=number, log_start_offset=0, timestamp_min=20
    )
    assert outcome(search) == 3
    assert len(segments.opened) == 1
    store.close()


def test_a_batch_below_the_log_start_does_not_stop_the_search(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    number = create(store)
    append_now(store, number, *(batch_of(1, timestamp=at) for at in (90, 10, 20, 80)))
    assert by_time(store, number, 50, log_start=1) == 3
    store.close()


def test_a_log_start_within_a_newer_batch_does_not_move(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    number = create(store)
    append_now(store, number, batch_of(5, timestamp=90), batch_of(5, timestamp=95))
    assert by_time(store, number, 50, log_start=3) == 3
    assert by_bytes(store, number, 10_000, log_start=3) == 3
    store.close()


def test_at_least_retention_bytes_remain(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    number = create(store)
    batches = [batch_of(1, size=size) for size in (100, 200, 300, 400)]
    append_now(store, number, *batches)
    total = sum(map(len, batches))
    assert by_bytes(store, number, total) == 0
    assert by_bytes(store, number, total - len(batches[0]) + 1) == 0
    assert by_bytes(store, number, total - len(batches[0])) == 1
    assert by_bytes(store, number, len(batches[3]) + 1) == 2
    assert by_bytes(store, number, len(batches[3])) == 3
    assert by_bytes(store, number, 0) == 4
    store.close()


def test_counted_bytes_are_not_read_again(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    number = create(store)
    append_now(store, number, *(batch_of(1, size=100) for _ in range(20)))
    size = len(batch_of(1, size=100))
    known: dict[int, CountedPrefix] = {}
    start = by_bytes(store, number, 5 * size, known=known)
    assert start == 15
    (below,) = known.values()
    assert (below.offset, below.byte_count) == (15, 15 * size)
    append_now(store, number, batch_of(1, size=100))
    assert by_bytes(store, number, 5 * size, log_start=15, known=known) == 16
    known[number] = below._replace(segment_id=99)
    assert by_bytes(store, number, 5 * size, log_start=16, known=known) == 16
    store.close()


def test_a_policy_without_delete_keeps_everything(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    number = create(store)
    append_now(store, number, batch_of(2, timestamp=10))
    log = store.partitions()[number]
    for settings, expected in (
        (LogSettings(retention_ms=5), 2),
        (LogSettings(retention_ms=-1), 0),
        (LogSettings(retention_ms=-1, retention_bytes=0), 2),
        (LogSettings(retention_ms=5, cleanup_compact=True), 2),
        (LogSettings(retention_ms=5, cleanup_compact=True, cleanup_delete=False), 0),
    ):
        log.settings = settings
        search = retained_offset(
            log, extents_of(store, number), opener(store), now_ms=100, known={}
        )
        assert outcome(search) == expected, settings
    store.close()


def test_nothing_at_or_above_the_high_watermark_is_deleted(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    number = create(store)
    append_now(store, number, *(batch_of(1, timestamp=at) for at in (1, 2, 3)))
    log = store.partitions()[number]
    log.settings = LogSettings(retention_ms=1, retention_bytes=0)
    log.high_watermark = 2
    search = retained_offset(log, extents_of(store, number), opener(store), now_ms=NEVER, known={})
    assert outcome(search) == 2
    store.close()


@pytest.mark.parametrize("seed", range(25))
def test_retention_of_random_logs_equals_lists(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    store = open_store(tmp_path)
    number, other = create(store), create(store, 1)
    ends: list[tuple[int, int, int]] = []  # end offset, bytes, max timestamp
    for _ in range(dice.randint(1, 60)):
        timestamps = [dice.randint(0, 1000) for _ in range(dice.randint(1, 5))]
        batch = batch_of(len(timestamps), size=dice.choice([10, 500, 5000]), timestamps=timestamps)
        (base,) = append_now(store, number, batch)
        append_now(store, other, batch_of(1, timestamp=5_000))
        ends.append((base + len(timestamps), len(batch), read_header(batch).max_timestamp))
        if dice.random() < 0.15:
            store.roll(NOW_MS)
    known: dict[int, CountedPrefix] = {}
    log_start = 0
    for _ in range(6):
        timestamp_min, bytes_min = dice.randint(0, 1100), dice.randint(0, 100_000)
        expected = log_start
        for end, _, timestamp in ends:
            if end <= log_start:
                continue
            if timestamp >= timestamp_min:
                break
            expected = end
        assert by_time(store, number, timestamp_min, log_start=log_start) == expected
        remaining = sum(size for end, size, _ in ends if end > log_start)
        expected = log_start
        for end, size, _ in ends:
            if end <= log_start:
                continue
            if remaining - size < bytes_min:
                break
            remaining -= size
            expected = end
        assert by_bytes(store, number, bytes_min, log_start=log_start, known=known) == expected
        if dice.random() < 0.7 and expected > log_start:
            assert store.log_starts.delete_records(number, expected)[0] is ErrorCode.NONE
            log_start = expected
    store.close()


def test_read_sizes_starts_with_the_batch_that_contains_the_offset(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    number = create(store)
    append_now(store, number, *(batch_of(3, timestamp=at) for at in (1, 2, 3)))
    segment = opener(store)(store.catalog.active_segment_id or 0)
    sizes = read_sizes(segment, number, 4, count=5)
    assert [(s.base_offset, s.end_offset, s.max_timestamp) for s in sizes] == [(3, 6, 2), (6, 9, 3)]
    assert len(read_sizes(segment, number, 0, count=2)) == 2
    assert read_sizes(segment, number, 9, count=2) == []
    store.close()


def test_live_bytes_are_estimated_by_offsets() -> None:
    extent = Extent(1, 100, 200, 1_000, 10)
    assert live_bytes(extent, 0) == 1_000
    assert live_bytes(extent, 150) == 500
    assert live_bytes(extent, 200) == 0
