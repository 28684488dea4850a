"""Raft members with the real core, disks and a network in memory, and a manual clock.

A `QuorumMember` carries out what its core's Ready values say, at once or, while its disk is held,
only up to the sync. A `LocalQuorum` carries messages between members until nobody has anything to
say; whom the network cuts off is decided by the test. `jitter` of member n is n milliseconds unless
told otherwise, so the lowest number stands for election first.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from odradek.cluster.raft.configuration import Configuration, configuration_of
from odradek.cluster.raft.messages import (
    ALL_MEMBERS,
    AppendRequest,
    Entry,
    Message,
    SnapshotChunk,
    SnapshotMetadata,
    VoteResponse,
)
from odradek.cluster.raft.node import RaftNode
from odradek.cluster.raft.ready import HardState, Proposal, Ready, Restored, Role
from odradek.cluster.raft.settings import RaftSettings

M = TypeVar("M")

ELECTION_MS = 500
HEARTBEAT_MS = 100
SETTINGS = RaftSettings(election_timeout_ms=ELECTION_MS, heartbeat_ms=HEARTBEAT_MS)
START_MS = 1_000


class QuorumMember:
    """One core with its disk."""

    def __init__(
        self,
        own_id: int,
        *,
        bootstrap: Configuration,
        settings: RaftSettings = SETTINGS,
        hard_state: HardState | None = None,
        entries: Sequence[Entry] = (),
        now_ms: int = START_MS,
    ) -> None:
        self.own_id = own_id
        self.bootstrap = bootstrap
        self.settings = settings
        self.jitter_ms = own_id
        self.now_ms = now_ms
        self.hard_state = HardState() if hard_state is None else hard_state
        self.entries = list(entries)
        self.previous_term: int | None = None
        self.snapshot: SnapshotMetadata | None = None
        self.snapshot_content = b""
        self.incoming_content = b""
        self.is_disk_held = False
        self.syncing: Ready | None = None
        self.sent: list[Message] = []
        self.applied: list[Entry] = []
        self.installed: list[SnapshotMetadata] = []
        self.start()

    def start(self) -> None:
        """With what the disk has, as after a crash."""
        self.syncing = None
        self.sent = []
        self.node = RaftNode(
            self.own_id,
            self.settings,
            Restored(
                hard_state=self.hard_state,
                entries=tuple(self.entries),
                previous_term=self.previous_term,
                snapshot=self.snapshot,
                bootstrap=self.bootstrap,
            ),
            jitter_ms=lambda: self.jitter_ms,
            now_ms=self.now_ms,
        )
        self.settle()

    # -- events ------------------------------------------------------------------------------------

    def hear(self, *messages: Message) -> list[Message]:
        """Take in messages; what is said in consequence, and before, unless it was taken."""
        for message in messages:
            self.node.step(message, self.now_ms)
        self.settle()
        return self.take_sent()

    def elapse(self, ms: int) -> list[Message]:
        """Time passes, without anything being heard; what is said."""
        end_ms = self.now_ms + ms
        while self.now_ms < end_ms:
            self.now_ms = min(end_ms, max(self.now_ms + 1, self.node.next_deadline_ms()))
            self.node.tick(self.now_ms)
            self.settle()
        return self.take_sent()

    def propose(self, data: bytes) -> Proposal:
        """As a leader that accepts it."""
        proposal = self.node.propose(data)
        assert isinstance(proposal, Proposal), proposal
        self.settle()
        return proposal

    def snapshot_now(self, content: bytes, *, first_index: int | None = None) -> SnapshotMetadata:
        """A snapshot of what is applied; entries below `first_index`, or all of it, are dropped."""
        index = self.node.log.applied_index
        term = self.node.log.term_at(index)
        assert term is not None
        mark = SnapshotMetadata(
            index, term, len(content), sum(content), self.node.log.configuration_at(index)
        )
        first_index = index + 1 if first_index is None else first_index
        self.previous_term = self.node.log.term_at(first_index - 1)
        self.snapshot, self.snapshot_content = mark, content
        self.entries = [entry for entry in self.entries if entry.index >= first_index]
        self.node.snapshot_taken(mark, first_index)
        return mark

    # -- the driver's duties -----------------------------------------------------------------------

    def settle(self) -> None:
        """Do what the core says until it says nothing."""
        while (ready := self.node.ready()) is not None:
            if ready.must_persist and self.is_disk_held:
                self.syncing = ready
            else:
                self._carry_out(ready)

    def sync(self) -> list[Message]:
        """A held disk has done what it was told; what is said in consequence."""
        ready = self.syncing
        assert ready is not None, "nothing is being synced"
        self.syncing = None
        self._carry_out(ready)
        self.settle()
        return self.take_sent()

    def take_sent(self) -> list[Message]:
        """What has been said since it was last asked for."""
        sent, self.sent = self.sent, []
        return sent

    def _carry_out(self, ready: Ready) -> None:
        self._persist(ready)
        self.sent += ready.messages
        mark = ready.snapshot
        if mark is not None:
            self.installed.append(mark)
        self.applied += ready.committed
        self.node.advance(ready)

    def _persist(self, ready: Ready) -> None:
        if ready.hard_state is not None:
            self.hard_state = ready.hard_state
        if ready.entries:
            first_index = ready.entries[0].index
            self.entries = [entry for entry in self.entries if entry.index < first_index]
            self.entries += ready.entries
        chunk = ready.chunk
        if chunk is not None:
            self.incoming_content = self.incoming_content if chunk.offset else b""
            assert len(self.incoming_content) == chunk.offset
            self.incoming_content += chunk.data
            if chunk.is_last:
                self.snapshot, self.snapshot_content = chunk.snapshot, self.incoming_content
                self.entries, self.previous_term = [], None

    # -- looking -----------------------------------------------------------------------------------

    @property
    def role(self) -> Role:
        return self.node.role

    @property
    def commands(self) -> list[bytes]:
        """The application's entries that it has applied."""
        return [entry.data for entry in self.applied if entry.is_command]


class LocalQuorum:
    """Members 1 to n and the network between them."""

    def __init__(
        self,
        member_count: int,
        *,
        settings: RaftSettings = SETTINGS,
        logs: Mapping[int, Sequence[Entry]] | None = None,
        term: int = 0,
    ) -> None:
        """All have seen `term`, and each has its log from `logs`."""
        self.bootstrap = configuration_of(range(1, member_count + 1))
        self.settings = settings
        self.now_ms = START_MS
        self.members: dict[int, QuorumMember] = {}
        self.silenced: set[tuple[int, int]] = set()
        self.drops: Callable[[Message], bool] = lambda message: False
        for own_id in range(1, member_count + 1):
            entries = (logs or {}).get(own_id, ())
            self.members[own_id] = QuorumMember(
                own_id,
                bootstrap=self.bootstrap,
                settings=settings,
                hard_state=HardState(term),
                entries=entries,
            )

    def __getitem__(self, own_id: int) -> QuorumMember:
        return self.members[own_id]

    def join(self, own_id: int) -> QuorumMember:
        """Somebody new, with an empty disk and no idea who votes."""
        self.members[own_id] = QuorumMember(
            own_id, bootstrap=Configuration(), settings=self.settings, now_ms=self.now_ms
        )
        return self.members[own_id]

    # -- the network -------------------------------------------------------------------------------

    def cut(self, some: Iterable[int], others: Iterable[int]) -> None:
        """No message passes between the two, in either direction."""
        for a in some:
            for b in others:
                self.silenced |= {(a, b), (b, a)}

    def isolate(self, own_id: int) -> None:
        """It is cut off from all others."""
        self.cut([own_id], [other for other in self.members if other != own_id])

    def heal(self) -> None:
        """Every message passes."""
        self.silenced.clear()
        self.drops = lambda message: False

    def deliver(self) -> None:
        """Carry messages to and fro until there are none."""
        for _ in range(10_000):
            messages = [m for member in self.members.values() for m in member.take_sent()]
            if not messages:
                return
            for message in messages:
                self._deliver(message)
        raise AssertionError("members talk for ever")

    def _deliver(self, message: Message) -> None:
        sender = self.members[message.sender]
        if isinstance(message, SnapshotChunk):
            message = _filled(message, sender)
        everybody = [other for other in self.members if other != message.sender]
        for to in everybody if message.to == ALL_MEMBERS else [message.to]:
            if to not in self.members or (message.sender, to) in self.silenced:
                continue
            if not self.drops(message):
                self.members[to].node.step(message, self.now_ms)
                self.members[to].settle()

    # -- time --------------------------------------------------------------------------------------

    def elapse(self, ms: int) -> None:
        """Time passes for all; what is said is heard at once."""
        end_ms = self.now_ms + ms
        while self.now_ms < end_ms:
            self.now_ms += 1
            for member in self.members.values():
                member.now_ms = self.now_ms
                if member.node.next_deadline_ms() <= self.now_ms:
                    member.node.tick(self.now_ms)
                    member.settle()
            self.deliver()

    def elect(self, own_id: int) -> QuorumMember:
        """Let time pass until this member leads, which it does if the others let it."""
        jitters = {other: member.jitter_ms for other, member in self.members.items()}
        for other, member in self.members.items():
            member.jitter_ms = 0 if other == own_id else ELECTION_MS
            member.node._restart_timeout()
        self.elapse(3 * ELECTION_MS)
        for other, member in self.members.items():
            member.jitter_ms = jitters[other]
        self.elapse(2 * HEARTBEAT_MS)
        assert self.members[own_id].role is Role.LEADER
        return self.members[own_id]

    @property
    def leaders(self) -> list[int]:
        """Who believes to lead."""
        return [own_id for own_id, member in self.members.items() if member.role is Role.LEADER]


def _filled(message: SnapshotChunk, sender: QuorumMember) -> SnapshotChunk:
    assert message.snapshot == sender.snapshot
    data = sender.snapshot_content[message.offset : message.offset + message.length]
    return SnapshotChunk(
        message.sender,
        message.to,
        message.term,
        message.snapshot,
        message.offset,
        message.length,
        data,
    )


def only(kind: type[M], messages: Iterable[Message]) -> list[M]:
    """The messages of one kind."""
    return [message for message in messages if isinstance(message, kind)]


# -- single members ------------------------------------------------------------------------------

THREE = configuration_of([1, 2, 3])


def entries_of(*terms: int) -> list[Entry]:
    return [Entry(index, term, b"x") for index, term in enumerate(terms, start=1)]


def follower(*terms: int, term: int = 0, vote: int | None = None) -> QuorumMember:
    """Member 2 of three, with entries of these terms on its disk."""
    entries = entries_of(*terms)
    hard_state = HardState(max(term, *terms, 0), vote)
    return QuorumMember(2, bootstrap=THREE, hard_state=hard_state, entries=entries)


def candidate(*terms: int) -> QuorumMember:
    """Member 2 of three, after a rehearsal that it has won."""
    member = follower(*terms)
    member.elapse(ELECTION_MS + 2)
    next_term = member.node.term + 1
    member.hear(VoteResponse(1, 2, next_term, True, is_pre_vote=True))
    assert member.role is Role.CANDIDATE
    return member


def leader(*terms: int) -> QuorumMember:
    """Member 2 of three, elected by member 1; its no-op is not committed yet."""
    member = candidate(*terms)
    member.hear(VoteResponse(1, 2, member.node.term, True))
    assert member.role is Role.LEADER
    return member


def heartbeat(term: int, *, sender: int = 1, commit_index: int = 0) -> AppendRequest:
    return AppendRequest(sender, 2, term, 0, 0, (), commit_index)
