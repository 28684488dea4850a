"""Filters that make ranges narrower: no record that they accept is left out."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from odradek.pipeline.kafka_types import PartitionName, PartitionRange
from odradek.pipeline.source.filters import PushedFilters, push_filters

PARTITION = ("partition",)
OFFSET = ("offset",)
TIMESTAMP = ("timestamp",)
TIME = datetime(2026, 1, 1, tzinfo=UTC)
TIME_MS = 1_767_225_600_000


def pushed_exactly(*filters: Filter) -> PushedFilters:
    pushed, left = push_filters(filters)
    assert left == []
    return pushed


def partitions_of(*filters: Filter) -> list[int]:
    pushed = pushed_exactly(*filters)
    return [number for number in range(6) if pushed.keeps(PartitionName("orders", number))]


def offsets_of(*filters: Filter) -> tuple[int, int]:
    pushed, _ = push_filters(filters)
    narrowed = pushed.narrow(PartitionRange("orders", "id", 0, 10, 20))
    return narrowed.start, narrowed.end


def test_filters_on_partitions_are_held_exactly() -> None:
    assert partitions_of(EqualTo(PARTITION, 3)) == [3]
    assert partitions_of(EqualNullSafe(PARTITION, 3)) == [3]
    assert partitions_of(In(PARTITION, (1, 4, 99))) == [1, 4]
    assert partitions_of(GreaterThan(PARTITION, 1), LessThanOrEqual(PARTITION, 3)) == [2, 3]
    assert partitions_of(GreaterThanOrEqual(PARTITION, 4)) == [4, 5]
    assert partitions_of(LessThan(PARTITION, 2)) == [0, 1]
    assert partitions_of(Not(EqualTo(PARTITION, 2)), IsNotNull(PARTITION)) == [0, 1, 3, 4, 5]
    assert partitions_of(EqualTo(PARTITION, 7)) == []


def test_filters_on_topics_are_held_exactly() -> None:
    pushed = pushed_exactly(In(("topic",), ("orders", "payments")), Not(EqualTo(("topic",), "x")))
    assert pushed.keeps(PartitionName("orders", 0))
    assert not pushed.keeps(PartitionName("x", 0))
    assert not pushed.keeps(PartitionName("others", 0))


def test_filters_on_offsets_narrow_ranges() -> None:
    assert offsets_of(GreaterThan(OFFSET, 12)) == (13, 20)
    assert offsets_of(GreaterThanOrEqual(OFFSET, 12), LessThan(OFFSET, 15)) == (12, 15)
    assert offsets_of(LessThanOrEqual(OFFSET, 15)) == (10, 16)
    assert offsets_of(EqualTo(OFFSET, 12)) == (12, 13)
    assert offsets_of(GreaterThan(OFFSET, 50)) == (51, 51)
    assert offsets_of(LessThan(OFFSET, 5)) == (10, 10)
    pushed_exactly(GreaterThan(OFFSET, 12), EqualTo(OFFSET, 14))


def test_a_list_of_offsets_narrows_the_range_and_stays_with_spark() -> None:
    listed = In(OFFSET, (18, 12, 14))
    assert offsets_of(listed) == (12, 19)
    assert push_filters([listed])[1] == [listed]


@pytest.mark.parametrize(
    ("each", "lowest_ms"),
    [
        (GreaterThanOrEqual(TIMESTAMP, TIME), TIME_MS),
        (GreaterThan(TIMESTAMP, TIME), TIME_MS + 1),
        (GreaterThanOrEqual(TIMESTAMP, TIME + timedelta(microseconds=1)), TIME_MS + 1),
        (GreaterThan(TIMESTAMP, TIME + timedelta(microseconds=1)), TIME_MS + 1),
        (EqualTo(TIMESTAMP, TIME), TIME_MS),
        (In(TIMESTAMP, (TIME + timedelta(hours=1), TIME)), TIME_MS),
        (LessThan(TIMESTAMP, TIME), None),
    ],
)
def test_times_say_where_to_begin_and_stay_with_spark(each: Filter, lowest_ms: int | None) -> None:
    """Records need not be in the order of their timestamps: what ends a range is no time."""
    pushed, left = push_filters([each])
    assert left == [each]
    assert pushed.timestamp_min_ms == lowest_ms


@pytest.mark.parametrize(
    "each",
    [
        EqualTo(("key",), b"x"),
        EqualTo(("headers", "key"), "x"),
        IsNull(PARTITION),
        IsNotNull(("key",)),
        IsNotNull(("headers", "partition")),
        Not(EqualTo(OFFSET, 5)),
        Not(GreaterThan(TIMESTAMP, TIME)),
        EqualNullSafe(OFFSET, None),
        In(OFFSET, (1, None)),
        In(OFFSET, ()),
        StringStartsWith(("topic",), "ord"),
        GreaterThan(TIMESTAMP, TIME.replace(tzinfo=None)),
    ],
)
def test_what_is_not_understood_is_left_to_spark_as_it_is(each: Filter) -> None:
    pushed, left = push_filters([each])
    assert left == [each]
    assert pushed == PushedFilters()


COMPARISONS = st.sampled_from([EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual])


def accepts(each: Filter, offset: int) -> bool:
    value = each.value  # type: ignore[attr-defined]  # every comparison has one
    match each:
        case EqualTo():
            return bool(offset == value)
        case GreaterThan():
            return bool(offset > value)
        case GreaterThanOrEqual():
            return bool(offset >= value)
        case LessThan():
            return bool(offset < value)
        case In():
            return offset in value
        case _:
            return bool(offset <= value)


@given(
    st.lists(
        st.builds(lambda kind, value: kind(OFFSET, value), COMPARISONS, st.integers(0, 30))
        | st.builds(
            lambda values: In(OFFSET, tuple(values)),
            st.lists(st.integers(0, 30), min_size=1, max_size=3),
        ),
        max_size=4,
    )
)
def test_no_offset_is_lost_and_what_is_not_left_to_spark_is_held(filters: list[Filter]) -> None:
    pushed, left = push_filters(filters)
    narrowed = pushed.narrow(PartitionRange("orders", "id", 0, 10, 20))
    read = [
        offset
        for offset in range(narrowed.start, narrowed.end)
        if all(accepts(each, offset) for each in left)
    ]
    assert read == [n for n in range(10, 20) if all(accepts(each, n) for each in filters)]
