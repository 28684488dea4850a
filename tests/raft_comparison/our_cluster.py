"""Three members of cluster/raft, as `scenarios.Cluster` needs them.

The core is the product's; disk and driver are those of its own tests, which persist before they
send, as `cluster.raft.ready` demands.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from odradek.cluster.raft.configuration import configuration_of
from odradek.cluster.raft.messages import (
    ALL_MEMBERS,
    AppendAccepted,
    AppendRejected,
    AppendRequest,
    Message,
    VoteRequest,
    VoteResponse,
)
from odradek.cluster.raft.ready import Proposal, Role
from odradek.cluster.raft.settings import RaftSettings
from tests.cluster.raft.quorum import START_MS, QuorumMember
from tests.raft_comparison.network import ComparisonNetwork, InFlightMessage, Kind, Vote
from tests.raft_comparison.scenarios import ELECTION_MS, HEARTBEAT_MS, MEMBERS

STEP_MS: Final = 10
# Added to the election timeout; of random size in a real driver.
JITTER_MS: Final = 100
SETTINGS: Final = RaftSettings(election_timeout_ms=ELECTION_MS, heartbeat_ms=HEARTBEAT_MS)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Message).decode


class OurCluster:
    """See the module's docstring."""

    def __init__(self) -> None:
        self.network = ComparisonNetwork()
        self._now_ms = START_MS
        self.acknowledged: list[str] = []
        self.led: set[tuple[int, int]] = set()
        bootstrap = configuration_of(MEMBERS)
        self._members = {
            own_id: QuorumMember(own_id, bootstrap=bootstrap, settings=SETTINGS)
            for own_id in MEMBERS
        }
        for own_id, member in self._members.items():
            member.jitter_ms = own_id * JITTER_MS
        self._running = set(MEMBERS)
        self._open: dict[str, tuple[int, Proposal]] = {}

    @property
    def now_ms(self) -> int:
        return self._now_ms

    def elapse(self, ms: int) -> None:
        end_ms = self._now_ms + ms
        while self._now_ms < end_ms:
            self._now_ms += STEP_MS
            for own_id in sorted(self._running):
                member = self._members[own_id]
                member.now_ms = self._now_ms
                if member.node.next_deadline_ms() <= self._now_ms:
                    member.node.tick(self._now_ms)
                    member.settle()
            self.deliver(lambda: False)

    def deliver(self, until: Callable[[], bool]) -> None:
        while True:
            self._look()
            letter = None if until() else self.network.take()
            if letter is None:
                return
            if letter.to in self._running:
                member = self._members[letter.to]
                member.node.step(_decode(letter.content), self._now_ms)
                member.settle()

    def end_patience(self, member: int) -> None:
        node = self._members[member].node
        node._deadline_ms = self._now_ms
        node.tick(self._now_ms)
        self._members[member].settle()

    def propose(self, member: int, command: str) -> None:
        proposal = self._members[member].node.propose(command.encode())
        if isinstance(proposal, Proposal):
            self._open[command] = (member, proposal)
            self._members[member].settle()

    def kill(self, member: int) -> None:
        self._running.discard(member)
        self._open = {command: asked for command, asked in self._open.items() if asked[0] != member}

    def restart(self, member: int) -> None:
        if member not in self._running:
            self._running.add(member)
            self._members[member].applied.clear()
            self._members[member].now_ms = self._now_ms
            self._members[member].start()

    def leaders(self) -> list[int]:
        return [id_ for id_ in sorted(self._running) if self._members[id_].role is Role.LEADER]

    def log(self, member: int) -> list[str]:
        return [entry.data.decode() for entry in self._members[member].entries if entry.is_command]

    def _look(self) -> None:
        """After every event: send messages, answer clients, record leaders."""
        for own_id in sorted(self._running):
            member = self._members[own_id]
            for message in member.take_sent():
                for to in MEMBERS if message.to == ALL_MEMBERS else [message.to]:
                    if to != own_id:
                        self.network.post(_letter(message, to))
            if member.role is Role.LEADER:
                self.led.add((member.node.term, own_id))
        for command, (asked, proposal) in list(self._open.items()):
            applied = {entry.index: entry.term for entry in self._members[asked].applied}
            if proposal.index in applied:
                del self._open[command]
                if applied[proposal.index] == proposal.term:
                    self.acknowledged.append(command)


def _letter(message: Message, to: int) -> InFlightMessage:
    sender = message.sender
    kind, vote = Kind.OTHER, None
    match message:
        case VoteRequest(is_pre_vote=False):
            kind, vote = Kind.VOTE, Vote(voter=sender, term=message.term, candidate=sender)
        case VoteResponse(is_pre_vote=False, is_granted=True):
            kind, vote = Kind.ANSWER, Vote(voter=sender, term=message.term, candidate=to)
        case AppendRequest():
            kind = Kind.APPEND
        case AppendAccepted() | AppendRejected():
            kind = Kind.ANSWER
        case _:
            pass
    return InFlightMessage(sender=sender, to=to, kind=kind, content=_encode(message), vote=vote)
