"""Limits of a trigger and pieces for tasks: nothing is lost, doubled or starved."""

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.pipeline.kafka_types import KAFKA_SCHEMA, PartitionName, PartitionRange
from odradek.pipeline.source.planning import (
    is_worth_a_trigger,
    limit_bytes,
    limit_rows,
    size_of,
    split_range,
    split_ranges,
)

A = PartitionName("orders", 0)
B = PartitionName("orders", 1)


def range_of(start: int, end: int, partition: int = 0) -> PartitionRange:
    return PartitionRange("orders", "id", partition, start, end)


def sizes_of(pieces: list[PartitionRange]) -> list[int]:
    return [piece.end - piece.start for piece in pieces]


def test_a_limit_is_shared_in_proportion() -> None:
    assert limit_rows({A: 0, B: 10}, {A: 900, B: 110}, 100) == {A: 90, B: 20}
    assert limit_rows({A: 0, B: 10}, {A: 900, B: 110}, 1000) == {A: 900, B: 110}


def test_a_small_partition_does_not_starve() -> None:
    assert limit_rows({A: 0, B: 0}, {A: 1_000_000, B: 1}, 10) == {A: 9, B: 1}


def test_a_limit_of_bytes_takes_fewer_of_large_records() -> None:
    ends = limit_bytes({A: 0, B: 0}, {A: 1000, B: 1000}, 30_000, {A: 10.0, B: 100.0})
    assert ends == {A: 272, B: 272}
    assert limit_bytes({A: 0}, {A: 5}, 1, {A: 1e6}) == {A: 1}


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(0, 1_000), min_size=1, max_size=10),
    limit=st.integers(10, 500),
)
def test_limited_triggers_reach_the_end_and_keep_the_limit(sizes: list[int], limit: int) -> None:
    names = [PartitionName("orders", index) for index in range(len(sizes))]
    begins, ends = dict.fromkeys(names, 0), dict(zip(names, sizes, strict=True))
    for _ in range(sum(sizes) + 1):
        if begins == ends:
            break
        limited = limit_rows(begins, ends, limit)
        assert all(begins[name] <= limited[name] <= ends[name] for name in names)
        taken = sum(limited[name] - begins[name] for name in names)
        assert 0 < taken <= limit + len(names)
        begins = limited
    assert begins == ends


def test_a_trigger_waits_for_offsets_enough_but_not_for_ever() -> None:
    for rows, waited_ms, expected in ((9, 0, False), (10, 0, True), (0, 5_000, True)):
        is_worth = is_worth_a_trigger(
            {A: 0}, {A: rows}, min_rows=10, waited_ms=waited_ms, max_delay_ms=5_000
        )
        assert is_worth == expected


def test_without_options_there_is_one_piece_for_each_range() -> None:
    ranges = [range_of(0, 10), range_of(5, 5, 1), range_of(7, 9, 2)]
    pieces = split_ranges(ranges, min_partitions=None, max_records_per_partition=None)
    assert pieces == [ranges[0], ranges[2]]
    assert split_ranges(ranges, min_partitions=2, max_records_per_partition=None) == pieces
    assert split_ranges([], min_partitions=4, max_records_per_partition=5) == []


def test_large_ranges_are_split_before_small_ones() -> None:
    ranges = [range_of(0, 10_000), range_of(0, 5, 1), range_of(0, 10_000, 2)]
    pieces = split_ranges(ranges, min_partitions=9, max_records_per_partition=None)
    assert [piece.partition for piece in pieces] == [0] * 4 + [1] + [2] * 4
    assert sizes_of(pieces) == [2500] * 4 + [5] + [2500] * 4


def test_a_piece_has_at_most_so_many_offsets() -> None:
    pieces = split_ranges([range_of(3, 26)], min_partitions=None, max_records_per_partition=10)
    assert sizes_of(pieces) == [7, 8, 8]
    both = split_ranges([range_of(0, 20)], min_partitions=4, max_records_per_partition=10)
    assert sizes_of(both) == [5, 5, 5, 5]


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(0, 100_000), max_size=12),
    wanted=st.none() | st.integers(1, 40),
    records=st.none() | st.integers(1_000, 50_000),
)
def test_pieces_cover_the_ranges_without_a_gap(
    sizes: list[int], wanted: int | None, records: int | None
) -> None:
    ranges = [range_of(11, 11 + size, index) for index, size in enumerate(sizes)]
    pieces = split_ranges(ranges, min_partitions=wanted, max_records_per_partition=records)
    for whole in ranges:
        own = [piece for piece in pieces if piece.partition == whole.partition]
        edges = [whole.start, *(piece.end for piece in own)]
        assert [piece.start for piece in own] == edges[:-1]
        assert edges[-1] == whole.end
    assert all(size > 0 for size in sizes_of(pieces))
    assert records is None or all(size <= records for size in sizes_of(pieces))


def test_a_range_is_not_split_into_more_pieces_than_it_has_offsets() -> None:
    assert sizes_of(split_range(range_of(0, 3), 10)) == [1, 1, 1]


def test_the_size_of_a_batch_is_that_of_keys_values_and_headers() -> None:
    columns: dict[str, list[object]] = {
        "key": [b"k"],
        "value": [b"v" * 1000],
        "topic": ["orders"],
        "partition": [0],
        "offset": [0],
        "timestamp": [0],
        "timestampType": [0],
        "headers": [None],
    }
    batch = pa.RecordBatch.from_pydict(columns, KAFKA_SCHEMA)
    assert 1001 <= size_of(batch) < 1100
    assert 1001 <= size_of(batch.select(KAFKA_SCHEMA.names[:-1])) < 1050
