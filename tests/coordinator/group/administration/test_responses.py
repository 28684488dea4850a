"""Answers that need no more than what they are given."""

import pytest

from odradek.coordinator.group.administration.group_cleanup import offset_expiration
from odradek.coordinator.group.administration.responses import (
    described_dead,
    matches_filters,
    no_consumer_group,
)
from odradek.coordinator.group.classic.groups import unknown_group_error
from odradek.coordinator.group.classic.records import GroupMetadata
from odradek.coordinator.group.deleted_groups import deleted_group
from odradek.coordinator.group.offsets.committed_offsets import OffsetExpiration, refused_commit
from odradek.coordinator.outcome import Command, respond
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from odradek.protocol.messages.groups import ListedGroup, ListGroupsRequest


def test_answers_wait_for_what_was_written_before_and_reads_do_not() -> None:
    command = Command(request=None, request_id=7)
    assert [reply.is_immediate for reply in respond(command, "x").replies] == [False]
    assert [reply.is_immediate for reply in respond(command, "x", is_immediate=True).replies] == [
        True
    ]


def test_an_unknown_group_is_dead_and_an_error_since_version_6() -> None:
    old, new = described_dead("g", 5, "why"), described_dead("g", 6, "why")
    assert (old.group_state, old.error_code, old.error_message) == ("Dead", 0, None)
    assert (new.group_state, new.error_message) == ("Dead", "why")
    assert new.error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_group_of_another_kind_is_no_consumer_group() -> None:
    assert "is not a consumer group" in (no_consumer_group("g", exists=True).error_message or "")
    assert "not found" in (no_consumer_group("g", exists=False).error_message or "")


def test_a_member_without_a_group_is_unknown_and_without_a_group_id_invalid() -> None:
    assert unknown_group_error("g") is ErrorCode.UNKNOWN_MEMBER_ID
    assert unknown_group_error("") is ErrorCode.INVALID_GROUP_ID


def test_a_refused_commit_refuses_every_partition() -> None:
    partitions = [OffsetCommitRequestPartition(partition_index=index) for index in (1, 2)]
    topics = [OffsetCommitRequestTopic(name="t", partitions=partitions)]
    refused = refused_commit(OffsetCommitRequest(topics=topics), ErrorCode.STALE_MEMBER_EPOCH)
    codes = [partition.error_code for partition in refused.topics[0].partitions]
    assert codes == [ErrorCode.STALE_MEMBER_EPOCH] * 2


@pytest.mark.parametrize(
    ("states", "types", "is_let_through"),
    [
        ([], [], True),
        (["STABLE"], ["Consumer"], True),
        (["empty"], [], False),
        ([], ["classic"], False),
    ],
)
def test_filters_know_no_capital_letters(
    states: list[str], types: list[str], is_let_through: bool
) -> None:
    group = ListedGroup(group_id="g", group_state="Stable", group_type="consumer")
    request = ListGroupsRequest(states_filter=states, types_filter=types)
    assert matches_filters(group, request) is is_let_through


def test_offsets_expire_by_what_their_group_is() -> None:
    assert offset_expiration(None, None, frozenset({"a"})) == OffsetExpiration(
        None, frozenset({"a"})
    )
    assert offset_expiration(None, None, None) == OffsetExpiration(None)
    empty = GroupMetadata(protocol_type="consumer", state_timestamp_ms=5)
    assert offset_expiration(None, empty, None) == OffsetExpiration(5)


def test_a_deleted_group_has_no_message_and_one_that_stays_has() -> None:
    assert deleted_group("g", ErrorCode.NONE).error_message is None
    stays = deleted_group("g", ErrorCode.NON_EMPTY_GROUP)
    assert (stays.group_id, stays.error_code) == ("g", ErrorCode.NON_EMPTY_GROUP)
    assert stays.error_message == ErrorCode.NON_EMPTY_GROUP.message
