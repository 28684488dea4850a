"""What members tell each other, and the entries they tell it about.

All of it is plain values. `sender` and `to` are member ids; `term` is the sender's term unless said
otherwise. Indexes start at 1; index 0 with term 0 is the place before the first entry. A driver
encodes messages with msgspec (each has a tag); that decides types and nothing more: what a number
may be is checked by `validation`.

A message may be lost, late, doubled or out of order at any time.
"""

from typing import TypeAlias

import msgspec

from odradek.cluster.raft.configuration import CONFIGURATION_MARK, Configuration

ALL_MEMBERS = -1
"""As `to` of a FollowRequest: whoever the driver can reach, by the addresses that it was given at
its start and those in the configuration. Who asks may know no member's id, or none that is left.
"""

ENTRY_OVERHEAD_BYTES = 32
"""What an entry counts beyond its data, so that a flood of small ones is bounded as well."""


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One entry of the log, as it is persisted and sent.

    `data` says what it is: empty is the no-op that begins a term, CONFIGURATION_MARK in front is a
    configuration, anything else is the application's.
    """

    index: int
    term: int
    data: bytes

    @property
    def is_command(self) -> bool:
        """Whether it is the application's. The others only count."""
        return bool(self.data) and not self.is_configuration

    @property
    def is_configuration(self) -> bool:
        """Whether it changes who votes."""
        return self.data[:1] == CONFIGURATION_MARK

    @property
    def size(self) -> int:
        """Bytes that it counts against limits."""
        return len(self.data) + ENTRY_OVERHEAD_BYTES


class SnapshotMetadata(msgspec.Struct, frozen=True, array_like=True):
    """A complete snapshot: the state after applying every entry up to and with `index`.

    Two snapshots with equal marks have equal bytes, so that a transfer begun by one leader can be
    resumed by the next.
    """

    index: int
    term: int
    size: int  # bytes of content
    checksum: int  # CRC-32C of the content
    configuration: Configuration  # as of `index`


class VoteRequest(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """RequestVote (figure 2) and its rehearsal (thesis 9.6), in which `term` is the next one."""

    sender: int
    to: int
    term: int
    last_index: int
    last_term: int
    is_pre_vote: bool = False
    is_transfer: bool = False
    """The leader itself has asked for this election (thesis 4.2.3): nobody shall be loyal to it."""


class VoteResponse(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """The answer. A granted pre-vote carries the term that was asked for."""

    sender: int
    to: int
    term: int
    is_granted: bool
    is_pre_vote: bool = False


class AppendRequest(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """AppendEntries (figure 2). Without entries: a heartbeat, a probe, or a new commit index.

    `reserved`, here and in the responses, is always 0. Earlier releases sent a read-index round.
    """

    sender: int
    to: int
    term: int
    previous_index: int
    previous_term: int
    entries: tuple[Entry, ...]
    commit_index: int
    reserved: int = 0


class AppendAccepted(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """The follower's log equals the leader's up to `match_index`, durably."""

    sender: int
    to: int
    term: int
    match_index: int
    reserved: int = 0


class AppendRejected(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """The entry at `previous_index` is missing or of another term, or the leader's term is over.

    `hint_index` is the last place at which the logs can agree, judged by terms alone, and
    `hint_term` the follower's term there: what 5.3 proposes, so that one request skips a term.
    """

    sender: int
    to: int
    term: int
    previous_index: int
    hint_index: int
    hint_term: int
    reserved: int = 0


class SnapshotChunk(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """InstallSnapshot (figure 13): bytes [offset, offset + length) of the snapshot's content.

    The core does not hold a snapshot's bytes: it leaves `data` empty and the driver puts them in
    when it sends (`storage.metadata_log.read_snapshot`), or drops the message if the snapshot with
    this mark is no longer there.
    """

    sender: int
    to: int
    term: int
    snapshot: SnapshotMetadata
    offset: int
    length: int
    data: bytes = b""


class SnapshotReceived(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """How many bytes of the snapshot at (index, snapshot_term) have been stored: resume there."""

    sender: int
    to: int
    term: int
    index: int
    snapshot_term: int
    offset: int


class TimeoutNow(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """The leader asks a voter to take over at once (thesis 3.10)."""

    sender: int
    to: int
    term: int


class FollowRequest(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Somebody hears no leader and wants to be sent the log if it has no vote. `term` is only
    told.
    """

    sender: int
    to: int
    term: int
    last_index: int


class LeaderHint(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """The answer of one who does not lead: ask `leader`. `term` is only told."""

    sender: int
    to: int
    term: int
    leader: int


Message: TypeAlias = (
    VoteRequest
    | VoteResponse
    | AppendRequest
    | AppendAccepted
    | AppendRejected
    | SnapshotChunk
    | SnapshotReceived
    | TimeoutNow
    | FollowRequest
    | LeaderHint
)
