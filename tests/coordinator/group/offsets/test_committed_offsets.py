"""Committed offsets: commit, fetch, delete, expire."""

import pytest

from odradek.coordinator.group.offsets.committed_offsets import refused_commit
from odradek.coordinator.group.offsets.records import CommittedOffset, OffsetCommitRecord
from odradek.coordinator.group.records import decode
from odradek.coordinator.group.settings import GroupSettings
from odradek.protocol.consumer_protocol import ConsumerProtocolSubscription
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from odradek.protocol.messages.groups import MemberIdentity
from tests.support.group_playbook import START_MS, Playbook
from tests.support.subscriptions import encode_subscription

ID = b"topic id no. one"
OTHER_ID = b"topic id no. two"
DAY_MS = 24 * 3_600_000
RETENTION_MS = 7 * DAY_MS
READS_T = [("range", encode_subscription(ConsumerProtocolSubscription(topics=["t"]), 1))]


def written(play: Playbook) -> list[tuple[str, int, CommittedOffset | None]]:
    """All offsets in the log, tombstones too."""
    records = [decode(key, value) for key, value in play.log]
    return [
        (record.topic, record.partition, record.committed)
        for record in records
        if isinstance(record, OffsetCommitRecord)
    ]


# -- commit and fetch -----------------------------------------------------------------------------


def test_a_fetch_returns_all_fields_of_a_commit() -> None:
    play = Playbook()
    play.commit({("t", 3): 42}, metadata="remember me", leader_epoch=7, topic_id=ID)
    fetched = play.fetch("t", 3, topic_id=ID)
    assert fetched.committed_offset == 42
    assert fetched.committed_leader_epoch == 7
    assert fetched.metadata == "remember me"
    assert fetched.error_code == ErrorCode.NONE
    play.reload()
    assert play.fetch("t", 3, topic_id=ID) == fetched


def test_a_missing_offset_is_not_an_error() -> None:
    fetched = Playbook().fetch("t", 0)
    assert (fetched.committed_offset, fetched.committed_leader_epoch) == (-1, -1)
    assert fetched.metadata == ""
    assert fetched.error_code == ErrorCode.NONE


def test_all_offsets_of_a_group_are_sorted_by_topic() -> None:
    play = Playbook()
    play.commit({("t", 1): 1, ("a", 0): 2, ("t", 0): 3})
    play.commit({("t", 0): 9}, group="other")
    assert list(play.fetch_all().items()) == [(("a", 0), 2), (("t", 0), 3), (("t", 1), 1)]
    assert play.fetch_all(group="none") == {}


def test_fetches_read_committed_state_only() -> None:
    play = Playbook()
    play.commit({("t", 0): 1})
    play.hold_log()
    call = play.commit_call({("t", 0): 2, ("t", 1): 2})
    assert call.is_parked
    assert play.fetch_all() == {("t", 0): 1}
    assert play.fetch("t", 0).committed_offset == 1
    play.release_log()
    assert play.fetch_all() == {("t", 0): 2, ("t", 1): 2}


def test_a_failed_append_reverts_a_commit() -> None:
    play = Playbook()
    play.commit({("t", 0): 1})
    play.hold_log()
    call = play.commit_call({("t", 0): 2})
    play.fail_log(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert call.refused_with == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert play.fetch("t", 0).committed_offset == 1


def test_null_metadata_is_stored_as_empty() -> None:
    play = Playbook()
    play.commit({("t", 0): 1}, metadata=None)
    assert play.fetch("t", 0).metadata == ""


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ("x" * 4_096, ErrorCode.NONE),
        ("x" * 4_097, ErrorCode.OFFSET_METADATA_TOO_LARGE),
        # Java counts UTF-16 units: two for each of these, one for each umlaut.
        ("😀" * 2_048, ErrorCode.NONE),
        ("😀" * 2_049, ErrorCode.OFFSET_METADATA_TOO_LARGE),
        ("ä" * 4_096, ErrorCode.NONE),
    ],
)
def test_metadata_is_bounded(metadata: str, expected: ErrorCode) -> None:
    play = Playbook()
    assert play.commit({("t", 0): 1}, metadata=metadata) == expected
    assert play.fetch("t", 0).committed_offset == (1 if expected is ErrorCode.NONE else -1)


def test_partitions_fail_one_by_one() -> None:
    play = Playbook()
    request = OffsetCommitRequest(
        group_id="g",
        topics=[
            OffsetCommitRequestTopic(
                name="t",
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=index, committed_offset=5, committed_metadata="x" * length
                    )
                    for index, length in enumerate((0, 9_999))
                ],
            )
        ],
    )
    [topic] = play.ask(request, version=9).response(OffsetCommitResponse).topics
    assert [partition.error_code for partition in topic.partitions] == [
        ErrorCode.NONE,
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
    ]
    assert play.fetch_all() == {("t", 0): 5}


def test_only_a_commit_that_is_too_large_for_a_batch_is_refused() -> None:
    play = Playbook(batch_bytes_max=10_000)
    call = play.commit_call({("t", index): 1 for index in range(10)}, metadata="x" * 4_000)
    assert call.refused_with == ErrorCode.MESSAGE_TOO_LARGE
    assert play.commit({("t", 0): 1}) == ErrorCode.NONE


# -- who may commit -------------------------------------------------------------------------------


def test_simple_commits_are_for_groups_without_members() -> None:
    play = Playbook()
    assert play.commit({("t", 0): 1}) == ErrorCode.NONE
    assert play.commit({("t", 0): 2}) == ErrorCode.NONE
    [member] = play.stable()
    assert play.commit({("t", 0): 3}) == ErrorCode.UNKNOWN_MEMBER_ID
    play.join(member, protocols=[("range", b"new")])
    assert play.state() == "CompletingRebalance"
    assert play.commit({("t", 0): 3}) == ErrorCode.UNKNOWN_MEMBER_ID
    play.join(play.give_id())
    assert play.state() == "PreparingRebalance"
    assert play.commit({("t", 0): 3}) == ErrorCode.UNKNOWN_MEMBER_ID
    play.leave(MemberIdentity(member_id=member))
    assert play.fetch("t", 0).committed_offset == 2


def test_old_clients_may_commit_under_the_empty_group_id() -> None:
    play = Playbook()
    assert play.commit({("t", 0): 1}, group="") == ErrorCode.NONE
    assert play.fetch("t", 0, group="").committed_offset == 1
    assert play.delete_group("").error_code == ErrorCode.NONE


@pytest.mark.parametrize(
    ("version", "expected"),
    [(9, ErrorCode.GROUP_ID_NOT_FOUND), (8, ErrorCode.ILLEGAL_GENERATION)],
)
def test_a_generation_of_an_unknown_group_is_refused(version: int, expected: ErrorCode) -> None:
    play = Playbook()
    error = play.commit({("t", 0): 1}, member_id="x", generation_id=1, version=version)
    assert error == expected


def test_a_generation_in_a_group_with_offsets_only_is_an_unknown_member() -> None:
    play = Playbook()
    play.commit({("t", 0): 1})
    error = play.commit({("t", 0): 1}, member_id="x", generation_id=1)
    assert error == ErrorCode.UNKNOWN_MEMBER_ID


def test_members_commit_by_state() -> None:
    play = Playbook()
    [member] = play.stable()
    assert play.commit({("t", 0): 1}, member_id=member, generation_id=1) == ErrorCode.NONE
    assert play.commit({("t", 0): 1}, member_id="x", generation_id=1) == (
        ErrorCode.UNKNOWN_MEMBER_ID
    )
    assert play.commit({("t", 0): 1}, member_id=member, generation_id=0) == (
        ErrorCode.ILLEGAL_GENERATION
    )
    assert play.commit({("t", 0): 1}, member_id=member, generation_id=-1) == (
        ErrorCode.ILLEGAL_GENERATION
    )
    other = play.give_id()
    joining = play.join(other)
    assert play.state() == "PreparingRebalance"
    assert play.commit({("t", 0): 2}, member_id=member, generation_id=1) == ErrorCode.NONE
    play.join(member)
    assert not joining.is_parked
    assert play.commit({("t", 0): 3}, member_id=member, generation_id=2) == (
        ErrorCode.REBALANCE_IN_PROGRESS
    )
    assert play.commit({("t", 0): 3}, member_id=member, generation_id=1) == (
        ErrorCode.ILLEGAL_GENERATION
    )
    assert play.fetch("t", 0).committed_offset == 2


# -- topic ids ------------------------------------------------------------------------------------


def test_an_offset_of_an_earlier_topic_of_the_same_name_is_ignored() -> None:
    play = Playbook()
    play.commit({("t", 0): 5}, topic_id=ID)
    assert play.fetch("t", 0, topic_id=OTHER_ID).committed_offset == -1
    assert play.fetch("t", 0, topic_id=ID).committed_offset == 5
    assert play.fetch("t", 0).committed_offset == 5


def test_offsets_of_deleted_topics_are_dropped_from_all_groups() -> None:
    play = Playbook()
    play.commit({("t", 0): 1, ("u", 0): 2}, topic_id=ID)
    play.commit({("t", 0): 3}, group="other")
    play.commit({("t", 0): 4}, group="newer", topic_id=OTHER_ID)
    play.forget_topics(("t", ID))
    assert play.fetch_all() == {("u", 0): 2}
    assert play.fetch_all(group="other") == {}
    assert play.fetch_all(group="newer") == {("t", 0): 4}
    assert written(play)[-2:] == [("t", 0, None), ("t", 0, None)]


def test_tombstones_may_be_in_several_batches() -> None:
    play = Playbook(batch_bytes_max=2_000)
    for index in range(100):
        play.commit({("t", index): 1})
    play.forget_topics(("t", ID))
    assert play.fetch_all() == {}
    play.reload()
    assert play.fetch_all() == {}


# -- OffsetDelete ---------------------------------------------------------------------------------


def test_offsets_of_topics_without_subscription_are_deleted() -> None:
    play = Playbook()
    [member] = play.stable(protocols=READS_T)
    play.commit({("t", 0): 1, ("u", 0): 2, ("u", 1): 3}, member_id=member, generation_id=1)
    refused = play.delete_offsets("t", 0)
    assert refused.error_code == ErrorCode.NONE
    assert refused.topics[0].partitions[0].error_code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    done = play.delete_offsets("u", 0, 7)
    assert [p.error_code for p in done.topics[0].partitions] == [ErrorCode.NONE, ErrorCode.NONE]
    assert play.fetch_all() == {("t", 0): 1, ("u", 1): 3}
    play.leave(MemberIdentity(member_id=member))
    assert play.delete_offsets("t", 0).topics[0].partitions[0].error_code == ErrorCode.NONE
    assert play.fetch_all() == {("u", 1): 3}


def test_an_unknown_subscription_may_be_to_any_topic() -> None:
    play = Playbook()
    play.stable(protocols=[("range", b"\x00")])
    refused = play.delete_offsets("t", 0)
    assert refused.topics[0].partitions[0].error_code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC


def test_groups_of_another_protocol_type_must_be_empty() -> None:
    play = Playbook()
    play.stable(protocol_type="connect")
    assert play.delete_offsets("t", 0).error_code == ErrorCode.NON_EMPTY_GROUP


def test_offset_delete_needs_an_existing_group() -> None:
    play = Playbook()
    assert play.delete_offsets("t", 0).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert play.delete_offsets("t", 0, group="").error_code == ErrorCode.INVALID_GROUP_ID
    play.commit({("t", 0): 1})
    assert play.delete_offsets("t", 0).error_code == ErrorCode.NONE


# -- expiry ---------------------------------------------------------------------------------------


def test_offsets_of_a_simple_group_expire_after_their_commit() -> None:
    play = Playbook()
    play.commit({("t", 0): 1})
    play.tick(DAY_MS)
    play.commit({("t", 1): 2})
    play.tick(RETENTION_MS - DAY_MS + 600_000)
    assert play.fetch_all() == {("t", 1): 2}
    play.tick(DAY_MS)
    assert play.fetch_all() == {}
    assert play.list_groups() == {}
    assert written(play)[-1] == ("t", 1, None)


def test_offsets_of_an_empty_group_expire_after_it_became_empty() -> None:
    play = Playbook()
    [member] = play.stable(session_ms=1_800_000)
    play.commit({("t", 0): 1}, member_id=member, generation_id=1)
    for _ in range(8 * 24 * 4):
        play.tick(900_000)
        play.heartbeat(member, 1)
    play.leave(MemberIdentity(member_id=member))
    play.tick(RETENTION_MS - 600_000)
    assert play.fetch_all() == {("t", 0): 1}
    play.tick(2 * 600_000)
    assert play.fetch_all() == {}
    assert play.describe().group_state == "Dead"
    play.reload()
    assert play.list_groups() == {}


def test_old_offsets_of_topics_without_subscription_expire_in_a_stable_group() -> None:
    play = Playbook(GroupSettings(initial_rebalance_delay_ms=0, offsets_retention_ms=1_000_000))
    [member] = play.stable(protocols=READS_T, session_ms=1_800_000)
    play.commit({("t", 0): 1, ("u", 0): 2}, member_id=member, generation_id=1)
    play.tick(900_000)
    play.heartbeat(member, 1)
    play.tick(900_000)
    assert play.state() == "Stable"
    assert play.fetch_all() == {("t", 0): 1}


def test_no_offset_expires_during_a_rebalance_or_with_unknown_subscriptions() -> None:
    settings = GroupSettings(initial_rebalance_delay_ms=0, offsets_retention_ms=1_000)
    play = Playbook(settings)
    [member] = play.stable(protocol_type="connect", session_ms=1_800_000)
    play.commit({("t", 0): 1}, member_id=member, generation_id=1)
    play.tick(1_200_000)
    assert play.fetch_all() == {("t", 0): 1}


def test_a_commit_with_its_own_retention_expires_after_it() -> None:
    play = Playbook()
    play.commit({("t", 0): 1}, version=3, retention_ms=3_600_000)
    play.commit({("t", 1): 1})
    play.reload()
    play.tick(3_600_000 + 600_000)
    assert play.fetch_all() == {("t", 1): 1}


def test_a_retention_may_exceed_the_largest_timestamp() -> None:
    play = Playbook()
    play.commit({("t", 0): 1}, version=3, retention_ms=2**63 - 1)
    play.reload()
    play.tick(4_200_000)
    assert play.fetch_all() == {("t", 0): 1}


def test_version_1_has_the_time_of_the_commit() -> None:
    play = Playbook()
    partition = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, commit_timestamp=123, committed_metadata=""
    )
    topics = [OffsetCommitRequestTopic(name="t", partitions=[partition])]
    play.ask(OffsetCommitRequest(group_id="g", topics=topics), version=1)
    assert [o.commit_timestamp_ms for _, _, o in written(play) if o is not None] == [123]
    play.commit({("t", 0): 2})
    assert [o.commit_timestamp_ms for _, _, o in written(play) if o is not None][1] == START_MS


def test_many_groups_are_checked_in_slices() -> None:
    play = Playbook(GroupSettings(offsets_retention_ms=1))
    for index in range(1_500):
        play.commit({("t", 0): 1, ("t", 1): 1}, group=f"g{index}")
    play.tick(600_000)
    assert 0 < len(play.list_groups()) < 1_500
    play.tick(10)
    assert play.list_groups() == {}


def test_a_refused_commit_refuses_every_partition() -> None:
    partitions = [OffsetCommitRequestPartition(partition_index=index) for index in (1, 2)]
    topics = [OffsetCommitRequestTopic(name="t", partitions=partitions)]
    refused = refused_commit(OffsetCommitRequest(topics=topics), ErrorCode.STALE_MEMBER_EPOCH)
    codes = [partition.error_code for partition in refused.topics[0].partitions]
    assert codes == [ErrorCode.STALE_MEMBER_EPOCH] * 2
