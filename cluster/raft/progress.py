"""What a leader knows about one peer's log, and how much it may send now.

    state       until                                what is sent
    ----------------------------------------------------------------------------------------------
    PROBE       a response tells the last match      one request; repeated, empty, with heartbeats
    REPLICATE   a request is rejected                request after request, within the window
    SNAPSHOT    the peer has the snapshot            one chunk at a time; no entries

Invariants: match_index < next_index; match_index never falls; while REPLICATE, all entries in
(match_index, next_index) are in flight and counted by the window. Called by `leadership`.
"""

from collections import deque
from dataclasses import InitVar, dataclass, field
from enum import StrEnum

from odradek.cluster.raft.messages import SnapshotMetadata


class ProgressState(StrEnum):
    """How entries are sent to the peer."""

    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


@dataclass(slots=True, eq=False, kw_only=True)
class Progress:
    """One peer, as its leader sees it (etcd: tracker.Progress). Its log is assumed to end before
    `next_index`; the leader's ends at `last_index`."""

    next_index: int
    last_index: InitVar[int]
    now_ms: InitVar[int]
    match_index: int = 0
    state: ProgressState = ProgressState.PROBE
    last_contact_ms: int = 0
    is_probe_sent: bool = False
    sent_commit_index: int = 0
    is_heartbeat_due: bool = True
    snapshot: SnapshotMetadata | None = None
    snapshot_offset: int = 0
    is_chunk_sent: bool = False
    chunk_age: int = 0
    """Heartbeats since the chunk was sent."""
    is_caught_up: bool = False
    window_bytes: int = 0
    _window: deque[tuple[int, int]] = field(default_factory=deque)
    """Last index and bytes of each request in flight."""
    _round_start_ms: int = 0
    _round_end_index: int = 0

    def __post_init__(self, last_index: int, now_ms: int) -> None:
        self.last_contact_ms = self._round_start_ms = now_ms
        self._round_end_index = last_index

    # -- sending -----------------------------------------------------------------------------------

    def can_send_entries(self, *, requests_max: int, bytes_max: int) -> bool:
        """Whether entries may be sent to it now."""
        if self.state is ProgressState.REPLICATE:
            return len(self._window) < requests_max and self.window_bytes < bytes_max
        return self.state is ProgressState.PROBE and not self.is_probe_sent

    def sent(self, last_index: int, size: int) -> None:
        """A request was sent: its entries end at `last_index` and have `size` bytes, 0 if none."""
        if self.state is ProgressState.PROBE:
            self.is_probe_sent = True
        elif size:
            self.next_index = last_index + 1
            self._window.append((last_index, size))
            self.window_bytes += size

    # -- responses ---------------------------------------------------------------------------------

    def accepted(self, match_index: int) -> None:
        """The peer has everything up to `match_index`. Old responses change nothing."""
        if match_index < self.match_index:
            return
        self.match_index = match_index
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

    def rejected(self, previous_index: int, next_index: int) -> None:
        """The peer rejected entries after `previous_index`: probe at `next_index`. Old responses
        change nothing."""
        if self.state is ProgressState.SNAPSHOT or previous_index <= self.match_index:
            return
        if self.state is ProgressState.PROBE and previous_index != self.next_index - 1:
            return
        self.probe(min(next_index, previous_index))

    def probe(self, next_index: int) -> None:
        """Probe again, at `next_index` if that is not known to match already."""
        self._become(ProgressState.PROBE)
        self.next_index = max(self.match_index + 1, next_index)

    def begin_snapshot(self, mark: SnapshotMetadata) -> None:
        """Its next entries are compacted: send the snapshot from its first byte on."""
        self._become(ProgressState.SNAPSHOT)
        self.snapshot = mark
        self.next_index = max(self.next_index, self.match_index + 1)

    def snapshot_received(self, index: int, term: int, offset: int) -> None:
        """The peer has stored `offset` bytes of this snapshot: send the chunk from there.

        An offset before ours counts too: the peer may have started over. If the response was old, a
        chunk is sent twice and the peer drops the second.
        """
        mark = self.snapshot
        if mark is None or (mark.index, mark.term) != (index, term):
            return
        # A response with our own offset is that to a repeated chunk: the next one is in flight.
        if 0 <= offset <= mark.size and offset != self.snapshot_offset:
            self.snapshot_offset = offset
            self.is_chunk_sent = False

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
        """Update whether the peer has caught up enough to become a voter (thesis 4.2.1).

        A round ends when the peer has what the leader had at the start of the round. The peer has
        caught up if a round took less than an election timeout: then a configuration with it does
        not delay commits for longer than an election does.
        """
        is_slow = now_ms - self._round_start_ms > round_ms_max
        if self.match_index >= last_index:
            self.is_caught_up = True  # it has everything
        elif self.match_index >= self._round_end_index:
            self.is_caught_up = not is_slow
        else:
            self.is_caught_up = self.is_caught_up and not is_slow
            return
        self._round_start_ms = now_ms
        self._round_end_index = last_index
