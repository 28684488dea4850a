"""DeleteRecords requests that wait for the replicas."""

from odradek.cluster.replication.delayed_deletes import CompletedDelete, DelayedDeletes
from odradek.protocol.errors import ErrorCode


def test_a_request_is_answered_when_the_low_watermark_is_reached() -> None:
    deletions: DelayedDeletes[str] = DelayedDeletes()
    deletions.park("a", 10, 1_000)
    deletions.park("b", 20, 1_000)
    assert deletions.reached(9) == []
    assert deletions.reached(15) == [CompletedDelete("a", ErrorCode.NONE, 15)]
    assert deletions
    assert deletions.reached(20) == [CompletedDelete("b", ErrorCode.NONE, 20)]
    assert not deletions


def test_a_request_that_times_out_gets_the_low_watermark() -> None:
    deletions: DelayedDeletes[str] = DelayedDeletes()
    deletions.park("a", 10, 1_000)
    deletions.park("b", 10, 1_001)
    assert deletions.expired(999, 3) == []
    assert deletions.expired(1_000, 3) == [CompletedDelete("a", ErrorCode.REQUEST_TIMED_OUT, 3)]
    assert deletions.reached(10) == [CompletedDelete("b", ErrorCode.NONE, 10)]


def test_waiting_requests_fail_when_the_lead_is_lost() -> None:
    deletions: DelayedDeletes[str] = DelayedDeletes()
    deletions.park("a", 10, 1_000)
    assert deletions.resigned() == [CompletedDelete("a", ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)]
    assert not deletions
