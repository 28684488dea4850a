"""The coordinators of a router: hosting what the image says, and going on after every death."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.cluster.metadata.image import ConfigResourceType, PartitionImage
from odradek.cluster.metadata.records import PartitionChanged
from odradek.cluster.metadata.settings import broker_settings
from odradek.coordinator.group.shard import GroupShard
from odradek.coordinator.ownership import shard_of
from odradek.node.router.handlers.group_offsets import handle_offset_commit, handle_offset_fetch
from odradek.node.router.handlers.groups import (
    handle_find_coordinator,
    handle_heartbeat,
    handle_join_group,
    handle_sync_group,
)
from odradek.node.router.shards.group_kind import group_settings
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from odradek.protocol.messages.groups import (
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    SyncGroupRequest,
)
from tests.support.group_room import GroupRoom


@pytest.fixture
def room(tmp_path: Path) -> Iterator[GroupRoom]:
    with GroupRoom(tmp_path) as room:
        room.call(handle_find_coordinator, FindCoordinatorRequest(key="g"), 0)
        room.have_topic("t", 1)
        yield room


def commit(room: GroupRoom, offset: int, *, group: str = "g") -> int:
    partition = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata=""
    )
    topic = OffsetCommitRequestTopic(name="t", partitions=[partition])
    request = OffsetCommitRequest(group_id=group, topics=[topic])
    return room.call(handle_offset_commit, request, 9).topics[0].partitions[0].error_code


def fetch(room: GroupRoom, *, group: str = "g") -> int | None:
    """The committed offset, None if there is none."""
    asked = OffsetFetchRequestGroup(group_id=group, topics=None)
    [found] = room.call(handle_offset_fetch, OffsetFetchRequest(groups=[asked]), 9).groups
    assert found.error_code == ErrorCode.NONE
    return found.topics[0].partitions[0].committed_offset if found.topics else None


def join(room: GroupRoom, member_id: str = "") -> JoinGroupResponse:
    request = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=6_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    return room.call(handle_join_group, request, 3)


def heartbeat(room: GroupRoom, member_id: str, generation_id: int) -> int:
    request = HeartbeatRequest(group_id="g", generation_id=generation_id, member_id=member_id)
    return room.call(handle_heartbeat, request, 4).error_code


def stable(room: GroupRoom) -> str:
    member_id = join(room).member_id
    room.call(
        handle_sync_group, SyncGroupRequest(group_id="g", generation_id=1, member_id=member_id), 3
    )
    assert heartbeat(room, member_id, 1) == ErrorCode.NONE
    return member_id


def test_a_stable_group_survives_its_router(room: GroupRoom) -> None:
    member_id = stable(room)
    commit(room, 7, group="other")
    room.restart_router()
    assert heartbeat(room, member_id, 1) == ErrorCode.NONE
    assert fetch(room, group="other") == 7
    assert join(room, member_id).generation_id == 2


def test_requests_wait_for_a_worker_that_is_away(room: GroupRoom) -> None:
    room.bus.is_away = True
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=3)
    topic = OffsetCommitRequestTopic(name="t", partitions=[partition])
    commit_later = room.begin(
        handle_offset_commit, OffsetCommitRequest(group_id="g", topics=[topic]), 9
    )
    room.turn_loop(0.01)
    assert not commit_later.done()
    room.bus.come_back()
    assert room.wait(commit_later).topics[0].partitions[0].error_code == ErrorCode.NONE
    assert fetch(room) == 3


def test_commits_of_one_turn_and_shard_are_one_append(room: GroupRoom) -> None:
    shard = shard_of("g", 5)
    groups = [name for name in (f"g{i}" for i in range(100)) if shard_of(name, 5) == shard][:8]
    before = room.bus.append_count
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=3)
    topic = OffsetCommitRequestTopic(name="t", partitions=[partition])

    async def all_at_once() -> None:
        for name in groups:
            room.coordinators.call(
                name, OffsetCommitRequest(group_id=name, topics=[topic]), _Asker()
            )

    room.loop.run_until_complete(all_at_once())
    room.turn_loop(0.01)
    assert room.bus.append_count == before + 1
    assert [fetch(room, group=name) for name in groups] == [3] * 8


class _Asker:
    api_version = 9
    client_id: str | None = None
    client_host = "127.0.0.1"
    connection_id = 1


def test_shards_follow_their_partitions_leader(room: GroupRoom) -> None:
    commit(room, 5)
    topic = room.image.topics_by_name["__consumer_offsets"]
    shard = shard_of("g", len(topic.partitions))
    assert room.coordinators.hosted_shards() == [0, 1, 2, 3, 4]
    assert room.coordinators.coordinator_of("g") == 0

    def lead(leader: int, leader_epoch: int) -> None:
        moved = PartitionImage((0,), (0,), leader, leader_epoch)
        room.controller.write(PartitionChanged(topic.topic_id, shard, moved))
        room.follow()
        room.turn_loop(0.01)

    lead(1, 1)
    assert shard not in room.coordinators.hosted_shards()
    assert room.coordinators.coordinator_of("g") == 1
    assert commit(room, 6) == ErrorCode.NOT_COORDINATOR
    lead(0, 2)
    assert fetch(room) == 5


def test_a_parked_join_is_refused_when_its_shard_moves(room: GroupRoom) -> None:
    stable(room)
    request = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=6_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    parked = room.begin(handle_join_group, request, 3)
    room.turn_loop(0.01)
    assert not parked.done()
    room.restart_router()
    assert room.wait(parked).error_code == ErrorCode.NOT_COORDINATOR


def test_offsets_of_topics_deleted_while_nobody_listened_go_later(room: GroupRoom) -> None:
    room.have_topic("u", 2)
    commit(room, 5)
    room.coordinators.close()
    room.drop_topic("t")
    room.restart_router()
    # An image that is still catching up must not cost offsets: nothing goes at loading.
    shard = shard_of("g", 5)
    hosted = room.coordinators._hosts[shard].runtime.shard
    assert isinstance(hosted, GroupShard)
    room.turn_loop(0.01)
    assert ("t", 0) in dict(hosted.offsets.items("g"))
    room.loop.call_soon(room.coordinators._forget_vanished_topics)
    room.turn_loop(0.01)
    assert dict(hosted.offsets.items("g")) == {}


def test_settings_reach_shards_that_are_hosted_already(room: GroupRoom) -> None:
    room.controller.set_config(
        ConfigResourceType.BROKER, "", group_min_session_timeout_ms="7000", group_max_size="9"
    )
    room.follow()
    assert join(room).error_code == ErrorCode.INVALID_SESSION_TIMEOUT


def test_group_settings_come_from_the_brokers(room: GroupRoom) -> None:
    settings = group_settings(broker_settings(room.image, 0, {}), room.image)
    assert settings.initial_rebalance_delay_ms == 3_000
    assert settings.session_timeout_min_ms == 6_000
    assert settings.session_timeout_max_ms == 1_800_000
    assert settings.offsets_retention_ms == 7 * 24 * 3_600_000
    assert settings.retention_check_interval_ms == 600_000
    assert settings.offset_metadata_bytes_max == 4_096


def test_a_topic_deleted_with_its_groups_takes_them_along(room: GroupRoom) -> None:
    commit(room, 5)
    room.drop_topic("__consumer_offsets")
    assert room.coordinators.hosted_shards() == []
    assert commit(room, 6) == ErrorCode.NOT_COORDINATOR
    room.call(handle_find_coordinator, FindCoordinatorRequest(key="g"), 0)
    assert fetch(room) is None
