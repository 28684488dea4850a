"""Rounds of reads (thesis 6.4)."""

from cluster.raft.reads import ReadRounds, ReadState


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
