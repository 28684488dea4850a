"""ExplainGroup: members, progress, durations, partitions, commits and events."""

from odradek.coordinator.group.policies import GroupPolicies, GroupPolicyOverrides
from odradek.coordinator.group.requests import CommitInTransaction, ExplainGroup
from odradek.coordinator.group.settings import GroupSettings
from odradek.protocol.consumer_protocol import ConsumerProtocolAssignment, encode_assignment
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.diagnostics import (
    ExplainedGroup,
    ExplainedMember,
    MemberProgress,
    RebalanceWait,
)
from odradek.protocol.messages.groups import MemberIdentity
from odradek.protocol.messages.partitions import TopicPartitions
from odradek.protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.support.consumer_playbook import Consumer, Stage
from tests.support.group_playbook import Playbook
from tests.support.share_group_playbook import ShareConsumerMember, ShareStage, settle
from tests.support.streams_playbook import StreamsStage, StreamsThread, settle_threads


def members(group: ExplainedGroup) -> dict[str, ExplainedMember]:
    return {member.member_id: member for member in group.members}


def test_an_unknown_group_is_an_error() -> None:
    group = Playbook().explained()
    assert group.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert group.error_message == "Group g not found."


def test_the_initial_rebalance_delay_is_explained_with_its_deadline() -> None:
    play = Playbook(GroupSettings(initial_rebalance_delay_ms=3_000))
    play.join(play.give_id())
    group = play.explained()
    assert (group.group_type, group.group_state) == ("classic", "PreparingRebalance")
    assert group.wait == RebalanceWait.INITIAL_REBALANCE_DELAY
    assert (group.since, group.deadline) == (play.now_ms, play.now_ms + 3_000)


def test_a_member_that_has_not_joined_has_a_deadline() -> None:
    play = Playbook()
    first, second = play.stable(2)
    play.tick(100)
    play.join(second, protocols=[("range", b"other")])
    began_ms = play.now_ms
    play.tick(50)
    group = play.explained()
    assert group.wait == RebalanceWait.JOIN_GROUP
    assert group.since == began_ms
    told = members(group)
    assert told[first].state == MemberProgress.NOT_JOINED
    assert told[first].deadline == group.deadline == began_ms + 60_000
    assert (told[second].state, told[second].join_ms, told[second].deadline) == (
        MemberProgress.JOINED,
        0,
        -1,
    )


def test_members_have_their_durations() -> None:
    play = Playbook()
    first, second = play.stable(2)
    play.join(second, protocols=[("range", b"other")])
    play.tick(700)
    play.join(first)
    play.tick(20)
    play.sync(second, 3, {second: b""})
    late = members(play.explained())[first]
    assert (late.state, late.join_ms, late.sync_ms) == (MemberProgress.NOT_SYNCED, 700, -1)
    play.tick(300)
    play.sync(first, 3, {first: b""})
    told = members(play.explained())
    assert (told[first].join_ms, told[first].sync_ms) == (700, 320)
    assert (told[second].join_ms, told[second].sync_ms) == (0, 20)


def test_a_pending_member_is_listed() -> None:
    play = Playbook()
    play.stable()
    announced = play.give_id()
    assert members(play.explained())[announced].state == MemberProgress.ID_ASSIGNED


def test_owned_partitions_of_classic_members_come_from_their_assignments() -> None:
    play = Playbook()
    member = play.give_id()
    play.join(member)
    mine = ConsumerProtocolAssignment(
        assigned_partitions=[TopicPartitions(name="t", partitions=[2, 1])]
    )
    play.sync(member, 1, {member: encode_assignment(mine, 0)})
    assert members(play.explained())[member].owned == [TopicPartitions(name="t", partitions=[1, 2])]
    strange = Playbook()
    [stranger] = strange.stable(protocol_type="connect")
    assert members(strange.explained())[stranger].owned == []


def test_commits_have_their_time() -> None:
    play = Playbook()
    play.commit({("t", 1): 5})
    committed_ms = play.now_ms
    play.tick(1_000)
    group = play.explained()
    assert (group.group_type, group.group_state) == ("classic", "Empty")
    [topic] = group.commits
    [commit] = topic.partitions
    assert (topic.name, commit.partition_index, commit.committed_offset) == ("t", 1, 5)
    assert (commit.committed_at, commit.is_unstable) == (committed_ms, False)


def test_offsets_that_a_transaction_may_change_are_marked() -> None:
    play = Playbook()
    partition = TxnOffsetCommitRequestPartition(
        partition_index=0, committed_offset=3, committed_metadata=""
    )
    request = TxnOffsetCommitRequest(
        transactional_id="x",
        group_id="g",
        producer_id=7,
        producer_epoch=0,
        topics=[TxnOffsetCommitRequestTopic(name="t", partitions=[partition])],
    )
    play.ask(CommitInTransaction(request, is_verified=True), version=5)
    [topic] = play.explained().commits
    assert topic.partitions[0].is_unstable
    assert topic.partitions[0].committed_offset == -1


def test_an_ephemeral_group_has_its_ttl() -> None:
    policies = GroupPolicies(own={"g": GroupPolicyOverrides(is_ephemeral=True, ttl_ms=9)})
    play = Playbook(GroupSettings(initial_rebalance_delay_ms=0, policies=policies))
    play.stable()
    assert play.explained().ttl_ms == 9
    assert Playbook().explained().ttl_ms == -1


def test_members_that_have_to_revoke_and_that_wait_are_explained() -> None:
    stage = Stage({"a": 2})
    first, second = Consumer(stage, "first"), Consumer(stage, "second")
    first.send_heartbeat()
    first.send_heartbeat()
    second.send_heartbeat()
    asked_ms = stage.now_ms
    first.send_heartbeat()
    stage.tick(250)
    group = stage.explained()
    assert (group.group_type, group.group_state) == ("consumer", "Reconciling")
    assert group.protocol == "uniform"
    told = members(group)
    assert told["first"].state == MemberProgress.REVOKING_PARTITIONS
    assert told["first"].deadline == asked_ms + 30_000
    [given_up] = told["first"].to_revoke
    assert given_up.name == "a"
    assert told["second"].state == MemberProgress.AWAITING_PARTITIONS
    first.send_heartbeat()
    stage.tick(50)
    second.send_heartbeat()
    second.send_heartbeat()
    group = stage.explained()
    assert group.group_state == "Stable"
    told = members(group)
    assert told["first"].revoke_ms == 250
    assert told["second"].join_ms == 300
    assert {state.state for state in told.values()} == {MemberProgress.STABLE}
    assert told["second"].owned == [given_up]


def test_a_static_consumer_that_has_left_temporarily_is_explained() -> None:
    stage = Stage({"a": 2})
    stage.send_heartbeat("m", instance="i")
    stage.send_heartbeat("m", -2, instance="i")
    assert members(stage.explained())["m"].state == MemberProgress.STATIC_LEFT


def test_events_are_optional() -> None:
    play = Playbook()
    play.stable()
    told = play.ask(ExplainGroup("g", with_events=False)).response(ExplainedGroup)
    assert (told.group_state, told.events) == ("Stable", [])
    assert play.explained().events != []


def test_an_empty_group_is_explained_after_a_move_of_the_coordinator() -> None:
    play = Playbook()
    [member] = play.stable()
    play.leave(MemberIdentity(member_id=member))
    play.reload()
    group = play.explained()
    assert (group.error_code, group.group_state, group.epoch) == (0, "Empty", 2)


def test_members_of_a_share_group_have_their_partitions() -> None:
    stage = ShareStage({"a": 2})
    settle(
        stage, first := ShareConsumerMember(stage, "first"), ShareConsumerMember(stage, "second")
    )
    ShareConsumerMember(stage, "third").send_heartbeat()
    group = stage.explained("s")
    told = members(group)
    assert (group.group_type, group.group_state, group.topics) == ("share", "Stable", ["a"])
    assert group.epoch == group.target_epoch == stage.shares().epoch
    assert told["first"].owned == [TopicPartitions(name="a", partitions=first.reads["a"])]
    assert (told["first"].state, told["third"].state) == (
        MemberProgress.EPOCH_BEHIND,
        MemberProgress.STABLE,
    )
    assert told["third"].join_ms == 0
    assert group.since == stage.now_ms


def test_members_of_a_streams_group_have_the_partitions_of_their_tasks() -> None:
    stage = StreamsStage()
    first = StreamsThread(stage, "first")
    settle_threads(first)
    [told] = stage.explained().members
    assert (told.state, told.epoch) == (MemberProgress.STABLE, first.epoch)
    topics = {topic.name for topic in told.owned}
    assert topics == set(stage.explained().topics)
    StreamsThread(stage, "second").send_heartbeat()
    first.send_heartbeat()
    group = stage.explained()
    asked = members(group)["first"]
    assert (asked.state, bool(asked.to_revoke)) == (MemberProgress.REVOKING_TASKS, True)
    assert asked.deadline > stage.now_ms
    assert group.group_state == "Reconciling"
