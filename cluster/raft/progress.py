"""What a leader knows about one peer's log, and how much it may send to it now.

    state       until                                what is sent
    ----------------------------------------------------------------------------------------------
    PROBE       an answer says where the logs meet   one request; repeated, empty, with heartbeats
    REPLICATE   a request is rejected                request after request, within the window
    SNAPSHOT    the peer has the snapshot            one chunk at a time; entries not at all

Invariants: match_index < next_index; match_index never falls; while REPLICATE, everything in
(match_index, next_index) is on its way and counted by the window. Called by `leadership`.
"""

from collections import deque
from enum import StrEnum

from odradek.cluster.raft.messages import SnapshotMetadata


class ProgressState(StrEnum):
    """How the peer is fed."""

    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


class Progress:
    """One peer, as its leader sees it."""

    __slots__ = (
        "_round_end_index",
        "_round_start_ms",
        "_window",
        "chunk_age",
        "heard_ms",
        "is_caught_up",
        "is_chunk_sent",
        "is_heartbeat_due",
        "is_probe_sent",
        "match_index",
        "next_index",
        "sent_commit_index",
        "snapshot",
        "snapshot_offset",
        "state",
        "window_bytes",
    )

    def __init__(self, *, next_index: int, last_index: int, now_ms: int) -> None:
        """A peer whose log is thought to end before `next_index`; ours ends at `last_index`."""
        self.match_index = 0
        self.next_index = next_index
        self.state = ProgressState.PROBE
        self.is_probe_sent = False
        self.heard_ms = now_ms
        self.sent_commit_index = 0
        self.is_heartbeat_due = True
        self.snapshot: SnapshotMetadata | None = None
        self.snapshot_offset = 0
        self.is_chunk_sent = False
        self.chunk_age = 0  # heartbeats since the chunk was sent
        self.is_caught_up = False
        self._window: deque[tuple[int, int]] = deque()  # last index and bytes of each request
        self.window_bytes = 0
        self._round_start_ms = now_ms
        self._round_end_index = last_index

    # -- sending -----------------------------------------------------------------------------------

    def can_send_entries(self, *, requests_max: int, bytes_max: int) -> bool:
        """Whether entries may be sent to it now."""
        if self.state is ProgressState.REPLICATE:
            return len(self._window) < requests_max and self.window_bytes < bytes_max
        return self.state is ProgressState.PROBE and not self.is_probe_sent

    def sent(self, last_index: int, size: int) -> None:
        """A request whose entries end at `last_index` and count `size` bytes has left; 0 if it has
        none.
        """
        if self.state is ProgressState.PROBE:
            self.is_probe_sent = True
        elif size:
            self.next_index = last_index + 1
            self._window.append((last_index, size))
            self.window_bytes += size

    # -- hearing -----------------------------------------------------------------------------------

    def accepted(self, match_index: int) -> bool:
        """The peer has everything up to `match_index`; whether that is news.

        An old answer changes nothing.
        """
        is_news = match_index > self.match_index
        if is_news:
            self.match_index = match_index
        if match_index < self.match_index:
            return False
        self.next_index = max(self.next_index, match_index + 1)
        window = self._window
        while window and window[0][0] <= match_index:
            self.window_bytes -= window.popleft()[1]
        if self.state is ProgressState.PROBE:
            self._become(ProgressState.REPLICATE)
            self.next_index = match_index + 1
        elif self.state is ProgressState.SNAPSHOT:
            mark = self.snapshot
            assert mark is not None
            if match_index >= mark.index:
                self._become(ProgressState.REPLICATE)
                self.next_index = match_index + 1
        return is_news

    def rejected(self, previous_index: int, next_index: int) -> bool:
        """The peer refused entries after `previous_index`; the search goes on at `next_index`.

        False for the answer to a request that later answers have overtaken.
        """
        if self.state is ProgressState.SNAPSHOT or previous_index <= self.match_index:
            return False
        if self.state is ProgressState.PROBE and previous_index != self.next_index - 1:
            return False
        self._become(ProgressState.PROBE)
        self.next_index = max(self.match_index + 1, min(next_index, previous_index))
        return True

    def probe(self, next_index: int) -> None:
        """Begin the search anew, at `next_index` if that is not known to match already."""
        self._become(ProgressState.PROBE)
        self.next_index = max(self.match_index + 1, next_index)

    def begin_snapshot(self, mark: SnapshotMetadata) -> None:
        """The entries it needs are gone; it is sent the snapshot from its first byte on."""
        self._become(ProgressState.SNAPSHOT)
        self.snapshot = mark
        self.next_index = max(self.next_index, self.match_index + 1)

    def snapshot_received(self, index: int, term: int, offset: int) -> bool:
        """It has stored `offset` bytes; whether a chunk is due from there.

        An offset before ours is believed as well: the peer may have begun anew. If it was an old
        answer, a chunk is sent twice, and the peer drops the second.
        """
        mark = self.snapshot
        if self.state is not ProgressState.SNAPSHOT or mark is None:
            return False
        if (mark.index, mark.term) != (index, term) or not 0 <= offset <= mark.size:
            return False
        if offset == self.snapshot_offset and self.is_chunk_sent:
            # An answer to a chunk that it had: our next one is on its way already.
            return False
        self.snapshot_offset = offset
        self.is_chunk_sent = False
        return True

    def _become(self, state: ProgressState) -> None:
        self.state = state
        self.is_probe_sent = False
        self.snapshot = None
        self.snapshot_offset = 0
        self.is_chunk_sent = False
        self._window.clear()
        self.window_bytes = 0

    # -- catching up -------------------------------------------------------------------------------

    def update_caught_up(self, *, last_index: int, now_ms: int, round_ms_max: int) -> None:
        """Judge whether the peer is near enough to be given a vote (thesis 4.2.1).

        A round ends when the peer has what the leader had when the round began. It has caught up
        when a round took less than an election timeout, because then a change to a configuration
        with it would not hold up commits for longer than an election does.
        """
        is_slow = now_ms - self._round_start_ms > round_ms_max
        if self.match_index >= last_index:
            self.is_caught_up = True  # there is nothing to catch up with
        elif self.match_index >= self._round_end_index:
            self.is_caught_up = not is_slow
        else:
            self.is_caught_up = self.is_caught_up and not is_slow
            return
        self._round_start_ms = now_ms
        self._round_end_index = last_index
