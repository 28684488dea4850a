"""Acknowledgement batches of members, and their validation.

A batch has a range of offsets and one acknowledge type for all of them or one for each. Malformed
batches are refused before any state is read (KIP-932, ShareAcknowledge). Pure functions, called by
the handlers and by `partition`.
"""

from collections.abc import Iterator, Sequence
from enum import IntEnum
from itertools import groupby
from typing import NamedTuple, Protocol


class AcknowledgeType(IntEnum):
    """Kafka's AcknowledgeType."""

    GAP = 0
    """There is no record: it was compacted, or it is a control record."""
    ACCEPT = 1
    RELEASE = 2
    """Deliver it again, to any member."""
    REJECT = 3
    """Never deliver it again."""
    RENEW = 4
    """Still being processed: extend the acquisition lock (KIP-1222)."""


class OffsetBatch(Protocol):
    """A batch of the protocol: `[first_offset, last_offset]`, both inclusive."""

    first_offset: int
    last_offset: int
    acknowledge_types: list[int]


class AcknowledgedRange(NamedTuple):
    """The acknowledge type of the offsets [start, end)."""

    start: int
    end: int
    type: AcknowledgeType


def batches_error(batches: Sequence[OffsetBatch], *, may_renew: bool) -> str | None:
    """The error of the batches of one partition, None if they are valid: sorted, without overlap,
    and each with one type or one for each offset."""
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
                return "RENEW needs IsRenewAck and share.renew.acknowledge.enable."
        end = last + 1
    return None


def acknowledged_ranges(batches: Sequence[OffsetBatch]) -> Iterator[AcknowledgedRange]:
    """The batches in order, with adjacent offsets of one type joined."""
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
