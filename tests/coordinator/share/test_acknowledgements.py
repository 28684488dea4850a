"""Validation of acknowledgement batches, and their ranges."""

import pytest

from odradek.coordinator.share.acknowledgements import (
    AcknowledgedRange,
    AcknowledgeType,
    acknowledged_ranges,
    batches_error,
)
from odradek.protocol.messages.share import AcknowledgementBatch

ACCEPT, RELEASE = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE


def batch(first: int, last: int, *types: int) -> AcknowledgementBatch:
    return AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=list(types))


@pytest.mark.parametrize(
    "batches",
    [
        [batch(5, 4, 1)],
        [batch(-1, 4, 1)],
        [batch(0, 4, 1), batch(4, 6, 1)],
        [batch(5, 6, 1), batch(0, 1, 1)],
        [batch(0, 4)],
        [batch(0, 4, 1, 1)],
        [batch(0, 0, 5)],
        [batch(0, 0, -1)],
        [batch(0, 0, 4)],
    ],
    ids=["backwards", "negative", "overlap", "order", "none", "few", "five", "minus", "renewal"],
)
def test_invalid_batches_have_an_error_message(batches: list[AcknowledgementBatch]) -> None:
    assert batches_error(batches, may_renew=False)


def test_one_type_or_one_for_each_offset_is_valid() -> None:
    assert batches_error([batch(0, 4, 1), batch(5, 7, 1, 2, 3)], may_renew=False) is None


def test_renew_is_valid_if_it_is_allowed() -> None:
    assert batches_error([batch(0, 0, 4)], may_renew=True) is None


def test_adjacent_offsets_of_one_type_are_one_range() -> None:
    batches = [batch(0, 4, 1), batch(10, 14, 1, 1, 2, 2, 1)]
    assert list(acknowledged_ranges(batches)) == [
        AcknowledgedRange(0, 5, ACCEPT),
        AcknowledgedRange(10, 12, ACCEPT),
        AcknowledgedRange(12, 14, RELEASE),
        AcknowledgedRange(14, 15, ACCEPT),
    ]
