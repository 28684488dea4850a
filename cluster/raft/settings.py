"""What a member is told at its start: limits and intervals. Plain values, checked once."""

import msgspec


class RaftSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The same for all members, or the timings do not fit together.

    `heartbeat_ms` must leave room for several heartbeats in an election timeout; the election
    timeout must be several times a round trip with a sync on each side.
    """

    election_timeout_ms: int = 300
    """The least silence after which a voter stands for election; its jitter comes on top."""
    heartbeat_ms: int = 60
    append_bytes_max: int = 1 << 20
    """Of one request's entries; a single entry may be larger."""
    window_requests_max: int = 64
    window_bytes_max: int = 8 << 20
    """Entries on their way to one peer."""
    uncommitted_bytes_max: int = 64 << 20
    """Entries that a leader takes in before a majority has them."""
    apply_bytes_max: int = 4 << 20
    """Committed entries handed out at once."""
    snapshot_chunk_bytes: int = 1 << 20
    observers_max: int = 1_000
    observer_silence_ms: int = 5_000
    """After which an observer is forgotten. It asks again when it is back."""

    def __post_init__(self) -> None:
        if not 0 < self.heartbeat_ms * 2 <= self.election_timeout_ms:
            raise ValueError("an election timeout must hold at least two heartbeats")
        limits = (
            self.append_bytes_max,
            self.window_requests_max,
            self.window_bytes_max,
            self.uncommitted_bytes_max,
            self.apply_bytes_max,
            self.snapshot_chunk_bytes,
        )
        if min(limits) < 1:
            raise ValueError("a limit of less than one lets nothing through")
