"""What a driver is told to do, and what it tells a member at its start.

The driver's contract. As long as `RaftNode.ready()` returns something, for each Ready:

1. **Persist** `hard_state`, `entries` and `chunk`, durably. `entries[0]` replaces what the disk has
   from its index on; hard state and entries of one Ready go in one atomic commit. A chunk at offset
   0 begins a new incoming snapshot, dropping an unfinished one; the last chunk completes it, and
   before it counts its size and checksum are compared with its mark. If they differ, call
   `RaftNode.reject_snapshot()` before `advance`.
2. **Send** `messages`, and not before 1 is done: they speak of what is on the disk. They may be
   lost and need not arrive in order, but are best sent so. A SnapshotChunk is given its bytes when
   it is sent; a FollowRequest to EVERYBODY goes to every member that can be reached.
3. **Apply**: install `snapshot` if there is one (the state machine is replaced by the content of
   the snapshot just completed), then `committed`, in order. Those that are not `is_command` only
   move the applied index.
4. **Advance**: call `RaftNode.advance(ready)`.

A Ready has something to persist (`must_persist`) or has not. One that has may be carried out
elsewhere (a thread that syncs) while `step`, `tick` and `propose` go on; until it is advanced,
`ready()` returns only what needs no disk. So a leader's requests leave while its own disk is busy,
and everything that arrives during one sync shares the next one. What cannot be persisted must not
be advanced: try again, or end the process; nothing has been promised yet.

A member that restarts is given what was persisted (`Restored`) and an applied state that equals its
newest snapshot: it is told every later committed entry again.
"""

from enum import StrEnum

import msgspec

from odradek.cluster.raft.configuration import Configuration
from odradek.cluster.raft.messages import Entry, Message, SnapshotMetadata


class Role(StrEnum):
    """What a member is at the moment. Observers are followers without a vote."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre_candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


class HardState(msgspec.Struct, frozen=True):
    """Figure 2's persistent state. `commit` is a hint for a faster start and may lag."""

    term: int = 0
    vote: int | None = None
    commit: int = 0


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """What a member finds on its disk.

    `entries` may begin at or below the snapshot's index; then `previous_term` is the term of the
    entry just before the first. `bootstrap` names the voters of a cluster whose log does not name
    any; it is empty in a member that joins, and must be the same wherever it is not.
    """

    hard_state: HardState = HardState()
    entries: tuple[Entry, ...] = ()
    previous_term: int | None = None
    snapshot: SnapshotMetadata | None = None
    bootstrap: Configuration = Configuration()


class ReceivedChunk(msgspec.Struct, frozen=True):
    """Bytes of a leader's snapshot to be stored at `offset`, which is where the last ones ended."""

    snapshot: SnapshotMetadata
    offset: int
    data: bytes

    @property
    def is_last(self) -> bool:
        """Whether the snapshot is complete with it."""
        return self.offset + len(self.data) == self.snapshot.size


class SoftState(msgspec.Struct, frozen=True):
    """Who leads, as far as this member knows."""

    role: Role
    term: int
    leader_id: int | None


class Proposal(msgspec.Struct, frozen=True):
    """Where a proposal stands in the log.

    It is accepted when the entry at `index` is applied with this term, and lost when another term's
    is: then nothing of it has happened or will.
    """

    index: int
    term: int


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """See the module's docstring for what to do, and in what order."""

    hard_state: HardState | None = None
    entries: tuple[Entry, ...] = ()
    chunk: ReceivedChunk | None = None
    messages: tuple[Message, ...] = ()
    committed: tuple[Entry, ...] = ()
    soft_state: SoftState | None = None
    """Set when it has changed."""

    @property
    def must_persist(self) -> bool:
        """Whether there is something that has to be on the disk before anything else is done."""
        return self.hard_state is not None or bool(self.entries) or self.chunk is not None

    @property
    def snapshot(self) -> SnapshotMetadata | None:
        """The snapshot to install, once its last chunk is stored."""
        chunk = self.chunk
        return chunk.snapshot if chunk is not None and chunk.is_last else None
