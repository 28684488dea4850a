"""DescribeLogDirs and AlterReplicaLogDirs as clients see them (B.11): one log directory. Nodes with
several are in tests/e2e/test_log_directories.py."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from odradek.cluster.metadata.acls import CLUSTER_NAME, AclOperation, ResourceType
from odradek.cluster.metadata.image import ConfigResourceType
from odradek.node.router.handlers.log_dirs import (
    handle_alter_replica_log_dirs,
    handle_describe_log_dirs,
)
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.cluster import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
)
from odradek.protocol.messages.partitions import TopicPartitions
from tests.support.router_harness import RouterHarness
from tests.support.stores import batch_of


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[RouterHarness]:
    harness = RouterHarness(tmp_path)
    for number, (name, partitions) in enumerate({"a": 2, "b": 1}.items(), start=1):
        harness.controller.has(name, number, partitions)
    harness.follow()
    yield harness
    harness.close()


def ask(
    harness: RouterHarness,
    *topics: tuple[str, list[int]],
    version: int = 5,
    everything: bool = False,
) -> DescribeLogDirsResponse:
    asked = [TopicPartitions(name=name, partitions=indexes) for name, indexes in topics]
    request = DescribeLogDirsRequest(topics=None if everything else asked)
    return harness.call(handle_describe_log_dirs, request, version)


def only_result(response: DescribeLogDirsResponse) -> DescribeLogDirsResult:
    (result,) = response.results
    return result


def sizes(response: DescribeLogDirsResponse) -> dict[tuple[str, int], int]:
    return {
        (topic.name, partition.partition_index): partition.partition_size
        for topic in only_result(response).topics
        for partition in topic.partitions
    }


@pytest.mark.parametrize("version", range(1, 6))
def test_null_describes_every_partition_of_the_node(harness: RouterHarness, version: int) -> None:
    response = ask(harness, version=version, everything=True)
    assert only_result(response).error_code == ErrorCode.NONE
    assert set(sizes(response)) == {("a", 0), ("a", 1), ("b", 0)}


def test_a_data_folder_that_cannot_be_written_is_offline_and_still_described(
    harness: RouterHarness,
) -> None:
    harness.services.storage_problem = "the disk is full"
    response = ask(harness, everything=True)
    assert only_result(response).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert set(sizes(response)) == {("a", 0), ("a", 1), ("b", 0)}
    assert only_result(response).total_bytes > 0
    harness.services.storage_problem = ""
    assert only_result(ask(harness)).error_code == ErrorCode.NONE


def test_an_empty_list_describes_no_partition(harness: RouterHarness) -> None:
    assert sizes(ask(harness)) == {}
    assert only_result(ask(harness)).log_dir


def test_a_replica_that_moved_away_is_left_out(tmp_path: Path) -> None:
    harness = RouterHarness(tmp_path, brokers=2)
    harness.controller.has("a", 1, partitions=2, factor=2)
    harness.follow()
    assert set(sizes(ask(harness, everything=True))) == {("a", 0), ("a", 1)}
    before = harness.controller.partition("a")
    away = msgspec.structs.replace(
        before,
        replicas=(1,),
        in_sync_replicas=(1,),
        leader=1,
        leader_epoch=before.leader_epoch + 1,
        partition_epoch=before.partition_epoch + 1,
    )
    harness.controller.put("a", away)
    harness.follow()
    for response in (ask(harness, everything=True), ask(harness, ("a", [0, 1]))):
        assert set(sizes(response)) == {("a", 1)}
    harness.close()


def test_a_size_is_the_bytes_of_the_batches(harness: RouterHarness) -> None:
    batches = [batch_of(3), batch_of(1, size=1_000)]
    harness.append("a", *batches, partition=1)
    assert sizes(ask(harness, ("a", [0, 1]))) == {("a", 0): 0, ("a", 1): sum(map(len, batches))}


def test_replicas_have_no_lag_and_are_not_future_replicas(harness: RouterHarness) -> None:
    ((partition,),) = (topic.partitions for topic in only_result(ask(harness, ("b", [0]))).topics)
    assert (partition.offset_lag, partition.is_future_key) == (0, False)


def test_unknown_partitions_are_left_out(harness: RouterHarness) -> None:
    response = ask(harness, ("a", [0, 2, -1, 2**31 - 1]), ("nowhere", [0]), ("b", [7]))
    assert set(sizes(response)) == {("a", 0)}
    assert [topic.name for topic in only_result(response).topics] == ["a"]


def test_a_topic_named_twice_is_described_once(harness: RouterHarness) -> None:
    (topic,) = only_result(ask(harness, ("a", [0]), ("a", [1, 0]))).topics
    assert sorted(partition.partition_index for partition in topic.partitions) == [0, 1]
    (topic,) = only_result(ask(harness, ("a", [0]), ("a", [1]))).topics
    assert sorted(partition.partition_index for partition in topic.partitions) == [0, 1]


def test_partitions_of_another_broker_are_left_out(tmp_path: Path) -> None:
    harness = RouterHarness(tmp_path, brokers=2)
    harness.controller.has("spread", 9, 2)
    harness.follow()
    leaders = [partition.leader for partition in harness.image.topics_by_name["spread"].partitions]
    assert sorted(leaders) == [0, 1]
    assert set(sizes(ask(harness, everything=True))) == {("spread", leaders.index(0))}
    harness.close()


@pytest.mark.parametrize("version", range(1, 6))
def test_the_size_of_the_volume_is_returned_since_version_4(
    harness: RouterHarness, version: int
) -> None:
    result = only_result(ask(harness, version=version))
    if version < 4:
        assert (result.total_bytes, result.usable_bytes) == (-1, -1)
    else:
        assert result.total_bytes == shutil.disk_usage(result.log_dir).total
        assert 0 < result.usable_bytes <= result.total_bytes


@pytest.mark.parametrize("version", range(1, 6))
def test_cordoned_directories_are_marked_since_version_5(
    harness: RouterHarness, version: int
) -> None:
    assert not only_result(ask(harness, version=version)).is_cordoned
    harness.controller.set_config(ConfigResourceType.BROKER, "0", cordoned_log_dirs="*")
    harness.follow()
    assert only_result(ask(harness, version=version)).is_cordoned == (version == 5)


@pytest.mark.parametrize("version", range(1, 6))
def test_describing_needs_describe_on_the_cluster(harness: RouterHarness, version: int) -> None:
    harness.deny(AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
    response = ask(harness, version=version, everything=True)
    assert response.results == []
    if version >= 3:
        assert response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_an_unreadable_volume_is_a_storage_error(harness: RouterHarness, tmp_path: Path) -> None:
    harness.services.logs.folders = (tmp_path / "gone" / "stores",)
    result = only_result(ask(harness, everything=True))
    assert (result.error_code, result.topics) == (ErrorCode.KAFKA_STORAGE_ERROR, [])


# -- AlterReplicaLogDirs ---------------------------------------------------------------------------


def moved(
    harness: RouterHarness, *wanted: tuple[str, str, list[int]], version: int = 2
) -> dict[tuple[str, int], int]:
    """Error codes, of (directory, topic, partitions)."""
    dirs = [
        AlterReplicaLogDir(path=path, topics=[TopicPartitions(name=name, partitions=partitions)])
        for path, name, partitions in wanted
    ]
    request = AlterReplicaLogDirsRequest(dirs=dirs)
    response = harness.call(handle_alter_replica_log_dirs, request, version)
    return {
        (topic.name, partition.partition_index): partition.error_code
        for topic in response.results
        for partition in topic.partitions
    }


@pytest.mark.parametrize("version", range(3))
def test_a_replica_can_only_move_to_the_data_folder(harness: RouterHarness, version: int) -> None:
    here = only_result(ask(harness)).log_dir
    assert moved(harness, (here, "a", [0, 1]), version=version) == {("a", 0): 0, ("a", 1): 0}
    codes = moved(harness, ("/nowhere", "a", [0]), (here, "a", [1]), version=version)
    assert codes == {("a", 0): ErrorCode.LOG_DIR_NOT_FOUND, ("a", 1): ErrorCode.NONE}
    assert moved(harness, (here, "c", [0]), (here, "b", [1]), version=version) == {
        ("c", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("b", 1): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert moved(harness, version=version) == {}


def test_the_directory_is_checked_before_the_partition_and_the_last_one_counts(
    harness: RouterHarness,
) -> None:
    here = only_result(ask(harness)).log_dir
    assert moved(harness, ("/nowhere", "c", [0])) == {("c", 0): ErrorCode.LOG_DIR_NOT_FOUND}
    assert moved(harness, ("/nowhere", "a", [0]), (here, "a", [0])) == {("a", 0): ErrorCode.NONE}


def test_a_replica_that_is_on_other_brokers_cannot_be_moved_here(tmp_path: Path) -> None:
    harness = RouterHarness(tmp_path, brokers=2)
    harness.controller.has("spread", 9, 2)
    harness.follow()
    leaders = [partition.leader for partition in harness.image.topics_by_name["spread"].partitions]
    codes = moved(harness, (only_result(ask(harness)).log_dir, "spread", [0, 1]))
    assert codes[("spread", leaders.index(0))] == ErrorCode.NONE
    assert codes[("spread", leaders.index(1))] == ErrorCode.REPLICA_NOT_AVAILABLE
    harness.close()


@pytest.mark.parametrize("version", range(3))
def test_moving_replicas_needs_alter_on_the_cluster(harness: RouterHarness, version: int) -> None:
    harness.deny(AclOperation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)
    codes = moved(harness, ("/nowhere", "a", [0]), version=version)
    assert codes == {("a", 0): ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
