"""Rounds of reads, by themselves and in a quorum (thesis 6.4)."""

from odradek.cluster.raft.configuration import (
    configuration_of,
)
from odradek.cluster.raft.reads import ReadRounds, ReadState
from tests.cluster.raft.quorum import ELECTION_MS, Member, Quorum


def test_a_read_is_released_by_a_round_that_began_after_it() -> None:
    reads = ReadRounds()
    reads.ask(7)
    reads.begin(commit_index=5)
    assert reads.round == 1
    assert reads.proved(0) == []
    assert reads.proved(1) == [ReadState(7, 5)]
    assert not reads.is_waiting


def test_reads_that_arrive_together_share_a_round_and_later_ones_need_another() -> None:
    reads = ReadRounds()
    reads.ask(1)
    reads.ask(2)
    reads.begin(5)
    reads.ask(3)
    reads.begin(6)
    assert reads.proved(1) == [ReadState(1, 5), ReadState(2, 5)]
    assert reads.proved(2) == [ReadState(3, 6)]


def test_no_round_begins_without_a_read() -> None:
    reads = ReadRounds()
    reads.begin(5)
    assert reads.round == 0


def test_every_read_is_refused_when_leadership_ends() -> None:
    reads = ReadRounds()
    reads.ask(1)
    reads.begin(5)
    reads.ask(2)
    assert reads.abandon() == [ReadState(1, None), ReadState(2, None)]
    assert reads.abandon() == []


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
