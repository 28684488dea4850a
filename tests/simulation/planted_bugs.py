"""Raft cores with one bug each, all of which exist in some implementation.

One decision of a core is wrong; everything else is the real code.
"""

from collections.abc import Callable, Sequence

import msgspec

from odradek.cluster.raft.configuration import (
    MembershipChange,
    ProposalRefusal,
    apply_change,
    encode_configuration,
    majority_value,
)
from odradek.cluster.raft.election import Election
from odradek.cluster.raft.follower_log import FollowerLog
from odradek.cluster.raft.incoming_snapshot import IncomingSnapshot
from odradek.cluster.raft.leadership import Leadership
from odradek.cluster.raft.log import RaftLog
from odradek.cluster.raft.messages import (
    AppendAccepted,
    AppendRejected,
    AppendRequest,
    Entry,
    Message,
    SnapshotChunk,
    VoteRequest,
    VoteResponse,
)
from odradek.cluster.raft.node import RaftNode
from odradek.cluster.raft.ready import Proposal, ReceivedChunk, Restored
from odradek.cluster.raft.settings import RaftSettings


class VotesBeforeTheDisk(RaftNode):
    """Grants and requests votes before they are durable."""

    def _is_durable(self, message: Message) -> bool:
        return isinstance(message, VoteRequest | VoteResponse) or super()._is_durable(message)


class AcknowledgesBeforeTheDisk(RaftNode):
    """Acknowledges entries to the leader before they are durable."""

    def _is_durable(self, message: Message) -> bool:
        return isinstance(message, AppendAccepted) or super()._is_durable(message)


class ForgetsItsVote(RaftNode):
    """Forgets its vote in a restart, as raftos does."""

    def __init__(
        self,
        own_id: int,
        settings: RaftSettings,
        restored: Restored,
        *,
        jitter_ms: Callable[[], int],
        now_ms: int,
    ) -> None:
        hard_state = msgspec.structs.replace(restored.hard_state, vote=None)
        restored = msgspec.structs.replace(restored, hard_state=hard_state)
        super().__init__(own_id, settings, restored, jitter_ms=jitter_ms, now_ms=now_ms)


class CommitsOldTerms(RaftNode):
    """Commits entries of earlier terms by counting replicas (figure 8)."""

    def _can_commit(self, index: int) -> bool:
        return True


class CountsStaleVotes(RaftNode):
    """Counts a vote of an earlier election in the present one, as raftos does."""

    class _Election(Election):
        __slots__ = ()

        def is_answer(self, message: VoteResponse, own_term: int) -> bool:
            return message.is_pre_vote == self.is_pre_vote

    def _ask_for_votes(self, election: Election) -> None:
        election.__class__ = self._Election
        super()._ask_for_votes(election)


class VotesForAnyLog(RaftNode):
    """Does not compare logs before it votes (5.4.1)."""

    class _Log(RaftLog):
        __slots__ = ()

        def is_up_to_date(self, last_index: int, last_term: int) -> bool:
            return True

    def _restart_timeout(self) -> None:
        self.log.__class__ = self._Log
        super()._restart_timeout()


class TruncatesOnLateRequests(RaftNode):
    """Truncates its log behind every request, as raftos does."""

    class _Log(RaftLog):
        __slots__ = ()

        def merge(self, previous_index: int, previous_term: int, entries: Sequence[Entry]) -> bool:
            is_merged = super().merge(previous_index, previous_term, entries)
            end = previous_index + len(entries)
            if is_merged and self.committed_index <= end < self.last_index:
                self._truncate(end + 1)
            return is_merged

    def _restart_timeout(self) -> None:
        self.log.__class__ = self._Log
        super()._restart_timeout()


class CommitsWhatWasNotConfirmed(RaftNode):
    """Applies the leader's commit index beyond the entries that the request has confirmed
    (figure 2)."""

    class _Following(FollowerLog):
        __slots__ = ()

        def append(self, message: AppendRequest) -> AppendAccepted | AppendRejected | None:
            answer = super().append(message)
            if isinstance(answer, AppendAccepted):
                self._log.commit_to(message.commit_index)
            return answer

    def _restart_timeout(self) -> None:
        self._following.__class__ = self._Following
        super()._restart_timeout()


class TakesAnyChunk(RaftNode):
    """Stores chunks of a snapshot at any position."""

    class _Incoming(IncomingSnapshot):
        __slots__ = ()

        def offer(self, message: SnapshotChunk) -> int | None:
            if self.pending_chunk is None and self.mark is not None:
                self.pending_chunk = ReceivedChunk(message.snapshot, message.offset, message.data)
                return None
            return super().offer(message)

    def _restart_timeout(self) -> None:
        self._following.incoming.__class__ = self._Incoming
        super()._restart_timeout()


class CampaignsWithoutPreVote(RaftNode):
    """Campaigns without a pre-vote."""

    def _pre_campaign(self) -> None:
        self._campaign(is_transfer=False)


class GrantsPreVotesForOldTerms(RaftNode):
    """Grants a pre-vote without a check of its term (thesis 9.6)."""

    def _answer_vote(self, message: VoteRequest, *, is_granted: bool) -> None:
        super()._answer_vote(message, is_granted=is_granted or message.is_pre_vote)


class _LeadsWrongly(RaftNode):
    """A leader with one method replaced."""

    wrong: type[Leadership]

    def _become_leader(self) -> None:
        super()._become_leader()
        assert self.leadership is not None
        self.leadership.__class__ = self.wrong


class _ObserversCounted(Leadership):
    __slots__ = ()

    def majority_match(self) -> int:
        others = [progress.match_index for progress in self.peers.values()]
        return majority_value([self._log.stable_index, *others])


class CountsObservers(_LeadsWrongly):
    """Counts observers as voters."""

    wrong = _ObserversCounted


class _CountedBeforeTheDisk(Leadership):
    __slots__ = ()

    def majority_match(self) -> int:
        return majority_value(
            self._log.last_index if voter == self._own_id else self.peers[voter].match_index
            for voter in self._voter_ids
        )


class CountsItselfBeforeTheDisk(_LeadsWrongly):
    """Counts its own entries before they are durable."""

    wrong = _CountedBeforeTheDisk


class _CountedAfterRemoval(Leadership):
    __slots__ = ()

    def majority_match(self) -> int:
        voters = [voter for voter in self._voter_ids if voter != self._own_id]
        others = [self.peers[voter].match_index for voter in voters]
        return majority_value([self._log.stable_index, *others])


class CountsItselfAfterItsRemoval(_LeadsWrongly):
    """Counts itself after its removal from the voters (thesis 4.2.2)."""

    wrong = _CountedAfterRemoval


class ChangesManyVotersAtOnce(RaftNode):
    """Begins the next configuration change before the last one is committed (thesis 4.1)."""

    def propose_membership_change(
        self, change: MembershipChange, now_ms: int
    ) -> Proposal | ProposalRefusal:
        configuration = apply_change(self.configuration, change)
        if self.leadership is None or isinstance(configuration, ProposalRefusal):
            return ProposalRefusal.NOT_LEADER
        proposal = self._append(encode_configuration(configuration))
        self.leadership.follow_configuration(now_ms)
        return proposal
