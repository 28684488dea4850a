"""Combined batches compared with a table of single records."""

from collections.abc import Sequence
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as some

from odradek.coordinator.share.state_batches import (
    Batches,
    PersisterStateBatch,
    RecordState,
    batches_of,
    combine,
    messages_of,
    pruned,
)
from odradek.protocol.types import NO_OFFSET


def batch(
    first: int, last: int, state: int = RecordState.AVAILABLE, count: int = 1
) -> PersisterStateBatch:
    return PersisterStateBatch(first, last, state, count)


Known = dict[int, tuple[int, int]]
"""The dumb model: of each record its (delivery count, delivery state)."""


def known_of(batches: Sequence[PersisterStateBatch]) -> Known:
    known: Known = {}
    for first, last, state, count in batches:
        for offset in range(first, last + 1):
            known[offset] = max(known.get(offset, (-1, -1)), (count, state))
    return known


def is_normal(batches: Batches) -> bool:
    return all(one.first_offset <= one.last_offset for one in batches) and all(
        before.last_offset < after.first_offset
        and (before.last_offset + 1 < after.first_offset or before[2:] != after[2:])
        for before, after in pairwise(batches)
    )


@some.composite
def any_batch(draw: some.DrawFn) -> PersisterStateBatch:
    first = draw(some.integers(0, 40))
    return batch(
        first,
        first + draw(some.integers(0, 12)),
        draw(
            some.sampled_from(
                (RecordState.AVAILABLE, RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)
            )
        ),
        draw(some.integers(1, 3)),
    )


@given(some.lists(some.lists(any_batch(), max_size=6), max_size=6), some.integers(-1, 45))
def test_combined_batches_agree_with_a_table_of_records(
    writes: list[list[PersisterStateBatch]], start_offset: int
) -> None:
    combined: Batches = ()
    known: Known = {}
    for written in writes:
        combined = combine(combined, written)
        assert is_normal(combined)
        for offset, stage in known_of(written).items():
            known[offset] = max(known.get(offset, (-1, -1)), stage)
        assert known_of(combined) == known
    rest = combine(combined, (), start_offset)
    assert is_normal(rest)
    assert known_of(rest) == {at: stage for at, stage in known.items() if at >= start_offset}


@given(some.lists(some.lists(any_batch(), max_size=4), max_size=4), some.randoms())
def test_order_and_repetition_of_batches_make_no_difference(
    writes: list[list[PersisterStateBatch]], random: Random
) -> None:
    in_order: Batches = ()
    for written in writes:
        in_order = combine(in_order, written)
    mixed = [*writes, *writes]
    random.shuffle(mixed)
    otherwise: Batches = ()
    for written in mixed:
        otherwise = combine(otherwise, written)
    assert otherwise == in_order


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        pytest.param([batch(0, 4)], [batch(5, 9)], [batch(0, 9)], id="what touches becomes one"),
        pytest.param(
            [batch(0, 4)], [batch(5, 9, count=2)], [batch(0, 4), batch(5, 9, count=2)], id="unlike"
        ),
        pytest.param(
            [batch(0, 9)],
            [batch(3, 5, RecordState.ACKNOWLEDGED)],
            [batch(0, 2), batch(3, 5, RecordState.ACKNOWLEDGED), batch(6, 9)],
            id="a later stage in the middle",
        ),
        pytest.param(
            [batch(0, 9, count=2)],
            [batch(3, 5, RecordState.ARCHIVED)],
            [batch(0, 9, count=2)],
            id="a late write",
        ),
        pytest.param(
            [batch(0, 2), batch(6, 9)], [batch(3, 5)], [batch(0, 9)], id="a gap is filled"
        ),
    ],
)
def test_examples(
    old: list[PersisterStateBatch],
    new: list[PersisterStateBatch],
    expected: list[PersisterStateBatch],
) -> None:
    assert combine(tuple(old), new) == tuple(expected)


def test_batches_below_the_start_offset_are_dropped() -> None:
    batches = (batch(0, 4), batch(6, 9, RecordState.ACKNOWLEDGED))
    assert pruned(batches, NO_OFFSET) == batches
    assert pruned(batches, 3) == (batch(3, 4), batch(6, 9, RecordState.ACKNOWLEDGED))
    assert pruned(batches, 8) == (batch(8, 9, RecordState.ACKNOWLEDGED),)
    assert pruned(batches, 10) == ()


def test_batches_are_converted_to_messages_and_back() -> None:
    batches = (batch(0, 4), batch(6, 9, RecordState.ACKNOWLEDGED, 3))
    assert batches_of(messages_of(batches)) == batches
