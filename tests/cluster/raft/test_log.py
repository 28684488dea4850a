"""The log in memory: figure 2's receiver rules, figure 7's logs, compaction."""

import pytest

from odradek.cluster.raft.configuration import configuration_of, encode_configuration
from odradek.cluster.raft.log import RaftLog
from odradek.cluster.raft.messages import Entry, SnapshotMetadata

BOOTSTRAP = configuration_of([1, 2, 3])
ALL = 1 << 30


def log_of(*terms: int, committed_index: int = 0) -> RaftLog:
    """A log with entries of these terms from index 1 on, all durable."""
    return RaftLog(entries_of(1, *terms), bootstrap=BOOTSTRAP, committed_index=committed_index)


def entries_of(first_index: int, *terms: int) -> tuple[Entry, ...]:
    return tuple(
        Entry(first_index + at, term, f"{first_index + at}/{term}".encode())
        for at, term in enumerate(terms)
    )


def terms_of(log: RaftLog) -> list[int]:
    return [entry.term for entry in log.slice(log.first_index, ALL)]


def snapshot(index: int, term: int) -> SnapshotMetadata:
    return SnapshotMetadata(index, term, 0, 0, BOOTSTRAP)


def test_entries_after_an_unknown_position_are_rejected() -> None:
    """Figure 2, AppendEntries 2: "Reply false if log doesn't contain an entry at prevLogIndex whose
    term matches prevLogTerm".
    """
    log = log_of(1, 1)
    assert not log.merge(3, 1, entries_of(4, 1))
    assert not log.merge(2, 2, entries_of(3, 2))
    assert terms_of(log) == [1, 1]


def test_a_conflicting_entry_truncates_the_log() -> None:
    """Figure 2, AppendEntries 3: "delete the existing entry and all that follow it"."""
    log = log_of(1, 2, 2, 2)
    assert log.merge(1, 1, entries_of(2, 3))
    assert terms_of(log) == [1, 3]
    assert log.stable_index == 1
    assert log.unstable() == entries_of(2, 3)


def test_a_late_request_removes_nothing() -> None:
    """Figure 2, AppendEntries 4: "Append any new entries not already in the log". Entries that
    follow what a late request or heartbeat speaks of do not contradict it.
    """
    log = log_of(1, 1, 1, 1)
    assert log.merge(1, 1, entries_of(2, 1))
    assert log.merge(1, 1, ())
    assert log.merge(0, 0, ())
    assert terms_of(log) == [1, 1, 1, 1]
    assert log.unstable() == ()


def test_only_new_entries_are_appended() -> None:
    log = log_of(1, 1)
    assert log.merge(0, 0, entries_of(1, 1, 1, 1, 1))
    assert log.unstable() == entries_of(3, 1, 1)


def test_committed_entries_are_never_removed() -> None:
    log = log_of(1, 1, 1, committed_index=2)
    assert not log.merge(1, 1, entries_of(2, 2))
    assert log.merge(2, 1, entries_of(3, 2))
    assert terms_of(log) == [1, 1, 2]


@pytest.mark.parametrize(
    ("terms", "is_rejected_at_first"),
    [
        ([1, 1, 1, 4, 4, 5, 5, 6, 6], True),  # (a)
        ([1, 1, 1, 4], True),  # (b)
        ([1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 6], False),  # (c)
        ([1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 7, 7], False),  # (d)
        ([1, 1, 1, 4, 4, 4, 4], True),  # (e)
        ([1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3], True),  # (f)
    ],
)
def test_every_log_of_figure_7_is_repaired_with_a_request_for_each_wrong_term(
    terms: list[int], is_rejected_at_first: bool
) -> None:
    """5.3: "the leader handles inconsistencies by forcing the followers' logs to duplicate its
    own", and with hints "one AppendEntries RPC will be required for each term with conflicting
    entries, rather than one RPC per entry".
    """
    leader = log_of(1, 1, 1, 4, 4, 5, 5, 6, 6, 6)
    leader.append(8, b"")
    follower = log_of(*terms)
    previous_index, rejected_count = 10, 0
    while True:
        previous_term = leader.term_at(previous_index)
        assert previous_term is not None
        if follower.merge(previous_index, previous_term, leader.slice(previous_index + 1, ALL)):
            break
        rejected_count += 1
        hint = follower.last_possible_match(previous_index, previous_term)
        previous_index, _ = leader.last_possible_match(*hint)
    assert (rejected_count > 0) == is_rejected_at_first
    assert rejected_count <= len(set(terms) - {1, 4, 5, 6}) + 1
    assert terms_of(follower) == terms_of(leader)


def test_up_to_date_is_decided_by_term_and_then_by_index() -> None:
    """5.4.1: "If the logs have last entries with different terms, then the log with the later term
    is more up-to-date. If the logs end with the same term, then whichever log is longer is".
    """
    log = log_of(1, 2, 2)
    assert log.is_up_to_date(1, 3)
    assert not log.is_up_to_date(9, 1)
    assert log.is_up_to_date(3, 2)
    assert not log.is_up_to_date(2, 2)


def test_the_last_possible_match_skips_whole_terms() -> None:
    log = log_of(1, 1, 3, 3, 5, 5)
    assert log.last_possible_match(6, 4) == (4, 3)
    assert log.last_possible_match(3, 4) == (3, 3)
    assert log.last_possible_match(6, 2) == (2, 1)
    assert log.last_possible_match(99, 9) == (6, 5)
    assert log.last_possible_match(6, 0) == (0, 0)


def test_an_entry_is_applied_once_in_order_and_only_when_it_is_durable() -> None:
    log = log_of(1, 1)
    log.append(1, b"three")
    log.commit_to(3)
    assert [entry.index for entry in log.take_committed(ALL)] == [1, 2]
    assert log.take_committed(ALL) == ()
    log.mark_stable(log.unstable())
    assert [entry.index for entry in log.take_committed(ALL)] == [3]


def test_committed_entries_are_taken_in_limited_portions() -> None:
    log = log_of(1, 1, 1, committed_index=3)
    assert [entry.index for entry in log.take_committed(1)] == [1]
    assert len(log.slice(1, 1)) == 1
    assert len(log.slice(1, 2 * entries_of(1, 1)[0].size)) == 2


def test_the_commit_index_never_goes_back_and_never_passes_the_log() -> None:
    log = log_of(1, 1, 1)
    log.commit_to(2)
    log.commit_to(1)
    assert log.committed_index == 2
    log.commit_to(9)
    assert log.committed_index == 3


def test_entries_that_were_replaced_during_a_sync_are_not_durable() -> None:
    log = log_of(1)
    log.merge(1, 1, entries_of(2, 2, 2, 2))
    being_synced = log.unstable()
    log.merge(2, 2, entries_of(3, 3))
    log.mark_stable(being_synced)
    assert log.stable_index == 2
    assert log.unstable() == entries_of(3, 3)


def test_a_configuration_is_effective_from_its_entry_on_and_removed_with_it() -> None:
    """Thesis 4.1: "a server always uses the latest configuration in its log, regardless of whether
    the entry is committed".
    """
    log = log_of(1)
    log.append(1, encode_configuration(configuration_of([1, 2, 3, 4])))
    assert log.configuration.voter_ids == (1, 2, 3, 4)
    assert log.configuration_index == 2
    assert log.configuration_at(1) == BOOTSTRAP
    log.merge(1, 1, entries_of(2, 2))
    assert log.configuration == BOOTSTRAP
    assert log.configuration_index == 0


def test_a_restored_log_has_the_persisted_entries() -> None:
    mark = snapshot(4, 2)
    configuration = Entry(6, 2, encode_configuration(configuration_of([1])))
    log = RaftLog(
        (*entries_of(3, 1, 2, 2), configuration),
        bootstrap=configuration_of([9]),
        snapshot=mark,
        previous_term=1,
        committed_index=99,
    )
    assert (log.first_index, log.last_index, log.committed_index, log.applied_index) == (3, 6, 6, 4)
    assert log.configuration.voter_ids == (1,)
    assert log.configuration_at(5) == BOOTSTRAP
    assert [entry.index for entry in log.take_committed(ALL)] == [5, 6]


def test_compaction_keeps_the_position_before_the_first_entry() -> None:
    log = log_of(1, 1, 2, 2, committed_index=4)
    log.take_committed(ALL)
    log.compact(snapshot(3, 2), 3)
    assert (log.first_index, log.last_index) == (3, 4)
    assert [log.term_at(index) for index in range(1, 5)] == [None, 1, 2, 2]
    log.compact(snapshot(4, 2), 5)
    assert (log.first_index, log.last_index, log.last_term) == (5, 4, 2)
    assert log.append(3, b"x").index == 5


def test_entries_that_are_not_applied_cannot_be_compacted() -> None:
    log = log_of(1, 1, committed_index=2)
    with pytest.raises(AssertionError):
        log.compact(snapshot(2, 1), 3)


def test_a_snapshot_replaces_a_log_that_does_not_reach_it() -> None:
    """Section 7: "the follower discards its entire log; it is all superseded by the snapshot"."""
    log = log_of(1, 1)
    log.append(1, encode_configuration(configuration_of([1])))
    log.restore(snapshot(9, 4))
    assert (log.first_index, log.last_index, log.last_term) == (10, 9, 4)
    assert (log.committed_index, log.applied_index, log.stable_index) == (9, 9, 9)
    assert log.configuration == BOOTSTRAP
