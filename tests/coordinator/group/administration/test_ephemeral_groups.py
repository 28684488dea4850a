"""Ephemeral groups: when they are deleted and when they are kept."""

import pytest

from odradek.cluster.metadata.group_settings import ConsumerGroupSettings, ShareGroupSettings
from odradek.coordinator.group.administration.ephemeral_groups import EphemeralGroupExpired
from odradek.coordinator.group.policies import GroupPolicies, GroupPolicyOverrides
from odradek.coordinator.group.requests import UpdateTopics
from odradek.coordinator.group.settings import GroupSettings
from odradek.coordinator.group.share.requests import DeleteStates
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import MemberIdentity
from tests.support.consumer_playbook import Stage
from tests.support.group_playbook import SESSION_MS, Playbook
from tests.support.share_group_playbook import ShareConsumerMember, ShareStage, settle

TTL_MS = 5_000


def settings(ttl_ms: int | None = TTL_MS, **policies: object) -> GroupSettings:
    own = {} if ttl_ms is None else {"g": GroupPolicyOverrides(is_ephemeral=True, ttl_ms=ttl_ms)}
    return GroupSettings(
        initial_rebalance_delay_ms=0,
        policies=GroupPolicies(own=own, **policies),  # type: ignore[arg-type]  # named by the tests
        consumer=ConsumerGroupSettings(assignment_interval_ms=0),
    )


def left(ttl_ms: int | None = TTL_MS) -> Playbook:
    """A classic group with an offset, whose only member has just left."""
    play = Playbook(settings(ttl_ms))
    [member] = play.stable()
    play.commit({("t", 0): 7}, member_id=member, generation_id=1)
    play.leave(MemberIdentity(member_id=member))
    return play


def is_gone(play: Playbook) -> bool:
    gone = "g" not in play.list_groups()
    assert (play.fetch_all() == {}) is gone
    return gone


def told(play: Playbook) -> list[object]:
    sent, play.sent = play.sent, []
    return sent


def test_a_group_is_deleted_with_its_offsets_after_the_ttl() -> None:
    play = left()
    play.tick(TTL_MS - 1)
    assert not is_gone(play)
    assert told(play) == []
    play.tick(1)
    assert is_gone(play)
    assert told(play) == [EphemeralGroupExpired("g", TTL_MS)]
    play.reload()
    assert is_gone(play)


def test_a_group_with_a_ttl_of_zero_is_deleted_at_once() -> None:
    play = left(0)
    play.tick(0)
    assert is_gone(play)


def test_other_groups_are_kept() -> None:
    play = left(None)
    play.tick(10 * TTL_MS)
    assert not is_gone(play)


def test_a_member_that_joins_in_time_keeps_the_group_and_its_offsets() -> None:
    play = left()
    play.tick(TTL_MS - 1)
    play.stable()
    play.tick(SESSION_MS // 2)
    assert not is_gone(play)
    assert play.fetch("t", 0).committed_offset == 7


def test_the_ttl_restarts_when_the_last_member_leaves_again() -> None:
    play = left()
    play.tick(TTL_MS - 1)
    [member] = play.stable()
    play.leave(MemberIdentity(member_id=member))
    play.tick(TTL_MS - 1)
    assert not is_gone(play)
    play.tick(1)
    assert is_gone(play)


def test_pending_members_postpone_the_expiration() -> None:
    play = left()
    play.give_id()
    play.tick(TTL_MS)
    assert not is_gone(play)
    play.tick(SESSION_MS + TTL_MS)
    assert is_gone(play)


def test_a_static_member_keeps_the_group_until_its_session_ends() -> None:
    play = Playbook(settings())
    play.stable(instances=["i"])
    play.tick(SESSION_MS + TTL_MS - 1)
    assert not is_gone_without_offsets(play)
    play.tick(1)
    assert is_gone_without_offsets(play)


def is_gone_without_offsets(play: Playbook) -> bool:
    return "g" not in play.list_groups()


def test_a_commit_to_an_empty_group_restarts_the_ttl() -> None:
    play = left()
    play.tick(TTL_MS - 1)
    assert play.commit({("t", 0): 3}) == ErrorCode.NONE
    play.tick(TTL_MS - 1)
    assert not is_gone(play)
    play.tick(1)
    assert is_gone(play)


def test_a_group_that_never_had_a_member_does_not_expire() -> None:
    play = Playbook(settings())
    play.commit({("t", 0): 1})
    play.tick(10 * TTL_MS)
    assert not is_gone(play)


def test_the_ttl_restarts_when_the_coordinator_has_moved() -> None:
    play = left()
    play.tick(TTL_MS - 1)
    play.reload()
    play.tick(TTL_MS - 1)
    assert not is_gone(play)
    play.tick(1)
    assert is_gone(play)


def test_a_deletion_that_cannot_be_written_is_retried() -> None:
    play = left()
    play.hold_log()
    play.tick(TTL_MS)
    play.fail_log(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert not is_gone(play)
    assert told(play) == []
    play.tick(TTL_MS)
    assert is_gone(play)


def test_patterns_select_groups_and_the_config_of_a_group_overrides_them() -> None:
    policies = GroupPolicies(
        ephemeral_patterns=("console-*", "exact"),
        ephemeral_ttl_ms=100,
        own={
            "console-kept": GroupPolicyOverrides(is_ephemeral=False),
            "console-long": GroupPolicyOverrides(ttl_ms=200),
        },
    )
    play = Playbook(GroupSettings(initial_rebalance_delay_ms=0, policies=policies))
    names = ("console-1", "console-kept", "console-long", "exact", "exactly")
    for name in names:
        [member] = play.stable(group=name)
        play.leave(MemberIdentity(member_id=member), group=name)
    play.tick(100)
    assert set(play.list_groups()) == {"console-kept", "console-long", "exactly"}
    play.tick(100)
    assert set(play.list_groups()) == {"console-kept", "exactly"}


def test_changed_policies_apply_to_existing_groups() -> None:
    play = left(None)
    play.tick(TTL_MS)
    play.shard.settings = settings()
    play.ask(UpdateTopics(frozenset(), {}, has_new_rules=True))
    play.tick(TTL_MS - 1)
    play.shard.settings = settings(None)
    play.ask(UpdateTopics(frozenset(), {}, has_new_rules=True))
    play.tick(TTL_MS)
    assert not is_gone(play)
    play.shard.settings = settings()
    play.ask(UpdateTopics(frozenset(), {}, has_new_rules=True))
    play.tick(TTL_MS)
    assert is_gone(play)


@pytest.mark.parametrize("instance", [None, "i"])
def test_consumer_groups_are_deleted_too(instance: str | None) -> None:
    play = Stage({"a": 2}, settings())
    timeout_ms = play.shard.settings.consumer.session_timeout_ms
    play.send_heartbeat("m", topics=["a"], owned={}, instance=instance)
    play.send_heartbeat("m", -1 if instance is None else -2, instance=instance)
    waited = 0 if instance is None else timeout_ms
    play.tick(waited + TTL_MS - 1)
    assert "g" in play.list_groups()
    play.tick(1)
    assert "g" not in play.list_groups()
    assert told(play) == [EphemeralGroupExpired("g", TTL_MS)]


@pytest.mark.parametrize("kind", ["classic", "consumer"])
def test_after_a_load_of_any_prefix_of_the_log_the_group_expires(kind: str) -> None:
    """A coordinator may fail at any record, also during a deletion."""
    play = Stage({"a": 2}, settings())
    for _ in range(2):
        if kind == "classic":
            [member] = play.stable()
            play.leave(MemberIdentity(member_id=member))
        else:
            play.send_heartbeat("m", topics=["a"], owned={})
            play.send_heartbeat("m", -1)
        play.commit({("t", 0): 1, ("t", 1): 1})
        play.tick(TTL_MS)
        assert is_gone(play)
    for length in range(len(play.log)):
        again = Stage({"a": 2}, settings(), log=play.log[:length], now_ms=play.now_ms)
        again.tick(play.shard.settings.consumer.session_timeout_ms + TTL_MS)
        assert is_gone(again), f"the first {length} records"
        again.reload()
        assert is_gone(again)


def test_a_share_group_is_deleted_after_its_states() -> None:
    own = {"s": GroupPolicyOverrides(is_ephemeral=True, ttl_ms=TTL_MS)}
    stage = ShareStage(
        {"a": 1},
        GroupSettings(
            policies=GroupPolicies(own=own), share=ShareGroupSettings(assignment_interval_ms=0)
        ),
    )
    settle(stage, ShareConsumerMember(stage, "m"))
    stage.share("m", -1)
    stage.tick(TTL_MS)
    assert [type(each) for each in stage.sent] == [DeleteStates]
    stage.keep_states()
    assert "s" in stage.list_groups()
    # That is a change of the group, too.
    stage.tick(TTL_MS)
    assert stage.list_groups() == {}
    assert told(stage) == [EphemeralGroupExpired("s", TTL_MS)]
