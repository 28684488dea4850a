"""Counting votes."""

import pytest

from cluster.raft.configuration import configuration_of
from cluster.raft.election import Election, ElectionResult, may_grant
from cluster.raft.log import RaftLog
from cluster.raft.messages import Entry, VoteRequest, VoteResponse


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


def test_a_voter_counts_once_and_its_first_answer_counts() -> None:
    ours = election()
    ours.count(1, is_granted=True)
    ours.count(1, is_granted=True)
    ours.count(2, is_granted=False)
    ours.count(2, is_granted=True)
    assert ours.result() is ElectionResult.OPEN


def test_who_has_no_vote_does_not_count() -> None:
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


def test_a_candidate_that_loses_its_own_vote_needs_all_that_remain() -> None:
    ours = Election(4, [2], is_pre_vote=False)
    ours.count(1, is_granted=True)
    assert ours.result() is ElectionResult.OPEN
    ours.count(2, is_granted=True)
    assert ours.result() is ElectionResult.WON


def test_answers_to_earlier_elections_are_told_apart() -> None:
    ours = election()
    assert ours.is_answer(VoteResponse(2, 1, 4, True), 4)
    assert not ours.is_answer(VoteResponse(2, 1, 3, True), 4)
    assert not ours.is_answer(VoteResponse(2, 1, 4, True, is_pre_vote=True), 4)


def test_a_refused_rehearsal_carries_the_term_of_who_refuses() -> None:
    ours = election(is_pre_vote=True)
    assert ours.is_answer(VoteResponse(2, 1, 4, True, is_pre_vote=True), 3)
    assert ours.is_answer(VoteResponse(2, 1, 3, False, is_pre_vote=True), 3)
    assert not ours.is_answer(VoteResponse(2, 1, 2, False, is_pre_vote=True), 3)
    assert not ours.is_answer(VoteResponse(2, 1, 3, True, is_pre_vote=True), 3)


def test_every_other_voter_is_asked() -> None:
    transfer = Election(4, [3, 1, 2], is_pre_vote=False, is_transfer=True)
    assert transfer.requests(2, 9, 3) == [
        VoteRequest(2, 1, 4, 9, 3, is_transfer=True),
        VoteRequest(2, 3, 4, 9, 3, is_transfer=True),
    ]


@pytest.mark.parametrize(
    ("vote", "leader_id", "is_granted"),
    [(None, None, True), (1, None, True), (3, None, False), (None, 3, False), (1, 1, True)],
)
def test_a_vote_goes_to_who_comes_first_and_to_nobody_where_somebody_leads(
    vote: int | None, leader_id: int | None, is_granted: bool
) -> None:
    """Figure 2, RequestVote 2: "If votedFor is null or candidateId, and candidate's log is at least
    as up-to-date as receiver's log, grant vote".
    """
    log = RaftLog([Entry(1, 1, b"x")], bootstrap=configuration_of([1, 2, 3]))
    assert may_grant(VoteRequest(1, 2, 4, 1, 1), log, 4, vote, leader_id) == is_granted
    assert not may_grant(VoteRequest(1, 2, 4, 0, 0), log, 4, vote, leader_id)


def test_a_rehearsal_asks_for_a_later_term_whoever_was_voted_for() -> None:
    log = RaftLog([Entry(1, 1, b"x")], bootstrap=configuration_of([1, 2, 3]))
    assert may_grant(VoteRequest(1, 2, 5, 1, 1, is_pre_vote=True), log, 4, 3, 3)
    assert not may_grant(VoteRequest(1, 2, 4, 1, 1, is_pre_vote=True), log, 4, None, None)
    assert not may_grant(VoteRequest(1, 2, 5, 0, 0, is_pre_vote=True), log, 4, None, None)
