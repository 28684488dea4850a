"""ExplainGroup and ExplainTopic: the data of coordinators, of leaders and of fetching clients."""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from odradek.cluster.metadata.acls import AclOperation, ResourceType
from odradek.cluster.metadata.image import ConfigResourceType
from odradek.node.router.archive_groups import ArchivedPartition
from odradek.node.router.handlers import explanations as explain_handlers
from odradek.node.router.handlers.explanations import handle_explain_group, handle_explain_topic
from odradek.node.router.handlers.fetch import handle_fetch
from odradek.node.router.handlers.group_offsets import handle_offset_commit
from odradek.node.router.handlers.groups import handle_find_coordinator
from odradek.node.router.share.partitions import SharePartitions
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.diagnostics import (
    ExplainedPartition,
    ExplainGroupRequest,
    ExplainGroupResponse,
    ExplainTopicRequest,
    ExplainTopicRequestTopic,
    ExplainTopicResponse,
)
from odradek.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from odradek.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from odradek.protocol.messages.groups import FindCoordinatorRequest
from odradek.protocol.records import TRANSACTIONAL
from tests.support.group_harness import GroupHarness
from tests.support.router_harness import RouterHarness
from tests.support.share_fetching import ShareFetchHarness
from tests.support.share_harness import GROUP, TOPIC
from tests.support.stores import batch_of


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[RouterHarness]:
    harness = RouterHarness(tmp_path)
    harness.controller.has("t", 1, 2)
    harness.follow()
    loop = asyncio.new_event_loop()
    services = harness.services
    services.share_partitions = SharePartitions(
        services.metadata,
        services.logs,
        services.fetch_purgatory,
        services.share_persister,
        services.share_sessions,
        services.dead_letter_queue,
        services.now_ms,
        loop,
    )
    yield harness
    harness.close()
    loop.close()


def explain(harness: RouterHarness, index: int = 0) -> ExplainedPartition:
    asked = ExplainTopicRequestTopic(name="t", partitions=[index])
    [topic] = harness.call(handle_explain_topic, ExplainTopicRequest(topics=[asked])).topics
    [partition] = topic.partitions
    assert (topic.error_code, partition.partition_index) == (0, index)
    return partition


def test_a_partition_is_explained_from_metadata_and_log(harness: RouterHarness) -> None:
    harness.append("t", batch_of(3))
    found = explain(harness)
    assert (found.error_code, found.leader_id, found.in_sync_replicas) == (0, 0, [0])
    assert found.min_in_sync_replicas == 1
    assert (found.log_start_offset, found.last_stable_offset) == (0, 3)
    assert (found.high_watermark, found.log_end_offset) == (3, 3)
    assert (found.open_producer_id, found.open_silent_ms) == (-1, -1)
    assert found.readers == []


def test_the_oldest_open_transaction_is_named(harness: RouterHarness) -> None:
    now_ms = harness.services.now_ms()
    for producer_id in (8, 7):
        batch = batch_of(
            timestamp=now_ms - 500,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            attributes=TRANSACTIONAL,
        )
        harness.append("t", batch_of(), batch)
    found = explain(harness)
    assert (found.last_stable_offset, found.high_watermark) == (1, 4)
    assert (found.open_producer_id, found.open_since_offset) == (8, 1)
    assert found.open_silent_ms == 500


def test_fetching_clients_are_listed_with_their_positions(harness: RouterHarness) -> None:
    harness.append("t", batch_of(3))
    topic = FetchTopic(topic="t", partitions=[FetchPartition(partition=0, fetch_offset=2)])
    harness.call(
        handle_fetch, FetchRequest(topics=[topic], max_bytes=1 << 20, isolation_level=1), 11
    )
    [reader] = explain(harness).readers
    assert (reader.offset, reader.is_read_committed, reader.error_code) == (2, True, 0)
    assert reader.client_host.startswith("/")
    assert explain(harness, 1).readers == []


def test_a_failed_fetch_is_listed_with_its_error(harness: RouterHarness) -> None:
    topic = FetchTopic(topic="t", partitions=[FetchPartition(partition=0, fetch_offset=99)])
    harness.call(handle_fetch, FetchRequest(topics=[topic], max_bytes=1 << 20), 11)
    [reader] = explain(harness).readers
    assert reader.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_topics_and_partitions_without_a_replica_here_have_their_own_error(
    harness: RouterHarness,
) -> None:
    request = ExplainTopicRequest(
        topics=[
            ExplainTopicRequestTopic(name="no"),
            ExplainTopicRequestTopic(name="t", partitions=[9]),
            ExplainTopicRequestTopic(name="t"),
        ]
    )
    unknown, beyond, whole = harness.call(handle_explain_topic, request).topics
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [p.error_code for p in beyond.partitions] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert [p.partition_index for p in whole.partitions] == [0, 1]
    harness.deny(AclOperation.DESCRIBE, ResourceType.TOPIC, "t")
    [denied] = harness.call(
        handle_explain_topic, ExplainTopicRequest(topics=[ExplainTopicRequestTopic(name="t")])
    ).topics
    assert (denied.error_code, denied.partitions) == (29, [])


def test_locks_of_share_group_members_are_listed(tmp_path: Path) -> None:
    with ShareFetchHarness(tmp_path, group={"share.record.lock.duration.ms": "30000"}) as shared:
        shared.append(TOPIC, batch_of(3), batch_of(2))
        shared.member("a").fetch(0, max_records=3)
        asked = ExplainTopicRequestTopic(name=TOPIC, partitions=[0])
        answer = shared.loop.run_until_complete(
            shared.ask(ExplainTopicRequest(topics=[asked]), 0, connection=9)
        )
        assert isinstance(answer, ExplainTopicResponse)
        [[sharing]] = [partition.sharing for partition in answer.topics[0].partitions]
        assert (sharing.group_id, sharing.start_offset, sharing.end_offset) == (GROUP, 0, 3)
        assert (sharing.acquired_count, sharing.available_count, sharing.delayed_count) == (3, 0, 0)
        [lock] = sharing.locks
        assert (lock.member_id, lock.start_offset, lock.end_offset) == ("a", 0, 3)
        assert lock.delivery_count == 1
        assert 0 < lock.left_ms <= 30_000
        shared.authorizer.denied.add((AclOperation.DESCRIBE, ResourceType.GROUP, GROUP))
        answer = shared.loop.run_until_complete(
            shared.ask(ExplainTopicRequest(topics=[asked]), 0, connection=9)
        )
        assert isinstance(answer, ExplainTopicResponse)
        assert [partition.sharing for partition in answer.topics[0].partitions] == [[]]


# -- groups ---------------------------------------------------------------------------------------


@pytest.fixture
def groups(tmp_path: Path) -> Iterator[GroupHarness]:
    with GroupHarness(tmp_path) as harness:
        harness.call(handle_find_coordinator, FindCoordinatorRequest(key="g"), 0)
        harness.have_topic("t", 1)
        for group in ("g", "h"):
            partition = OffsetCommitRequestPartition(
                partition_index=0, committed_offset=5, committed_metadata=""
            )
            topic = OffsetCommitRequestTopic(name="t", partitions=[partition])
            request = OffsetCommitRequest(group_id=group, topics=[topic])
            harness.call(handle_offset_commit, request, 9)
        yield harness


def ask(harness: GroupHarness, *names: str) -> ExplainGroupResponse:
    return harness.call(handle_explain_group, ExplainGroupRequest(group_ids=list(names) or None))


def test_groups_are_explained_by_name_or_all_together(groups: GroupHarness) -> None:
    named = ask(groups, "g", "no")
    assert [(group.group_id, group.error_code) for group in named.groups] == [
        ("g", ErrorCode.NONE),
        ("no", ErrorCode.GROUP_ID_NOT_FOUND),
    ]
    [topic] = named.groups[0].commits
    assert (topic.name, topic.partitions[0].committed_offset) == ("t", 5)
    assert 0 <= named.now - topic.partitions[0].committed_at < 60_000
    assert sorted(group.group_id for group in ask(groups).groups) == ["g", "h"]


def test_all_groups_are_explained_in_pages(
    groups: GroupHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explain_handlers, "GROUPS_MAX", 1)
    first = ask(groups)
    assert ([group.group_id for group in first.groups], first.has_more) == (["g"], True)
    last = groups.call(handle_explain_group, ExplainGroupRequest(after="g"))
    assert ([group.group_id for group in last.groups], last.has_more) == (["h"], False)


def test_groups_without_describe_are_left_out(groups: GroupHarness) -> None:
    groups.deny(AclOperation.DESCRIBE, ResourceType.GROUP, "g")
    assert [group.error_code for group in ask(groups, "g").groups] == [30]
    assert [group.group_id for group in ask(groups).groups] == ["h"]


def test_very_many_topics_are_explained_in_turns(harness: RouterHarness) -> None:
    names = [f"t{index}" for index in range(2_000)]
    request = ExplainTopicRequest(topics=[ExplainTopicRequestTopic(name=name) for name in names])
    with closing(asyncio.new_event_loop()) as loop:
        answer = harness.call_in_turns(handle_explain_topic, request, loop)
    assert [topic.name for topic in answer.topics] == names


def test_very_many_partitions_are_explained_once_each_and_in_turns(harness: RouterHarness) -> None:
    asked = ExplainTopicRequestTopic(name="t", partitions=[0, 0, *range(2_000)])
    with closing(asyncio.new_event_loop()) as loop:
        request = ExplainTopicRequest(topics=[asked])
        [topic] = harness.call_in_turns(handle_explain_topic, request, loop).topics
    assert [partition.partition_index for partition in topic.partitions] == list(range(2_000))


# -- an archive -----------------------------------------------------------------------------------


def test_what_waits_for_the_group_of_an_archive_is_told(groups: GroupHarness) -> None:
    topic_id = groups.have_topic("kept", 9)
    asked = ExplainTopicRequest(topics=[ExplainTopicRequestTopic(name="kept")])

    def told(version: int = 2) -> tuple[str, int, int]:
        [topic] = groups.call(handle_explain_topic, asked, version).topics
        [found] = topic.partitions
        return found.archive_group, found.archived_offset, found.archive_held_bytes

    assert told() == ("", -1, 0)
    configs = {"odradek_archive_group": "pipe.kept"}
    groups.controller.set_config(ConfigResourceType.TOPIC, "kept", **configs)
    groups.follow()
    assert told() == ("pipe.kept", -1, 0)
    known = {(topic_id, 0): ArchivedPartition("pipe.kept", 7, 4_000)}
    groups.services.archive_groups._known = known
    assert told() == ("pipe.kept", 7, 4_000)
    assert told(1) == ("", -1, 0), "an older client"
    known[topic_id, 0] = ArchivedPartition("another", 7, 4_000)
    assert told() == ("pipe.kept", -1, 0), "the configs have changed since"
    groups.deny(AclOperation.DESCRIBE, ResourceType.GROUP, "pipe.kept")
    assert told() == ("", -1, 0)
