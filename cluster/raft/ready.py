"""The driver's contract (etcd: Ready), and the state with which a member starts.

As long as `RaftNode.ready()` returns a Ready, for each:

1. **Persist** `hard_state`, `entries` and `chunk`, durably. `entries[0]` replaces what the disk has
   from its index on; hard state and entries of one Ready go in one atomic commit. A chunk at offset
   0 begins a new incoming snapshot and drops an unfinished one; the last chunk completes it. Then
   its size and checksum are compared with its metadata. If they differ, call
   `RaftNode.reject_snapshot()` before `advance`.
2. **Send** `messages`, but not before 1: they imply what is on the disk. They may be lost or
   reordered, but should be sent in order. A SnapshotChunk gets its bytes when it is sent; a
   FollowRequest to ALL_MEMBERS goes to every member that can be reached.
3. **Apply**: install `snapshot` if there is one (the state machine is replaced by the content of
   the snapshot just completed), then `committed`, in order. Those that are not `is_command` only
   move the applied index.
4. **Advance**: call `RaftNode.advance(ready)`.

A Ready with `must_persist` may be carried out in another thread while `step`, `tick` and `propose`
go on; until it is advanced, `ready()` returns only what needs no disk. So a leader sends requests
while its own disk is busy, and everything that arrives during a sync shares the next one. A Ready
that cannot be persisted must not be advanced: retry, or end the process; nothing was promised yet.

A member restarts with what was persisted (`Restored`) and the applied state of its newest snapshot.
It then gets every later committed entry again.
"""

from enum import StrEnum

import msgspec

from odradek.cluster.raft.configuration import Configuration
from odradek.cluster.raft.messages import Entry, Message, SnapshotMetadata


class Role(StrEnum):
    """A member's role. Observers are followers without a vote."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre_candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


class HardState(msgspec.Struct, frozen=True):
    """Figure 2's persistent state. `commit` is a hint for a faster start and may be outdated."""

    term: int = 0
    vote: int | None = None
    commit: int = 0


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """The persisted state of a member.

    `entries` may begin at or below the snapshot's index; then `previous_term` is the term of the
    entry just before the first. `bootstrap` has the voters as long as the log names none. It
    is empty in a member that joins, and equal in all others.
    """

    hard_state: HardState = HardState()
    entries: tuple[Entry, ...] = ()
    previous_term: int | None = None
    snapshot: SnapshotMetadata | None = None
    bootstrap: Configuration = Configuration()


class ReceivedChunk(msgspec.Struct, frozen=True):
    """A chunk of the leader's snapshot, to be stored at `offset`, the end of the previous one."""

    snapshot: SnapshotMetadata
    offset: int
    data: bytes

    @property
    def is_last(self) -> bool:
        """Whether it completes the snapshot."""
        return self.offset + len(self.data) == self.snapshot.size


class SoftState(msgspec.Struct, frozen=True):
    """Role, term and leader, as far as this member knows (etcd: SoftState)."""

    role: Role
    term: int
    leader_id: int | None


class Proposal(msgspec.Struct, frozen=True):
    """The position of a proposal in the log.

    It is committed when the entry at `index` is applied with this term, and lost for good when an
    entry of another term is.
    """

    index: int
    term: int


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    hard_state: HardState | None = None
    entries: tuple[Entry, ...] = ()
    chunk: ReceivedChunk | None = None
    messages: tuple[Message, ...] = ()
    committed: tuple[Entry, ...] = ()
    soft_state: SoftState | None = None
    """Set if it has changed."""

    @property
    def must_persist(self) -> bool:
        """Whether anything has to be on the disk before the messages are sent."""
        return self.hard_state is not None or bool(self.entries) or self.chunk is not None

    @property
    def snapshot(self) -> SnapshotMetadata | None:
        """The snapshot to install after its last chunk is stored."""
        chunk = self.chunk
        return chunk.snapshot if chunk is not None and chunk.is_last else None
