"""The core as a whole, held to the sentences of the paper and of the thesis.

"Paper" is Ongaro and Ousterhout, In Search of an Understandable Consensus Algorithm (extended
version); numbers without a word are its sections. "Thesis" is Ongaro, Consensus: Bridging Theory
and Practice.
"""

from random import Random

import pytest

from cluster.raft.configuration import (
    AddVoter,
    Refusal,
    RemoveVoter,
    UpdateVoter,
    Voter,
    configuration_of,
    encode_configuration,
)
from cluster.raft.messages import (
    EVERYBODY,
    AppendAccepted,
    AppendRejected,
    AppendRequest,
    Entry,
    FollowRequest,
    LeaderHint,
    Message,
    SnapshotChunk,
    SnapshotMark,
    SnapshotReceived,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from cluster.raft.reads import ReadState
from cluster.raft.ready import HardState, Proposal, Ready, Role, Standing
from cluster.raft.settings import RaftSettings
from tests.cluster.raft.quorum import ELECTION_MS, HEARTBEAT_MS, Member, Quorum, only

THREE = configuration_of([1, 2, 3])
SMALL_CHUNKS = RaftSettings(snapshot_chunk_bytes=4)


def entries_of(*terms: int) -> list[Entry]:
    return [Entry(index, term, b"x") for index, term in enumerate(terms, start=1)]


def follower(*terms: int, term: int = 0, vote: int | None = None) -> Member:
    """Member 2 of three, with entries of these terms on its disk."""
    entries = entries_of(*terms)
    hard_state = HardState(max(term, *terms, 0), vote)
    return Member(2, bootstrap=THREE, hard_state=hard_state, entries=entries)


def candidate(*terms: int) -> Member:
    """Member 2 of three, after a rehearsal that it has won."""
    member = follower(*terms)
    member.elapse(ELECTION_MS + 2)
    next_term = member.node.term + 1
    member.hear(VoteResponse(1, 2, next_term, True, is_pre_vote=True))
    assert member.role is Role.CANDIDATE
    return member


def leader(*terms: int) -> Member:
    """Member 2 of three, elected by member 1; its no-op is not committed yet."""
    member = candidate(*terms)
    member.hear(VoteResponse(1, 2, member.node.term, True))
    assert member.role is Role.LEADER
    return member


def heartbeat(term: int, *, sender: int = 1, commit_index: int = 0) -> AppendRequest:
    return AppendRequest(sender, 2, term, 0, 0, (), commit_index)


# -- figure 2: rules for all servers ---------------------------------------------------------------


def test_a_greater_term_makes_everybody_a_follower() -> None:
    """Figure 2: "If RPC request or response contains term T > currentTerm: set currentTerm = T,
    convert to follower".
    """
    for member, message in (
        (leader(1), AppendRejected(1, 2, 9, 0, 0, 0)),
        (leader(1), heartbeat(9)),
        (candidate(1), VoteResponse(1, 2, 9, False)),
        (follower(1), VoteRequest(1, 2, 9, 0, 0)),
    ):
        member.hear(message)
        assert (member.role, member.node.term, member.node.vote) == (Role.FOLLOWER, 9, None)
        assert member.hard_state.term == 9


def test_a_smaller_term_is_refused_with_the_present_one() -> None:
    """Figure 2, both receivers: "Reply false if term < currentTerm"."""
    member = follower(1, 5)
    assert member.hear(heartbeat(4)) == [AppendRejected(2, 1, 5, 0, 0, 0)]
    assert member.hear(VoteRequest(1, 2, 4, 9, 4)) == [VoteResponse(2, 1, 5, False)]
    assert member.hear(AppendAccepted(1, 2, 4, 2), TimeoutNow(1, 2, 4)) == []


def test_committed_entries_are_applied_in_order_and_once() -> None:
    """Figure 2: "If commitIndex > lastApplied: increment lastApplied, apply log[lastApplied]"."""
    member = follower(1, 1, 1)
    member.hear(AppendRequest(1, 2, 1, 3, 1, (), 2))
    member.hear(AppendRequest(1, 2, 1, 3, 1, (), 2))
    member.hear(AppendRequest(1, 2, 1, 3, 1, (), 3))
    assert [entry.index for entry in member.applied] == [1, 2, 3]


# -- 5.2: elections --------------------------------------------------------------------------------


def test_a_follower_that_hears_nothing_rehearses_and_then_stands() -> None:
    """5.2: "To begin an election, a follower increments its current term and transitions to
    candidate state. It then votes for itself and issues RequestVote RPCs in parallel".
    """
    member = follower(1, 3)
    assert member.elapse(ELECTION_MS + 1) == []
    asked = only(VoteRequest, member.elapse(1))
    assert [(m.to, m.term, m.is_pre_vote) for m in asked] == [(1, 4, True), (3, 4, True)]
    assert (member.role, member.node.term) == (Role.PRE_CANDIDATE, 3)
    said = member.hear(VoteResponse(1, 2, 4, True, is_pre_vote=True))
    assert said == [VoteRequest(2, 1, 4, 2, 3), VoteRequest(2, 3, 4, 2, 3)]
    assert (member.hard_state.term, member.hard_state.vote) == (4, 2)


def test_a_heartbeat_keeps_elections_away() -> None:
    """5.2: "A server remains in follower state as long as it receives valid RPCs"."""
    member = follower()
    for _ in range(20):
        member.hear(heartbeat(1))
        assert only(VoteRequest, member.elapse(HEARTBEAT_MS)) == []
    assert member.node.leader_id == 1


def test_election_timeouts_are_jittered_by_what_the_caller_gives() -> None:
    """5.2: "Raft uses randomized election timeouts"."""
    member = Member(2, bootstrap=THREE)
    member.jitter_ms = 300
    member.hear(heartbeat(1))
    assert only(VoteRequest, member.elapse(ELECTION_MS + 299)) == []
    assert len(only(VoteRequest, member.elapse(1))) == 2
    member.jitter_ms = 10_000_000
    member.hear(heartbeat(1))
    assert len(only(VoteRequest, member.elapse(2 * ELECTION_MS))) == 2


def test_a_candidate_with_a_majority_leads_and_says_so_at_once() -> None:
    """5.2: "Once a candidate wins an election, it becomes leader. It then sends heartbeat messages
    to all of the other servers to establish its authority".
    """
    member = candidate(1)
    said = member.hear(VoteResponse(3, 2, 2, True))
    assert member.role is Role.LEADER
    assert [(m.to, m.term) for m in only(AppendRequest, said)] == [(1, 2), (3, 2)]
    beats = only(AppendRequest, member.elapse(HEARTBEAT_MS))
    assert [beat.to for beat in beats] == [1, 3]


def test_a_candidate_counts_its_own_vote_when_it_is_on_its_disk() -> None:
    member = follower()
    member.elapse(ELECTION_MS + 2)
    member.is_disk_held = True
    assert member.hear(VoteResponse(1, 2, 1, True, is_pre_vote=True)) == []
    member.hear(VoteResponse(1, 2, 1, True))
    assert member.node.leadership is None
    member.sync()
    assert member.role is Role.LEADER


def test_a_candidate_yields_to_a_leader_of_its_term() -> None:
    """5.2: if the leader's term "is at least as large as the candidate's current term, then the
    candidate recognizes the leader as legitimate and returns to follower state".
    """
    member = candidate(1)
    member.hear(heartbeat(2))
    assert (member.role, member.node.leader_id, member.node.vote) == (Role.FOLLOWER, 1, 2)
    assert member.hear(VoteResponse(3, 2, 2, True)) == []
    assert member.role is Role.FOLLOWER


def test_a_split_vote_ends_with_another_rehearsal() -> None:
    """5.2: "each candidate will time out and start a new election"."""
    member = candidate(1)
    member.hear(VoteResponse(1, 2, 2, False), VoteResponse(3, 2, 2, False))
    assert member.role is Role.CANDIDATE
    asked = only(VoteRequest, member.elapse(ELECTION_MS + 2))
    assert {(m.term, m.is_pre_vote) for m in asked} == {(3, True)}


def test_a_vote_of_an_earlier_election_does_not_count() -> None:
    member = candidate(1)
    member.elapse(ELECTION_MS + 2)
    member.hear(VoteResponse(1, 2, 3, True, is_pre_vote=True))
    assert (member.role, member.node.term) == (Role.CANDIDATE, 3)
    member.hear(VoteResponse(1, 2, 2, True))
    assert member.role is Role.CANDIDATE


def test_a_vote_of_somebody_without_one_does_not_count() -> None:
    member = candidate(1)
    member.hear(VoteResponse(7, 2, 2, True))
    assert member.role is Role.CANDIDATE
    member.hear(VoteResponse(7, 2, 99, False))
    assert member.node.term == 2


def test_each_server_votes_for_one_candidate_in_a_term() -> None:
    """5.2: "Each server will vote for at most one candidate in a given term, on a
    first-come-first-served basis".
    """
    member = follower()
    assert member.hear(VoteRequest(1, 2, 1, 0, 0)) == [VoteResponse(2, 1, 1, True)]
    assert member.hear(VoteRequest(3, 2, 1, 0, 0)) == [VoteResponse(2, 3, 1, False)]
    assert member.hear(VoteRequest(1, 2, 1, 0, 0)) == [VoteResponse(2, 1, 1, True)]


def test_a_vote_survives_a_restart() -> None:
    """Figure 2, persistent state: "candidateId that received vote in current term"."""
    member = follower()
    member.hear(VoteRequest(1, 2, 1, 0, 0))
    member.start()
    assert member.hear(VoteRequest(3, 2, 1, 0, 0)) == [VoteResponse(2, 3, 1, False)]


def test_a_vote_is_on_the_disk_before_it_is_given() -> None:
    """Figure 2, persistent state: "Updated on stable storage before responding to RPCs"."""
    member = Member(2, bootstrap=THREE)
    member.is_disk_held = True
    assert member.hear(VoteRequest(1, 2, 4, 0, 0)) == []
    assert member.hard_state == HardState()
    assert member.sync() == [VoteResponse(2, 1, 4, True)]
    assert (member.hard_state.term, member.hard_state.vote) == (4, 1)


def test_a_vote_that_a_crash_overtakes_was_never_given() -> None:
    member = Member(2, bootstrap=THREE)
    member.is_disk_held = True
    member.hear(VoteRequest(1, 2, 4, 0, 0))
    member.start()
    member.is_disk_held = False
    assert member.hear(VoteRequest(3, 2, 4, 0, 0)) == [VoteResponse(2, 3, 4, True)]


def test_a_log_that_was_written_before_there_were_votes_gives_none_in_its_term() -> None:
    member = Member(2, bootstrap=THREE, entries=entries_of(1, 1))
    assert (member.hard_state.term, member.hard_state.vote) == (1, 2)
    assert member.hear(VoteRequest(1, 2, 1, 2, 1)) == [VoteResponse(2, 1, 1, False)]


# -- 5.4: safety -----------------------------------------------------------------------------------


def test_no_vote_for_a_log_that_is_behind() -> None:
    """5.4.1: "the voter denies its vote if its own log is more up-to-date than that of the
    candidate".
    """
    for last_index, last_term, is_granted in (
        (9, 2, False),
        (2, 3, False),
        (3, 3, True),
        (1, 4, True),
    ):
        member = follower(1, 2, 3)
        answer = member.hear(VoteRequest(1, 2, 5, last_index, last_term))
        assert answer == [VoteResponse(2, 1, 5, is_granted)]


def test_only_an_entry_of_its_own_term_is_committed_by_counting() -> None:
    """5.4.2: "Raft never commits log entries from previous terms by counting replicas. Only log
    entries from the leader's current term are committed by counting replicas".
    """
    member = leader(1, 1)
    member.hear(AppendAccepted(1, 2, 2, 2))
    assert member.node.log.committed_index == 0
    member.hear(AppendAccepted(1, 2, 2, 3))
    assert member.node.log.committed_index == 3


def test_figure_8_an_old_entry_on_a_majority_can_be_overwritten_until_a_new_one_commits_it() -> (
    None
):
    """5.4.2, figure 8: S1 leads again and brings its entry of term 2 to a majority, (c); as long as
    none of its own term is there, S5 may win and overwrite it, (d).
    """
    old = [Entry(1, 1, b"1"), Entry(2, 2, b"2")]
    logs = {1: old, 2: old, 3: old[:1], 4: old[:1], 5: [Entry(1, 1, b"1"), Entry(2, 3, b"3")]}
    quorum = Quorum(5, settings=RaftSettings(append_bytes_max=1), logs=logs, term=3)
    quorum.isolate(5)
    quorum.drops = lambda message: (
        isinstance(message, AppendRequest) and any(entry.index > 2 for entry in message.entries)
    )
    one = quorum.elect(1)
    assert one.node.term == 4
    stored = {own_id: member.node.log.term_at(2) for own_id, member in quorum.members.items()}
    assert stored == {1: 2, 2: 2, 3: 2, 4: 2, 5: 3}, "the entry of term 2 is on a majority"
    assert one.node.log.committed_index < 2, "and not committed"
    quorum.heal()
    quorum.isolate(1)
    five = quorum.elect(5)
    stored = {own_id: member.node.log.term_at(2) for own_id, member in quorum.members.items()}
    assert stored == {1: 2, 2: 3, 3: 3, 4: 3, 5: 3}, "it has been overwritten"
    assert five.node.log.committed_index >= 2


def test_what_was_acknowledged_survives_the_loss_of_the_leader() -> None:
    """Figure 3, leader completeness: a committed entry "will be present in the logs of the leaders
    for all higher-numbered terms".
    """
    quorum = Quorum(3)
    quorum.elect(1)
    quorum.cut([1], [3])
    quorum[1].propose(b"x")
    quorum.deliver()
    assert quorum[1].commands == [b"x"]
    quorum.heal()
    quorum.isolate(1)
    quorum.elapse(4 * ELECTION_MS)
    assert quorum.leaders == [2], "member 3 does not have it"
    assert quorum[3].commands == [b"x"]


# -- 5.3: replication ------------------------------------------------------------------------------


def test_three_members_agree_and_one_may_be_away() -> None:
    quorum = Quorum(3)
    quorum.elect(1)
    quorum.isolate(3)
    for number in range(5):
        quorum[1].propose(b"%d" % number)
    quorum.deliver()
    assert quorum[1].commands == quorum[2].commands == [b"0", b"1", b"2", b"3", b"4"]
    quorum.heal()
    quorum.elapse(2 * HEARTBEAT_MS)
    assert quorum[3].commands == quorum[1].commands


def test_entries_are_acknowledged_when_they_are_on_the_followers_disk() -> None:
    member = follower(1)
    member.hear(heartbeat(1))
    member.is_disk_held = True
    request = AppendRequest(1, 2, 1, 1, 1, (Entry(2, 1, b"y"),), 0)
    assert member.hear(request) == []
    assert member.hear(heartbeat(1)) == [AppendAccepted(2, 1, 1, 0)], "that is true already"
    assert member.sync() == [AppendAccepted(2, 1, 1, 2)]


def test_a_leader_sends_entries_while_its_own_disk_is_busy_but_counts_itself_afterwards() -> None:
    """Thesis 10.2.1: "the leader can write to its disk in parallel with replicating to the
    followers and them writing to their disks".
    """
    member = leader(1)
    member.hear(AppendAccepted(1, 2, 2, 2))
    member.is_disk_held = True
    member.propose(b"y")
    assert [len(m.entries) for m in only(AppendRequest, member.take_sent()) if m.to == 1] == [1]
    member.hear(AppendAccepted(1, 2, 2, 3))
    assert member.node.log.committed_index == 2
    member.sync()
    assert member.node.log.committed_index == 3
    assert member.commands[-1] == b"y"


def test_a_proposal_that_was_lost_shows_by_the_term_of_what_stands_in_its_place() -> None:
    quorum = Quorum(3)
    quorum.elect(1)
    quorum.isolate(1)
    lost = quorum[1].propose(b"lost")
    quorum.elapse(4 * ELECTION_MS)
    assert quorum.leaders == [2]
    quorum.heal()
    quorum.elapse(2 * HEARTBEAT_MS)
    entry = next(entry for entry in quorum[1].applied if entry.index == lost.index)
    assert entry.term != lost.term
    assert quorum[1].commands == []


def test_uncommitted_proposals_are_bounded() -> None:
    quorum = Quorum(3, settings=RaftSettings(uncommitted_bytes_max=200))
    quorum.elect(1)
    quorum.isolate(1)
    answers = [quorum[1].node.propose(b"x" * 50) for _ in range(4)]
    assert [type(answer) for answer in answers[:3]] == [Proposal] * 3
    assert answers[3] is Refusal.TOO_MUCH_UNCOMMITTED
    quorum.heal()
    quorum[1].settle()
    quorum.elapse(3 * HEARTBEAT_MS)
    assert isinstance(quorum[1].node.propose(b"x"), Proposal)


def test_who_does_not_lead_takes_nothing_in() -> None:
    member = follower()
    assert member.node.propose(b"x") is Refusal.NOT_LEADER
    assert member.node.read_index(1) is Refusal.NOT_LEADER
    assert member.node.transfer_leadership(1, 0) is Refusal.NOT_LEADER
    assert member.node.resign(0) is Refusal.NOT_LEADER
    assert member.node.propose_membership_change(RemoveVoter(1), 0) is Refusal.NOT_LEADER


def test_what_would_be_mistaken_for_the_cores_own_entries_is_a_callers_fault() -> None:
    member = leader()
    for data in (b"", b"\xc1anything"):
        with pytest.raises(AssertionError):
            member.node.propose(data)


# -- thesis 9.6, 4.2.3, 6.2: who is away does not disturb ------------------------------------------


def test_a_member_that_was_cut_off_comes_back_without_disturbing_anybody() -> None:
    """Thesis 9.6: "a candidate only increments its term if it first learns from a majority of the
    cluster that they would be willing to grant the candidate their votes".
    """
    quorum = Quorum(3)
    quorum.elect(1)
    term = quorum[1].node.term
    quorum.isolate(3)
    quorum.elapse(20 * ELECTION_MS)
    assert quorum[3].node.term == term
    quorum.heal()
    quorum.elapse(3 * ELECTION_MS)
    assert quorum.leaders == [1]
    assert quorum[1].node.term == term


def test_a_rehearsal_binds_nobody_and_needs_a_log_and_a_term() -> None:
    member = follower(1, 2)
    for asker in (1, 3):
        request = VoteRequest(asker, 2, 3, 2, 2, is_pre_vote=True)
        assert member.hear(request) == [VoteResponse(2, asker, 3, True, is_pre_vote=True)]
    assert (member.node.term, member.node.vote) == (2, None)
    behind = VoteRequest(1, 2, 3, 1, 1, is_pre_vote=True)
    assert member.hear(behind) == [VoteResponse(2, 1, 2, False, is_pre_vote=True)]
    over = VoteRequest(1, 2, 2, 2, 2, is_pre_vote=True)
    assert member.hear(over) == [VoteResponse(2, 1, 2, False, is_pre_vote=True)]


def test_a_rehearsal_that_fails_is_repeated_soon() -> None:
    member = follower()
    assert len(only(VoteRequest, member.elapse(ELECTION_MS + 2))) == 2
    again = only(VoteRequest, member.elapse(2 * HEARTBEAT_MS))
    assert {(request.term, request.is_pre_vote) for request in again} == {(1, True)}
    assert member.node.term == 0


def test_who_has_just_heard_a_leader_does_not_vote() -> None:
    """6 (and thesis 4.2.3): "if a server receives a RequestVote RPC within the minimum election
    timeout of hearing from a current leader, it does not update its term or grant its vote".
    """
    member = follower()
    member.hear(heartbeat(1))
    member.elapse(ELECTION_MS - 1)
    assert member.hear(VoteRequest(3, 2, 9, 9, 1)) == []
    assert member.hear(VoteRequest(3, 2, 2, 9, 1, is_pre_vote=True)) == []
    assert member.node.term == 1
    member.elapse(1)
    assert member.hear(VoteRequest(3, 2, 9, 9, 1)) == [VoteResponse(2, 3, 9, True)]


def test_a_leader_that_hears_a_majority_is_not_deposed_by_a_request() -> None:
    member = leader()
    assert member.hear(VoteRequest(3, 2, 9, 9, 1)) == []
    assert member.role is Role.LEADER


def test_a_leader_without_a_majority_steps_down() -> None:
    """Thesis 6.2: "a leader in Raft steps down if an election timeout elapses without a successful
    round of heartbeats to a majority of its cluster".
    """
    quorum = Quorum(3)
    quorum.elect(1)
    quorum.isolate(1)
    quorum.elapse(ELECTION_MS + 2 * HEARTBEAT_MS)
    assert quorum[1].role is not Role.LEADER
    quorum.elapse(2 * ELECTION_MS)
    assert quorum.leaders == [2]


def test_a_leader_that_stood_still_for_long_does_not_act_on_it() -> None:
    member = leader()
    member.now_ms += 10_000
    member.node.tick(member.now_ms)
    assert member.role is Role.FOLLOWER


# -- 8: the first entry of a term, reads -----------------------------------------------------------


def test_a_leader_begins_its_term_with_an_entry_that_does_nothing() -> None:
    """8: "Raft handles this by having each leader commit a blank no-op entry into the log at the
    start of its term".
    """
    quorum = Quorum(3)
    quorum.elect(1)
    quorum.isolate(1)
    quorum.elapse(4 * ELECTION_MS)
    assert quorum[2].applied[-1] == Entry(2, quorum[2].node.term, b"")
    assert not quorum[2].applied[-1].is_command


def test_the_first_leader_of_all_writes_down_who_votes() -> None:
    quorum = Quorum(3)
    quorum.elect(1)
    assert quorum[2].applied[0].data == encode_configuration(THREE)


def test_a_read_waits_for_a_round_of_a_majority() -> None:
    """Thesis 6.4: "It issues a new round of heartbeats and waits for their acknowledgments from a
    majority of the cluster".
    """
    quorum = Quorum(3)
    one = quorum.elect(1)
    assert one.node.read_index(42) is None
    one.settle()
    assert one.reads == []
    quorum.deliver()
    assert one.reads == [ReadState(42, one.node.log.committed_index)]


def test_a_leader_that_was_replaced_unnoticed_answers_no_read() -> None:
    """Thesis 6.4: it "needs to make sure it hasn't been superseded by a newer leader of which it is
    unaware".
    """
    quorum = Quorum(3)
    one = quorum.elect(1)
    quorum.isolate(1)
    one.node.read_index(42)
    quorum.elapse(4 * ELECTION_MS)
    assert one.reads == [ReadState(42, None)]


def test_a_read_of_a_quorum_of_one_needs_nobody() -> None:
    alone = Member(1, bootstrap=configuration_of([1]))
    alone.elapse(1)
    alone.node.read_index(42)
    alone.settle()
    assert alone.reads == [ReadState(42, 1)]


# -- a quorum of one -------------------------------------------------------------------------------


def test_a_quorum_of_one_elects_itself_at_once_and_commits_when_its_disk_has_it() -> None:
    alone = Member(1, bootstrap=configuration_of([1]))
    assert alone.node.next_deadline_ms() <= alone.now_ms
    alone.elapse(1)
    assert alone.role is Role.LEADER
    assert alone.hard_state.term == 1
    alone.is_disk_held = True
    alone.propose(b"x")
    assert alone.commands == []
    alone.sync()
    assert alone.commands == [b"x"]


def test_a_quorum_of_one_does_not_lead_before_its_vote_is_on_the_disk() -> None:
    alone = Member(1, bootstrap=configuration_of([1]))
    alone.is_disk_held = True
    alone.elapse(1)
    assert alone.node.leadership is None
    assert alone.node.next_deadline_ms() > alone.now_ms, "the driver must not spin meanwhile"
    alone.elapse(5 * ELECTION_MS)
    assert alone.node.term == 1
    alone.sync()
    assert alone.role is Role.LEADER


# -- thesis 4: membership --------------------------------------------------------------------------


def test_an_observer_catches_up_is_made_a_voter_and_counts() -> None:
    quorum = Quorum(3)
    one = quorum.elect(1)
    one.propose(b"before")
    four = quorum.join(4)
    change = AddVoter(Voter(4, b"there"))
    assert one.node.propose_membership_change(change, one.now_ms) is Refusal.NOT_CAUGHT_UP
    quorum.elapse(3 * HEARTBEAT_MS)
    assert four.commands == [b"before"]
    assert not four.node.configuration.is_voter(4)
    assert isinstance(one.node.propose_membership_change(change, one.now_ms), Proposal)
    again = one.node.propose_membership_change(RemoveVoter(2), one.now_ms)
    assert again is Refusal.CHANGE_IN_PROGRESS
    one.settle()
    quorum.deliver()
    assert {member.node.configuration.voter_ids for member in quorum.members.values()} == {
        (1, 2, 3, 4)
    }
    quorum.cut([1, 4], [2, 3])
    one.propose(b"two of four are not enough")
    quorum.deliver()
    assert four.commands == [b"before"]


def test_an_observer_never_stands_and_is_told_who_leads() -> None:
    quorum = Quorum(3)
    quorum.elect(1)
    four = quorum.join(4)
    quorum.cut([4], [1])
    quorum.elapse(3 * ELECTION_MS)
    assert (four.role, four.node.term) == (Role.FOLLOWER, 0)
    member = follower()
    member.hear(heartbeat(1))
    assert member.hear(FollowRequest(4, EVERYBODY, 0, 0)) == [LeaderHint(2, 4, 1, 1)]


def test_a_hint_is_followed_once() -> None:
    newcomer = Member(4, bootstrap=configuration_of([]))
    asked = newcomer.elapse(2 * HEARTBEAT_MS)
    assert asked == [FollowRequest(4, EVERYBODY, 0, 0)]
    assert newcomer.hear(LeaderHint(2, 4, 1, 1)) == [FollowRequest(4, 1, 0, 0)]
    assert newcomer.hear(LeaderHint(3, 4, 1, 2)) == []


def test_a_leader_removes_itself_and_leads_until_that_is_committed() -> None:
    """Thesis 4.2.2: "a leader that is removed from the configuration steps down once the C_new
    entry is committed".
    """
    quorum = Quorum(3)
    one = quorum.elect(1)
    assert isinstance(one.node.propose_membership_change(RemoveVoter(1), one.now_ms), Proposal)
    assert quorum.leaders == [1]
    one.settle()
    quorum.deliver()
    assert one.role is Role.FOLLOWER
    assert len(quorum.leaders) == 1, "it has asked a successor, nobody had to wait for a timeout"
    quorum.elapse(10 * ELECTION_MS)
    assert 1 not in quorum.leaders
    assert one.node.configuration.voter_ids == (2, 3)


def test_a_leader_that_removes_itself_does_not_count_itself() -> None:
    quorum = Quorum(3)
    one = quorum.elect(1)
    quorum.cut([1, 2], [3])
    one.node.propose_membership_change(RemoveVoter(1), one.now_ms)
    one.settle()
    quorum.deliver()
    assert one.role is Role.LEADER, "of 2 and 3 only one has it"
    assert one.node.log.committed_index < one.node.log.last_index


def test_no_change_before_an_entry_of_the_term_is_committed() -> None:
    quorum = Quorum(3)
    quorum.elect(1)
    quorum.isolate(1)
    quorum.drops = lambda message: isinstance(message, AppendAccepted)
    quorum.elapse(ELECTION_MS + HEARTBEAT_MS)
    two = quorum[2].node
    assert two.role is Role.LEADER
    change = RemoveVoter(3)
    assert two.propose_membership_change(change, quorum.now_ms) is Refusal.TERM_NOT_COMMITTED
    quorum.drops = lambda message: False
    quorum.elapse(2 * HEARTBEAT_MS)
    assert isinstance(two.propose_membership_change(change, quorum.now_ms), Proposal)


def test_who_was_removed_while_it_was_away_finds_out() -> None:
    quorum = Quorum(3)
    one = quorum.elect(1)
    quorum.isolate(3)
    one.node.propose_membership_change(RemoveVoter(3), one.now_ms)
    one.settle()
    quorum.elapse(12 * ELECTION_MS)
    assert quorum[3].node.configuration.is_voter(3)
    quorum.heal()
    quorum.elapse(3 * ELECTION_MS)
    assert not quorum[3].node.configuration.is_voter(3)
    assert quorum.leaders == [1]


def test_a_voters_context_can_be_changed() -> None:
    quorum = Quorum(3)
    one = quorum.elect(1)
    one.node.propose_membership_change(UpdateVoter(Voter(2, b"moved")), one.now_ms)
    one.settle()
    quorum.deliver()
    assert quorum[3].node.configuration.find(2) == Voter(2, b"moved")


def test_only_a_leader_says_how_far_the_replicas_are() -> None:
    quorum = Quorum(3)
    one = quorum.elect(1)
    assert [replica.match_index for replica in one.node.replicas()] == [1, 1, 1]
    assert quorum[2].node.replicas() == []


# -- thesis 3.10: transfer -------------------------------------------------------------------------


def test_leadership_is_handed_over_without_waiting_for_a_timeout() -> None:
    """Thesis 3.10: "This request has the same effect as the target server's election timer
    firing".
    """
    quorum = Quorum(3)
    one = quorum.elect(1)
    term = one.node.term
    assert one.node.transfer_leadership(3, one.now_ms) is None
    assert one.node.propose(b"x") is Refusal.TRANSFER_IN_PROGRESS
    one.settle()
    quorum.deliver()
    assert quorum.leaders == [3]
    assert quorum[3].node.term == term + 1
    assert quorum[2].node.leader_id == 3


def test_a_transfer_that_fails_is_given_up() -> None:
    quorum = Quorum(3)
    one = quorum.elect(1)
    quorum.isolate(3)
    one.node.transfer_leadership(3, one.now_ms)
    one.settle()
    quorum.elapse(ELECTION_MS + HEARTBEAT_MS)
    assert quorum.leaders == [1]
    assert isinstance(one.node.propose(b"x"), Proposal)


def test_leadership_goes_to_voters_only() -> None:
    member = leader()
    assert member.node.transfer_leadership(2, 0) is Refusal.NOT_A_VOTER
    assert member.node.transfer_leadership(9, 0) is Refusal.NOT_A_VOTER


def test_a_leader_that_resigns_is_replaced_at_once() -> None:
    quorum = Quorum(3)
    one = quorum.elect(1)
    one.node.resign(one.now_ms)
    one.settle()
    quorum.deliver()
    assert len(quorum.leaders) == 1
    assert 1 not in quorum.leaders


def test_only_the_leader_may_call_an_election() -> None:
    member = follower()
    member.hear(heartbeat(1))
    assert member.hear(TimeoutNow(3, 2, 1)) == []
    said = member.hear(TimeoutNow(1, 2, 1))
    assert [(m.term, m.is_transfer) for m in only(VoteRequest, said)] == [(2, True), (2, True)]


# -- 7: snapshots ----------------------------------------------------------------------------------


def test_a_follower_that_is_far_behind_is_sent_the_snapshot_and_goes_on_from_there() -> None:
    """7: "the leader must occasionally send snapshots to followers that lag behind"."""
    quorum = Quorum(3, settings=SMALL_CHUNKS)
    one = quorum.elect(1)
    quorum.isolate(3)
    for number in range(10):
        one.propose(b"%d" % number)
        quorum.deliver()
    mark = one.snapshot_now(b"ten numbers")
    one.propose(b"after")
    quorum.deliver()
    quorum.heal()
    quorum.elapse(3 * HEARTBEAT_MS)
    assert quorum[3].installed == [mark]
    assert quorum[3].snapshot_content == b"ten numbers"
    assert quorum[3].commands == [b"after"]


def test_a_transfer_of_a_snapshot_survives_losses_and_is_resumed() -> None:
    quorum = Quorum(3, settings=SMALL_CHUNKS)
    one = quorum.elect(1)
    quorum.isolate(3)
    one.propose(b"x")
    quorum.deliver()
    one.snapshot_now(b"0123456789")
    quorum.heal()
    offsets: list[int] = []

    def lose_the_second_chunk_once(message: Message) -> bool:
        if isinstance(message, SnapshotChunk):
            offsets.append(message.offset)
        return isinstance(message, SnapshotChunk) and offsets == [0, 4]

    quorum.drops = lose_the_second_chunk_once
    quorum.elapse(4 * ELECTION_MS)
    assert quorum[3].snapshot_content == b"0123456789"
    assert offsets == [0, 4, 4, 8], "it went on where it had stopped"
    assert quorum.leaders == [1]


def test_a_spoiled_snapshot_is_received_anew() -> None:
    mark = SnapshotMark(9, 1, 4, 77, THREE)
    member = follower()
    chunk = SnapshotChunk(1, 2, 1, mark, 0, 4, b"abcd")
    member.node.step(heartbeat(1), member.now_ms)
    member.settle()
    member.take_sent()
    member.is_disk_held = True
    member.hear(chunk)
    assert member.node.role is Role.FOLLOWER
    member.node.refuse_snapshot()
    ready = member.syncing
    assert ready is not None
    member.node.advance(ready)
    assert member.node.log.last_index == 0
    member.is_disk_held = False
    assert member.hear(chunk) == [AppendAccepted(2, 1, 1, 9)]


def test_a_member_restarts_from_its_snapshot() -> None:
    quorum = Quorum(3)
    one = quorum.elect(1)
    for number in range(6):
        one.propose(b"%d" % number)
    quorum.deliver()
    one.snapshot_now(b"state", first_index=4)
    one.propose(b"after")
    quorum.deliver()
    one.applied = []
    one.start()
    assert one.node.log.first_index == 4
    quorum.elapse(3 * ELECTION_MS)
    assert one.commands == [b"after"]


def test_no_snapshot_is_made_while_one_is_received_or_before_it_is_known_who_votes() -> None:
    assert follower().node.may_take_snapshot
    assert not Member(4, bootstrap=configuration_of([])).node.may_take_snapshot
    member = follower()
    mark = SnapshotMark(9, 1, 10, 77, THREE)
    member.hear(SnapshotChunk(1, 2, 1, mark, 0, 4, b"abcd"))
    assert not member.node.may_take_snapshot


# -- the contract of Ready -------------------------------------------------------------------------


def test_one_ready_is_persisted_at_a_time_and_what_arrives_meanwhile_shares_the_next() -> None:
    member = follower(1)
    member.hear(heartbeat(1))
    member.is_disk_held = True
    member.hear(AppendRequest(1, 2, 1, 1, 1, (Entry(2, 1, b"a"),), 0))
    first = member.syncing
    member.hear(AppendRequest(1, 2, 1, 2, 1, (Entry(3, 1, b"b"),), 0))
    member.hear(AppendRequest(1, 2, 1, 3, 1, (Entry(4, 1, b"c"),), 0))
    assert member.syncing is first
    said = member.sync()
    assert said == [AppendAccepted(2, 1, 1, 2)]
    assert member.syncing is not None
    assert [entry.index for entry in member.syncing.entries] == [3, 4]
    assert member.sync() == [AppendAccepted(2, 1, 1, 3), AppendAccepted(2, 1, 1, 4)]


def test_an_answer_of_a_term_that_ended_during_a_sync_is_not_given() -> None:
    member = follower(1)
    member.hear(heartbeat(1))
    member.is_disk_held = True
    member.hear(AppendRequest(1, 2, 1, 1, 1, (Entry(2, 1, b"a"),), 0))
    member.hear(AppendRequest(1, 2, 1, 2, 1, (Entry(3, 1, b"b"),), 0))
    member.hear(AppendRequest(3, 2, 2, 1, 1, (Entry(2, 2, b"c"),), 0))
    member.sync()
    assert member.sync() == [AppendAccepted(2, 3, 2, 2)]
    assert [entry.data for entry in member.entries] == [b"x", b"c"]


def test_a_change_of_standing_is_told_once() -> None:
    member = Member(1, bootstrap=configuration_of([1]))
    member.is_disk_held = True
    member.node.tick(member.now_ms)
    told = []
    while (ready := member.node.ready()) is not None:
        told.append(ready.standing)
        if ready.must_persist:
            member.node.advance(ready)
    assert [standing for standing in told if standing] == [
        Standing(Role.CANDIDATE, 1, None),
        Standing(Role.LEADER, 1, 1),
    ]


def test_advancing_what_is_not_outstanding_is_a_drivers_fault() -> None:
    member = follower()
    with pytest.raises(AssertionError):
        member.node.advance(Ready(hard_state=HardState(9)))


def test_a_clock_that_goes_back_is_not_believed() -> None:
    member = follower()
    member.hear(heartbeat(1))
    before = member.node.next_deadline_ms()
    member.node.tick(0)
    member.node.step(heartbeat(1), 0)
    assert member.node.next_deadline_ms() == before
    assert member.role is Role.FOLLOWER


# -- what comes from the network -------------------------------------------------------------------


def test_what_is_meant_for_somebody_else_or_comes_from_ourselves_is_dropped() -> None:
    member = follower()
    assert member.hear(VoteRequest(1, 3, 4, 0, 0), VoteRequest(2, 2, 4, 0, 0)) == []
    assert (member.node.dropped_count, member.node.term) == (2, 0)


def test_a_stranger_cannot_depose_a_leader_or_acknowledge_anything() -> None:
    member = leader()
    member.hear(AppendRejected(9, 2, 99, 0, 0, 0), AppendAccepted(9, 2, 1, 1))
    assert (member.role, member.node.term) == (Role.LEADER, 1)
    assert member.node.log.committed_index == 0
    assert member.node.dropped_count == 2


def test_an_index_beyond_the_log_acknowledges_nothing() -> None:
    member = leader()
    member.hear(AppendAccepted(1, 2, 1, 1_000))
    assert member.node.log.committed_index == 0


def test_a_second_leader_in_one_term_is_not_followed() -> None:
    member = follower()
    member.hear(heartbeat(1))
    assert member.hear(heartbeat(1, sender=3)) == []
    assert member.node.leader_id == 1
    itself = leader()
    assert itself.hear(heartbeat(1)) == []
    assert itself.role is Role.LEADER


def test_no_message_whatsoever_raises() -> None:
    """A thousand nonsensical messages for members in every role, some of them plausible."""
    random = Random(7)
    numbers = (-1, 0, 1, 1, 2, 2, 3, 3, 4, 9, 2**62, 2**63)

    def number() -> int:
        return random.choice(numbers)

    def message(to: int) -> Message:
        sender, term = random.choice((1, 2, 3, 9)), number()
        entries = tuple(
            Entry(
                number(), number(), random.choice((b"", b"x", b"\xc1", b"\xc1\x91\x92\x01\xc4\x00"))
            )
            for _ in range(random.randrange(3))
        )
        voters = configuration_of(random.sample(range(5), random.randrange(4)))
        mark = SnapshotMark(number(), number(), number(), number(), voters)
        flag = random.random() < 0.5
        return random.choice(
            (
                VoteRequest(sender, to, term, number(), number(), flag, random.random() < 0.5),
                VoteResponse(sender, to, term, flag, random.random() < 0.5),
                AppendRequest(sender, to, term, number(), number(), entries, number(), number()),
                AppendAccepted(sender, to, term, number(), number()),
                AppendRejected(sender, to, term, number(), number(), number(), number()),
                SnapshotChunk(sender, to, term, mark, number(), 1, b"x"),
                SnapshotReceived(sender, to, term, number(), number(), number()),
                TimeoutNow(sender, to, term),
                FollowRequest(sender, random.choice((to, EVERYBODY)), term, number()),
                LeaderHint(sender, to, term, number()),
            )
        )

    for _ in range(100):
        for member in (follower(1, 1, 2), candidate(1, 1), leader(1, 2)):
            for _ in range(10):
                member.hear(message(2))
                if random.random() < 0.2:
                    member.elapse(random.randrange(600))
