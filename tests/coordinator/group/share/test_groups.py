"""Share groups of a shard: states of partitions, groups of other types, deletion."""

import pytest

from odradek.cluster.metadata.group_settings import ShareGroupSettings
from odradek.coordinator.group.requests import CommitInTransaction
from odradek.coordinator.group.settings import GroupSettings
from odradek.coordinator.group.share.groups import STATE_RETRY_MS
from odradek.coordinator.group.share.requests import (
    DeleteStates,
    FindShareStates,
    InitializeStates,
    StatesInitialized,
)
from odradek.coordinator.timeline import TimelineTable
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.group_offsets import OffsetDeleteRequest, OffsetDeleteResponse
from odradek.protocol.messages.groups import DeletableGroupResult
from odradek.protocol.messages.share import (
    AlterShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponse,
    ShareGroupHeartbeatResponse,
)
from odradek.protocol.messages.transactions import TxnOffsetCommitRequest
from tests.support.consumer_playbook import id_of, image_of
from tests.support.group_playbook import GroupCall
from tests.support.share_group_playbook import SESSION_MS, ShareConsumerMember, ShareStage, settle

A = id_of("a")


def group_without_members(topics: dict[str, int] | None = None) -> ShareStage:
    """A shard with a group that has states and no members."""
    stage = ShareStage(topics)
    member = ShareConsumerMember(stage, "m", topics=[*(topics or ("a",))])
    settle(stage, member)
    stage.share("m", -1)
    return stage


# -- states ---------------------------------------------------------------------------------------


def test_states_are_initialized_once_without_a_start_offset() -> None:
    stage = ShareStage({"a": 2})
    stage.share("m")
    stage.share("n")
    assert stage.sent == [InitializeStates("s", 2, {A: {0: -1, 1: -1}})]


def test_a_failed_initialization_is_retried_in_a_later_epoch() -> None:
    stage = ShareStage({"a": 1, "b": 1})
    member = ShareConsumerMember(stage, "m", topics=["a", "b"])
    member.send_heartbeat()
    stage.keep_states({"a": ErrorCode.COORDINATOR_NOT_AVAILABLE})
    member.send_heartbeat()
    assert member.reads == {"b": [0]}
    assert stage.sent == []
    stage.tick(STATE_RETRY_MS)
    assert stage.sent == [InitializeStates("s", 4, {A: {0: -1}})]
    settle(stage, member)
    assert member.reads == {"a": [0], "b": [0]}


def test_incomplete_initializations_are_repeated_after_a_load() -> None:
    stage = ShareStage({"a": 1})
    stage.share("m")
    late = stage.sent[0]
    stage.reload()
    stage.tick(0)
    [again] = stage.sent
    assert isinstance(again, InitializeStates)
    assert again.state_epoch == 3
    stage.keep_states()
    response = stage.share("m", 2)
    assert stage.assigned(response) == {"a": [0]}
    # The attempt of the previous coordinator is fenced.
    assert isinstance(late, InitializeStates)
    assert stage._keep(late, A, 0) == ErrorCode.FENCED_STATE_EPOCH


def test_partitions_that_are_added_get_their_states() -> None:
    stage = ShareStage({"a": 1})
    member = ShareConsumerMember(stage, "m")
    settle(stage, member)
    stage.topics({"a": 3})
    assert stage.sent == [InitializeStates("s", stage.shares().epoch, {A: {1: -1, 2: -1}})]
    settle(stage, member)
    assert member.reads == {"a": [0, 1, 2]}


def test_topics_that_do_not_exist_are_no_error_and_are_read_once_they_do() -> None:
    stage = ShareStage({})
    member = ShareConsumerMember(stage, "m", topics=("later",))
    settle(stage, member)
    assert member.reads == {}
    stage.topics({"later": 2})
    settle(stage, member)
    assert member.reads == {"later": [0, 1]}


def test_the_states_of_a_deleted_topic_are_forgotten() -> None:
    stage = ShareStage({"a": 1, "b": 1})
    member = ShareConsumerMember(stage, "m", topics=["a", "b"])
    settle(stage, member)
    assert stage.shard.shares.topics() == {("a", A), ("b", id_of("b"))}
    stage.topics({"b": 1})
    stage.forget_topics(("a", A))
    settle(stage, member)
    assert member.reads == {"b": [0]}
    assert stage.shard.shares.topics() == {("b", id_of("b"))}


def test_a_topic_deleted_while_the_coordinator_moved_is_found_by_the_next_one() -> None:
    stage = ShareStage({"a": 2, "b": 1})
    member = ShareConsumerMember(stage, "m", topics=["a", "b"])
    settle(stage, member)
    epoch = stage.shares().epoch
    stage.reload()
    stage.catch_up()
    assert stage.shares().epoch == epoch
    stage.image = image_of({"a": 2})
    stage.reload()
    stage.catch_up()
    assert stage.shares().epoch == epoch + 1
    settle(stage, member)
    assert member.reads == {"a": [0, 1]}


@pytest.mark.parametrize(
    "settings",
    [
        GroupSettings(share=ShareGroupSettings(assignment_interval_ms=100)),
        GroupSettings(
            share_overrides={"s": ShareGroupSettings(assignment_interval_ms=100)},
            share=ShareGroupSettings(assignment_interval_ms=9_999),
        ),
    ],
)
def test_a_delayed_target_omits_a_deleted_topic(
    settings: GroupSettings,
) -> None:
    stage = ShareStage({"a": 2}, settings)
    stage.share("m")
    stage.keep_states()
    stage.topics({})
    group = stage.shares()
    assert group.epoch > group.target_epoch
    stage.tick(100)
    assert group.epoch == group.target_epoch
    assert not any(group.target("m").values())


def test_initializations_of_deleted_topics_are_not_repeated_after_a_load() -> None:
    stage = ShareStage({"a": 1})
    stage.share("m")
    stage.image = image_of({})
    stage.reload()
    stage.tick(5 * STATE_RETRY_MS)
    assert stage.sent == []
    stage.forget_topics(("a", A))
    stage.tick(5 * STATE_RETRY_MS)
    assert stage.sent == []
    assert stage.shard.shares.topics() == set()


def test_a_report_about_a_deleted_group_changes_nothing() -> None:
    stage = ShareStage()
    call = stage.ask(StatesInitialized("s", {A: {0: ErrorCode.NONE}}))
    assert not call.is_parked
    assert stage.list_groups() == {}


# -- groups of other kinds ------------------------------------------------------------------------


def test_a_share_group_is_listed_and_described() -> None:
    stage = ShareStage({"a": 2})
    settle(stage, ShareConsumerMember(stage, "m"))
    [listed] = stage.list_groups().values()
    assert (listed.group_type, listed.protocol_type, listed.group_state) == (
        "share",
        "share",
        "Stable",
    )
    described = stage.describe_shares()
    assert (described.group_state, described.assignor_name) == ("Stable", "simple")
    assert described.group_epoch == described.assignment_epoch == 3
    [member] = described.members
    [topic] = member.assignment.topic_partitions
    assert (member.member_id, topic.topic_name, topic.partitions) == ("m", "a", [0, 1])
    stage.share("m", -1)
    assert stage.describe_shares().group_state == "Empty"


def test_describing_a_group_that_is_no_share_group_returns_an_error() -> None:
    stage = ShareStage()
    stage.send_heartbeat("m", group="c")
    for group, message in (
        ("c", "Group c is not a share group."),
        ("none", "Group none not found."),
    ):
        described = stage.describe_shares(group)
        assert described.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert described.error_message == message


def test_members_of_other_protocols_cannot_join_a_share_group() -> None:
    stage = ShareStage()
    stage.share("m")
    for is_empty in (False, True):
        assert stage.join("", group="s", version=3).joined.error_code == (
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        )
        heartbeat = stage.send_heartbeat("m", group="s")
        assert heartbeat.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert heartbeat.error_message == "Group s is not a consumer group."
        if not is_empty:
            stage.share("m", -1)
    assert stage.heartbeat("m", 1, group="s") == ErrorCode.UNKNOWN_MEMBER_ID
    assert stage.shares().epoch


def test_share_members_cannot_join_groups_of_other_types() -> None:
    stage = ShareStage()
    stage.send_heartbeat("m", group="c")
    stage.join("", group="classic", version=3)
    stage.commit({("a", 0): 5}, group="offsets")
    for group in ("c", "classic", "offsets"):
        refused = stage.share("m", group=group)
        assert refused.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert refused.error_message == f"Group {group} is not a share group."


def test_a_share_group_has_no_offsets_to_commit_fetch_or_delete() -> None:
    stage = group_without_members()
    assert stage.commit({("a", 0): 5}, group="s") == ErrorCode.GROUP_ID_NOT_FOUND
    assert stage.fetch_all(group="s") == {}
    request = OffsetDeleteRequest(group_id="s")
    deleted = stage.ask(request).response(OffsetDeleteResponse)
    assert deleted.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    in_transaction = TxnOffsetCommitRequest(
        transactional_id="t", group_id="s", producer_id=1, producer_epoch=0
    )
    stage.ask(CommitInTransaction(in_transaction, is_verified=True))
    assert stage.fetch_all(group="s") == {}


def test_an_empty_share_group_does_not_expire() -> None:
    stage = group_without_members()
    stage.tick(8 * 24 * 3_600_000)
    assert "s" in stage.list_groups()


# -- deletion -------------------------------------------------------------------------------------


def test_deleting_a_group_deletes_its_states() -> None:
    stage = group_without_members({"a": 2})
    call = stage.delete_call("s")
    assert call.is_parked
    assert stage.sent == [DeleteStates("s", {A: frozenset({0, 1})}, call.request_id)]
    stage.keep_states()
    assert call.response(DeletableGroupResult).error_code == ErrorCode.NONE
    assert (stage.list_groups(), stage.states) == ({}, {})
    # The object is dropped at the next record.
    stage.share("m", group="other")
    assert set(stage.shard.shares._groups) == {"other"}


def test_a_group_without_states_is_deleted_at_once() -> None:
    stage = ShareStage({})
    stage.share("m")
    stage.share("m", -1)
    assert stage.delete_group("s").error_code == ErrorCode.NONE
    assert stage.list_groups() == {}


def test_a_group_with_members_is_not_deleted() -> None:
    stage = ShareStage()
    stage.share("m")
    assert stage.delete_group("s").error_code == ErrorCode.NON_EMPTY_GROUP


def test_a_failed_deletion_is_reported_and_retried() -> None:
    stage = group_without_members()
    call = stage.delete_call("s")
    stage.keep_states({"a": ErrorCode.COORDINATOR_NOT_AVAILABLE})
    result = call.response(DeletableGroupResult)
    assert result.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert "s" in stage.list_groups()
    stage.tick(STATE_RETRY_MS)
    stage.keep_states()
    assert stage.states == {}
    assert stage.delete_group("s").error_code == ErrorCode.NONE
    assert stage.list_groups() == {}


def test_a_member_that_joins_during_the_deletion_of_the_group_stops_it() -> None:
    stage = group_without_members()
    call = stage.delete_call("s")
    member = ShareConsumerMember(stage, "n")
    member.send_heartbeat()
    settle(stage, member)
    assert call.response(DeletableGroupResult).error_code == ErrorCode.NON_EMPTY_GROUP
    assert member.reads == {"a": [0, 1, 2, 3]}


def test_a_deletion_that_could_not_be_written_fails_and_changes_nothing() -> None:
    stage = group_without_members()
    stage.hold_log()
    call = stage.delete_call("s")
    assert stage.sent == []
    stage.fail_log(ErrorCode.KAFKA_STORAGE_ERROR)
    assert not call.is_parked
    assert not stage.shares().states.deleting
    assert stage.shares().states.initialized


def test_incomplete_deletions_are_repeated_after_a_load() -> None:
    stage = group_without_members({"a": 2})
    stage.delete_call("s")
    stage.reload()
    stage.tick(0)
    assert stage.sent == [DeleteStates("s", {A: frozenset({0, 1})})]
    stage.keep_states()
    assert stage.states == {}


# -- offsets --------------------------------------------------------------------------------------


def test_offsets_are_set_in_a_later_state_epoch() -> None:
    stage = group_without_members({"a": 2})
    epoch = stage.shares().epoch
    call = stage.alter({"a": {0: 7, 9: 1}, "none": {0: 3}})
    assert call.is_parked
    assert stage.sent == [InitializeStates("s", epoch + 1, {A: {0: 7}}, call.request_id)]
    stage.keep_states()
    response = call.response(AlterShareGroupOffsetsResponse)
    assert response.error_code == ErrorCode.NONE
    codes = {
        (topic.topic_name, partition.partition_index): partition.error_code
        for topic in response.responses
        for partition in topic.partitions
    }
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes == {("a", 0): 0, ("a", 9): unknown, ("none", 0): unknown}
    assert stage.states["s", A, 0] == (epoch + 1, 7)


def test_offsets_are_not_set_while_others_are_being_deleted() -> None:
    stage = group_without_members({"a": 1, "b": 1})
    stage.forget("b")
    refused = stage.alter({"a": {0: 7}}).response(AlterShareGroupOffsetsResponse)
    assert refused.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    stage.keep_states()
    call = stage.alter({"a": {0: 7}})
    stage.keep_states()
    assert call.response(AlterShareGroupOffsetsResponse).error_code == ErrorCode.NONE


def test_two_deletions_of_a_group_at_the_same_time_delete_it_once() -> None:
    stage = group_without_members()
    calls = [stage.delete_call("s"), stage.delete_call("s")]
    stage.keep_states()
    results = [call.response(DeletableGroupResult).error_code for call in calls]
    assert results == [ErrorCode.NONE, ErrorCode.NONE]
    assert stage.list_groups() == {}


def test_setting_offsets_creates_a_missing_group() -> None:
    stage = ShareStage({"a": 1})
    stage.alter({"a": {0: 7}})
    stage.keep_states()
    assert stage.describe_shares().group_state == "Empty"
    member = ShareConsumerMember(stage, "m")
    member.send_heartbeat()
    assert member.reads == {"a": [0]}
    assert stage.states["s", A, 0] == (2, 7)


def test_offsets_of_missing_partitions_are_not_set() -> None:
    stage = ShareStage({"a": 1})
    response = stage.alter({"none": {0: 7}}).response(AlterShareGroupOffsetsResponse)
    [topic] = response.responses
    assert topic.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert stage.list_groups() == {}


def test_offsets_of_a_group_with_members_or_of_another_type_are_not_deleted() -> None:
    stage = ShareStage()
    stage.share("m")
    stage.send_heartbeat("m", group="c")
    for group, code in (
        ("s", ErrorCode.NON_EMPTY_GROUP),
        ("c", ErrorCode.GROUP_ID_NOT_FOUND),
    ):
        call = stage.alter({"a": {0: 7}}, group=group)
        assert call.response(AlterShareGroupOffsetsResponse).error_code == code
        call = stage.forget("a", group=group)
        assert call.response(DeleteShareGroupOffsetsResponse).error_code == code
    missing = stage.forget("a", group="none").response(DeleteShareGroupOffsetsResponse)
    assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_offsets_that_could_not_be_set_get_an_error_each() -> None:
    stage = group_without_members({"a": 1, "b": 1})
    call = stage.alter({"a": {0: 1}, "b": {0: 2}})
    stage.keep_states({"b": ErrorCode.COORDINATOR_NOT_AVAILABLE})
    response = call.response(AlterShareGroupOffsetsResponse)
    assert [topic.partitions[0].error_code for topic in response.responses] == [
        ErrorCode.NONE,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ]


def test_only_deleted_topics_are_forgotten() -> None:
    stage = group_without_members({"a": 2, "b": 1})
    call = stage.forget("a", "c")
    assert stage.sent == [DeleteStates("s", {A: frozenset({0, 1})}, call.request_id)]
    stage.keep_states()
    response = call.response(DeleteShareGroupOffsetsResponse)
    assert [(topic.topic_name, topic.error_code) for topic in response.responses] == [
        ("a", ErrorCode.NONE),
        ("c", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert set(stage.states) == {("s", id_of("b"), 0)}
    assert stage.ask(FindShareStates("s")).answer is not None
    assert set(stage.shares().states.initialized) == {id_of("b")}


# -- the log --------------------------------------------------------------------------------------


def stage_with_history(make: type[ShareStage] = ShareStage) -> ShareStage:
    """A shard with a long log."""
    stage = make({"a": 3, "b": 2})
    members = [ShareConsumerMember(stage, name, topics=["a", "b"]) for name in ("m", "n")]
    settle(stage, *members)
    stage.share("n", members[1].epoch, topics=["b"])
    stage.topics({"a": 4, "b": 2})
    settle(stage, members[0])
    stage.share("m", -1)
    stage.tick(SESSION_MS)
    stage.alter({"a": {0: 5}})
    stage.keep_states()
    stage.forget("b")
    stage.keep_states()
    settle(stage, ShareConsumerMember(stage, "o"))
    stage.share("o", -1)
    stage.delete_call("s")
    stage.keep_states()
    return stage


def hard_state(stage: ShareStage) -> object:
    """The tables of every group."""
    return {
        group.group_id: {
            slot: dict(table.items())
            for slot in group.__slots__
            if isinstance(table := getattr(group, slot), TimelineTable)
        }
        for group in stage.shard.shares
    }


class RecordingStage(ShareStage):
    """A shard that records its state at every length of its log."""

    def ask(
        self, request: object, *, version: int = 0, client: str = "client", connection: int = 1
    ) -> GroupCall:
        call = super().ask(request, version=version, client=client, connection=connection)
        if not hasattr(self, "states_at"):
            self.states_at: dict[int, object] = {0: {}}
        self.states_at[len(self.log)] = hard_state(self)
        return call


def test_every_prefix_of_the_log_loads_a_state_that_the_group_had() -> None:
    stage = stage_with_history(RecordingStage)
    assert isinstance(stage, RecordingStage)
    assert len(stage.states_at) > 15
    for length, state in stage.states_at.items():
        assert hard_state(ShareStage(log=stage.log[:length])) == state, length


def test_a_group_loaded_from_any_prefix_of_its_log_continues() -> None:
    log = stage_with_history().log
    assert len(log) > 40
    for length in range(len(log) + 1):
        stage = ShareStage({"a": 4, "b": 2}, log=log[:length])
        stage.catch_up()
        stage.tick(0)
        member = ShareConsumerMember(stage, "p", topics=["a", "b"])
        settle(stage, member)
        for gone in ("m", "n", "o"):
            stage.share_call(gone, -1)
        settle(stage, member)
        assert member.reads == {"a": [0, 1, 2, 3], "b": [0, 1]}, length


def test_a_loaded_group_equals_the_written_one() -> None:
    stage = ShareStage({"a": 3, "b": 2})
    settle(
        stage, ShareConsumerMember(stage, "m", topics=["a", "b"]), ShareConsumerMember(stage, "n")
    )
    before = stage.describe_shares()
    stage.reload()
    assert stage.describe_shares() == before
    assert stage.sent == []


def test_nothing_is_left_of_a_group_that_was_deleted() -> None:
    stage = stage_with_history()
    assert (stage.list_groups(), stage.states) == ({}, {})
    newest: dict[bytes, bytes | None] = dict(stage.log)
    assert all(value is None for value in newest.values())


def test_an_epoch_whose_write_failed_is_started_again() -> None:
    stage = ShareStage({"a": 1})
    settle(stage, ShareConsumerMember(stage, "m"))
    epoch = stage.shares().epoch
    stage.hold_log()
    call = stage.share_call("n", topics=["a"])
    stage.fail_log(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert call.refused_with is not None
    assert stage.shares().epoch == epoch
    assert stage.share("n").member_epoch == epoch + 1


@pytest.mark.parametrize("count", [40])
def test_many_members_settle(count: int) -> None:
    stage = ShareStage({"a": 7})
    members = [ShareConsumerMember(stage, f"m{at}") for at in range(count)]
    settle(stage, *members)
    readers = [sum(index in member.reads["a"] for member in members) for index in range(7)]
    assert readers == [6] * 7
    assert isinstance(stage.share("m0", members[0].epoch), ShareGroupHeartbeatResponse)
