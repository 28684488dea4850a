"""The active controller: commands decided one on top of the other, ahead of what is committed.

Made when this member's own first entry has been committed: then everything before it is in the
image, and nothing that comes after it is anybody else's. Its controller has seen every decision,
committed or not; dropped with the leadership, it takes what was not committed along. Whoever
applies the log asks `committed` for the image that was made when an entry was decided, so that
nothing is computed twice. A change of who votes is an entry like any other, with nothing in it for
the image.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from odradek.cluster.controller.commands import (
    AddRaftVoter,
    Command,
    RemoveRaftVoter,
    VotersReply,
    encode_reply,
)
from odradek.cluster.controller.controller import Controller
from odradek.cluster.metadata.image import MetadataImage
from odradek.cluster.metadata.records import Record, encode_records
from odradek.cluster.raft.configuration import MembershipChange, ProposalRefusal, RemoveVoter
from odradek.cluster.raft.messages import Entry
from odradek.cluster.raft.ready import Proposal
from odradek.node.controller.raft_driver import RaftDriver
from odradek.node.controller.voter_changes import PeerHeaderLookup, membership_change, refusal_error
from odradek.protocol.errors import ApiError


class ProposedCommand(NamedTuple):
    """A command's reply, and the entry at which it holds: when that is applied, it may be told."""

    reply: bytes
    entry_index: int


class NoDiskSpaceError(Exception):
    """The disk has no room for what the command would add."""


class NotProposedError(Exception):
    """The quorum does not take it at the moment, and why: it is to be handed in again."""


class ActiveController:
    """See the module's docstring."""

    def __init__(
        self,
        driver: RaftDriver,
        image: MetadataImage,
        *,
        term: int,
        node_id: int,
        static: Mapping[str, str],
        has_room: Callable[[int], bool],
        headers: PeerHeaderLookup,
    ) -> None:
        """`headers` is what the members have said of themselves."""
        self.term = term
        self.controller = Controller(image, node_id=node_id, static=static)
        self._driver = driver
        self._has_room = has_room
        self._headers = headers
        self._decided: deque[tuple[int, MetadataImage]] = deque()

    @property
    def index(self) -> int:
        """The last entry that was decided here, or that was there before."""
        return self.controller.image.offset

    def decide(self, command: Command, now_ms: int, *, makes_room: bool) -> ProposedCommand:
        """Decide a command, and put what it does into the log.

        Raises ApiError if it is refused; NoDiskSpaceError or NotProposedError, and nothing has
        happened.
        """
        if isinstance(command, AddRaftVoter | RemoveRaftVoter):
            return self._change_voters(command)
        result = self.controller.handle(command, now_ms)
        self.propose(result.records, makes_room=makes_room)
        return ProposedCommand(encode_reply(result.reply), self.index)

    def tick(self, now_ms: int) -> None:
        """Do what is due by time."""
        due = self.controller.next_deadline_ms()
        if due is not None and now_ms >= due:
            # Who is fenced, or leads again, has lost or won that whatever room there is.
            self.propose(self.controller.tick(now_ms), makes_room=True)

    def propose(self, records: Sequence[Record], *, makes_room: bool) -> None:
        """Make records the log's next entry."""
        if not records:
            return
        data = encode_records(records)
        if not makes_room and not self._has_room(len(data)):
            raise NoDiskSpaceError
        proposal = self._driver.propose(data)
        if isinstance(proposal, ProposalRefusal):
            raise NotProposedError(f"the quorum takes nothing: {proposal}")
        self._take_in(proposal, records)

    def change_membership(self, change: MembershipChange) -> ProposalRefusal | None:
        """Make the next configuration the log's next entry, unless that is refused."""
        proposal = self._driver.change_membership(change)
        if isinstance(proposal, ProposalRefusal):
            return proposal
        self._take_in(proposal, ())
        return None

    def _change_voters(self, command: AddRaftVoter | RemoveRaftVoter) -> ProposedCommand:
        change = membership_change(command, self._driver.node.configuration, self._headers)
        if self._is_to_leave_first(change):
            raise NotProposedError("the leader lets another lead before it loses its vote")
        refusal = self.change_membership(change)
        if refusal is not None:
            reason = refusal_error(refusal, command)
            if isinstance(reason, ApiError):
                raise reason
            raise NotProposedError(reason)
        is_waiting = isinstance(command, RemoveRaftVoter) or command.waits
        reply = encode_reply(VotersReply(command.voter_id))
        return ProposedCommand(reply, self.index if is_waiting else 0)

    def _is_to_leave_first(self, change: MembershipChange) -> bool:
        """A leader whose vote is to be taken lets the best of the others lead, who takes it: nobody
        waits for an election then, and whoever asked is answered by who has done it."""
        node = self._driver.node
        if not isinstance(change, RemoveVoter) or change.member_id != node.own_id:
            return False
        others = [voter for voter in node.configuration.voter_ids if voter != node.own_id]
        leadership = node.leadership
        if leadership is not None and leadership.transfer_to is None:
            self._driver.transfer_leadership(others)
        return bool(others)

    def _take_in(self, proposal: Proposal, records: Sequence[Record]) -> None:
        # Decisions name the entry they will be, as a broker's epoch does.
        assert proposal.index == self.index + 1, "an entry came between"
        self.controller.replay(records, proposal.index)
        self._decided.append((proposal.index, self.controller.image))

    def committed(self, entry: Entry) -> MetadataImage | None:
        """The image after an entry that was decided here; None if it was not."""
        if not self._decided or self._decided[0][0] != entry.index or entry.term != self.term:
            return None
        return self._decided.popleft()[1]
