"""Who gets a vote, and the count of one election: who was asked, and who has answered what.

Only voters of the configuration in which the election began are counted, each once, and only
answers of its own term and kind: an answer that belongs to an earlier election says nothing about
this one. Called by `node`.
"""

from collections.abc import Iterable
from enum import StrEnum

from odradek.cluster.raft.configuration import majority_of
from odradek.cluster.raft.log import RaftLog
from odradek.cluster.raft.messages import VoteRequest, VoteResponse


def can_grant_vote(
    request: VoteRequest, log: RaftLog, term: int, vote: int | None, leader_id: int | None
) -> bool:
    """Whether a member that is in `term`, and has voted or follows so, may vote for the asker.

    RequestVote, receiver implementation (figure 2), for a request of the member's own term; for a
    rehearsal, whether it could vote in the term asked for, which has to be a later one.
    """
    if not log.is_up_to_date(request.last_index, request.last_term):
        return False
    if request.is_pre_vote:
        return request.term > term
    return vote == request.sender or (vote is None and leader_id is None)


class ElectionResult(StrEnum):
    """What the answers so far amount to."""

    OPEN = "open"
    WON = "won"
    LOST = "lost"


class Election:
    """An election, or its rehearsal, for `term`."""

    __slots__ = ("_answers", "is_pre_vote", "is_transfer", "term", "voter_ids")

    def __init__(
        self,
        term: int,
        voter_ids: Iterable[int],
        *,
        is_pre_vote: bool,
        is_transfer: bool = False,
    ) -> None:
        self.term = term
        self.voter_ids = frozenset(voter_ids)
        self.is_pre_vote = is_pre_vote
        self.is_transfer = is_transfer
        self._answers: dict[int, bool] = {}

    def requests(self, own_id: int, last_index: int, last_term: int) -> list[VoteRequest]:
        """What to ask the other voters; the asker's log ends so."""
        return [
            VoteRequest(
                own_id, voter, self.term, last_index, last_term, self.is_pre_vote, self.is_transfer
            )
            for voter in sorted(self.voter_ids)
            if voter != own_id
        ]

    def count(self, sender: int, *, is_granted: bool) -> None:
        """The first answer of each voter counts."""
        if sender in self.voter_ids:
            self._answers.setdefault(sender, is_granted)

    def is_answer(self, message: VoteResponse, own_term: int) -> bool:
        """Whether the message answers this election and not an earlier one.

        Who refuses a rehearsal says its own term; if that were greater than the asker's, the asker
        would have followed it already.
        """
        if message.is_pre_vote != self.is_pre_vote:
            return False
        if message.is_pre_vote and not message.is_granted:
            return message.term == own_term
        return message.term == self.term

    def result(self) -> ElectionResult:
        """Won with a majority of all voters; lost when that cannot happen any more."""
        needed = majority_of(len(self.voter_ids))
        granted = sum(self._answers.values())
        if granted >= needed:
            return ElectionResult.WON
        refused = len(self._answers) - granted
        is_lost = len(self.voter_ids) - refused < needed
        return ElectionResult.LOST if is_lost else ElectionResult.OPEN
