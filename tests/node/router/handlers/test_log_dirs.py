"""DescribeLogDirs as clients see it (B.11): one folder, and what lies in it."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from odradek.cluster.metadata.image import ConfigResourceType
from odradek.node.router.authorizer import CLUSTER_NAME, Operation, ResourceType
from odradek.node.router.handlers.log_dirs import (
    handle_alter_replica_log_dirs,
    handle_describe_log_dirs,
)
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.cluster import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
)
from tests.support.router_room import RouterRoom
from tests.support.stores import batch_of


@pytest.fixture
def room(tmp_path: Path) -> Iterator[RouterRoom]:
    room = RouterRoom(tmp_path)
    for number, (name, partitions) in enumerate({"a": 2, "b": 1}.items(), start=1):
        room.controller.has(name, number, partitions)
    room.follow()
    yield room
    room.close()


def ask(
    room: RouterRoom, *topics: tuple[str, list[int]], version: int = 5, everything: bool = False
) -> DescribeLogDirsResponse:
    asked = [DescribableLogDirTopic(topic=name, partitions=indexes) for name, indexes in topics]
    request = DescribeLogDirsRequest(topics=None if everything else asked)
    return room.call(handle_describe_log_dirs, request, version)


def only(response: DescribeLogDirsResponse) -> DescribeLogDirsResult:
    (result,) = response.results
    return result


def sizes(response: DescribeLogDirsResponse) -> dict[tuple[str, int], int]:
    return {
        (topic.name, partition.partition_index): partition.partition_size
        for topic in only(response).topics
        for partition in topic.partitions
    }


@pytest.mark.parametrize("version", range(1, 6))
def test_null_asks_for_every_partition_of_the_node(room: RouterRoom, version: int) -> None:
    response = ask(room, version=version, everything=True)
    assert only(response).error_code == ErrorCode.NONE
    assert set(sizes(response)) == {("a", 0), ("a", 1), ("b", 0)}


def test_an_empty_list_asks_for_none(room: RouterRoom) -> None:
    assert sizes(ask(room)) == {}
    assert only(ask(room)).log_dir


def test_a_replica_that_moved_away_is_not_here_any_more(tmp_path: Path) -> None:
    room = RouterRoom(tmp_path, brokers=2)
    room.controller.has("a", 1, partitions=2, factor=2)
    room.follow()
    assert set(sizes(ask(room, everything=True))) == {("a", 0), ("a", 1)}
    before = room.controller.partition("a")
    away = msgspec.structs.replace(
        before,
        replicas=(1,),
        in_sync_replicas=(1,),
        leader=1,
        leader_epoch=before.leader_epoch + 1,
        partition_epoch=before.partition_epoch + 1,
    )
    room.controller.put("a", away)
    room.follow()
    for response in (ask(room, everything=True), ask(room, ("a", [0, 1]))):
        assert set(sizes(response)) == {("a", 1)}
    room.close()


def test_a_size_is_the_bytes_of_the_batches(room: RouterRoom) -> None:
    batches = [batch_of(3), batch_of(1, size=1_000)]
    room.append("a", *batches, partition=1)
    assert sizes(ask(room, ("a", [0, 1]))) == {("a", 0): 0, ("a", 1): sum(map(len, batches))}


def test_replicas_are_neither_behind_nor_in_the_making(room: RouterRoom) -> None:
    ((partition,),) = (topic.partitions for topic in only(ask(room, ("b", [0]))).topics)
    assert (partition.offset_lag, partition.is_future_key) == (0, False)


def test_what_is_not_here_is_left_out(room: RouterRoom) -> None:
    response = ask(room, ("a", [0, 2, -1, 2**31 - 1]), ("nowhere", [0]), ("b", [7]))
    assert set(sizes(response)) == {("a", 0)}
    assert [topic.name for topic in only(response).topics] == ["a"]


def test_a_topic_that_is_named_twice_is_described_as_once(room: RouterRoom) -> None:
    (topic,) = only(ask(room, ("a", [0]), ("a", [1, 0]))).topics
    assert sorted(partition.partition_index for partition in topic.partitions) == [0, 1]
    (topic,) = only(ask(room, ("a", [0]), ("a", [1]))).topics
    assert sorted(partition.partition_index for partition in topic.partitions) == [0, 1]


def test_partitions_of_another_broker_are_not_here(tmp_path: Path) -> None:
    room = RouterRoom(tmp_path, brokers=2)
    room.controller.has("spread", 9, 2)
    room.follow()
    leaders = [partition.leader for partition in room.image.topics_by_name["spread"].partitions]
    assert sorted(leaders) == [0, 1]
    assert set(sizes(ask(room, everything=True))) == {("spread", leaders.index(0))}
    room.close()


@pytest.mark.parametrize("version", range(1, 6))
def test_the_volume_s_size_comes_from_version_4_on(room: RouterRoom, version: int) -> None:
    result = only(ask(room, version=version))
    if version < 4:
        assert (result.total_bytes, result.usable_bytes) == (-1, -1)
    else:
        assert result.total_bytes == shutil.disk_usage(result.log_dir).total
        assert 0 < result.usable_bytes <= result.total_bytes


@pytest.mark.parametrize("version", range(1, 6))
def test_a_broker_that_takes_no_new_replicas_says_so_from_version_5_on(
    room: RouterRoom, version: int
) -> None:
    assert not only(ask(room, version=version)).is_cordoned
    room.controller.set_config(ConfigResourceType.BROKER, "0", cordoned_log_dirs="*")
    room.follow()
    assert only(ask(room, version=version)).is_cordoned == (version == 5)


@pytest.mark.parametrize("version", range(1, 6))
def test_whoever_may_not_describe_the_cluster_learns_nothing(
    room: RouterRoom, version: int
) -> None:
    room.deny(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
    response = ask(room, version=version, everything=True)
    assert response.results == []
    if version >= 3:
        assert response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_a_folder_whose_size_is_not_to_be_had_is_a_storage_error(
    room: RouterRoom, tmp_path: Path
) -> None:
    room.services.logs.folder = tmp_path / "gone" / "stores"
    result = only(ask(room, everything=True))
    assert (result.error_code, result.topics) == (ErrorCode.KAFKA_STORAGE_ERROR, [])


# -- AlterReplicaLogDirs ---------------------------------------------------------------------------


def moved(
    room: RouterRoom, *wanted: tuple[str, str, list[int]], version: int = 2
) -> dict[tuple[str, int], int]:
    """Error codes, of (directory, topic, partitions)."""
    dirs = [
        AlterReplicaLogDir(
            path=path, topics=[AlterReplicaLogDirTopic(name=name, partitions=partitions)]
        )
        for path, name, partitions in wanted
    ]
    request = AlterReplicaLogDirsRequest(dirs=dirs)
    response = room.call(handle_alter_replica_log_dirs, request, version)
    return {
        (topic.topic_name, partition.partition_index): partition.error_code
        for topic in response.results
        for partition in topic.partitions
    }


@pytest.mark.parametrize("version", range(3))
def test_a_replica_is_where_it_can_be_and_nowhere_else(room: RouterRoom, version: int) -> None:
    here = only(ask(room)).log_dir
    assert moved(room, (here, "a", [0, 1]), version=version) == {("a", 0): 0, ("a", 1): 0}
    codes = moved(room, ("/nowhere", "a", [0]), (here, "a", [1]), version=version)
    assert codes == {("a", 0): ErrorCode.LOG_DIR_NOT_FOUND, ("a", 1): ErrorCode.NONE}
    assert moved(room, (here, "c", [0]), (here, "b", [1]), version=version) == {
        ("c", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("b", 1): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert moved(room, version=version) == {}


def test_the_directory_is_looked_at_before_the_partition_and_the_last_one_counts(
    room: RouterRoom,
) -> None:
    here = only(ask(room)).log_dir
    assert moved(room, ("/nowhere", "c", [0])) == {("c", 0): ErrorCode.LOG_DIR_NOT_FOUND}
    assert moved(room, ("/nowhere", "a", [0]), (here, "a", [0])) == {("a", 0): ErrorCode.NONE}


def test_a_replica_that_is_on_other_brokers_cannot_be_moved_here(tmp_path: Path) -> None:
    room = RouterRoom(tmp_path, brokers=2)
    room.controller.has("spread", 9, 2)
    room.follow()
    leaders = [partition.leader for partition in room.image.topics_by_name["spread"].partitions]
    codes = moved(room, (only(ask(room)).log_dir, "spread", [0, 1]))
    assert codes[("spread", leaders.index(0))] == ErrorCode.NONE
    assert codes[("spread", leaders.index(1))] == ErrorCode.REPLICA_NOT_AVAILABLE
    room.close()


@pytest.mark.parametrize("version", range(3))
def test_whoever_may_not_alter_the_cluster_moves_nothing(room: RouterRoom, version: int) -> None:
    room.deny(Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)
    codes = moved(room, ("/nowhere", "a", [0]), version=version)
    assert codes == {("a", 0): ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
