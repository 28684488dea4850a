"""ShareFetch as members see it (B.13): what they acquire, when, and the errors."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.cluster.controller.commands import DeleteTopics, TopicReference
from odradek.cluster.metadata.acls import AclOperation, ResourceType
from odradek.node.bus.messages import DeleteRecords
from odradek.node.worker.turn_requests import RouterState
from odradek.protocol.control_records import ControlType
from odradek.protocol.errors import ErrorCode
from tests.support.fetching import end_transaction, transactional
from tests.support.share_fetching import (
    ACCEPT,
    REJECT,
    RELEASE,
    RENEW,
    ShareFetchHarness,
    base_offsets,
    batch,
    ranges,
)
from tests.support.share_harness import GROUP, TOPIC
from tests.support.stores import NOW_MS, batch_of

NOBODY = b"\x09" * 16


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[ShareFetchHarness]:
    with ShareFetchHarness(tmp_path) as harness:
        yield harness


NOTHING = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 0, "max_records": 0}
"""The limits of a request that only acknowledges."""

# -- what is acquired ------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
def test_records_are_acquired_from_the_start_offset(
    harness: ShareFetchHarness, version: int
) -> None:
    harness.append(TOPIC, batch_of(3), batch_of(2))
    response = harness.member().respond(0, version=version, max_wait_ms=2_000)
    assert response.acquisition_lock_timeout_ms == 30_000
    [[data]] = [topic.partitions for topic in response.responses]
    assert ranges(data) == [(0, 4, 1)]
    assert base_offsets(data) == [0, 3]


def test_acquired_records_are_not_delivered_to_other_members(harness: ShareFetchHarness) -> None:
    harness.append(TOPIC, batch_of(3))
    first, second = harness.member("a"), harness.member("b", connection=2)
    assert ranges(first.fetch(0)[0]) == [(0, 2, 1)]
    assert second.fetch(0, max_wait_ms=0) == {}
    harness.append(TOPIC, batch_of(2))
    data = second.fetch()[0]
    assert ranges(data) == [(3, 4, 1)]
    assert base_offsets(data) == [3], "batches of which nothing was acquired stay behind"


def test_groups_do_not_see_each_others_locks(harness: ShareFetchHarness) -> None:
    harness.configure("other", {"share.auto.offset.reset": "earliest"})
    harness.initialise(0, group="other")
    harness.append(TOPIC, batch_of(3))
    assert ranges(harness.member().fetch(0)[0]) == [(0, 2, 1)]
    assert ranges(harness.member(group="other").fetch(0)[0]) == [(0, 2, 1)]


def test_max_records_is_a_soft_limit_in_batch_mode_and_strict_in_record_mode(
    harness: ShareFetchHarness,
) -> None:
    harness.append(TOPIC, batch_of(4), batch_of(4), batch_of(4))
    member = harness.member()
    assert ranges(member.fetch(0, max_records=5)[0]) == [(0, 7, 1)]
    assert ranges(member.fetch(max_records=1, mode=1)[0]) == [(8, 8, 1)]
    data = member.fetch(max_records=9, mode=1)[0]
    assert ranges(data) == [(9, 11, 1)]
    assert base_offsets(data) == [8], "the whole batch comes; the client drops what is not its"


def test_max_records_is_shared_by_the_partitions(harness: ShareFetchHarness) -> None:
    member = harness.member()
    member.fetch(0, 1, 2, max_wait_ms=100)
    for partition in range(3):
        harness.append(TOPIC, batch_of(4), partition=partition)
    found = member.fetch(max_records=6, mode=1)
    assert {index: ranges(data) for index, data in found.items()} == {
        0: [(0, 3, 1)],
        1: [(0, 1, 1)],
    }


def test_a_partition_that_returned_records_goes_to_the_end(harness: ShareFetchHarness) -> None:
    for partition in range(3):
        harness.append(TOPIC, batch_of(2), batch_of(2), partition=partition)
    member = harness.member()
    assert list(member.fetch(0, 1, 2, max_records=1)) == [0]
    assert list(member.fetch(max_records=1)) == [1]
    assert list(member.fetch(max_records=1)) == [2]
    assert list(member.fetch(max_records=1)) == [0]


def test_max_bytes_limits_all_but_the_first_batch(harness: ShareFetchHarness) -> None:
    for partition in range(2):
        harness.append(TOPIC, *[batch_of(1, size=5_000)] * 3, partition=partition)
    member = harness.member()
    assert ranges(member.fetch(0, 1, max_bytes=1)[0]) == [(0, 0, 1)]
    found = member.fetch(max_bytes=12_000)
    assert sum(last - first + 1 for data in found.values() for first, last, _ in ranges(data)) == 2


def test_acquired_ranges_are_split_by_batch_size(harness: ShareFetchHarness) -> None:
    harness.append(TOPIC, *[batch_of(2)] * 4)
    assert ranges(harness.member().fetch(0, batch_size=3)[0]) == [(0, 3, 1), (4, 7, 1)]


def test_a_group_starts_at_latest_unless_configured(
    harness: ShareFetchHarness,
) -> None:
    harness.initialise(0, group="plain")
    harness.append(TOPIC, batch_of(3))
    member = harness.member(group="plain")
    assert member.fetch(0, max_wait_ms=200) == {}
    harness.append(TOPIC, batch_of(2))
    assert ranges(member.fetch()[0]) == [(3, 4, 1)]


def test_the_start_offset_is_durable_before_the_first_acknowledgement(
    harness: ShareFetchHarness,
) -> None:
    harness.initialise(0, group="plain")
    assert harness.member(group="plain").fetch(0, max_wait_ms=200) == {}
    harness.append(TOPIC, batch_of(2))
    harness.restart_router()
    assert ranges(harness.member(group="plain").fetch(0)[0]) == [(0, 1, 1)]


def test_a_group_can_start_by_duration(harness: ShareFetchHarness) -> None:
    harness.configure("recent", {"share.auto.offset.reset": "by_duration:PT1H"})
    harness.initialise(0, group="recent")
    hour_ms = 3_600_000
    harness.now_ms = NOW_MS + hour_ms
    harness.append(
        TOPIC, batch_of(2, timestamp=NOW_MS - 10), batch_of(2, timestamp=NOW_MS + 60_000)
    )
    assert ranges(harness.member(group="recent").fetch(0)[0]) == [(2, 3, 1)]


def test_control_batches_are_skipped(harness: ShareFetchHarness) -> None:
    harness.append(TOPIC, transactional(2, 0))
    end_transaction(harness, ControlType.COMMIT)
    harness.append(TOPIC, batch_of(2))
    member = harness.member()
    assert ranges(member.fetch(0)[0]) == [(0, 1, 1), (3, 4, 1)]
    assert (
        member.acknowledge_partition(batch(0, 1, ACCEPT), batch(3, 4, ACCEPT)).error_code
        == ErrorCode.NONE
    )
    hosted = harness.led.hosted(GROUP)[harness.topic_partition()]
    assert hosted.machine is not None
    assert hosted.machine.start_offset == 5


def test_read_committed_waits_for_the_end_of_transactions_and_skips_aborted_ones(
    tmp_path: Path,
) -> None:
    with ShareFetchHarness(tmp_path, group={"share.isolation.level": "read_committed"}) as harness:
        harness.append(TOPIC, batch_of(1), transactional(2, 0), batch_of(1))
        member = harness.member()
        assert ranges(member.fetch(0)[0]) == [(0, 0, 1)]
        waiting = member.begin_fetch(max_wait_ms=5_000)
        end_transaction(harness, ControlType.ABORT)
        [[data]] = [topic.partitions for topic in member.end_fetch(waiting).responses]
        assert ranges(data) == [(3, 3, 1)]
        assert base_offsets(data) == [3]


def test_read_uncommitted_returns_records_that_are_aborted_later(
    harness: ShareFetchHarness,
) -> None:
    harness.append(TOPIC, transactional(2, 0))
    assert ranges(harness.member().fetch(0)[0]) == [(0, 1, 1)]


def test_deleted_records_are_archived(harness: ShareFetchHarness) -> None:
    harness.append(TOPIC, batch_of(2), batch_of(3))
    store, number = harness.place(TOPIC)
    harness.turns.run([(RouterState(), DeleteRecords(1, store, number, 2))], NOW_MS)
    assert ranges(harness.member().fetch(0)[0]) == [(2, 4, 1)]


# -- waiting ---------------------------------------------------------------------------------------


def test_a_fetch_waits_for_records(harness: ShareFetchHarness) -> None:
    member = harness.member()
    waiting = member.begin_fetch(0, max_wait_ms=5_000)
    harness.turn_loop(0.05)
    assert not waiting.done()
    harness.append(TOPIC, batch_of(2))
    assert member.end_fetch(waiting).responses[0].partitions[0].acquired_records


def test_a_fetch_without_records_is_answered_after_max_wait(harness: ShareFetchHarness) -> None:
    member = harness.member()
    assert member.fetch(0, max_wait_ms=100) == {}


def test_a_fetch_waits_for_min_bytes_and_returns_less_after_max_wait(
    harness: ShareFetchHarness,
) -> None:
    member = harness.member()
    waiting = member.begin_fetch(0, max_wait_ms=400, min_bytes=10_000)
    harness.append(TOPIC, batch_of(1, size=100))
    harness.turn_loop(0.05)
    assert not waiting.done()
    other = harness.member("b", connection=2)
    assert ranges(other.fetch(0)[0]) == [(0, 0, 1)], "nobody holds what is not enough"
    harness.append(TOPIC, batch_of(1, size=100))
    assert member.end_fetch(waiting).responses[0].partitions[0].acquired_records


def test_released_records_wake_waiting_fetches(harness: ShareFetchHarness) -> None:
    harness.append(TOPIC, batch_of(2))
    first, second = harness.member("a"), harness.member("b", connection=2)
    first.fetch(0)
    waiting = second.begin_fetch(0, max_wait_ms=5_000)
    harness.turn_loop(0.02)
    assert not waiting.done()
    assert first.acknowledge_partition(batch(0, 1, ACCEPT, RELEASE)).error_code == ErrorCode.NONE
    [[data]] = [topic.partitions for topic in second.end_fetch(waiting).responses]
    assert ranges(data) == [(1, 1, 2)]


def test_an_expired_lock_wakes_waiting_fetches(tmp_path: Path) -> None:
    static = {
        "group.share.min.record.lock.duration.ms": "1000",
        "group.share.record.lock.duration.ms": "1000",
    }
    with ShareFetchHarness(tmp_path, static=static) as harness:
        harness.append(TOPIC, batch_of(2))
        first, second = harness.member("a"), harness.member("b", connection=2)
        response = first.respond(0, max_wait_ms=2_000)
        assert response.acquisition_lock_timeout_ms == 1_000
        assert ranges(second.fetch(0, max_wait_ms=4_000)[0]) == [(0, 1, 2)]
        assert (
            first.acknowledge_partition(batch(0, 0, ACCEPT)).error_code
            == ErrorCode.INVALID_RECORD_STATE
        )


def test_a_released_record_is_delayed_if_the_group_configures_it(tmp_path: Path) -> None:
    with ShareFetchHarness(tmp_path, group={"share.redelivery.delay.ms": "300"}) as harness:
        harness.append(TOPIC, batch_of(1))
        member = harness.member()
        member.fetch(0)
        before = harness.loop.time()
        assert member.acknowledge_partition(batch(0, 0, RELEASE)).error_code == ErrorCode.NONE
        assert ranges(member.fetch(max_wait_ms=4_000)[0]) == [(0, 0, 2)]
        assert harness.loop.time() - before >= 0.3


def test_an_acknowledgement_makes_room_in_a_full_window(tmp_path: Path) -> None:
    with ShareFetchHarness(tmp_path, group={"share.partition.max.record.locks": "100"}) as harness:
        harness.append(TOPIC, batch_of(150))
        first, second = harness.member("a"), harness.member("b", connection=2)
        assert ranges(first.fetch(0)[0]) == [(0, 99, 1)]
        waiting = second.begin_fetch(0, max_wait_ms=5_000)
        harness.turn_loop(0.02)
        assert not waiting.done()
        first.acknowledge_partition(batch(0, 9, ACCEPT))
        [[data]] = [topic.partitions for topic in second.end_fetch(waiting).responses]
        assert ranges(data) == [(100, 109, 1)]


# -- acknowledgements ------------------------------------------------------------------------------


def test_acknowledgements_in_a_fetch_have_their_own_results(
    harness: ShareFetchHarness,
) -> None:
    harness.append(TOPIC, batch_of(4))
    member = harness.member()
    member.fetch(0)
    found = member.fetch(acknowledge={0: [batch(1, 1, ACCEPT)]}, max_wait_ms=50)[0]
    assert (found.error_code, found.acknowledge_error_code) == (0, 0)
    assert ranges(found) == []
    found = member.fetch(acknowledge={0: [batch(1, 2, ACCEPT)]}, max_wait_ms=50)[0]
    assert found.acknowledge_error_code == ErrorCode.INVALID_RECORD_STATE
    found = member.fetch(acknowledge={0: [batch(3, 2, ACCEPT)]}, max_wait_ms=50)[0]
    assert found.acknowledge_error_code == ErrorCode.INVALID_REQUEST
    assert found.acknowledge_error_message


def test_a_renewal_fetches_nothing(harness: ShareFetchHarness) -> None:
    harness.append(TOPIC, batch_of(2), batch_of(2))
    member = harness.member()
    member.fetch(0, max_records=1)
    found = member.fetch(acknowledge={0: [batch(0, 1, RENEW)]}, is_renewal=True, **NOTHING)[0]
    assert found.acknowledge_error_code == ErrorCode.NONE
    assert ranges(found) == []


@pytest.mark.parametrize("limit", ["max_wait_ms", "min_bytes", "max_bytes", "max_records"])
def test_a_renewal_with_fetch_limits_is_refused_and_keeps_the_session(
    harness: ShareFetchHarness, limit: str
) -> None:
    """KIP-1222."""
    member = harness.member()
    member.respond(0)
    refused = member.respond(epoch=1, is_renewal=True, **{**NOTHING, limit: 1})
    assert refused.error_code == ErrorCode.INVALID_REQUEST
    assert member.respond(epoch=1).error_code == ErrorCode.NONE


def test_an_unknown_acquire_mode_is_refused(harness: ShareFetchHarness) -> None:
    assert harness.member().respond(0, mode=2).error_code == ErrorCode.INVALID_REQUEST


def test_max_bytes_of_0_returns_no_records(harness: ShareFetchHarness) -> None:
    harness.append(TOPIC, batch_of(2))
    member = harness.member()
    assert member.fetch(0, max_bytes=0) == {}
    assert ranges(member.fetch()[0]) == [(0, 1, 1)]


# -- sessions --------------------------------------------------------------------------------------


def test_a_session_epoch_is_checked(harness: ShareFetchHarness) -> None:
    member = harness.member()
    assert member.respond(0).error_code == ErrorCode.NONE
    assert member.respond(epoch=2).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert member.respond(epoch=1).error_code == ErrorCode.NONE
    assert member.respond(epoch=1).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH


def test_an_unknown_session_is_not_found(harness: ShareFetchHarness) -> None:
    assert harness.member().respond(0, epoch=1).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert harness.member().respond(0, epoch=-1).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND


def test_a_new_session_has_nothing_to_acknowledge(harness: ShareFetchHarness) -> None:
    response = harness.member().respond(acknowledge={0: [batch(0, 0, ACCEPT)]})
    assert response.error_code == ErrorCode.INVALID_REQUEST


def test_sessions_are_limited(tmp_path: Path) -> None:
    static = {"group.share.max.share.sessions": "1"}
    with ShareFetchHarness(tmp_path, static=static) as harness:
        assert harness.member("a").respond(0).error_code == ErrorCode.NONE
        response = harness.member("b", connection=2).respond(0)
        assert response.error_code == ErrorCode.SHARE_SESSION_LIMIT_REACHED


def test_closing_a_session_does_not_count_the_delivery_of_its_records(
    harness: ShareFetchHarness,
) -> None:
    harness.append(TOPIC, batch_of(3))
    first, second = harness.member("a"), harness.member("b", connection=2)
    first.fetch(0)
    second.fetch(1, max_wait_ms=0)
    found = first.fetch(acknowledge={0: [batch(0, 0, ACCEPT)]}, epoch=-1)[0]
    assert found.acknowledge_error_code == ErrorCode.NONE
    assert ranges(second.fetch(0)[0]) == [(1, 2, 1)]
    assert first.respond(epoch=2).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND


def test_a_lost_connection_ends_the_session_and_releases_the_locks(
    harness: ShareFetchHarness,
) -> None:
    harness.append(TOPIC, batch_of(3))
    first, second = harness.member("a"), harness.member("b", connection=2)
    first.fetch(0)
    waiting = second.begin_fetch(0, max_wait_ms=5_000)
    harness.disconnect(1)
    [[data]] = [topic.partitions for topic in second.end_fetch(waiting).responses]
    assert ranges(data) == [(0, 2, 2)], "they may have been delivered"
    assert first.respond(epoch=1).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND


def test_a_waiting_fetch_of_a_lost_connection_acquires_nothing(harness: ShareFetchHarness) -> None:
    member = harness.member("a")
    waiting = member.begin_fetch(0, max_wait_ms=5_000)
    harness.turn_loop(0.02)
    harness.disconnect(1)
    assert member.end_fetch(waiting).responses == []
    harness.append(TOPIC, batch_of(1))
    assert ranges(harness.member("b", connection=2).fetch(0)[0]) == [(0, 0, 1)]


def test_forgotten_partitions_keep_their_locks(harness: ShareFetchHarness) -> None:
    for partition in range(2):
        harness.append(TOPIC, batch_of(2), batch_of(2), partition=partition)
    member = harness.member()
    member.fetch(0, 1, max_records=1)
    assert list(member.fetch(forget=[0], max_records=100)) == [1]
    assert member.acknowledge_partition(batch(0, 1, ACCEPT)).error_code == ErrorCode.NONE


def test_the_last_session_of_a_group_drops_its_share_partitions(harness: ShareFetchHarness) -> None:
    harness.append(TOPIC, batch_of(3))
    member = harness.member()
    member.fetch(0)
    member.acknowledge_partition(batch(0, 0, ACCEPT))
    assert harness.led.count == 1
    member.respond(epoch=-1)
    harness.turn_loop(0.05)
    assert harness.led.count == 0
    assert ranges(harness.member().fetch(0)[0]) == [(1, 2, 1)]


# -- errors ----------------------------------------------------------------------------------------


def test_a_request_without_group_or_member_id_is_refused(harness: ShareFetchHarness) -> None:
    assert harness.member("").respond(0).error_code == ErrorCode.INVALID_REQUEST
    assert harness.member(group="").respond(0).error_code == ErrorCode.INVALID_REQUEST


def test_a_denied_group_is_refused(harness: ShareFetchHarness) -> None:
    harness.deny(AclOperation.READ, ResourceType.GROUP, GROUP)
    assert harness.member().respond(0).error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED


def test_each_partition_has_its_own_error(harness: ShareFetchHarness) -> None:
    assert harness.member("a").fetch(7)[7].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    found = harness.member("b").fetch(0, topic_id=NOBODY)
    assert found[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    harness.deny(AclOperation.READ, ResourceType.TOPIC, TOPIC)
    assert harness.member("c").fetch(0)[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_the_current_leader_is_named_with_its_endpoint(harness: ShareFetchHarness) -> None:
    harness.lead(TOPIC, epoch=5, leader=3)
    response = harness.member().respond(0)
    [[data]] = [topic.partitions for topic in response.responses]
    assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (data.current_leader.leader_id, data.current_leader.leader_epoch) == (3, 5)


def test_a_leader_elected_again_reads_the_state_again(harness: ShareFetchHarness) -> None:
    harness.append(TOPIC, batch_of(4))
    member = harness.member()
    member.fetch(0)
    assert member.acknowledge_partition(batch(0, 1, ACCEPT)).error_code == ErrorCode.NONE
    harness.lead(TOPIC, epoch=1)
    assert (
        member.acknowledge_partition(batch(2, 2, ACCEPT)).error_code
        == ErrorCode.INVALID_RECORD_STATE
    )
    assert ranges(member.fetch()[0]) == [(2, 3, 1)]


def test_a_waiting_fetch_is_answered_when_its_topic_is_deleted(harness: ShareFetchHarness) -> None:
    member = harness.member()
    waiting = member.begin_fetch(0, max_wait_ms=5_000)
    harness.turn_loop(0.02)
    harness.controller.do(DeleteTopics((TopicReference(TOPIC),)))
    harness.follow()
    harness.services.fetch_purgatory.wake_all()
    [[data]] = [topic.partitions for topic in member.end_fetch(waiting).responses]
    assert data.error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_a_rejected_record_is_not_delivered_again(harness: ShareFetchHarness) -> None:
    harness.append(TOPIC, batch_of(2))
    member = harness.member()
    member.fetch(0)
    assert member.acknowledge_partition(batch(0, 1, REJECT, RELEASE)).error_code == ErrorCode.NONE
    assert ranges(member.fetch()[0]) == [(1, 1, 2)]


def test_a_group_without_a_state_does_not_wake_fetches_of_other_groups(
    harness: ShareFetchHarness,
) -> None:
    member = harness.member("a")
    waiting = member.begin_fetch(0, max_wait_ms=3_000)
    harness.turn_loop(0.05)
    [parked] = harness.services.fetch_purgatory._parked
    # Its state is requested repeatedly meanwhile.
    stranger = harness.member("b", connection=2, group="of nobody")
    assert not stranger.respond(0, max_wait_ms=250).responses
    assert list(harness.services.fetch_purgatory._parked) == [parked]
    harness.append(TOPIC, batch_of(1))
    assert member.end_fetch(waiting).responses
