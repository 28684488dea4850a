"""A peer's progress: searching, streaming, being sent a snapshot."""

from odradek.cluster.raft.configuration import configuration_of
from odradek.cluster.raft.messages import SnapshotMetadata
from odradek.cluster.raft.progress import Progress, ProgressState

MARK = SnapshotMetadata(9, 2, 10, 77, configuration_of([1, 2, 3]))


def progress(next_index: int = 11) -> Progress:
    return Progress(next_index=next_index, last_index=10, now_ms=0)


def can_send(peer: Progress, *, requests_max: int = 3, bytes_max: int = 1_000) -> bool:
    return peer.can_send_entries(requests_max=requests_max, bytes_max=bytes_max)


def streaming() -> Progress:
    peer = progress()
    assert peer.accepted(10)
    return peer


def test_a_search_asks_one_question_at_a_time() -> None:
    peer = progress()
    assert can_send(peer)
    peer.sent(12, 100)
    assert not can_send(peer)
    assert peer.next_index == 11


def test_an_accepted_request_ends_the_search() -> None:
    peer = progress()
    peer.sent(12, 100)
    assert peer.accepted(12)
    assert peer.state is ProgressState.REPLICATE
    assert (peer.match_index, peer.next_index) == (12, 13)


def test_streaming_goes_on_without_answers_until_the_window_is_full() -> None:
    peer = streaming()
    for last_index in (11, 12, 13):
        assert can_send(peer)
        peer.sent(last_index, 100)
    assert peer.next_index == 14
    assert not can_send(peer)
    peer.accepted(12)
    assert peer.window_bytes == 100
    assert can_send(peer)


def test_the_window_is_bounded_in_bytes_as_well() -> None:
    peer = streaming()
    peer.sent(11, 999)
    assert can_send(peer)
    peer.sent(12, 1)
    assert not can_send(peer)
    peer.accepted(12)
    assert peer.window_bytes == 0


def test_a_rejection_turns_streaming_into_a_search_at_the_hint() -> None:
    peer = streaming()
    peer.sent(20, 100)
    assert peer.rejected(20, 15)
    assert peer.state is ProgressState.PROBE
    assert (peer.next_index, peer.window_bytes) == (15, 0)


def test_a_search_never_goes_below_what_is_known_to_match() -> None:
    peer = streaming()
    assert peer.rejected(20, 3)
    assert peer.next_index == 11


def test_a_late_rejection_says_nothing() -> None:
    peer = streaming()
    peer.sent(12, 100)
    peer.accepted(12)
    assert not peer.rejected(11, 5)
    assert peer.state is ProgressState.REPLICATE
    searching = progress()
    assert not searching.rejected(7, 5)
    assert searching.rejected(10, 5)
    assert searching.next_index == 5


def test_a_late_acceptance_says_nothing() -> None:
    peer = streaming()
    assert not peer.accepted(4)
    assert (peer.match_index, peer.next_index) == (10, 11)
    peer.rejected(20, 15)
    assert not peer.accepted(4)
    assert peer.state is ProgressState.PROBE


def test_a_snapshot_is_sent_chunk_by_chunk_from_where_the_peer_stands() -> None:
    peer = progress()
    peer.begin_snapshot(MARK)
    assert not can_send(peer)
    peer.is_chunk_sent = True
    assert peer.snapshot_received(9, 2, 4)
    assert (peer.snapshot_offset, peer.is_chunk_sent) == (4, False)
    peer.is_chunk_sent = True
    assert not peer.snapshot_received(9, 2, 4)
    assert peer.snapshot_received(9, 2, 0)
    assert peer.snapshot_offset == 0


def test_answers_about_another_snapshot_or_beyond_its_end_are_ignored() -> None:
    peer = progress()
    assert not peer.snapshot_received(9, 2, 4)
    peer.begin_snapshot(MARK)
    assert not peer.snapshot_received(8, 2, 4)
    assert not peer.snapshot_received(9, 1, 4)
    assert not peer.snapshot_received(9, 2, 11)


def test_streaming_begins_when_the_peer_has_the_snapshot() -> None:
    peer = progress()
    peer.begin_snapshot(MARK)
    assert peer.accepted(5)
    assert not can_send(peer)
    assert not peer.rejected(7, 3)
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


def test_a_peer_that_has_everything_has_caught_up_however_long_nothing_happened() -> None:
    peer = streaming()
    assert note(peer, 0, last_index=10)
    assert note(peer, 60_000, last_index=10)
    assert note(peer, 60_001, last_index=12), "there was no time yet"
