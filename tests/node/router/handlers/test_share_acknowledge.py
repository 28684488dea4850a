"""ShareAcknowledge as members see it (B.13): results, errors and their messages."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.cluster.metadata.acls import AclOperation, ResourceType
from odradek.coordinator.share.requests import InitializeShareState, ShareKey
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.share import AcknowledgementBatch
from tests.support.share_fetching import (
    ACCEPT,
    REJECT,
    RELEASE,
    RENEW,
    ShareFetchHarness,
    ShareFetchMember,
    batch,
    ranges,
)
from tests.support.share_harness import GROUP, TOPIC
from tests.support.stores import batch_of

NOBODY = b"\x09" * 16


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[ShareFetchHarness]:
    with ShareFetchHarness(tmp_path) as harness:
        yield harness


@pytest.fixture
def member(harness: ShareFetchHarness) -> ShareFetchMember:
    """A member that has acquired the records 0 to 9."""
    harness.append(TOPIC, batch_of(10))
    member = harness.member()
    member.fetch(0)
    return member


@pytest.mark.parametrize("version", [1, 2])
def test_acknowledgements_are_durable(
    harness: ShareFetchHarness, member: ShareFetchMember, version: int
) -> None:
    data = member.acknowledge_partition(
        batch(0, 4, ACCEPT), batch(6, 7, RELEASE, REJECT), version=version
    )
    assert data.error_code == ErrorCode.NONE
    harness.restart_router()
    harness.disconnect(1)
    assert ranges(harness.member("b", connection=2).fetch(0)[0]) == [
        (5, 5, 1),
        (6, 6, 2),
        (8, 9, 1),
    ]


def test_the_lock_timeout_is_returned_since_version_2(member: ShareFetchMember) -> None:
    assert member.acknowledge(batch(0, 0, ACCEPT)).acquisition_lock_timeout_ms == 30_000


@pytest.mark.parametrize(
    "batches",
    [
        [batch(4, 3, ACCEPT)],
        [batch(0, 4, ACCEPT), batch(4, 5, ACCEPT)],
        [batch(5, 6, ACCEPT), batch(0, 1, ACCEPT)],
        [batch(0, 4)],
        [batch(0, 4, ACCEPT, ACCEPT)],
        [batch(0, 0, 9)],
        [batch(0, 0, RENEW)],
        [batch(0, 10, ACCEPT)],
    ],
    ids=["backwards", "overlap", "order", "no type", "few types", "type", "renewal", "behind"],
)
def test_invalid_batches_are_an_invalid_request(
    member: ShareFetchMember, batches: list[AcknowledgementBatch]
) -> None:
    assert member.acknowledge_partition(*batches).error_code == ErrorCode.INVALID_REQUEST
    assert member.acknowledge_partition(batch(0, 9, ACCEPT)).error_code == ErrorCode.NONE, (
        "nothing was taken"
    )


def test_a_record_of_another_member_fails_the_whole_partition(
    harness: ShareFetchHarness, member: ShareFetchMember
) -> None:
    other = harness.member("b", connection=2)
    other.fetch(0, max_wait_ms=0)
    assert (
        other.acknowledge_partition(batch(0, 9, ACCEPT)).error_code
        == ErrorCode.INVALID_RECORD_STATE
    )
    member.acknowledge_partition(batch(3, 3, ACCEPT))
    data = member.acknowledge_partition(batch(1, 1, ACCEPT), batch(3, 4, ACCEPT))
    assert data.error_code == ErrorCode.INVALID_RECORD_STATE
    assert member.acknowledge_partition(batch(1, 1, ACCEPT)).error_code == ErrorCode.NONE


def test_a_lock_is_renewed_unless_the_group_forbids_it(
    harness: ShareFetchHarness, member: ShareFetchMember
) -> None:
    assert (
        member.acknowledge_partition(batch(0, 9, RENEW), is_renewal=True).error_code
        == ErrorCode.NONE
    )
    harness.configure(GROUP, {"share.renew.acknowledge.enable": "false"})
    data = member.acknowledge_partition(batch(0, 9, RENEW), is_renewal=True)
    assert data.error_code == ErrorCode.INVALID_REQUEST
    assert data.error_message


def test_the_session_is_checked_first(harness: ShareFetchHarness, member: ShareFetchMember) -> None:
    accept = batch(0, 0, ACCEPT)
    stranger = harness.member("b", connection=2)
    for epoch, code in (
        (1, ErrorCode.SHARE_SESSION_NOT_FOUND),
        (-1, ErrorCode.SHARE_SESSION_NOT_FOUND),
        (0, ErrorCode.INVALID_SHARE_SESSION_EPOCH),
    ):
        assert stranger.acknowledge(accept, epoch=epoch).error_code == code
    response = member.acknowledge(accept, epoch=7)
    assert response.error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert member.acknowledge(accept, epoch=1).error_code == ErrorCode.NONE


def test_the_last_acknowledgement_closes_the_session(
    harness: ShareFetchHarness, member: ShareFetchMember
) -> None:
    assert member.acknowledge_partition(batch(0, 4, ACCEPT), epoch=-1).error_code == ErrorCode.NONE
    response = member.acknowledge(epoch=2)
    assert response.error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert ranges(harness.member("b", connection=2).fetch(0)[0]) == [(5, 9, 1)]


def test_each_partition_has_its_own_error(
    harness: ShareFetchHarness, member: ShareFetchMember
) -> None:
    accept = batch(0, 0, ACCEPT)
    assert (
        member.acknowledge_partition(accept, topic_id=NOBODY).error_code
        == ErrorCode.UNKNOWN_TOPIC_ID
    )
    data = member.acknowledge_partition(accept, partition=7)
    assert data.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (
        member.acknowledge_partition(accept, partition=1).error_code
        == ErrorCode.INVALID_RECORD_STATE
    )
    harness.deny(AclOperation.READ, ResourceType.TOPIC, TOPIC)
    assert member.acknowledge_partition(accept).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    harness.deny(AclOperation.READ, ResourceType.GROUP, GROUP)
    assert member.acknowledge(accept).error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED


def test_the_current_leader_is_named(harness: ShareFetchHarness, member: ShareFetchMember) -> None:
    harness.lead(TOPIC, epoch=4, leader=3)
    data = member.acknowledge_partition(batch(0, 0, ACCEPT))
    assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (data.current_leader.leader_id, data.current_leader.leader_epoch) == (3, 4)


def test_a_reinitialized_state_is_read_again(
    harness: ShareFetchHarness, member: ShareFetchMember
) -> None:
    states = harness.services.share_persister
    harness.result(
        states.call(
            InitializeShareState(
                ShareKey(GROUP, harness.topic_id, 0), state_epoch=2, start_offset=6
            )
        )
    )
    assert (
        member.acknowledge_partition(batch(0, 0, ACCEPT)).error_code == ErrorCode.FENCED_STATE_EPOCH
    )
    assert ranges(member.fetch()[0]) == [(6, 9, 1)]


def test_dropping_a_share_partition_ends_its_locks(
    harness: ShareFetchHarness, member: ShareFetchMember
) -> None:
    states = harness.services.share_persister
    harness.result(
        states.call(
            InitializeShareState(
                ShareKey(GROUP, harness.topic_id, 0), state_epoch=2, start_offset=6
            )
        )
    )
    harness.led.forget(GROUP, list(harness.led.hosted(GROUP)))
    assert (
        member.acknowledge_partition(batch(0, 0, ACCEPT)).error_code
        == ErrorCode.INVALID_RECORD_STATE
    )
    assert ranges(member.fetch()[0]) == [(6, 9, 1)]
