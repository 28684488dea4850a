"""Granting votes, and counting those of one election.

Only voters of the configuration at the start of the election count, each once, and only responses
of its term and kind: those to earlier elections are ignored. Called by `node`.
"""

from collections.abc import Collection
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum

from odradek.cluster.raft.configuration import majority_of
from odradek.cluster.raft.log import RaftLog
from odradek.cluster.raft.messages import VoteRequest, VoteResponse


def can_grant_vote(
    request: VoteRequest, log: RaftLog, term: int, vote: int | None, leader_id: int | None
) -> bool:
    """Whether a member with this term, vote and leader grants a vote.

    RequestVote, receiver implementation (figure 2), for a request of the member's own term. A
    pre-vote is granted if the member could vote in the requested term, which must be a later one.
    """
    if not log.is_up_to_date(request.last_index, request.last_term):
        return False
    if request.is_pre_vote:
        return request.term > term
    return vote == request.sender or (vote is None and leader_id is None)


class ElectionResult(StrEnum):
    """The result of the responses so far."""

    OPEN = "open"
    WON = "won"
    LOST = "lost"


@dataclass(eq=False)
class Election:
    """An election or pre-vote for `term`."""

    term: int
    voter_ids: Collection[int]
    _: KW_ONLY
    is_pre_vote: bool
    is_transfer: bool = False
    _responses: dict[int, bool] = field(default_factory=dict)

    def requests(self, own_id: int, last_index: int, last_term: int) -> list[VoteRequest]:
        """The requests to the other voters. The candidate's log ends at (last_index, last_term)."""
        return [
            VoteRequest(
                own_id, voter, self.term, last_index, last_term, self.is_pre_vote, self.is_transfer
            )
            for voter in sorted(self.voter_ids)
            if voter != own_id
        ]

    def count(self, sender: int, *, is_granted: bool) -> None:
        """Count a response. Only the first of each voter counts."""
        if sender in self.voter_ids:
            self._responses.setdefault(sender, is_granted)

    def is_answer(self, message: VoteResponse, own_term: int) -> bool:
        """Whether the message is a response to this election and not to an earlier one.

        A refused pre-vote has the responder's term. If that were greater than ours, we would have
        adopted it already.
        """
        if message.is_pre_vote != self.is_pre_vote:
            return False
        if message.is_pre_vote and not message.is_granted:
            return message.term == own_term
        return message.term == self.term

    def result(self) -> ElectionResult:
        """Won with a majority of all voters; lost if a majority is impossible."""
        needed = majority_of(len(self.voter_ids))
        granted = sum(self._responses.values())
        if granted >= needed:
            return ElectionResult.WON
        refused = len(self._responses) - granted
        is_lost = len(self.voter_ids) - refused < needed
        return ElectionResult.LOST if is_lost else ElectionResult.OPEN
