"""Requests go to where a moved replica is; no other request changes."""

from odradek.node.bus.messages import UNSENT, Append, DeleteRecords, MoveReplica
from odradek.node.worker.moved_requests import relocate

MOVED = {(1, 5): (1025, 0)}


def test_a_request_for_a_moved_replica_goes_to_its_new_location() -> None:
    append = Append(UNSENT, 1, 5, 0, 100, has_headroom=True)
    assert relocate([(None, append)], MOVED)
    assert (append.store, append.number, append.has_headroom) == (1025, 0, False)
    deletion = DeleteRecords(UNSENT, 1, 5, 7)
    assert relocate([(None, append), (None, deletion)], MOVED)
    assert (deletion.store, deletion.number) == (1025, 0)


def test_other_requests_stay_as_they_are() -> None:
    append = Append(UNSENT, 1, 4, 0, 100, has_headroom=True)
    assert not relocate([(None, append)], MOVED)
    assert (append.store, append.number, append.has_headroom) == (1, 4, True)
    # It names a store only to find the worker.
    move = MoveReplica(UNSENT, 1, 5, bytes(16), 0, directory=1)
    assert not relocate([(None, move)], MOVED)
    assert (move.store, move.number) == (1, 5)
