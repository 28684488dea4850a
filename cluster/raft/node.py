"""One member of a Raft quorum: messages, proposals and time go in, `Ready` values come out.

Implements the extended Raft paper (Ongaro and Ousterhout; sections 5 to 8) and Ongaro's thesis.
Pure: no clock, no randomness, no I/O. The driver's duties are in `ready`.

    event                    FOLLOWER           PRE_CANDIDATE       CANDIDATE         LEADER
    -----------------------------------------------------------------------------------------------
    election timeout         PRE_CANDIDATE      PRE_CANDIDATE       PRE_CANDIDATE     -
    majority of pre-votes    -                  CANDIDATE, term+1   -                 -
    majority of votes        -                  -                   LEADER, no-op     -
    append of its term       FOLLOWER           FOLLOWER            FOLLOWER          impossible
    a greater term           FOLLOWER           FOLLOWER            FOLLOWER          FOLLOWER
    TimeoutNow of its leader CANDIDATE, term+1  -                   -                 -
    grants a vote            FOLLOWER           FOLLOWER            -                 -
    check quorum fails       -                  -                   -                 FOLLOWER
    own removal committed    -                  -                   -                 FOLLOWER

The only voter skips the pre-vote and is elected when its vote is on the disk. A member without a
vote stays FOLLOWER and, without a leader, sends FollowRequests.

Messages never raise: impossible ones are dropped and counted in `dropped_count`. A violated
contract of the driver or of this code is an AssertionError; then the process has to end.
"""

from collections.abc import Callable

from odradek.cluster.raft.configuration import (
    CONFIGURATION_MARK,
    Configuration,
    MembershipChange,
    ProposalRefusal,
    encode_configuration,
)
from odradek.cluster.raft.election import Election, ElectionResult, can_grant_vote
from odradek.cluster.raft.election_timeout import ElectionTimeout
from odradek.cluster.raft.follower_log import FollowerLog
from odradek.cluster.raft.leadership import Leadership
from odradek.cluster.raft.log import RaftLog
from odradek.cluster.raft.messages import (
    ALL_MEMBERS,
    AppendAccepted,
    AppendRejected,
    AppendRequest,
    FollowRequest,
    LeaderHint,
    LeaderRequest,
    Message,
    PeerResponse,
    SnapshotMetadata,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from odradek.cluster.raft.outbox import Outbox
from odradek.cluster.raft.ready import HardState, Proposal, Ready, Restored, Role, SoftState
from odradek.cluster.raft.settings import RaftSettings
from odradek.cluster.raft.validation import is_plausible


class RaftNode:
    """See the module's docstring.

    `jitter_ms` returns a number in [0, election_timeout_ms], different among the members, for each
    election timeout. Times are milliseconds of the driver's clock; steps back are ignored.
    """

    def __init__(
        self,
        own_id: int,
        settings: RaftSettings,
        restored: Restored,
        *,
        jitter_ms: Callable[[], int],
        now_ms: int,
    ) -> None:
        self.own_id = own_id
        self._settings = settings
        self._now_ms = now_ms
        self._timeout = ElectionTimeout(settings, jitter_ms, now_ms)
        self.log = RaftLog(
            restored.entries,
            bootstrap=restored.bootstrap,
            snapshot=restored.snapshot,
            previous_term=restored.previous_term,
            committed_index=restored.hard_state.commit,
        )
        self.term, self.vote = restored.hard_state.term, restored.hard_state.vote
        self._outbox = Outbox(restored.hard_state)
        if self.term < self.log.last_term:
            # A log from before there was Raft. The vote of its last term is not known: count it as
            # our own, so that no other member gets one in that term.
            self.term, self.vote = self.log.last_term, own_id
        self.role = Role.FOLLOWER
        self.leader_id: int | None = None
        self.leadership: Leadership | None = None
        self.dropped_count = 0
        self._election: Election | None = None
        self.election_count = 0
        """Elections that this member has begun: terms in which it was a candidate."""
        self._following = FollowerLog(own_id, self.log)
        self._has_followed_hint = False
        self._reported_state = SoftState(Role.FOLLOWER, self.term, None)
        self._deadline_ms = now_ms
        self._restart_timeout()

    # -- state -------------------------------------------------------------------------------------

    @property
    def configuration(self) -> Configuration:
        """The latest configuration of the log, committed or not."""
        return self.log.configuration

    @property
    def soft_state(self) -> SoftState:
        """Role, term and leader, as far as this member knows."""
        return SoftState(self.role, self.term, self.leader_id)

    @property
    def can_take_snapshot(self) -> bool:
        """Whether the driver may take one: the voters are known and none is being received."""
        is_told = bool(self.log.configuration_at(self.log.applied_index).voters)
        return is_told and self._following.incoming.mark is None

    def next_deadline_ms(self) -> int:
        """When `tick` has something to do, if nothing happens before."""
        leadership = self.leadership
        return self._deadline_ms if leadership is None else leadership.next_deadline_ms()

    # -- proposals ---------------------------------------------------------------------------------

    def propose(self, data: bytes) -> Proposal | ProposalRefusal:
        """Append a command to the log, if this member leads.

        `data` must not be empty nor begin with CONFIGURATION_MARK, which no msgpack value does.
        """
        assert data, "an empty entry is a no-op"
        assert data[:1] != CONFIGURATION_MARK, "the mark of a configuration"
        if self.leadership is None:
            return ProposalRefusal.NOT_LEADER
        return self.leadership.refusal() or self._append(data)

    def propose_membership_change(
        self, change: MembershipChange, now_ms: int
    ) -> Proposal | ProposalRefusal:
        """Append the next configuration, which is effective at once (thesis 4.1).

        Retry after NOT_CAUGHT_UP while the observer follows; CHANGE_IN_PROGRESS and
        TERM_NOT_COMMITTED end with the next commit.
        """
        self._advance_clock(now_ms)
        leadership = self.leadership
        if leadership is None:
            return ProposalRefusal.NOT_LEADER
        configuration = leadership.refusal() or leadership.next_configuration(change, self._now_ms)
        if isinstance(configuration, ProposalRefusal):
            return configuration
        proposal = self._append(encode_configuration(configuration))
        leadership.follow_configuration(self._now_ms)
        return proposal

    def transfer_leadership(self, to: int, now_ms: int) -> ProposalRefusal | None:
        """Transfer leadership to another voter; until then nothing can be proposed (thesis 3.10).

        Success shows in the soft state; the transfer ends after an election timeout.
        """
        self._advance_clock(now_ms)
        if self.leadership is None:
            return ProposalRefusal.NOT_LEADER
        if to == self.own_id or not self.configuration.is_voter(to):
            return ProposalRefusal.NOT_A_VOTER
        self.leadership.transfer(to, self._now_ms)
        return None

    def resign(self, now_ms: int) -> ProposalRefusal | None:
        """Step down at once and have the voter with the longest log campaign: the disk is full, or
        the process ends."""
        self._advance_clock(now_ms)
        if self.leadership is None:
            return ProposalRefusal.NOT_LEADER
        self._step_down_for_successor()
        return None

    def snapshot_taken(self, mark: SnapshotMetadata, first_index: int) -> None:
        """The driver has a durable snapshot of the applied state. Entries below `first_index`, at
        most the snapshot's index + 1, are no longer on its disk."""
        self.log.compact(mark, first_index)

    def reject_snapshot(self) -> None:
        """The received snapshot has the wrong checksum: receive it again."""
        self._following.incoming.forget()

    # -- time --------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Advance the clock and do what is due. Call at `next_deadline_ms` or at any time."""
        self._advance_clock(now_ms)
        if self.leadership is not None:
            if self.leadership.is_quorum_active(self._now_ms):
                self.leadership.tick(self._now_ms)
            else:
                self._become_follower(self.term, None)
        elif self._now_ms < self._deadline_ms:
            return
        elif not self._can_campaign():
            self._find_leader()
        elif not self._is_sole_voter():
            self._pre_campaign()
        elif self._election is None:
            self._campaign(is_transfer=False)
        else:
            self._restart_timeout()  # its own vote, the only one, is being written

    def _advance_clock(self, now_ms: int) -> None:
        self._now_ms = max(self._now_ms, now_ms)

    def _restart_timeout(self) -> None:
        self._deadline_ms = self._timeout.deadline_ms(
            self._now_ms,
            role=self.role,
            can_campaign=self._can_campaign(),
            is_sole_voter=self._is_sole_voter(),
            has_leader=self.leader_id is not None,
        )

    def _is_sole_voter(self) -> bool:
        return self.configuration.voter_ids == (self.own_id,)

    def _can_campaign(self) -> bool:
        """Whether it may be elected; not while a snapshot replaces its log."""
        return not self._following.incoming.is_completing and self.log.can_campaign(self.own_id)

    def _find_leader(self) -> None:
        """Ask all members for the leader: it may have no vote, or have lost it unnoticed."""
        self.leader_id = None
        self._has_followed_hint = False
        self._restart_timeout()
        self._send_follow_request(ALL_MEMBERS)

    def _send_follow_request(self, member: int) -> None:
        self._send(FollowRequest(self.own_id, member, self.term, self.log.last_index))

    # -- roles -------------------------------------------------------------------------------------

    def _become_follower(self, term: int, leader_id: int | None) -> None:
        if term > self.term:
            self.term, self.vote = term, None
            self._outbox.discard_pending()
        self.leadership = None
        self.role = Role.FOLLOWER
        self.leader_id = leader_id
        self._election = None
        self._restart_timeout()

    def _pre_campaign(self) -> None:
        """Pre-vote: find out whether an election could be won, without a new term (thesis 9.6)."""
        self.role = Role.PRE_CANDIDATE
        self._find_leader()
        self._ask_for_votes(Election(self.term + 1, self.configuration.voter_ids, is_pre_vote=True))

    def _campaign(self, *, is_transfer: bool) -> None:
        """Section 5.2: increment the term, vote for itself, request votes."""
        self.role = Role.CANDIDATE
        self.leader_id = None
        self.term += 1
        self.election_count += 1
        self.vote = self.own_id
        self._outbox.discard_pending()
        self._ask_for_votes(
            Election(
                self.term,
                self.configuration.voter_ids,
                is_pre_vote=False,
                is_transfer=is_transfer,
            )
        )

    def _ask_for_votes(self, election: Election) -> None:
        self._election = election
        self._restart_timeout()
        for request in election.requests(self.own_id, self.log.last_index, self.log.last_term):
            self._send(request)
        if election.is_pre_vote:
            self._count_vote(self.own_id, is_granted=True)
        # Its own vote in an election counts when it is on the disk: see `advance`.

    def _count_vote(self, sender: int, *, is_granted: bool) -> None:
        election = self._election
        assert election is not None
        election.count(sender, is_granted=is_granted)
        if election.result() is ElectionResult.LOST:
            # The next election begins after the timeout: others may campaign before.
            self._election = None
        elif election.result() is ElectionResult.WON and election.is_pre_vote:
            self._campaign(is_transfer=False)
        elif election.result() is ElectionResult.WON:
            self._become_leader()

    def _become_leader(self) -> None:
        self.role = Role.LEADER
        self.leader_id = self.own_id
        self._election = None
        self.leadership = Leadership(self.own_id, self.term, self.log, self._settings, self._now_ms)
        # Section 8: an entry of its term, so that earlier entries get committed. The first leader
        # records the bootstrap voters, for members that join.
        is_recorded = self.log.is_configuration_recorded
        self._append(b"" if is_recorded else encode_configuration(self.configuration))

    def _step_down_for_successor(self) -> None:
        assert self.leadership is not None
        successor = self.leadership.best_successor()
        if successor is not None:
            self._send(TimeoutNow(self.own_id, successor, self.term))
        self._become_follower(self.term, None)

    # -- messages ----------------------------------------------------------------------------------

    def step(self, message: Message, now_ms: int) -> None:
        """Take in a message. Never raises."""
        self._advance_clock(now_ms)
        is_for_us = message.to == self.own_id or message.to == ALL_MEMBERS
        if not is_for_us or message.sender == self.own_id or not is_plausible(message):
            self.dropped_count += 1
            return
        match message:
            case FollowRequest():
                self._on_follow_request(message)
            case LeaderHint():
                self._on_leader_hint(message)
            case VoteRequest():
                self._on_vote_request(message)
            case VoteResponse():
                self._on_vote_response(message)
            case _:
                self._step_in_term(message)

    def _step_in_term(self, message: LeaderRequest | PeerResponse | TimeoutNow) -> None:
        """Figure 2, all servers: a greater term is adopted, a smaller one is rejected."""
        if isinstance(message, PeerResponse):
            self._on_answer(message)
            return
        if message.term < self.term:
            if isinstance(message, LeaderRequest):
                # Tell the sender that its term is over.
                self._send(AppendRejected(self.own_id, message.sender, self.term, 0, 0, 0))
            return
        if isinstance(message, TimeoutNow):
            is_from_leader = message.term == self.term and message.sender == self.leader_id
            if is_from_leader and self._can_campaign():
                self._campaign(is_transfer=True)
            return
        if not self._accept_leader(message.sender, message.term):
            self.dropped_count += 1
            return
        if isinstance(message, AppendRequest):
            answer: Message | None = self._following.append(message)
        else:
            answer = self._following.chunk(message)
        if answer is not None:
            self._send(answer)

    def _accept_leader(self, leader_id: int, term: int) -> bool:
        """A message of the leader of `term`. False if another leader of that term is known."""
        if term == self.term and self.leader_id not in (None, leader_id):
            return False
        if term > self.term or self.role is not Role.FOLLOWER:
            self._become_follower(term, leader_id)
        self.leader_id = leader_id
        self._timeout.last_contact_ms = self._now_ms
        self._restart_timeout()
        return True

    def _on_answer(self, message: PeerResponse) -> None:
        """A peer's response. Those of other members are dropped, whatever their term."""
        leadership = self.leadership
        if leadership is None or message.term < self.term:
            return
        if message.sender not in leadership.peers:
            self.dropped_count += 1
        elif message.term > self.term:
            self._become_follower(message.term, None)
        elif leadership.handle_response(message, self._now_ms):
            self._commit()
        else:
            self.dropped_count += 1

    def _commit(self) -> None:
        """Commit what a majority has, if it is of this term (5.4.2)."""
        assert self.leadership is not None
        log = self.log
        index = self.leadership.majority_match()
        if index <= log.committed_index or not self._can_commit(index):
            return
        self.leadership.reduce_uncommitted(index)
        log.commit_to(index)
        is_removed = not log.configuration.is_voter(self.own_id)
        if is_removed and log.configuration_index <= log.committed_index:
            self._step_down_for_successor()

    def _can_commit(self, index: int) -> bool:
        """Whether counting replicas is conclusive for the entry at `index`."""
        return self.log.term_at(index) == self.term

    def _append(self, data: bytes) -> Proposal:
        assert self.leadership is not None
        entry = self.log.append(self.term, data)
        self.leadership.increase_uncommitted(entry)
        return Proposal(entry.index, entry.term)

    # -- votes -------------------------------------------------------------------------------------

    def _on_vote_request(self, message: VoteRequest) -> None:
        if message.term < self.term:
            self._answer_vote(message, is_granted=False)
            return
        if self._is_in_lease() and not (message.is_transfer and not message.is_pre_vote):
            return
        if not message.is_pre_vote and message.term > self.term:
            self._become_follower(message.term, None)
        is_granted = can_grant_vote(message, self.log, self.term, self.vote, self.leader_id)
        if is_granted and not message.is_pre_vote:
            # It does not campaign itself then.
            self._become_follower(self.term, None)
            self.vote = message.sender
        self._answer_vote(message, is_granted=is_granted)

    def _is_in_lease(self) -> bool:
        """Whether there was a message of the leader within the least election timeout: then vote
        requests are ignored (thesis 4.2.3). A leader itself relies on check quorum."""
        if self.role is Role.LEADER:
            return True
        return self.leader_id is not None and self._timeout.has_recent_contact(self._now_ms)

    def _answer_vote(self, message: VoteRequest, *, is_granted: bool) -> None:
        term = message.term if is_granted else self.term
        self._send(VoteResponse(self.own_id, message.sender, term, is_granted, message.is_pre_vote))

    def _on_vote_response(self, message: VoteResponse) -> None:
        election = self._election
        if election is None or message.sender not in election.voter_ids:
            return
        is_granted_pre_vote = message.is_pre_vote and message.is_granted
        if message.term > self.term and not is_granted_pre_vote:
            self._become_follower(message.term, None)
        elif election.is_answer(message, self.term):
            self._count_vote(message.sender, is_granted=message.is_granted)

    # -- observers ---------------------------------------------------------------------------------

    def _on_follow_request(self, message: FollowRequest) -> None:
        if self.leadership is not None:
            self.leadership.add_observer(message.sender, message.last_index, self._now_ms)
        elif self.leader_id is not None and self.leader_id != message.sender:
            hint = LeaderHint(self.own_id, message.sender, self.term, self.leader_id)
            self._send(hint)

    def _on_leader_hint(self, message: LeaderHint) -> None:
        """Followed once between two deadlines, or two outdated hints could alternate for ever."""
        is_useful = self.leader_id is None and not self._has_followed_hint
        if is_useful and message.leader != self.own_id:
            self._has_followed_hint = True
            self._send_follow_request(message.leader)

    # -- effects -----------------------------------------------------------------------------------

    def _send(self, message: Message) -> None:
        self._outbox.send(message, is_durable=self._is_durable(message))

    def _is_durable(self, message: Message) -> bool:
        """Whether everything that the message implies is on the disk: term, vote, entries."""
        if not self._is_vote_durable():
            # Pre-vote requests and FollowRequests promise nothing.
            is_pre_vote_request = isinstance(message, VoteRequest) and message.is_pre_vote
            return is_pre_vote_request or isinstance(message, FollowRequest)
        return (
            not isinstance(message, AppendAccepted) or message.match_index <= self.log.stable_index
        )

    def ready(self) -> Ready | None:
        """What the driver has to do next, or None. See the module `ready`."""
        outbox = self._outbox
        if self.leadership is not None:
            self.leadership.flush(outbox.sendable)
        committed = self.log.take_committed(self._settings.apply_bytes_max)
        soft_state = self.soft_state
        is_new = soft_state != self._reported_state
        if outbox.sendable or committed or is_new:
            self._reported_state = soft_state
            return Ready(
                messages=outbox.take_sendable(),
                committed=committed,
                soft_state=soft_state if is_new else None,
            )
        hard_state = HardState(self.term, self.vote, self.log.committed_index)
        return outbox.persist(
            hard_state, self.log.unstable(), self._following.incoming.pending_chunk
        )

    def advance(self, ready: Ready) -> None:
        """The driver has carried out `ready`."""
        if not ready.must_persist:
            return
        self._outbox.persisted(ready)
        self.log.mark_stable(ready.entries)
        if ready.chunk is not None:
            answer = self._following.chunk_stored(ready.chunk, self.leader_id, self.term)
            if answer is not None:
                self._send(answer)
            self._restart_timeout()
        if self.role is Role.CANDIDATE and self._election is not None and self._is_vote_durable():
            self._count_vote(self.own_id, is_granted=True)
        if self.leadership is not None:
            self._commit()

    def _is_vote_durable(self) -> bool:
        """Whether the current term and vote are on the disk."""
        durable = self._outbox.durable
        return (durable.term, durable.vote) == (self.term, self.vote)
