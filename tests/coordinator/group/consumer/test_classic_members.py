"""Members of the classic protocol in a consumer group: responses and timeouts."""

import pytest

from odradek.cluster.metadata.group_settings import ConsumerGroupSettings, MigrationPolicy
from odradek.coordinator.group.settings import GroupSettings
from odradek.protocol.consumer_protocol import ConsumerProtocolSubscription, decode_assignment
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import JoinGroupResponse, MemberIdentity
from odradek.protocol.messages.partitions import TopicPartitions
from tests.support.consumer_playbook import Consumer, Stage, settle
from tests.support.group_playbook import REBALANCE_MS, SESSION_MS
from tests.support.subscriptions import encode_subscription

STAY = GroupSettings(
    initial_rebalance_delay_ms=0,
    consumer=ConsumerGroupSettings(
        assignment_interval_ms=0, migration_policy=MigrationPolicy.UPGRADE
    ),
)


class Classic:
    """A classic consumer with a cooperative assignor, as a client library has it."""

    def __init__(self, stage: Stage, *, instance: str | None = None) -> None:
        self.stage = stage
        self.instance = instance
        self.member_id = ""
        self.generation_id = -1
        self.owned: set[tuple[str, int]] = set()

    def protocols(self) -> list[tuple[str, bytes]]:
        named: dict[str, list[int]] = {}
        for topic, index in sorted(self.owned):
            named.setdefault(topic, []).append(index)
        subscription = ConsumerProtocolSubscription(
            topics=["a"],
            owned_partitions=[
                TopicPartitions(name=topic, partitions=indexes) for topic, indexes in named.items()
            ],
        )
        return [("range", encode_subscription(subscription, 1))]

    def join(self) -> JoinGroupResponse:
        joined = self.stage.join(
            self.member_id, protocols=self.protocols(), instance=self.instance
        ).joined
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = joined.member_id
            return self.join()
        if joined.error_code == ErrorCode.NONE:
            self.member_id, self.generation_id = joined.member_id, joined.generation_id
        return joined

    def sync(self) -> int:
        synced = self.stage.sync(
            self.member_id,
            self.generation_id,
            instance=self.instance,
            protocol_name="range",
        ).synced
        if synced.error_code == ErrorCode.NONE:
            assigned = decode_assignment(synced.assignment).assigned_partitions
            self.owned = {(each.name, index) for each in assigned for index in each.partitions}
        return synced.error_code

    def heartbeat(self) -> int:
        return self.stage.heartbeat(self.member_id, self.generation_id, instance=self.instance)

    def poll(self) -> None:
        """What a client does periodically."""
        if self.generation_id < 0 or self.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS:
            assert self.join().error_code == ErrorCode.NONE
            self.sync()


def rest(*members: Consumer | Classic) -> None:
    for _ in range(12):
        for member in members:
            if isinstance(member, Classic):
                member.poll()
            else:
                member.send_heartbeat()


def mixed_group() -> tuple[Stage, Consumer, Classic]:
    """A Stable group with one member of each protocol."""
    stage = Stage({"a": 4}, STAY)
    modern = Consumer(stage, "m")
    settle(modern)
    classic = Classic(stage)
    rest(classic, modern)
    return stage, modern, classic


def test_a_classic_member_gets_partitions_after_others_have_revoked_them() -> None:
    stage, modern, classic = mixed_group()
    assert len(modern.partitions) == len(classic.owned) == 2
    assert not modern.partitions & classic.owned
    assert stage.consumers().state == "Stable"
    assert stage.describe_consumers().members[1].member_type == 0


def test_the_response_of_join_group_has_neither_leader_nor_members() -> None:
    _, _, classic = mixed_group()
    joined = classic.join()
    assert (joined.leader, joined.members) == ("", [])
    assert (joined.protocol_type, joined.protocol_name) == ("consumer", "range")


def test_a_heartbeat_returns_rebalance_in_progress_when_there_is_a_next_step() -> None:
    stage, modern, classic = mixed_group()
    assert classic.heartbeat() == ErrorCode.NONE
    stage.topics({"a": 5})
    assert classic.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    rest(classic, modern)
    assert len(modern.partitions) + len(classic.owned) == 5


def test_a_member_that_does_not_rejoin_in_time_is_removed() -> None:
    stage, modern, classic = mixed_group()
    stage.topics({"a": 5})
    waited_ms = 0
    while waited_ms < REBALANCE_MS:
        assert classic.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
        modern.send_heartbeat()
        stage.tick(SESSION_MS // 2)
        waited_ms += SESSION_MS // 2
    assert classic.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID
    settle(modern)
    assert len(modern.partitions) == 5


def test_a_member_that_does_not_sync_in_time_is_removed() -> None:
    stage, modern, classic = mixed_group()
    assert classic.join().error_code == ErrorCode.NONE
    waited_ms = 0
    while waited_ms < REBALANCE_MS:
        assert classic.heartbeat() == ErrorCode.NONE
        modern.send_heartbeat()
        stage.tick(SESSION_MS // 2)
        waited_ms += SESSION_MS // 2
    assert classic.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_classic_member_is_removed_after_its_own_session_timeout() -> None:
    stage, modern, classic = mixed_group()
    stage.tick(SESSION_MS - 1)
    modern.send_heartbeat()
    stage.tick(1)
    assert classic.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_classic_member_that_leaves_is_removed() -> None:
    stage, modern, classic = mixed_group()
    [left] = stage.leave(MemberIdentity(member_id=classic.member_id)).members
    assert left.error_code == ErrorCode.NONE
    settle(modern)
    assert len(modern.partitions) == 4
    # The other classic requests do not find members of the consumer protocol.
    assert stage.heartbeat("m", modern.epoch) == ErrorCode.UNKNOWN_MEMBER_ID
    assert stage.sync("m", modern.epoch).synced.error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_leave_group_removes_members_of_either_protocol() -> None:
    """Kafka's administrators use it for both."""
    stage, modern, classic = mixed_group()
    Consumer(stage, "static", instance="i").send_heartbeat()
    gone = [
        MemberIdentity(member_id=modern.member_id),
        MemberIdentity(member_id="", group_instance_id="i"),
        MemberIdentity(member_id="stranger"),
    ]
    codes = [ErrorCode(member.error_code) for member in stage.leave(*gone).members]
    assert codes == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
    assert [member_id for member_id, _ in stage.consumers().members()] == [classic.member_id]


def test_a_wrong_generation_is_refused() -> None:
    _, _, classic = mixed_group()
    classic.generation_id += 1
    assert classic.heartbeat() == ErrorCode.ILLEGAL_GENERATION
    assert classic.sync() == ErrorCode.ILLEGAL_GENERATION


def test_a_sync_for_another_protocol_is_refused() -> None:
    stage, _, classic = mixed_group()
    by = (classic.member_id, classic.generation_id)
    for given in ({"protocol_name": "sticky"}, {"protocol_type": "connect"}):
        code = stage.sync(*by, **given).synced.error_code  # type: ignore[arg-type]  # as it is
        assert code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_sync_behind_the_group_epoch_gets_rebalance_in_progress() -> None:
    stage, _, classic = mixed_group()
    stage.topics({"a": 5})
    assert classic.sync() == ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize(
    ("protocol_type", "protocols"),
    [
        ("connect", [("range", b"")]),
        ("consumer", []),
        ("consumer", [("sticky", encode_subscription(ConsumerProtocolSubscription(topics=["a"])))]),
        ("consumer", [("range", b"\x00")]),
    ],
)
def test_a_member_without_a_common_protocol_is_refused(
    protocol_type: str, protocols: list[tuple[str, bytes]]
) -> None:
    stage, _, _ = mixed_group()
    joined = stage.join("x", protocol_type=protocol_type, protocols=protocols).joined
    assert joined.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_static_member_may_change_its_protocol_with_a_restart() -> None:
    stage = Stage({"a": 4}, STAY)
    modern = Consumer(stage, "m", instance="i")
    other = Consumer(stage, "n")
    settle(modern, other)
    had = modern.partitions
    classic = Classic(stage, instance="i")
    rest(classic, other)
    assert classic.owned == had
    again = Consumer(stage, "m2", instance="i")
    settle(again, other)
    assert again.partitions == had
    assert classic.heartbeat() == ErrorCode.FENCED_INSTANCE_ID


def test_classic_members_continue_when_the_coordinator_moves() -> None:
    stage, modern, classic = mixed_group()
    stage.reload()
    assert classic.heartbeat() == ErrorCode.NONE
    rest(classic, modern)
    assert modern.errors == []


def test_commits_of_classic_members_have_their_generation() -> None:
    stage, _, classic = mixed_group()
    by = {"member_id": classic.member_id, "version": 8}
    offsets = {("a", 0): 1}
    ok = stage.commit(offsets, generation_id=classic.generation_id, **by)  # type: ignore[arg-type]
    assert ok == ErrorCode.NONE
    wrong = stage.commit(offsets, generation_id=99, **by)  # type: ignore[arg-type]  # as it is
    assert wrong == ErrorCode.ILLEGAL_GENERATION
