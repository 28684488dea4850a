"""What the groups of archives have committed, from their coordinators to the logs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from odradek.cluster.metadata.image import ConfigResourceType
from odradek.cluster.metadata.records import PartitionChanged
from odradek.node.bus.reply import Reply, start_coroutine
from odradek.node.router import archive_groups
from odradek.node.router.archive_groups import ArchivedPartition, ArchiveGroups
from odradek.node.router.handlers.groups import handle_find_coordinator
from odradek.protocol.messages.group_offsets import OffsetFetchRequest
from odradek.protocol.messages.groups import FindCoordinatorRequest
from odradek.storage.partition_log import ArchiveState
from tests.node.router.test_group_lag_metrics import commit
from tests.support.controller_harness import topic_id
from tests.support.group_harness import GroupHarness
from tests.support.stores import batch_of

T, U = topic_id(1), topic_id(2)


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[GroupHarness]:
    with GroupHarness(tmp_path) as harness:
        harness.call(handle_find_coordinator, FindCoordinatorRequest(key="g"), 0)
        harness.have_topic("t", 1, partitions=3)
        harness.have_topic("u", 2)
        yield harness


class CountingClient:
    """The client of the harness, which counts what it sends; it fails while `is_away`."""

    def __init__(self, harness: GroupHarness) -> None:
        self._harness = harness
        self.requests: list[object] = []
        self.is_away = False

    def send(self, node_id: int, request: object) -> Reply[Any]:
        self.requests.append(request)
        return self._harness.client.send(-1 if self.is_away else node_id, request)


def groups_of(harness: GroupHarness, client: CountingClient | None = None) -> ArchiveGroups:
    services = harness.services
    groups = ArchiveGroups(
        services.metadata,
        services.logs,
        services.worker_client,
        client or CountingClient(harness),
        harness.coordinators.coordinator_of,
        harness.loop,
    )
    groups.on_image(harness.image)
    return groups


def gate(harness: GroupHarness, topic: str, group: str | None) -> None:
    """Set or remove the topic's gate."""
    if group is None:
        harness.controller.set_config(ConfigResourceType.TOPIC, topic, odradek_archive_group="")
    else:
        harness.controller.set_config(ConfigResourceType.TOPIC, topic, odradek_archive_group=group)
    harness.follow()


def archive(harness: GroupHarness, topic: str, partition: int = 0) -> ArchiveState:
    state = harness.partitions.log(harness.place(topic, partition)).archive
    assert state is not None
    return state


def is_scheduled(groups: ArchiveGroups) -> bool:
    return groups._timer is not None


def run_round(harness: GroupHarness, groups: ArchiveGroups) -> None:
    async def start() -> Reply[None]:
        return start_coroutine(groups.run_round())

    harness.result(harness.loop.run_until_complete(start()))


def test_the_logs_are_told_what_the_group_has_committed(harness: GroupHarness) -> None:
    gate(harness, "t", "g")
    for partition in range(3):
        harness.append("t", batch_of(5), partition=partition)
    commit(harness, "g", "t", 4, 2)
    commit(harness, "other", "t", 5, 5, 5)
    groups = groups_of(harness)
    assert groups.archived(T, 0) is None
    run_round(harness, groups)
    assert [archive(harness, "t", index).archived_offset for index in range(3)] == [4, 2, -1]
    assert groups.archived(T, 0) == ArchivedPartition("g", 4, 0)
    assert groups.archived(T, 2) == ArchivedPartition("g", -1, 0)
    archive(harness, "t", 1).held_bytes = 77
    commit(harness, "g", "t", 5, 3)
    run_round(harness, groups)
    assert [archive(harness, "t", index).archived_offset for index in range(3)] == [5, 3, -1]
    assert groups.archived(T, 1) == ArchivedPartition("g", 3, 77)
    # Set back by hand, and deleted: the log knows of it.
    commit(harness, "g", "t", 1)
    run_round(harness, groups)
    assert archive(harness, "t").archived_offset == 1


def test_each_group_is_asked_once_and_a_node_without_gates_asks_nobody(
    harness: GroupHarness,
) -> None:
    client = CountingClient(harness)
    groups = groups_of(harness, client)
    run_round(harness, groups)
    assert client.requests == []
    assert not is_scheduled(groups)
    gate(harness, "t", "g")
    gate(harness, "u", "g")
    groups.on_image(harness.image)
    assert is_scheduled(groups)
    run_round(harness, groups)
    (request,) = client.requests
    assert isinstance(request, OffsetFetchRequest)
    (asked,) = request.groups
    assert asked.topics is not None
    assert [(topic.topic_id, topic.partition_indexes) for topic in asked.topics] == [
        (T, [0, 1, 2]),
        (U, [0]),
    ]
    gate(harness, "u", "h")
    groups.on_image(harness.image)
    run_round(harness, groups)
    assert len(client.requests) == 3
    gate(harness, "t", None)
    gate(harness, "u", None)
    groups.on_image(harness.image)
    run_round(harness, groups)
    assert len(client.requests) == 3
    assert groups.archived(U, 0) is None
    groups.close()


def test_many_partitions_are_asked_for_in_parts(
    harness: GroupHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_groups, "PARTITIONS_PER_REQUEST", 2)
    gate(harness, "t", "g")
    gate(harness, "u", "g")
    commit(harness, "g", "t", 1, 2, 3)
    commit(harness, "g", "u", 4)
    client = CountingClient(harness)
    run_round(harness, groups_of(harness, client))
    assert len(client.requests) == 2
    assert [archive(harness, "t", index).archived_offset for index in range(3)] == [1, 2, 3]
    assert archive(harness, "u").archived_offset == 4


def test_what_is_known_stays_while_the_coordinator_does_not_answer(harness: GroupHarness) -> None:
    gate(harness, "t", "g")
    gate(harness, "u", "h")
    commit(harness, "g", "t", 1, 2, 3)
    client = CountingClient(harness)
    groups = groups_of(harness, client)
    run_round(harness, groups)
    client.is_away = True
    client.requests.clear()
    commit(harness, "g", "t", 4, 5, 6)
    run_round(harness, groups)
    assert len(client.requests) == 1, "a node that does not answer is asked once in a round"
    assert [archive(harness, "t", index).archived_offset for index in range(3)] == [1, 2, 3]
    assert groups.archived(T, 2) == ArchivedPartition("g", 3, 0)
    client.is_away = False
    run_round(harness, groups)
    assert [archive(harness, "t", index).archived_offset for index in range(3)] == [4, 5, 6]


def test_a_topic_of_the_same_name_begins_without_a_commit(harness: GroupHarness) -> None:
    gate(harness, "u", "g")
    commit(harness, "g", "u", 7)
    groups = groups_of(harness)
    run_round(harness, groups)
    assert archive(harness, "u").archived_offset == 7
    harness.drop_topic("u")
    groups.on_image(harness.image)
    run_round(harness, groups)
    assert groups.archived(U, 0) is None
    harness.have_topic("u", 3)
    gate(harness, "u", "g")
    groups.on_image(harness.image)
    run_round(harness, groups)
    assert archive(harness, "u").archived_offset == -1
    assert groups.archived(topic_id(3), 0) == ArchivedPartition("g", -1, 0)


def test_only_the_replicas_of_this_node_are_asked_for(harness: GroupHarness) -> None:
    gate(harness, "t", "g")
    state = harness.image.topics_by_name["t"].partitions[1]
    moved = structs.replace(state, replicas=(7,), in_sync_replicas=(7,), leader=7)
    harness.controller.write(PartitionChanged(T, 1, moved))
    harness.follow()
    client = CountingClient(harness)
    run_round(harness, groups_of(harness, client))
    (request,) = client.requests
    assert isinstance(request, OffsetFetchRequest)
    assert request.groups[0].topics is not None
    assert request.groups[0].topics[0].partition_indexes == [0, 2]


def test_the_rounds_come_as_often_as_retention_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_groups, "FIRST_S", 0.0)
    monkeypatch.setattr(archive_groups, "INTERVAL_S_MIN", 0.01)
    with GroupHarness(tmp_path, static={"log.retention.check.interval.ms": "1"}) as harness:
        harness.call(handle_find_coordinator, FindCoordinatorRequest(key="g"), 0)
        harness.have_topic("u", 2)
        gate(harness, "u", "g")
        for offset in (7, 8):
            commit(harness, "g", "u", offset)
            for _ in range(500):
                harness.turn_loop(0.01)
                if archive(harness, "u").archived_offset == offset:
                    break
            assert archive(harness, "u").archived_offset == offset
