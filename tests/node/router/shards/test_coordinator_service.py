"""The coordinators of a router: hosted shards follow the image and survive restarts."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.cluster.metadata.image import ConfigResourceType, PartitionImage
from odradek.cluster.metadata.records import PartitionChanged
from odradek.cluster.metadata.settings import broker_settings
from odradek.coordinator.group.settings import group_settings
from odradek.coordinator.group.shard import GroupShard
from odradek.coordinator.ownership import shard_of
from odradek.node.router.handlers.group_offsets import handle_offset_commit, handle_offset_fetch
from odradek.node.router.handlers.groups import (
    handle_find_coordinator,
    handle_heartbeat,
    handle_join_group,
    handle_list_groups,
    handle_sync_group,
)
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
    ListGroupsRequest,
    SyncGroupRequest,
)
from tests.support.group_harness import GroupHarness
from tests.support.log_lines import log_lines


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[GroupHarness]:
    with GroupHarness(tmp_path) as harness:
        harness.call(handle_find_coordinator, FindCoordinatorRequest(key="g"), 0)
        harness.have_topic("t", 1)
        yield harness


def commit(harness: GroupHarness, offset: int, *, group: str = "g") -> int:
    partition = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata=""
    )
    topic = OffsetCommitRequestTopic(name="t", partitions=[partition])
    request = OffsetCommitRequest(group_id=group, topics=[topic])
    return harness.call(handle_offset_commit, request, 9).topics[0].partitions[0].error_code


def fetch(harness: GroupHarness, *, group: str = "g") -> int | None:
    """The committed offset, None if there is none."""
    asked = OffsetFetchRequestGroup(group_id=group, topics=None)
    [found] = harness.call(handle_offset_fetch, OffsetFetchRequest(groups=[asked]), 9).groups
    assert found.error_code == ErrorCode.NONE
    return found.topics[0].partitions[0].committed_offset if found.topics else None


def join(harness: GroupHarness, member_id: str = "") -> JoinGroupResponse:
    request = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=6_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    return harness.call(handle_join_group, request, 3)


def heartbeat(harness: GroupHarness, member_id: str, generation_id: int) -> int:
    request = HeartbeatRequest(group_id="g", generation_id=generation_id, member_id=member_id)
    return harness.call(handle_heartbeat, request, 4).error_code


def stable(harness: GroupHarness) -> str:
    member_id = join(harness).member_id
    harness.call(
        handle_sync_group, SyncGroupRequest(group_id="g", generation_id=1, member_id=member_id), 3
    )
    assert heartbeat(harness, member_id, 1) == ErrorCode.NONE
    return member_id


def test_a_stable_group_survives_a_restart_of_the_router(harness: GroupHarness) -> None:
    member_id = stable(harness)
    commit(harness, 7, group="other")
    harness.restart_router()
    assert heartbeat(harness, member_id, 1) == ErrorCode.NONE
    assert fetch(harness, group="other") == 7
    assert join(harness, member_id).generation_id == 2


def test_requests_wait_for_an_unreachable_worker(harness: GroupHarness) -> None:
    harness.bus.is_away = True
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=3)
    topic = OffsetCommitRequestTopic(name="t", partitions=[partition])
    commit_later = harness.begin(
        handle_offset_commit, OffsetCommitRequest(group_id="g", topics=[topic]), 9
    )
    harness.turn_loop(0.01)
    assert not commit_later.done()
    harness.bus.come_back()
    assert harness.wait(commit_later).topics[0].partitions[0].error_code == ErrorCode.NONE
    assert fetch(harness) == 3


def test_commits_of_one_turn_and_shard_are_one_append(harness: GroupHarness) -> None:
    shard = shard_of("g", 5)
    groups = [name for name in (f"g{i}" for i in range(100)) if shard_of(name, 5) == shard][:8]
    before = harness.bus.append_count
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=3)
    topic = OffsetCommitRequestTopic(name="t", partitions=[partition])

    async def all_at_once() -> None:
        for name in groups:
            harness.coordinators.call(
                name, OffsetCommitRequest(group_id=name, topics=[topic]), _Asker()
            )

    harness.loop.run_until_complete(all_at_once())
    harness.turn_loop(0.01)
    assert harness.bus.append_count == before + 1
    assert [fetch(harness, group=name) for name in groups] == [3] * 8


class _Asker:
    api_version = 9
    client_id: str | None = None
    client_host = "127.0.0.1"
    connection_id = 1


def test_shards_follow_their_partitions_leader(harness: GroupHarness) -> None:
    commit(harness, 5)
    topic = harness.image.topics_by_name["__consumer_offsets"]
    shard = shard_of("g", len(topic.partitions))
    assert harness.coordinators.hosted_shards() == [0, 1, 2, 3, 4]
    assert harness.coordinators.coordinator_of("g") == 0

    def lead(leader: int, leader_epoch: int) -> None:
        moved = PartitionImage((0,), (0,), leader, leader_epoch)
        harness.controller.write(PartitionChanged(topic.topic_id, shard, moved))
        harness.follow()
        harness.turn_loop(0.01)

    lead(1, 1)
    assert shard not in harness.coordinators.hosted_shards()
    assert harness.coordinators.coordinator_of("g") == 1
    assert commit(harness, 6) == ErrorCode.NOT_COORDINATOR
    lead(0, 2)
    assert fetch(harness) == 5


def test_a_parked_join_is_refused_when_its_shard_moves(harness: GroupHarness) -> None:
    stable(harness)
    request = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=6_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    parked = harness.begin(handle_join_group, request, 3)
    harness.turn_loop(0.01)
    assert not parked.done()
    harness.restart_router()
    assert harness.wait(parked).error_code == ErrorCode.NOT_COORDINATOR


def test_a_closed_service_hosts_nothing_any_more(harness: GroupHarness) -> None:
    stable(harness)
    harness.services.answer_waiting_requests()
    assert commit(harness, 6) == ErrorCode.NOT_COORDINATOR
    topic = harness.image.topics_by_name["__consumer_offsets"]
    moved = PartitionImage((0,), (0,), 0, 1)
    harness.controller.write(PartitionChanged(topic.topic_id, 0, moved))
    harness.follow()
    assert harness.coordinators.hosted_shards() == []
    listed = harness.call(handle_list_groups, ListGroupsRequest())
    assert listed.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_offsets_of_a_deleted_topic_that_was_missed_are_deleted_later(
    harness: GroupHarness,
) -> None:
    harness.have_topic("u", 2)
    commit(harness, 5)
    harness.coordinators.close()
    harness.drop_topic("t")
    harness.restart_router()
    # An image that is still catching up must not cost offsets: nothing goes at loading.
    shard = shard_of("g", 5)
    hosted = harness.coordinators._hosts[shard].runtime.shard
    assert isinstance(hosted, GroupShard)
    harness.turn_loop(0.01)
    assert ("t", 0) in dict(hosted.offsets.items("g"))
    harness.loop.call_soon(harness.coordinators._sweep_deleted_topics)
    harness.turn_loop(0.01)
    assert dict(hosted.offsets.items("g")) == {}


def test_settings_reach_hosted_shards(harness: GroupHarness) -> None:
    harness.controller.set_config(
        ConfigResourceType.BROKER, "", group_min_session_timeout_ms="7000", group_max_size="9"
    )
    harness.follow()
    assert join(harness).error_code == ErrorCode.INVALID_SESSION_TIMEOUT


def test_group_settings_come_from_the_broker_configs(harness: GroupHarness) -> None:
    settings = group_settings(broker_settings(harness.image, 0, {}), harness.image.configs)
    assert settings.initial_rebalance_delay_ms == 3_000
    assert settings.session_timeout_min_ms == 6_000
    assert settings.session_timeout_max_ms == 1_800_000
    assert settings.offsets_retention_ms == 7 * 24 * 3_600_000
    assert settings.retention_check_interval_ms == 600_000
    assert settings.offset_metadata_bytes_max == 4_096


def test_the_internal_topic_is_created_with_the_configured_replication_factor_or_not_at_all(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    static = {"internal.topics.replication.adaptive": "false"}

    def find(harness: GroupHarness) -> int:
        return harness.call(handle_find_coordinator, FindCoordinatorRequest(key="g"), 0).error_code

    with GroupHarness(tmp_path / "two", brokers=2, static=static) as harness:
        assert find(harness) == find(harness) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert "__consumer_offsets" not in harness.image.topics_by_name
        [logged] = [text for text in log_lines(caplog) if "could not be created" in text]
        assert "only 2 broker(s) are registered" in logged
    with GroupHarness(tmp_path / "three", brokers=3, static=static) as harness:
        assert find(harness) == ErrorCode.NONE
        topic = harness.image.topics_by_name["__consumer_offsets"]
        assert {len(partition.replicas) for partition in topic.partitions} == {3}


def test_the_internal_topic_may_begin_with_fewer_replicas_where_the_others_are_added_later(
    tmp_path: Path,
) -> None:
    static = {"internal.topics.replication.adaptive": "true"}
    with GroupHarness(tmp_path, brokers=2, static=static) as harness:
        request = FindCoordinatorRequest(key="g")
        assert harness.call(handle_find_coordinator, request, 0).error_code == ErrorCode.NONE
        topic = harness.image.topics_by_name["__consumer_offsets"]
        assert {len(partition.replicas) for partition in topic.partitions} == {2}


def test_when_the_internal_topic_is_deleted_its_groups_are_gone(harness: GroupHarness) -> None:
    commit(harness, 5)
    harness.drop_topic("__consumer_offsets")
    assert harness.coordinators.hosted_shards() == []
    assert commit(harness, 6) == ErrorCode.NOT_COORDINATOR
    harness.call(handle_find_coordinator, FindCoordinatorRequest(key="g"), 0)
    assert fetch(harness) is None
