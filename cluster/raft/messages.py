"""The messages between members, and the entries of the log.

Plain values. `sender` and `to` are member ids; `term` is the sender's term unless stated otherwise.
Indexes start at 1; index 0 with term 0 is the position before the first entry. A driver encodes
messages with msgspec (each has a tag), which checks types; `validation` checks numbers.

A message may be lost, delayed, duplicated or reordered.
"""

from typing import TypeAlias

import msgspec

from odradek.cluster.raft.configuration import CONFIGURATION_MARK, Configuration

ALL_MEMBERS = -1
"""As `to` of a FollowRequest: all members that the driver can reach. The sender may know no member
id, or only outdated ones."""

ENTRY_OVERHEAD_BYTES = 32
"""Counted for each entry beyond its data, so that many small entries are bounded too."""


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One entry of the log, as it is persisted and sent.

    Empty `data` is the no-op that begins a term, CONFIGURATION_MARK in front a configuration,
    anything else a command.
    """

    index: int
    term: int
    data: bytes

    @property
    def is_command(self) -> bool:
        """Whether it is for the application. Other entries only move the applied index."""
        return bool(self.data) and not self.is_configuration

    @property
    def is_configuration(self) -> bool:
        return self.data[:1] == CONFIGURATION_MARK

    @property
    def size(self) -> int:
        """Its bytes, as counted against limits."""
        return len(self.data) + ENTRY_OVERHEAD_BYTES


class SnapshotMetadata(msgspec.Struct, frozen=True, array_like=True):
    """A complete snapshot: the state after applying every entry up to and including `index`.

    Snapshots with equal metadata have equal bytes, so that the next leader can resume a transfer.
    """

    index: int
    term: int
    size: int  # bytes of content
    checksum: int  # CRC-32C of the content
    configuration: Configuration  # as of `index`


class _RaftMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    sender: int
    to: int
    term: int


class VoteRequest(_RaftMessage, frozen=True, array_like=True, tag=True, gc=False):
    """RequestVote (figure 2) and pre-vote (thesis 9.6), in which `term` is the next one."""

    last_index: int
    last_term: int
    is_pre_vote: bool = False
    is_transfer: bool = False
    """The leader itself has asked for this election: ignore its lease (thesis 4.2.3)."""


class VoteResponse(_RaftMessage, frozen=True, array_like=True, tag=True, gc=False):
    """The response. A granted pre-vote has the requested term."""

    is_granted: bool
    is_pre_vote: bool = False


class AppendRequest(_RaftMessage, frozen=True, array_like=True, tag=True, gc=True):
    """AppendEntries (figure 2). Without entries: a heartbeat, a probe, or a new commit index.

    `reserved`, here and in the responses, is always 0. Earlier releases sent a read-index round.
    """

    previous_index: int
    previous_term: int
    entries: tuple[Entry, ...]
    commit_index: int
    reserved: int = 0


class AppendAccepted(_RaftMessage, frozen=True, array_like=True, tag=True, gc=False):
    """The follower's durable log equals the leader's up to `match_index`."""

    match_index: int
    reserved: int = 0


class AppendRejected(_RaftMessage, frozen=True, array_like=True, tag=True, gc=False):
    """The entry at `previous_index` is missing or of another term, or the leader's term is over.

    `hint_index` is the last index at which the logs can match, judging by terms, and `hint_term`
    the follower's term there: the optimization of 5.3, which skips a term with each request.
    """

    previous_index: int
    hint_index: int
    hint_term: int
    reserved: int = 0


class SnapshotChunk(_RaftMessage, frozen=True, array_like=True, tag=True, gc=False):
    """InstallSnapshot (figure 13): bytes [offset, offset + length) of the snapshot's content.

    The core leaves `data` empty. The driver fills it when it sends the message
    (`storage.metadata_log.read_snapshot`), or drops the message if this snapshot was replaced.
    """

    snapshot: SnapshotMetadata
    offset: int
    length: int
    data: bytes = b""


class SnapshotReceived(_RaftMessage, frozen=True, array_like=True, tag=True, gc=False):
    """How many bytes of the snapshot at (index, snapshot_term) are stored: resume there."""

    index: int
    snapshot_term: int
    offset: int


class TimeoutNow(_RaftMessage, frozen=True, array_like=True, tag=True, gc=False):
    """The leader asks a voter to campaign at once (thesis 3.10)."""


class FollowRequest(_RaftMessage, frozen=True, array_like=True, tag=True, gc=False):
    """A member without a leader asks to be added as an observer, unless it is a voter. `term` is
    informational."""

    last_index: int


class LeaderHint(_RaftMessage, frozen=True, array_like=True, tag=True, gc=False):
    """The response of a member that does not lead: ask `leader`. `term` is informational."""

    leader: int


LeaderRequest: TypeAlias = AppendRequest | SnapshotChunk
PeerResponse: TypeAlias = AppendAccepted | AppendRejected | SnapshotReceived
Message: TypeAlias = (
    VoteRequest
    | VoteResponse
    | LeaderRequest
    | PeerResponse
    | TimeoutNow
    | FollowRequest
    | LeaderHint
)
