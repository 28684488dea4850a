"""The progress of a peer: probe, replicate, snapshot."""

from odradek.cluster.raft.configuration import configuration_of
from odradek.cluster.raft.messages import SnapshotMetadata
from odradek.cluster.raft.progress import Progress, ProgressState

MARK = SnapshotMetadata(9, 2, 10, 77, configuration_of([1, 2, 3]))


def progress(next_index: int = 11) -> Progress:
    return Progress(next_index=next_index, last_index=10, now_ms=0)


def can_send(peer: Progress, *, requests_max: int = 3, bytes_max: int = 1_000) -> bool:
    return peer.can_send_entries(requests_max=requests_max, bytes_max=bytes_max)


def replicating() -> Progress:
    peer = progress()
    peer.accepted(10)
    return peer


def test_a_probe_is_one_request_at_a_time() -> None:
    peer = progress()
    assert can_send(peer)
    peer.sent(12, 100)
    assert not can_send(peer)
    assert peer.next_index == 11


def test_an_accepted_request_ends_the_probe() -> None:
    peer = progress()
    peer.sent(12, 100)
    peer.accepted(12)
    assert peer.state is ProgressState.REPLICATE
    assert (peer.match_index, peer.next_index) == (12, 13)


def test_requests_are_sent_until_the_window_is_full() -> None:
    peer = replicating()
    for last_index in (11, 12, 13):
        assert can_send(peer)
        peer.sent(last_index, 100)
    assert peer.next_index == 14
    assert not can_send(peer)
    peer.accepted(12)
    assert peer.window_bytes == 100
    assert can_send(peer)


def test_the_window_is_bounded_in_bytes_as_well() -> None:
    peer = replicating()
    peer.sent(11, 999)
    assert can_send(peer)
    peer.sent(12, 1)
    assert not can_send(peer)
    peer.accepted(12)
    assert peer.window_bytes == 0


def test_a_rejection_starts_a_probe_at_the_hint() -> None:
    peer = replicating()
    peer.sent(20, 100)
    peer.rejected(20, 15)
    assert peer.state is ProgressState.PROBE
    assert (peer.next_index, peer.window_bytes) == (15, 0)


def test_a_probe_never_goes_below_the_match_index() -> None:
    peer = replicating()
    peer.rejected(20, 3)
    assert peer.next_index == 11


def test_an_old_rejection_changes_nothing() -> None:
    peer = replicating()
    peer.sent(12, 100)
    peer.accepted(12)
    peer.rejected(11, 5)
    assert peer.state is ProgressState.REPLICATE
    probing = progress()
    probing.rejected(7, 5)
    assert probing.next_index == 11
    probing.rejected(10, 5)
    assert probing.next_index == 5


def test_an_old_acceptance_changes_nothing() -> None:
    peer = replicating()
    peer.accepted(4)
    assert (peer.match_index, peer.next_index) == (10, 11)
    peer.rejected(20, 15)
    peer.accepted(4)
    assert peer.state is ProgressState.PROBE


def test_a_snapshot_is_sent_in_chunks_from_the_offset_of_the_peer() -> None:
    peer = progress()
    peer.begin_snapshot(MARK)
    assert not can_send(peer)
    peer.is_chunk_sent = True
    peer.snapshot_received(9, 2, 4)
    assert (peer.snapshot_offset, peer.is_chunk_sent) == (4, False)
    peer.is_chunk_sent = True
    peer.snapshot_received(9, 2, 4)
    assert (peer.snapshot_offset, peer.is_chunk_sent) == (4, True)
    peer.snapshot_received(9, 2, 0)
    assert (peer.snapshot_offset, peer.is_chunk_sent) == (0, False)


def test_responses_for_another_snapshot_or_beyond_its_end_are_ignored() -> None:
    peer = progress()
    peer.snapshot_received(9, 2, 4)
    peer.begin_snapshot(MARK)
    peer.snapshot_received(8, 2, 4)
    peer.snapshot_received(9, 1, 4)
    peer.snapshot_received(9, 2, 11)
    assert peer.snapshot_offset == 0


def test_entries_are_sent_when_the_peer_has_the_snapshot() -> None:
    peer = progress()
    peer.begin_snapshot(MARK)
    peer.accepted(5)
    assert not can_send(peer)
    peer.rejected(7, 3)
    assert not can_send(peer)
    peer.accepted(9)
    assert peer.state is ProgressState.REPLICATE
    assert peer.next_index == 10


def note(peer: Progress, now_ms: int, *, last_index: int) -> bool:
    peer.update_caught_up(last_index=last_index, now_ms=now_ms, round_ms_max=500)
    return peer.is_caught_up


def test_a_peer_has_caught_up_when_a_round_is_short() -> None:
    """Thesis 4.2.1: "the last round lasts less than an election timeout"."""
    peer = progress(next_index=1)
    assert not note(peer, 0, last_index=10)
    peer.accepted(10)
    assert not note(peer, 2_000, last_index=100), "the first round took two seconds"
    peer.accepted(100)
    assert note(peer, 2_400, last_index=110), "the second did not"
    assert not note(peer, 3_000, last_index=120), "the third has not ended in time"


def test_a_peer_that_has_everything_has_caught_up_even_after_a_long_pause() -> None:
    peer = replicating()
    assert note(peer, 0, last_index=10)
    assert note(peer, 60_000, last_index=10)
    assert note(peer, 60_001, last_index=12), "there was no time yet"
