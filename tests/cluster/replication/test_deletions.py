"""Deletions that wait for the replicas, and what they are answered."""

from odradek.cluster.replication.deletions import Deleted, Deletions
from odradek.protocol.errors import ErrorCode


def test_a_deletion_is_answered_when_every_replica_has_come_so_far() -> None:
    deletions: Deletions[str] = Deletions()
    deletions.park("a", 10, 1_000)
    deletions.park("b", 20, 1_000)
    assert deletions.reached(9) == []
    assert deletions.reached(15) == [Deleted("a", ErrorCode.NONE, 15)]
    assert deletions
    assert deletions.reached(20) == [Deleted("b", ErrorCode.NONE, 20)]
    assert not deletions


def test_a_deletion_that_waits_too_long_is_told_how_far_it_came() -> None:
    deletions: Deletions[str] = Deletions()
    deletions.park("a", 10, 1_000)
    deletions.park("b", 10, 1_001)
    assert deletions.expired(999, 3) == []
    assert deletions.expired(1_000, 3) == [Deleted("a", ErrorCode.REQUEST_TIMED_OUT, 3)]
    assert deletions.reached(10) == [Deleted("b", ErrorCode.NONE, 10)]


def test_who_waits_is_told_when_the_lead_is_lost() -> None:
    deletions: Deletions[str] = Deletions()
    deletions.park("a", 10, 1_000)
    assert deletions.resigned() == [Deleted("a", ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)]
    assert not deletions
