"""The properties of a Ready."""

from odradek.cluster.raft.configuration import configuration_of
from odradek.cluster.raft.messages import Entry, SnapshotMetadata, TimeoutNow
from odradek.cluster.raft.ready import HardState, Ready, ReceivedChunk

MARK = SnapshotMetadata(9, 2, 10, 77, configuration_of([1]))


def test_messages_and_committed_entries_need_no_disk() -> None:
    assert not Ready(messages=(TimeoutNow(1, 2, 3),), committed=(Entry(1, 1, b"x"),)).must_persist


def test_a_vote_an_entry_or_a_chunk_must_be_on_the_disk() -> None:
    assert Ready(hard_state=HardState(1, 1)).must_persist
    assert Ready(entries=(Entry(1, 1, b"x"),)).must_persist
    assert Ready(chunk=ReceivedChunk(MARK, 0, b"abcd")).must_persist


def test_a_snapshot_is_installed_with_its_last_chunk() -> None:
    assert Ready(chunk=ReceivedChunk(MARK, 0, b"abcd")).snapshot is None
    assert Ready(chunk=ReceivedChunk(MARK, 4, b"abcdef")).snapshot == MARK
    assert Ready().snapshot is None
