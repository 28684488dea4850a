"""The moves of a rewind and their bounds."""

import msgspec
import pytest

from odradek.coordinator.group.offsets.records import CommittedOffset, OffsetCommitRecord
from odradek.coordinator.group.rewind.offset_moves import (
    after,
    move_to,
    partitions_of,
    target_record,
    with_previous,
    without_pending,
)
from odradek.coordinator.group.rewind.records import OffsetMove, Rewind, RewindState
from odradek.coordinator.group.rewind.requests import RewindPosition
from odradek.coordinator.group.rewind.rewind_tables import KNOWN_ID_COUNT_MAX
from odradek.protocol.types import NO_OFFSET, ZERO_UUID

ID = bytes(15) + b"a"
BEFORE = CommittedOffset(10, 2, "then")


def position(offset: int | None = None, shift: int = 0) -> RewindPosition:
    return RewindPosition(
        topic="a",
        topic_id=ID,
        partition=1,
        start_offset=5,
        end_offset=20,
        offset=offset,
        shift=shift,
        leader_epoch=3,
        metadata="m",
    )


@pytest.mark.parametrize(
    ("at", "offset"),
    [
        (position(7), 7),
        (position(1), 5),
        (position(21), 20),
        (position(shift=-3), 7),
        (position(shift=-30), 5),
        (position(shift=100), 20),
        (position(NO_OFFSET), NO_OFFSET),
    ],
)
def test_offsets_stay_within_the_log(at: RewindPosition, offset: int) -> None:
    assert move_to(at, BEFORE).offset == offset


def test_leader_epoch_and_metadata_apply_to_the_exact_offset_only() -> None:
    exact, clamped = move_to(position(7), BEFORE), move_to(position(1), BEFORE)
    assert (exact.leader_epoch, exact.metadata) == (3, "m")
    assert (clamped.leader_epoch, clamped.metadata) == (-1, "")


def test_a_move_has_the_previous_offset() -> None:
    move = with_previous(move_to(position(7), None), BEFORE)
    assert (move.previous, move.previous_leader_epoch, move.previous_metadata) == (10, 2, "then")
    assert with_previous(move, None).previous == NO_OFFSET


def test_a_move_without_an_offset_removes_the_committed_offset() -> None:
    removed = target_record("g", OffsetMove("a", ID, 1, NO_OFFSET), 99)
    assert removed == OffsetCommitRecord("g", "a", 1, None)
    moved = target_record("g", OffsetMove("a", ID, 1, 7, 3, "m"), 99)
    expected = CommittedOffset(7, 3, "m", 99, topic_id=ID)
    assert moved == OffsetCommitRecord("g", "a", 1, expected)


def test_partitions_are_grouped_by_topic() -> None:
    other = bytes(15) + b"b"
    moves = [OffsetMove("a", ID, 1, 0), OffsetMove("b", other, 1, 0), OffsetMove("a", ID, 4, 0)]
    assert partitions_of(moves) == {ID: {1, 4}, other: {1}}


def test_the_ids_of_the_newest_rewinds_are_kept() -> None:
    ids = [bytes([number]) * 16 for number in range(1, KNOWN_ID_COUNT_MAX + 4)]
    done = given_up = RewindState()
    for rewind_id in ids:
        rewind = Rewind(rewind_id, 1, ())
        done = after(done, rewind)
        given_up = without_pending(msgspec.structs.replace(given_up, pending=rewind))
    assert done.last == Rewind(ids[-1], 1, ())
    assert done.done_ids == tuple(ids[-1 - KNOWN_ID_COUNT_MAX : -1])
    assert given_up.given_up_ids == tuple(ids[-KNOWN_ID_COUNT_MAX:])
    assert given_up.pending is None


def test_rewinds_without_an_id_are_not_kept() -> None:
    nobody = Rewind(ZERO_UUID, 1, ())
    assert after(after(RewindState(), nobody), nobody).done_ids == ()
    assert without_pending(RewindState(pending=nobody)).given_up_ids == ()
