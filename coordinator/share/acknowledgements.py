"""Acknowledgements as members send them, and whether they make sense at all.

A batch says what became of a range of offsets: one type for all of them or one for each. What is
malformed is refused before any state is looked at (KIP-932, ShareAcknowledge). Pure functions,
called by the handlers and by `partition`.
"""

from collections.abc import Iterator, Sequence
from enum import IntEnum
from itertools import groupby
from typing import NamedTuple, Protocol


class AcknowledgeType(IntEnum):
    """What a member says of a record."""

    GAP = 0
    """There is none: compaction took it, or it is a marker."""
    ACCEPT = 1
    RELEASE = 2
    """Deliver it again, to whomever."""
    REJECT = 3
    """Never deliver it again."""
    RENEW = 4
    """Still at it: lock it anew (KIP-1222)."""


class OffsetBatch(Protocol):
    """The wire's batch: `[first_offset, last_offset]`, both included."""

    first_offset: int
    last_offset: int
    acknowledge_types: list[int]


class AcknowledgedRange(NamedTuple):
    """What became of the offsets [start, end)."""

    start: int
    end: int
    type: AcknowledgeType


def batches_error(batches: Sequence[OffsetBatch], *, may_renew: bool) -> str | None:
    """What is wrong with the batches of one partition, None if nothing is: they must rise without
    an overlap, and each must have one type or one for each offset."""
    end = 0
    for batch in batches:
        first, last, types = batch.first_offset, batch.last_offset, batch.acknowledge_types
        if first < end:
            return f"The batch from {first} on overlaps or precedes the one before it."
        if last < first:
            return f"The batch ends at {last}, before its first offset {first}."
        if len(types) not in (1, last - first + 1):
            return f"The batch [{first}, {last}] has {len(types)} types: send one, or one for each."
        for number in types:
            if not AcknowledgeType.GAP <= number <= AcknowledgeType.RENEW:
                return f"{number} is not a type of acknowledgement."
            if number == AcknowledgeType.RENEW and not may_renew:
                return "Locks are renewed only by a request that says so, in a group that may."
        end = last + 1
    return None


def acknowledged_ranges(batches: Sequence[OffsetBatch]) -> Iterator[AcknowledgedRange]:
    """The batches in order, with neighbours of one type together."""
    for batch in batches:
        types = batch.acknowledge_types
        if len(types) == 1:
            yield AcknowledgedRange(
                batch.first_offset, batch.last_offset + 1, AcknowledgeType(types[0])
            )
            continue
        start = batch.first_offset
        for number, alike in groupby(types):
            end = start + sum(1 for _ in alike)
            yield AcknowledgedRange(start, end, AcknowledgeType(number))
            start = end
