"""The protocols that groups allow (group.protocol.allow)."""

from odradek.cluster.metadata.group_settings import PROTOCOLS
from odradek.coordinator.group.administration.admission import PROTOCOL_OF_REQUEST
from odradek.coordinator.group.policies import GroupPolicies, GroupPolicyOverrides
from odradek.coordinator.group.settings import GroupSettings
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import ConsumerGroupHeartbeatResponse
from tests.support.consumer_playbook import Stage
from tests.support.share_group_playbook import ShareStage
from tests.support.streams_playbook import AT_ONCE, StreamsStage


def stage(*protocols: str) -> Stage:
    own = {"g": GroupPolicyOverrides(protocols=frozenset(protocols))}
    return Stage(
        {"a": 2}, GroupSettings(initial_rebalance_delay_ms=0, policies=GroupPolicies(own=own))
    )


def test_classic_members_are_refused_by_a_group_that_does_not_allow_them() -> None:
    play = stage("consumer", "share")
    refused = play.join().joined
    assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert refused.protocol_name is None
    assert play.join(version=3).joined.protocol_name == ""
    assert play.list_groups() == {}
    play.stable(group="other")


def test_consumers_are_refused_with_a_message() -> None:
    play = stage("classic")
    call = play.beat_call("m", topics=["a"], owned={}, timeout_ms=30_000)
    refused = call.response(ConsumerGroupHeartbeatResponse)
    assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert "group.protocol.allow" in str(refused.error_message)
    assert "classic" in str(refused.error_message)
    play.stable()


def test_members_stay_until_they_join_again() -> None:
    play = stage("classic")
    [member] = play.stable()
    own = {"g": GroupPolicyOverrides(protocols=frozenset({"consumer"}))}
    play.shard.settings = GroupSettings(
        initial_rebalance_delay_ms=0, policies=GroupPolicies(own=own)
    )
    assert play.heartbeat(member, 1) == ErrorCode.NONE
    refused = play.join(member).joined
    assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert refused.member_id == member


def test_a_consumer_that_is_a_member_is_not_refused() -> None:
    play = stage("consumer")
    joined = play.send_heartbeat("m", topics=["a"], owned={})
    own = {"g": GroupPolicyOverrides(protocols=frozenset({"classic"}))}
    play.shard.settings = GroupSettings(policies=GroupPolicies(own=own))
    assert play.send_heartbeat("m", joined.member_epoch).error_code == ErrorCode.NONE
    assert play.send_heartbeat("m", -1).error_code == ErrorCode.NONE


def test_streams_members_are_refused_with_a_message() -> None:
    own = {"g": GroupPolicyOverrides(protocols=frozenset({"consumer"}))}
    play = StreamsStage(settings=GroupSettings(streams=AT_ONCE, policies=GroupPolicies(own=own)))
    refused = play.send_streams_heartbeat("m")
    assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert "This one came by streams." in str(refused.error_message)
    assert play.send_streams_heartbeat("m", group="other").error_code == ErrorCode.NONE


def test_share_members_are_refused_with_a_message() -> None:
    own = {"s": GroupPolicyOverrides(protocols=frozenset({"consumer"}))}
    play = ShareStage(settings=GroupSettings(policies=GroupPolicies(own=own)))
    refused = play.share("m")
    assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert "This one came by share." in str(refused.error_message)
    assert play.share("m", group="other").error_code == ErrorCode.NONE


def test_every_protocol_of_the_config_is_checked() -> None:
    assert set(PROTOCOL_OF_REQUEST.values()) == set(PROTOCOLS)
