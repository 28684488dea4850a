"""Filters on partition, offset, timestamp and topic that make the ranges of a batch narrower.

Spark gives filters that are all to hold. What the ranges hold exactly is taken from Spark; of the
rest some make the ranges narrower and stay with Spark all the same. Timestamps are such: records
need not be in their order, so only what lies before the first record of a time can be left out.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from odradek.pipeline.kafka_types import PartitionName, PartitionRange

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_NEVER_NULL = frozenset({"topic", "partition", "offset", "timestamp", "timestampType"})


@dataclass(slots=True)
class PushedFilters:
    """What filters say about the ranges. It grows by `push`."""

    partitions: list[Filter] = field(default_factory=list)
    """Filters of the columns topic and partition, which a range meets as a whole or not at all."""
    offset_min: int = 0
    offset_end: int | None = None
    """Exclusive; None if there is none."""
    timestamp_min_ms: int | None = None

    def push(self, each: Filter) -> bool:
        """Take a filter; whether it is held exactly, so that Spark need not look at it."""
        if isinstance(each, IsNotNull):
            return len(each.attribute) == 1 and each.attribute[0] in _NEVER_NULL
        compared = each.child if isinstance(each, Not) else each
        attribute = getattr(compared, "attribute", ())
        value = getattr(compared, "value", None)
        match attribute:
            case ("partition",) if _is_comparison(compared, _is_int):
                self.partitions.append(each)
                return True
            case ("topic",) if _is_comparison(compared, _is_text):
                self.partitions.append(each)
                return True
            case ("offset",) if _is_comparison(each, _is_int):
                return self._push_offset(each, value)
            case ("timestamp",) if _is_comparison(each, _is_time):
                self._push_timestamp(each, value)
        return False

    def keeps(self, name: PartitionName) -> bool:
        """Whether the filters on topic and partition hold for this one."""
        return all(_holds(each, name) for each in self.partitions)

    def narrow(self, whole: PartitionRange) -> PartitionRange:
        """The offsets of the range for which the filters on offsets hold; it may be empty."""
        start = max(whole.start, self.offset_min)
        end = whole.end if self.offset_end is None else min(whole.end, self.offset_end)
        return replace(whole, start=start, end=max(start, end))

    def _push_offset(self, each: Filter, value: object) -> bool:
        lowest, highest = _hull(value)
        match each:
            case EqualTo() | EqualNullSafe() | In():
                self._narrow_offsets(lowest, highest + 1)
            case GreaterThan():
                self._narrow_offsets(lowest + 1, None)
            case GreaterThanOrEqual():
                self._narrow_offsets(lowest, None)
            case LessThan():
                self._narrow_offsets(0, highest)
            case _:
                self._narrow_offsets(0, highest + 1)
        # Between the offsets of a list are others.
        return not isinstance(each, In)

    def _narrow_offsets(self, lowest: int, end: int | None) -> None:
        self.offset_min = max(self.offset_min, lowest)
        if end is not None:
            self.offset_end = end if self.offset_end is None else min(self.offset_end, end)

    def _push_timestamp(self, each: Filter, value: object) -> None:
        times = value if isinstance(value, tuple) else (value,)
        lowest_us = min(_microseconds(time) for time in times if isinstance(time, datetime))
        match each:
            case GreaterThan():
                lowest_ms = lowest_us // 1000 + 1
            case EqualTo() | EqualNullSafe() | In() | GreaterThanOrEqual():
                lowest_ms = -(-lowest_us // 1000)
            case _:
                return
        self.timestamp_min_ms = max(self.timestamp_min_ms or 0, lowest_ms)


def push_filters(filters: Iterable[Filter]) -> tuple[PushedFilters, list[Filter]]:
    """What the filters say about ranges, and those that Spark still has to apply."""
    pushed = PushedFilters()
    left = [each for each in filters if not pushed.push(each)]
    return pushed, left


_COMPARISONS = (
    EqualTo,
    EqualNullSafe,
    GreaterThan,
    GreaterThanOrEqual,
    LessThan,
    LessThanOrEqual,
    In,
)


def _is_comparison(each: Filter, is_value: Callable[[object], bool]) -> bool:
    """Whether the filter compares with values of the column's type. Null is none of them."""
    if not isinstance(each, _COMPARISONS):
        return False
    values = each.value if isinstance(each, In) else (each.value,)
    return bool(values) and all(is_value(value) for value in values)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_time(value: object) -> bool:
    return isinstance(value, datetime) and value.tzinfo is not None


def _holds(each: Filter, name: PartitionName) -> bool:
    if isinstance(each, Not):
        return not _holds(each.child, name)
    is_of_topic = getattr(each, "attribute", None) == ("topic",)
    column: Any = name.topic if is_of_topic else name.partition
    match each:
        case EqualTo(_, value) | EqualNullSafe(_, value):
            return bool(column == value)
        case In(_, values):
            return column in values
        case GreaterThan(_, value):
            return bool(column > value)
        case GreaterThanOrEqual(_, value):
            return bool(column >= value)
        case LessThan(_, value):
            return bool(column < value)
        case LessThanOrEqual(_, value):
            return bool(column <= value)
    raise AssertionError(f"{each} was not checked by push")


def _hull(value: object) -> tuple[int, int]:
    """The lowest and the highest of one integer or some."""
    values = value if isinstance(value, tuple) else (value,)
    return min(values), max(values)


def _microseconds(time: datetime) -> int:
    return (time - _EPOCH) // _MICROSECOND
