"""The sparse index and the lookup use one rule; a simple scan checks it."""

import random
from pathlib import Path

import pytest

from odradek.storage.segment import Segment, SegmentWriter
from odradek.storage.timestamps import (
    INDEX_INTERVAL_BYTES,
    TimestampIndexer,
    first_to_reach,
    largest,
)
from tests.support.stores import as_stored, batch_of


@pytest.mark.parametrize("seed", range(25))
def test_a_lookup_equals_a_scan(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    segment = Segment.create(tmp_path, 1, map_bytes=64 << 20)
    writer = SegmentWriter(segment)
    logs: dict[int, list[tuple[int, int]]] = {}
    for number in (3, 4, 9):
        clock = 1_000
        for offset in range(chance.randrange(0, 150)):
            clock += chance.choice([0, 0, 0, 1, 5, -3])
            timestamp = chance.choice([clock] * 20 + [clock + 40, -1])
            size = chance.choice([1, 900, 20_000, INDEX_INTERVAL_BYTES])
            batch = as_stored(batch_of(timestamp=timestamp, size=size), offset)
            writer.put(number, offset, batch, log_end_before=offset)
            logs.setdefault(number, []).append((offset, timestamp))
    writer.finish()
    with segment.begin() as transaction:
        tables = transaction, segment.batches, segment.timestamps
        for number in (2, 3, 4, 9, 10):
            log = logs.get(number, [])
            for end in (0, 1, len(log) // 2, len(log) - 1, len(log)):
                known = [(t, -offset) for offset, t in log if offset < end and t >= 0]
                latest = largest(*tables, number, end_offset=end)
                assert (latest and (latest[0], -latest[1])) == max(known, default=None)
            for wanted in range(990, 1_200):
                expected = next((offset for offset, t in log if t >= wanted), None)
                assert first_to_reach(*tables, number, wanted) == expected


def test_an_increase_soon_after_an_entry_gets_no_entry() -> None:
    indexer = TimestampIndexer()
    assert indexer.note(10, 100)
    assert not indexer.note(11, 100)
    assert not indexer.note(11, INDEX_INTERVAL_BYTES)
    assert not indexer.note(11, 100), "no growth, no entry"
    assert indexer.note(12, 100)
    assert indexer.max_timestamp == 12


def test_batches_without_timestamps_get_no_entry() -> None:
    indexer = TimestampIndexer()
    assert not indexer.note(-1, INDEX_INTERVAL_BYTES)
    assert indexer.max_timestamp == -1
