"""Limits and intervals of a member."""

import msgspec


class RaftSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Must be the same for all members.

    An election timeout must contain several heartbeats, and be several times a round trip with a
    sync on each side.
    """

    election_timeout_ms: int = 300
    """The least time without a leader before a voter campaigns; jitter is added."""
    heartbeat_ms: int = 60
    append_bytes_max: int = 1 << 20
    """Of the entries of a request; a single entry may be larger."""
    window_requests_max: int = 64
    window_bytes_max: int = 8 << 20
    """Entries in flight to one peer."""
    uncommitted_bytes_max: int = 64 << 20
    """Uncommitted entries of a leader."""
    apply_bytes_max: int = 4 << 20
    """Committed entries in one Ready."""
    snapshot_chunk_bytes: int = 1 << 20
    observers_max: int = 1_000
    observer_silence_ms: int = 5_000
    """After which a silent observer is removed. It asks again when it returns."""

    def __post_init__(self) -> None:
        if not 0 < self.heartbeat_ms * 2 <= self.election_timeout_ms:
            raise ValueError("an election timeout must contain at least two heartbeats")
        limits = (
            self.append_bytes_max,
            self.window_requests_max,
            self.window_bytes_max,
            self.uncommitted_bytes_max,
            self.apply_bytes_max,
            self.snapshot_chunk_bytes,
        )
        if min(limits) < 1:
            raise ValueError("limits must be at least 1")
