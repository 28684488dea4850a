"""State batches of a share partition in their shortest form (Kafka's PersisterStateBatchCombiner).

Batches in normal form are sorted, do not overlap, and adjacent ones differ. New batches are
combined with old ones: for each record the higher delivery count wins, then the higher delivery
state, because neither decreases for a record in flight (KIP-932). So a duplicate or late write has
no effect. Called by `state`.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from enum import IntEnum
from operator import itemgetter
from typing import Final, NamedTuple

from odradek.protocol.messages import share_state
from odradek.protocol.types import NO_OFFSET


class RecordState(IntEnum):
    """The state of a record, with the numbers of the durable state (KIP-932, KIP-1191).

    ACQUIRED is never written: after a load the record is available.
    """

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    """Being written to the dead-letter topic."""
    ARCHIVED = 4


DURABLE_STATES: Final = frozenset(RecordState) - {RecordState.ACQUIRED}
"""Delivery states that may be written; ACQUIRED exists in the leader only."""


class PersisterStateBatch(NamedTuple):
    """The records `[first_offset, last_offset]`, all in the same state."""

    first_offset: int
    last_offset: int
    delivery_state: int
    delivery_count: int


Batches = tuple[PersisterStateBatch, ...]

_FIRST: Final = itemgetter(0)
_LAST: Final = itemgetter(1)


def batches_of(state_batches: Iterable[share_state.StateBatch]) -> Batches:
    """The batches of a record or a message, in no particular form."""
    return tuple(
        PersisterStateBatch(
            batch.first_offset, batch.last_offset, batch.delivery_state, batch.delivery_count
        )
        for batch in state_batches
    )


def messages_of(batches: Batches) -> list[share_state.StateBatch]:
    """The inverse of `batches_of`."""
    return [
        share_state.StateBatch(
            first_offset=first, last_offset=last, delivery_state=state, delivery_count=count
        )
        for first, last, state, count in batches
    ]


def combine(
    old: Batches, new: Iterable[PersisterStateBatch], start_offset: int = NO_OFFSET
) -> Batches:
    """`new` combined with `old`, which is in normal form, without offsets below `start_offset`.

    Costs a copy of `old`, and a search for each new batch.
    """
    combined = list(old)
    for batch in new:
        _overlay(combined, batch)
    return pruned(tuple(combined), start_offset)


def pruned(batches: Batches, start_offset: int) -> Batches:
    """The part of batches in normal form at or above the start offset."""
    if not batches or batches[0].first_offset >= start_offset:
        return batches
    at = bisect_left(batches, start_offset, key=_LAST)
    kept = batches[at:]
    if kept and kept[0].first_offset < start_offset:
        kept = (kept[0]._replace(first_offset=start_offset), *kept[1:])
    return kept


def _overlay(batches: list[PersisterStateBatch], new: PersisterStateBatch) -> None:
    """Combine one batch with a list in normal form, in place."""
    first, last, state, count = new
    low = bisect_left(batches, first, key=_LAST)
    high = bisect_right(batches, last, key=_FIRST)
    pieces: list[PersisterStateBatch] = []
    at = first
    for old in batches[low:high]:
        if old.first_offset < first:
            pieces.append(old._replace(last_offset=first - 1))
        elif at < old.first_offset:
            pieces.append(PersisterStateBatch(at, old.first_offset - 1, state, count))
        begin, end = max(old.first_offset, first), min(old.last_offset, last)
        if (old.delivery_count, old.delivery_state) >= (count, state):
            pieces.append(PersisterStateBatch(begin, end, old.delivery_state, old.delivery_count))
        else:
            pieces.append(PersisterStateBatch(begin, end, state, count))
        if old.last_offset > last:
            pieces.append(old._replace(first_offset=last + 1))
        at = end + 1
    if at <= last:
        pieces.append(PersisterStateBatch(at, last, state, count))
    # The adjacent batches on either side may now be equal to the new ones.
    low, high = max(low - 1, 0), min(high + 1, len(batches))
    around = batches[low:high]
    inside = [old for old in around if old.last_offset < first]
    behind = [old for old in around if old.first_offset > last]
    batches[low:high] = joined([*inside, *pieces, *behind])


def joined(batches: list[PersisterStateBatch]) -> list[PersisterStateBatch]:
    """Sorted batches, with adjacent equal ones joined."""
    kept = batches[:1]
    for batch in batches[1:]:
        before = kept[-1]
        if before.last_offset + 1 == batch.first_offset and before[2:] == batch[2:]:
            kept[-1] = before._replace(last_offset=batch.last_offset)
        else:
            kept.append(batch)
    return kept
