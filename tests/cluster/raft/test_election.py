"""Elections: the paper's 5.2, and the thesis' 9.6, 4.2.3 and 6.2."""

import pytest

from odradek.cluster.raft.configuration import configuration_of
from odradek.cluster.raft.election import Election, ElectionResult, can_grant_vote
from odradek.cluster.raft.log import RaftLog
from odradek.cluster.raft.messages import AppendRequest, Entry, VoteRequest, VoteResponse
from odradek.cluster.raft.ready import HardState, Role
from tests.cluster.raft.quorum import (
    ELECTION_MS,
    HEARTBEAT_MS,
    THREE,
    LocalQuorum,
    QuorumMember,
    candidate,
    entries_of,
    follower,
    heartbeat,
    leader,
    only,
)


def election(*, is_pre_vote: bool = False) -> Election:
    return Election(4, [1, 2, 3], is_pre_vote=is_pre_vote)


def test_a_majority_of_all_voters_wins() -> None:
    """5.2: "A candidate wins an election if it receives votes from a majority of the servers in
    the full cluster for the same term."
    """
    ours = election()
    ours.count(1, is_granted=True)
    assert ours.result() is ElectionResult.OPEN
    ours.count(2, is_granted=True)
    assert ours.result() is ElectionResult.WON


def test_only_the_first_response_of_a_voter_counts() -> None:
    ours = election()
    ours.count(1, is_granted=True)
    ours.count(1, is_granted=True)
    ours.count(2, is_granted=False)
    ours.count(2, is_granted=True)
    assert ours.result() is ElectionResult.OPEN


def test_a_member_without_a_vote_does_not_count() -> None:
    ours = election()
    for stranger in (4, 5, 6):
        ours.count(stranger, is_granted=True)
    assert ours.result() is ElectionResult.OPEN


def test_an_election_is_lost_when_a_majority_cannot_be_reached() -> None:
    ours = election()
    ours.count(1, is_granted=True)
    ours.count(2, is_granted=False)
    assert ours.result() is ElectionResult.OPEN
    ours.count(3, is_granted=False)
    assert ours.result() is ElectionResult.LOST


def test_a_candidate_that_is_refused_by_one_of_three_needs_the_others() -> None:
    ours = Election(4, [2], is_pre_vote=False)
    ours.count(1, is_granted=True)
    assert ours.result() is ElectionResult.OPEN
    ours.count(2, is_granted=True)
    assert ours.result() is ElectionResult.WON


def test_responses_to_earlier_elections_are_ignored() -> None:
    ours = election()
    assert ours.is_answer(VoteResponse(2, 1, 4, True), 4)
    assert not ours.is_answer(VoteResponse(2, 1, 3, True), 4)
    assert not ours.is_answer(VoteResponse(2, 1, 4, True, is_pre_vote=True), 4)


def test_a_refused_pre_vote_has_the_responders_term() -> None:
    ours = election(is_pre_vote=True)
    assert ours.is_answer(VoteResponse(2, 1, 4, True, is_pre_vote=True), 3)
    assert ours.is_answer(VoteResponse(2, 1, 3, False, is_pre_vote=True), 3)
    assert not ours.is_answer(VoteResponse(2, 1, 2, False, is_pre_vote=True), 3)
    assert not ours.is_answer(VoteResponse(2, 1, 3, True, is_pre_vote=True), 3)


def test_every_other_voter_gets_a_request() -> None:
    transfer = Election(4, [3, 1, 2], is_pre_vote=False, is_transfer=True)
    assert transfer.requests(2, 9, 3) == [
        VoteRequest(2, 1, 4, 9, 3, is_transfer=True),
        VoteRequest(2, 3, 4, 9, 3, is_transfer=True),
    ]


@pytest.mark.parametrize(
    ("vote", "leader_id", "is_granted"),
    [(None, None, True), (1, None, True), (3, None, False), (None, 3, False), (1, 1, True)],
)
def test_a_vote_is_granted_to_the_first_candidate_if_no_leader_is_known(
    vote: int | None, leader_id: int | None, is_granted: bool
) -> None:
    """Figure 2, RequestVote 2: "If votedFor is null or candidateId, and candidate's log is at least
    as up-to-date as receiver's log, grant vote".
    """
    log = RaftLog([Entry(1, 1, b"x")], bootstrap=configuration_of([1, 2, 3]))
    assert can_grant_vote(VoteRequest(1, 2, 4, 1, 1), log, 4, vote, leader_id) == is_granted
    assert not can_grant_vote(VoteRequest(1, 2, 4, 0, 0), log, 4, vote, leader_id)


def test_a_pre_vote_is_granted_for_a_later_term_despite_an_earlier_vote() -> None:
    log = RaftLog([Entry(1, 1, b"x")], bootstrap=configuration_of([1, 2, 3]))
    assert can_grant_vote(VoteRequest(1, 2, 5, 1, 1, is_pre_vote=True), log, 4, 3, 3)
    assert not can_grant_vote(VoteRequest(1, 2, 4, 1, 1, is_pre_vote=True), log, 4, None, None)
    assert not can_grant_vote(VoteRequest(1, 2, 5, 0, 0, is_pre_vote=True), log, 4, None, None)


# -- 5.2: elections --------------------------------------------------------------------------------


def test_a_follower_without_a_leader_starts_a_pre_vote_and_then_an_election() -> None:
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


def test_heartbeats_prevent_elections() -> None:
    """5.2: "A server remains in follower state as long as it receives valid RPCs"."""
    member = follower()
    for _ in range(20):
        member.hear(heartbeat(1))
        assert only(VoteRequest, member.elapse(HEARTBEAT_MS)) == []
    assert member.node.leader_id == 1


def test_election_timeouts_have_the_drivers_jitter() -> None:
    """5.2: "Raft uses randomized election timeouts"."""
    member = QuorumMember(2, bootstrap=THREE)
    member.jitter_ms = 300
    member.hear(heartbeat(1))
    assert only(VoteRequest, member.elapse(ELECTION_MS + 299)) == []
    assert len(only(VoteRequest, member.elapse(1))) == 2
    member.jitter_ms = 10_000_000
    member.hear(heartbeat(1))
    assert len(only(VoteRequest, member.elapse(2 * ELECTION_MS))) == 2


def test_a_candidate_with_a_majority_becomes_leader_and_sends_requests_at_once() -> None:
    """5.2: "Once a candidate wins an election, it becomes leader. It then sends heartbeat messages
    to all of the other servers to establish its authority".
    """
    member = candidate(1)
    said = member.hear(VoteResponse(3, 2, 2, True))
    assert member.role is Role.LEADER
    assert [(m.to, m.term) for m in only(AppendRequest, said)] == [(1, 2), (3, 2)]
    heartbeats = only(AppendRequest, member.elapse(HEARTBEAT_MS))
    assert [heartbeat.to for heartbeat in heartbeats] == [1, 3]


def test_a_candidate_counts_its_own_vote_when_it_is_durable() -> None:
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


def test_a_split_vote_is_followed_by_another_pre_vote() -> None:
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


def test_a_vote_of_a_member_that_is_no_voter_does_not_count() -> None:
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


def test_a_vote_is_durable_before_it_is_sent() -> None:
    """Figure 2, persistent state: "Updated on stable storage before responding to RPCs"."""
    member = QuorumMember(2, bootstrap=THREE)
    member.is_disk_held = True
    assert member.hear(VoteRequest(1, 2, 4, 0, 0)) == []
    assert member.hard_state == HardState()
    assert member.sync() == [VoteResponse(2, 1, 4, True)]
    assert (member.hard_state.term, member.hard_state.vote) == (4, 1)


def test_a_vote_that_was_not_durable_before_a_crash_was_not_sent() -> None:
    member = QuorumMember(2, bootstrap=THREE)
    member.is_disk_held = True
    member.hear(VoteRequest(1, 2, 4, 0, 0))
    member.start()
    member.is_disk_held = False
    assert member.hear(VoteRequest(3, 2, 4, 0, 0)) == [VoteResponse(2, 3, 4, True)]


def test_a_log_without_a_hard_state_grants_no_vote_in_its_last_term() -> None:
    member = QuorumMember(2, bootstrap=THREE, entries=entries_of(1, 1))
    assert (member.hard_state.term, member.hard_state.vote) == (1, 2)
    assert member.hear(VoteRequest(1, 2, 1, 2, 1)) == [VoteResponse(2, 1, 1, False)]


# -- thesis 9.6, 4.2.3, 6.2: who is away does not disturb ------------------------------------------


def test_a_member_that_was_cut_off_returns_without_an_election() -> None:
    """Thesis 9.6: "a candidate only increments its term if it first learns from a majority of the
    cluster that they would be willing to grant the candidate their votes".
    """
    quorum = LocalQuorum(3)
    quorum.elect(1)
    term = quorum[1].node.term
    quorum.isolate(3)
    quorum.elapse(20 * ELECTION_MS)
    assert quorum[3].node.term == term
    quorum.heal()
    quorum.elapse(3 * ELECTION_MS)
    assert quorum.leaders == [1]
    assert quorum[1].node.term == term


def test_a_pre_vote_needs_an_up_to_date_log_and_a_later_term_and_changes_no_state() -> None:
    member = follower(1, 2)
    for asker in (1, 3):
        request = VoteRequest(asker, 2, 3, 2, 2, is_pre_vote=True)
        assert member.hear(request) == [VoteResponse(2, asker, 3, True, is_pre_vote=True)]
    assert (member.node.term, member.node.vote) == (2, None)
    behind = VoteRequest(1, 2, 3, 1, 1, is_pre_vote=True)
    assert member.hear(behind) == [VoteResponse(2, 1, 2, False, is_pre_vote=True)]
    over = VoteRequest(1, 2, 2, 2, 2, is_pre_vote=True)
    assert member.hear(over) == [VoteResponse(2, 1, 2, False, is_pre_vote=True)]


def test_a_failed_pre_vote_is_repeated_soon() -> None:
    member = follower()
    assert len(only(VoteRequest, member.elapse(ELECTION_MS + 2))) == 2
    again = only(VoteRequest, member.elapse(2 * HEARTBEAT_MS))
    assert {(request.term, request.is_pre_vote) for request in again} == {(1, True)}
    assert member.node.term == 0


def test_a_follower_with_recent_contact_to_a_leader_does_not_vote() -> None:
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


def test_a_vote_request_does_not_depose_a_leader_with_a_quorum() -> None:
    member = leader()
    assert member.hear(VoteRequest(3, 2, 9, 9, 1)) == []
    assert member.role is Role.LEADER


def test_a_leader_without_a_majority_steps_down() -> None:
    """Thesis 6.2: "a leader in Raft steps down if an election timeout elapses without a successful
    round of heartbeats to a majority of its cluster".
    """
    quorum = LocalQuorum(3)
    quorum.elect(1)
    quorum.isolate(1)
    quorum.elapse(ELECTION_MS + 2 * HEARTBEAT_MS)
    assert quorum[1].role is not Role.LEADER
    quorum.elapse(2 * ELECTION_MS)
    assert quorum.leaders == [2]


def test_a_leader_does_not_step_down_because_its_own_process_was_suspended() -> None:
    member = leader()
    member.now_ms += 10_000
    member.node.tick(member.now_ms)
    assert member.role is Role.FOLLOWER
