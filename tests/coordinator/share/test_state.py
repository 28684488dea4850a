"""The state of a share partition after a record."""

from odradek.coordinator.share.state import ShareState, ShareUpdate, snapshot_of, with_update
from odradek.coordinator.share.state_batches import PersisterStateBatch, RecordState

KNOWN = ShareState(
    snapshot_epoch=3,
    state_epoch=2,
    leader_epoch=5,
    start_offset=10,
    delivery_complete_count=1,
    create_ms=100,
    write_ms=200,
    batches=(PersisterStateBatch(12, 13, RecordState.ACKNOWLEDGED, 1),),
)


def test_an_update_changes_its_fields_only() -> None:
    state = with_update(KNOWN, ShareUpdate(snapshot_epoch=3, leader_epoch=6))
    assert (state.start_offset, state.delivery_complete_count) == (10, 1)
    assert (state.leader_epoch, state.update_count) == (6, 1)
    assert (state.state_epoch, state.batches) == (2, KNOWN.batches)
    further = ShareUpdate(
        snapshot_epoch=3, leader_epoch=6, start_offset=13, delivery_complete_count=4
    )
    state = with_update(state, further)
    assert (state.start_offset, state.delivery_complete_count) == (13, 4)
    assert state.batches == (PersisterStateBatch(13, 13, RecordState.ACKNOWLEDGED, 1),)
    assert state.update_count == 2


def test_a_late_update_does_not_move_the_start_offset_back() -> None:
    late = ShareUpdate(
        snapshot_epoch=3,
        leader_epoch=4,
        start_offset=8,
        delivery_complete_count=9,
        batches=(PersisterStateBatch(8, 11, RecordState.ACKNOWLEDGED, 1),),
    )
    state = with_update(KNOWN, late)
    assert (state.start_offset, state.delivery_complete_count, state.leader_epoch) == (10, 1, 5)
    assert state.batches == (PersisterStateBatch(10, 13, RecordState.ACKNOWLEDGED, 1),)


def test_a_snapshot_has_the_same_state() -> None:
    state = with_update(KNOWN, ShareUpdate(snapshot_epoch=3, leader_epoch=5, start_offset=11))
    snapshot = snapshot_of(state, 300)
    assert (snapshot.snapshot_epoch, snapshot.update_count) == (4, 0)
    assert (snapshot.create_ms, snapshot.write_ms) == (100, 300)
    assert (snapshot.start_offset, snapshot.batches) == (11, state.batches)
