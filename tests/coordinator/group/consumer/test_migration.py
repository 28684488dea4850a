"""Conversion of groups with members between the protocols."""

import pytest

from odradek.cluster.metadata.group_settings import ConsumerGroupSettings, MigrationPolicy
from odradek.coordinator.group.settings import GroupSettings
from odradek.protocol.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    encode_assignment,
)
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.partitions import TopicPartitions
from tests.coordinator.group.consumer.test_classic_members import Classic, rest
from tests.support.consumer_playbook import Consumer, Stage, settle
from tests.support.subscriptions import encode_subscription

SUBSCRIPTION = encode_subscription(ConsumerProtocolSubscription(topics=["a"]), 1)
PROTOCOLS = [("range", SUBSCRIPTION)]


def settings_of(policy: MigrationPolicy) -> GroupSettings:
    return GroupSettings(
        initial_rebalance_delay_ms=0,
        consumer=ConsumerGroupSettings(assignment_interval_ms=0, migration_policy=policy),
    )


def classic_group(
    policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL,
) -> tuple[Stage, list[Classic]]:
    """A Stable classic group of two that share the four partitions of a."""
    stage = Stage({"a": 4}, settings_of(policy))
    members = []
    ids = stage.stable(2, protocols=PROTOCOLS)
    shares = [[0, 1], [2, 3]]
    stage.join(ids[0], protocols=PROTOCOLS)
    joined = stage.join(ids[1], protocols=PROTOCOLS).joined
    assignments = {
        member_id: encode_assignment(
            ConsumerProtocolAssignment(
                assigned_partitions=[TopicPartitions(name="a", partitions=share)]
            )
        )
        for member_id, share in zip(ids, shares, strict=True)
    }
    for at, member_id in enumerate(ids):
        member = Classic(stage)
        member.member_id, member.generation_id = member_id, joined.generation_id
        given = assignments if at == 0 else None
        stage.sync(member_id, joined.generation_id, given, protocol_name="range")
        member.owned = {("a", index) for index in shares[at]}
        members.append(member)
    assert stage.state() == "Stable"
    return stage, members


def test_a_member_of_the_consumer_protocol_upgrades_a_classic_group() -> None:
    stage, members = classic_group()
    epoch = members[0].generation_id
    modern = Consumer(stage, "m")
    modern.send_heartbeat()
    assert stage.list_groups()["g"].group_type == "consumer"
    assert modern.epoch == epoch + 1
    assert modern.partitions == set()
    # The classic members own their partitions until they have revoked them.
    assert stage.consumers().current(members[0].member_id).assigned.keys()
    rest(*members, modern)
    owned = [member.owned for member in members] + [modern.partitions]
    assert sorted(map(len, owned)) == [1, 1, 2]
    assert len(set.union(*owned)) == 4


def test_the_last_member_of_the_consumer_protocol_downgrades_the_group_when_it_leaves() -> None:
    stage, members = classic_group()
    modern = Consumer(stage, "m")
    rest(*members, modern)
    epoch = stage.consumers().epoch
    stage.send_heartbeat("m", -1)
    assert stage.list_groups()["g"].group_type == "classic"
    assert stage.state() == "PreparingRebalance"
    assert stage.generation() == epoch
    codes = [member.heartbeat() for member in members]
    assert ErrorCode.UNKNOWN_MEMBER_ID not in codes
    joins = [stage.join(m.member_id, protocols=m.protocols()) for m in members]
    assert {call.joined.generation_id for call in joins} == {epoch + 1}


def test_a_member_whose_session_ends_downgrades_the_group_too() -> None:
    stage, members = classic_group()
    modern = Consumer(stage, "m")
    rest(*members, modern)
    for _ in range(10):
        stage.tick(5_000)
        if stage.shard.consumers.get("g") is not None:
            for member in members:
                member.poll()
    assert stage.list_groups()["g"].group_type == "classic"


def test_both_conversions_survive_a_load_at_any_time() -> None:
    stage, members = classic_group()
    stage.reload()
    modern = Consumer(stage, "m")
    modern.send_heartbeat()
    stage.reload()
    rest(*members, modern)
    stage.reload()
    assert [member.heartbeat() for member in members] == [ErrorCode.NONE, ErrorCode.NONE]
    stage.send_heartbeat("m", -1)
    stage.reload()
    assert stage.state() == "Stable"
    group = stage.shard.classic.group("g")
    assert group is not None
    assert {member.member_id for member in group.members} == {m.member_id for m in members}


def test_an_upgrade_that_is_not_written_has_not_happened() -> None:
    stage, members = classic_group()
    stage.hold_log()
    call = stage.beat_call("m", topics=["a"], owned={}, timeout_ms=1_000)
    stage.fail_log(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert call.refused_with is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert stage.list_groups()["g"].group_type == "classic"
    assert [member.heartbeat() for member in members] == [ErrorCode.NONE, ErrorCode.NONE]


def test_a_downgrade_that_is_not_written_has_not_happened() -> None:
    stage, members = classic_group()
    modern = Consumer(stage, "m")
    rest(*members, modern)
    stage.hold_log()
    call = stage.beat_call("m", -1)
    stage.fail_log(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert call.refused_with is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert stage.list_groups()["g"].group_type == "consumer"
    rest(*members, modern)
    assert modern.errors == []


@pytest.mark.parametrize("policy", [MigrationPolicy.DISABLED, MigrationPolicy.DOWNGRADE])
def test_a_group_is_not_upgraded_where_the_policy_forbids_it(policy: MigrationPolicy) -> None:
    stage, members = classic_group(policy)
    assert stage.send_heartbeat("m").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert [member.heartbeat() for member in members] == [ErrorCode.NONE, ErrorCode.NONE]


def test_a_group_is_not_downgraded_where_the_policy_forbids_it() -> None:
    stage, members = classic_group(MigrationPolicy.UPGRADE)
    modern = Consumer(stage, "m")
    rest(*members, modern)
    stage.send_heartbeat("m", -1)
    rest(*members)
    assert stage.list_groups()["g"].group_type == "consumer"
    assert sorted(len(member.owned) for member in members) == [2, 2]


def test_groups_of_other_protocol_types_are_not_upgraded() -> None:
    stage = Stage()
    stage.stable(protocol_type="connect")
    assert stage.send_heartbeat("m").error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_group_whose_members_cannot_be_read_is_not_upgraded() -> None:
    stage = Stage()
    [member_id] = stage.stable()
    assert stage.send_heartbeat("m").error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert stage.heartbeat(member_id, 1) == ErrorCode.NONE


def test_a_member_that_waits_for_a_rebalance_gets_rebalance_in_progress() -> None:
    stage, members = classic_group()
    waiting = stage.join(members[0].member_id, protocols=PROTOCOLS)
    assert waiting.is_parked
    stage.send_heartbeat("m")
    assert waiting.joined.error_code == ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize("policy", [MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.DISABLED])
def test_the_first_member_of_an_empty_group_determines_its_type(policy: MigrationPolicy) -> None:
    """Its offsets are kept; without members this is no migration."""
    stage = Stage({"a": 2}, settings_of(policy))
    stage.commit({("a", 0): 7})
    member = Consumer(stage, "m")
    settle(member)
    stage.send_heartbeat("m", -1)
    [classic] = stage.stable(protocols=PROTOCOLS)
    assert stage.list_groups()["g"].group_type == "classic"
    stage.reload()
    assert stage.list_groups()["g"].group_type == "classic"
    stage.tick(60_000)
    assert stage.state() == "Empty"
    again = Consumer(stage, "m")
    settle(again)
    assert len(again.partitions) == 2
    assert stage.fetch_all() == {("a", 0): 7}
    stage.reload()
    assert stage.list_groups()["g"].group_type == "consumer"
    assert classic


def test_the_last_static_member_that_rejoins_as_a_classic_one_downgrades_the_group() -> None:
    stage = Stage({"a": 4}, settings_of(MigrationPolicy.BIDIRECTIONAL))
    modern = Consumer(stage, "m", instance="i")
    settle(modern)
    classic = Classic(stage, instance="i")
    assert classic.join().error_code == ErrorCode.NONE
    stage.tick(1)
    assert stage.list_groups()["g"].group_type == "classic"
    assert stage.state() == "PreparingRebalance"
    assert (
        stage.join(classic.member_id, protocols=classic.protocols(), instance="i").joined.leader
        == classic.member_id
    )
