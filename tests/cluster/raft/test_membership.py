"""When a step of the configuration may be taken, and who may stand meanwhile."""

from cluster.raft.configuration import (
    AddVoter,
    Configuration,
    Refusal,
    RemoveVoter,
    Voter,
    configuration_of,
    encode_configuration,
)
from cluster.raft.leadership import Leadership
from cluster.raft.log import RaftLog
from cluster.raft.membership import may_stand, next_configuration
from cluster.raft.messages import AppendAccepted, Entry
from cluster.raft.settings import RaftSettings

TERM = 3
SETTINGS = RaftSettings()


def leader_of(log: RaftLog) -> Leadership:
    return Leadership(1, TERM, log, SETTINGS, 0)


def log_of(*entries: Entry, committed_index: int) -> RaftLog:
    bootstrap = configuration_of([1, 2, 3])
    return RaftLog(entries, bootstrap=bootstrap, committed_index=committed_index)


def test_a_step_waits_for_the_one_before() -> None:
    step = Entry(2, TERM, encode_configuration(configuration_of([1, 2])))
    log = log_of(Entry(1, TERM, b""), step, committed_index=1)
    change = RemoveVoter(2)
    refusal = next_configuration(log, leader_of(log), TERM, change, 0)
    assert refusal is Refusal.CHANGE_IN_PROGRESS
    log.commit_to(2)
    assert next_configuration(log, leader_of(log), TERM, change, 0) == configuration_of([1])


def test_a_step_waits_for_an_entry_of_the_leaders_own_term() -> None:
    log = log_of(Entry(1, 2, b"x"), Entry(2, TERM, b""), committed_index=1)
    change = RemoveVoter(2)
    refusal = next_configuration(log, leader_of(log), TERM, change, 0)
    assert refusal is Refusal.TERM_NOT_COMMITTED
    log.commit_to(2)
    assert next_configuration(log, leader_of(log), TERM, change, 0) == configuration_of([1, 3])


def test_who_has_not_caught_up_gets_no_vote() -> None:
    """Thesis 4.2.1: a new server is sent entries first, and meanwhile "it is not yet counted
    towards majorities for voting or commitment purposes".
    """
    log = log_of(Entry(1, TERM, b""), committed_index=1)
    leadership = leader_of(log)
    change = AddVoter(Voter(4))
    assert next_configuration(log, leadership, TERM, change, 0) is Refusal.NOT_CAUGHT_UP
    leadership.attach(4, 0, 0)
    assert next_configuration(log, leadership, TERM, change, 0) is Refusal.NOT_CAUGHT_UP
    leadership.hear(AppendAccepted(4, 1, TERM, 1), 10)
    after = next_configuration(log, leadership, TERM, change, 20)
    assert isinstance(after, Configuration)
    assert after.voter_ids == (1, 2, 3, 4)
    late_ms = 20 + SETTINGS.election_timeout_ms
    assert next_configuration(log, leadership, TERM, change, late_ms) is Refusal.NOT_CAUGHT_UP


def test_a_step_that_makes_no_sense_is_refused() -> None:
    log = log_of(Entry(1, TERM, b""), committed_index=1)
    refusal = next_configuration(log, leader_of(log), TERM, AddVoter(Voter(2)), 0)
    assert refusal is Refusal.ALREADY_VOTER


def test_who_has_lost_its_vote_may_stand_until_that_is_committed() -> None:
    """Thesis 4.2.2: "a server that is not part of its own latest configuration should still start
    new elections, as it might still be needed until the C_new entry is committed".
    """
    step = Entry(2, TERM, encode_configuration(configuration_of([2, 3])))
    log = log_of(Entry(1, TERM, b""), step, committed_index=1)
    assert may_stand(log, 1)
    assert not may_stand(log, 4)
    log.commit_to(2)
    assert not may_stand(log, 1)
    assert may_stand(log, 2)
