"""Chunks of a snapshot: in order, resumed, late, duplicated."""

from odradek.cluster.raft.configuration import configuration_of
from odradek.cluster.raft.incoming_snapshot import IncomingSnapshot
from odradek.cluster.raft.messages import SnapshotChunk, SnapshotMetadata

MARK = SnapshotMetadata(9, 2, 10, 77, configuration_of([1, 2, 3]))


def chunk(
    offset: int, length: int, *, mark: SnapshotMetadata = MARK, term: int = 3
) -> SnapshotChunk:
    return SnapshotChunk(1, 2, term, mark, offset, length, b"x" * length)


def with_first_chunk() -> IncomingSnapshot:
    incoming = IncomingSnapshot()
    assert incoming.offer(chunk(0, 4)) is None
    assert incoming.stored() is None
    return incoming


def test_a_snapshot_arrives_chunk_by_chunk() -> None:
    incoming = with_first_chunk()
    assert incoming.offset == 4
    assert incoming.offer(chunk(4, 6)) is None
    assert incoming.is_completing
    assert incoming.stored() == MARK
    assert incoming.mark is None


def test_a_duplicate_or_later_chunk_is_answered_with_our_offset() -> None:
    incoming = with_first_chunk()
    assert incoming.offer(chunk(0, 4)) == 4
    assert incoming.offer(chunk(6, 4)) == 4
    assert incoming.pending_chunk is None


def test_a_later_chunk_of_an_unknown_snapshot_is_answered_with_offset_0() -> None:
    assert IncomingSnapshot().offer(chunk(4, 6)) == 0


def test_chunks_are_ignored_while_one_is_being_stored() -> None:
    incoming = IncomingSnapshot()
    incoming.offer(chunk(0, 4))
    first = incoming.pending_chunk
    assert incoming.offer(chunk(4, 6)) is None
    assert incoming.pending_chunk is first


def test_the_next_leader_resumes_the_same_snapshot() -> None:
    incoming = with_first_chunk()
    assert incoming.offer(chunk(0, 4, term=4)) == 4
    assert incoming.offer(chunk(4, 6, term=4)) is None
    assert incoming.stored() == MARK


def test_another_content_at_the_same_index_is_another_snapshot() -> None:
    incoming = with_first_chunk()
    other = SnapshotMetadata(9, 2, 10, 78, MARK.configuration)
    assert incoming.offer(chunk(4, 6, mark=other, term=4)) == 0
    assert incoming.offer(chunk(0, 4, mark=other, term=4)) is None
    assert incoming.mark == other


def test_a_late_chunk_of_an_older_snapshot_is_ignored_but_a_new_leader_may_have_an_older_one() -> (
    None
):
    incoming = with_first_chunk()
    older = SnapshotMetadata(5, 1, 10, 70, MARK.configuration)
    assert incoming.offer(chunk(0, 4, mark=older)) is None
    assert incoming.pending_chunk is None
    assert incoming.offer(chunk(0, 4, mark=older, term=4)) is None
    assert incoming.mark == older


def test_a_newer_snapshot_replaces_an_unfinished_one() -> None:
    incoming = with_first_chunk()
    newer = SnapshotMetadata(12, 3, 10, 79, MARK.configuration)
    assert incoming.offer(chunk(0, 4, mark=newer)) is None
    assert (incoming.mark, incoming.offset) == (newer, 0)


def test_an_empty_snapshot_is_one_chunk() -> None:
    incoming = IncomingSnapshot()
    empty = SnapshotMetadata(9, 2, 0, 0, MARK.configuration)
    assert incoming.offer(chunk(0, 0, mark=empty)) is None
    assert incoming.is_completing
    assert incoming.stored() == empty
