"""Finding batches by offset, with gaps and other partitions beside."""

import random
from pathlib import Path

import pytest

from odradek.storage.cursors import batches_from, last_delta_and_timestamp, seek
from odradek.storage.layout import KEY
from odradek.storage.segment import Segment, SegmentWriter
from tests.support.stores import NOW_MS, as_stored, batch_of


@pytest.mark.parametrize("seed", range(20))
def test_seek_finds_the_batch_that_contains_or_follows_an_offset(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    segment = Segment.create(tmp_path, 1, map_bytes=4 << 20)
    writer = SegmentWriter(segment)
    spans: dict[int, list[tuple[int, int]]] = {}
    for number in sorted(chance.sample(range(6), chance.randrange(1, 6))):
        offset = chance.randrange(4)
        for _ in range(chance.randrange(1, 12)):
            count = chance.randrange(1, 5)
            writer.put(number, offset, as_stored(batch_of(count), offset), log_end_before=offset)
            spans.setdefault(number, []).append((offset, offset + count))
            offset += count + chance.choice([0, 0, 0, 7])
    writer.finish()
    with segment.begin() as transaction:
        cursor = transaction.cursor(segment.batches)
        for number in range(7):
            for offset in range(70):
                expected = [base for base, end in spans.get(number, []) if end > offset]
                found = [
                    base for base, _ in batches_from(transaction, segment.batches, number, offset)
                ]
                assert found == expected
                assert seek(cursor, number, offset) == bool(expected)
                if expected:
                    assert KEY.unpack(cursor.key()) == (number, expected[0])
        cursor.close()


def test_seek_in_an_empty_segment_finds_nothing(tmp_path: Path) -> None:
    segment = Segment.create(tmp_path, 1, map_bytes=4 << 20)
    with segment.begin() as transaction:
        assert not seek(transaction.cursor(segment.batches), 0, 0)


def test_the_fields_of_a_stored_header() -> None:
    value = memoryview(bytes(16) + batch_of(5, timestamp=NOW_MS))
    assert last_delta_and_timestamp(value) == (4, NOW_MS)
