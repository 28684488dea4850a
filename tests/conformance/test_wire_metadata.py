"""Metadata (3), DescribeCluster (60), DescribeTopicPartitions (75), DescribeLogDirs (35),
AlterReplicaLogDirs (34) and DescribeQuorum (55): what a client can learn of the cluster.
"""

import pytest

from odradek.cluster.metadata.image import ConfigResourceType
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.cluster import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
)
from odradek.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from odradek.protocol.messages.metadata import (
    Cursor,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from odradek.protocol.messages.partitions import (
    PartitionNumber,
    TopicName,
    TopicPartitionNumbers,
    TopicPartitions,
)
from odradek.protocol.types import NO_AUTHORIZED_OPERATIONS, ZERO_UUID
from tests.conformance.dialogue import METADATA, DialogueCluster, append, unique
from tests.support.waiting import wait_until
from tests.support.wire import WireClient

VERSIONS = range(14)


def about(*names: str) -> list[MetadataRequestTopic]:
    """A request for topics by name."""
    return [MetadataRequestTopic(name=name) for name in names]


@pytest.mark.no_restarts("all replicas are in sync in what it expects")
@pytest.mark.parametrize("version", VERSIONS)
def test_a_topic_is_described_in_every_version(
    wire: WireClient, cluster: DialogueCluster, version: int
) -> None:
    topic = cluster.new_topic(3)
    answer = wire.ask(MetadataRequest(topics=about(topic)), version, MetadataResponse)
    (described,) = answer.topics
    assert (described.error_code, described.name) == (ErrorCode.NONE, topic)
    assert not described.is_internal
    assert (described.topic_id != ZERO_UUID) == (version >= 10)
    assert described.topic_authorized_operations == NO_AUTHORIZED_OPERATIONS
    partitions = sorted(described.partitions, key=lambda partition: partition.partition_index)
    assert [partition.partition_index for partition in partitions] == [0, 1, 2]
    nodes = {broker.node_id for broker in answer.brokers}
    for partition in partitions:
        assert partition.error_code == ErrorCode.NONE
        assert partition.leader_id in nodes
        assert len(partition.replica_nodes) == cluster.replication_factor
        assert partition.replica_nodes[0] == partition.leader_id, "the preferred one"
        assert set(partition.isr_nodes) == set(partition.replica_nodes) <= nodes
        assert partition.offline_replicas == []
        assert partition.leader_epoch == (0 if version >= 7 else -1)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_brokers_can_be_reached(
    wire: WireClient, cluster: DialogueCluster, version: int
) -> None:
    """B.1: "Never return a broker without a usable host/port for the listener the request came in
    on; controller_id must be a live node".
    """
    topics = [] if version > 0 else about(unique("nowhere"))
    answer = wire.ask(MetadataRequest(topics=topics), version, MetadataResponse)
    assert answer.brokers
    for broker in answer.brokers:
        with WireClient(f"{broker.host}:{broker.port}") as there:
            there.ask(MetadataRequest(topics=topics), version, MetadataResponse)
    if version >= 1:
        assert answer.controller_id in {broker.node_id for broker in answer.brokers}
    assert bool(answer.cluster_id) == (version >= 2)


@pytest.mark.parametrize("version", range(1, 14))
def test_null_means_all_topics_and_empty_none(wire: WireClient, topic: str, version: int) -> None:
    """B.1: "v1+ null = all, empty = none"."""
    everything = wire.ask(MetadataRequest(topics=None), version, MetadataResponse)
    assert topic in {described.name for described in everything.topics}
    nothing = wire.ask(MetadataRequest(topics=[]), version, MetadataResponse)
    assert nothing.topics == []


def test_in_version_0_empty_means_all_topics(wire: WireClient, topic: str) -> None:
    """B.1: "v0 empty = all"."""
    answer = wire.ask(MetadataRequest(topics=[]), 0, MetadataResponse)
    assert topic in {described.name for described in answer.topics}


@pytest.mark.parametrize("version", range(4, 14))
def test_asking_creates_no_topic_unless_it_is_allowed(wire: WireClient, version: int) -> None:
    """B.1: "Auto-create only if allow flag and auto.create.topics.enable"."""
    name = unique("nowhere")
    for _ in range(2):
        request = MetadataRequest(topics=about(name), allow_auto_topic_creation=False)
        (described,) = wire.ask(request, version, MetadataResponse).topics
        assert described.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (described.name, described.partitions) == (name, [])


@pytest.mark.parametrize("version", [0, 3, 4, 12])
def test_asking_for_a_new_topic_creates_it(wire: WireClient, version: int) -> None:
    """B.1: "just created LEADER_NOT_AVAILABLE"; a client asks again until it is there."""
    name = unique("created-by-asking")
    codes = set()

    def is_there() -> bool:
        request = MetadataRequest(topics=about(name))
        (described,) = wire.ask(request, version, MetadataResponse).topics
        codes.add(described.error_code)
        return described.error_code == ErrorCode.NONE and described.partitions[0].leader_id >= 0

    wait_until(is_there, what="the topic is created")
    assert codes <= {
        ErrorCode.NONE,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,  # which Kafka says as well, and clients retry
    }


@pytest.mark.parametrize("name", ["", ".", "..", "sla/sh", "spa ce", "x" * 250, "größe"])
def test_a_name_that_no_topic_can_have_is_invalid(wire: WireClient, name: str) -> None:
    """B.1: "bad name INVALID_TOPIC_EXCEPTION (17)"."""
    request = MetadataRequest(topics=about(name))
    (described,) = wire.ask(request, METADATA, MetadataResponse).topics
    assert described.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert described.name == name


@pytest.mark.parametrize("version", [12, 13])
def test_a_topic_may_be_asked_for_by_its_id(
    wire: WireClient, cluster: DialogueCluster, topic: str, version: int
) -> None:
    """B.1: "v12: by id with null name; unknown id (100)"."""
    known = cluster.topic_id(topic)
    request = MetadataRequest(
        topics=[
            MetadataRequestTopic(topic_id=known, name=None),
            MetadataRequestTopic(topic_id=b"\x01" * 16, name=None),
        ]
    )
    answer = wire.ask(request, version, MetadataResponse)
    described = {topic.topic_id: topic for topic in answer.topics}
    assert (described[known].error_code, described[known].name) == (ErrorCode.NONE, topic)
    assert described[b"\x01" * 16].error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_authorized_operations_are_told_when_asked_for(wire: WireClient, topic: str) -> None:
    """B.1: "Authorized-ops fields default -2147483648"; without an authorizer all are allowed."""
    request = MetadataRequest(topics=about(topic), include_topic_authorized_operations=True)
    (described,) = wire.ask(request, METADATA, MetadataResponse).topics
    read, write = 1 << 3, 1 << 4
    assert described.topic_authorized_operations & (read | write) == read | write


@pytest.mark.no_restarts("two requests must tell of the same brokers")
def test_the_cluster_is_described(wire: WireClient) -> None:
    """B.11: "v1 endpoint type 1 brokers/2 controllers (114, 115); v2 fenced brokers"."""
    metadata = wire.ask(MetadataRequest(topics=[]), METADATA, MetadataResponse)
    for version in range(3):
        answer = wire.ask(DescribeClusterRequest(), version, DescribeClusterResponse)
        assert answer.error_code == ErrorCode.NONE
        assert answer.cluster_id == metadata.cluster_id
        assert {(broker.broker_id, broker.host, broker.port) for broker in answer.brokers} == {
            (broker.node_id, broker.host, broker.port) for broker in metadata.brokers
        }
        assert answer.controller_id in {broker.broker_id for broker in answer.brokers}
    controllers = DescribeClusterRequest(endpoint_type=2)
    answer = wire.ask(controllers, 1, DescribeClusterResponse)
    assert answer.error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE
    answer = wire.ask(DescribeClusterRequest(endpoint_type=9), 1, DescribeClusterResponse)
    assert answer.error_code == ErrorCode.UNSUPPORTED_ENDPOINT_TYPE


def test_partitions_are_described_page_by_page(wire: WireClient, cluster: DialogueCluster) -> None:
    """B.11: "sorted; limit = min(request, 2000); cursor resumes exactly"."""
    prefix = unique("paged")
    names = [cluster.new_topic(3, name=f"{prefix}-{letter}") for letter in "ab"]
    cursor: Cursor | None = None
    seen: list[tuple[str | None, int]] = []
    pages = 0
    while True:
        request = DescribeTopicPartitionsRequest(
            topics=[TopicName(name=name) for name in reversed(names)],
            response_partition_limit=2,
            cursor=cursor,
        )
        answer = wire.ask(request, 0, DescribeTopicPartitionsResponse)
        page = [
            (topic.name, partition.partition_index)
            for topic in answer.topics
            for partition in topic.partitions
        ]
        assert len(page) <= 2
        seen += page
        pages += 1
        cursor = answer.next_cursor
        if cursor is None:
            break
    assert seen == [(name, index) for name in names for index in range(3)]
    assert pages == 3


def test_an_unknown_topic_has_no_partitions_to_describe(wire: WireClient) -> None:
    name = unique("nowhere")
    request = DescribeTopicPartitionsRequest(topics=[TopicName(name=name)])
    (described,) = wire.ask(request, 0, DescribeTopicPartitionsResponse).topics
    assert described.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert described.name == name


@pytest.mark.parametrize("version", range(1, 5))
def test_log_directories_tell_the_size_of_partitions(
    wire: WireClient, cluster: DialogueCluster, version: int
) -> None:
    """B.11: "null = all; size, offset lag, is_future; [...] v4 totals/usable bytes"."""
    topic = cluster.new_topic(2)
    append(wire, topic, b"x" * 100_000, partition=1)
    asked = [TopicPartitions(name=topic, partitions=[0, 1])]
    answer = wire.ask(DescribeLogDirsRequest(topics=asked), version, DescribeLogDirsResponse)
    sizes = {}
    for directory in answer.results:
        assert directory.error_code == ErrorCode.NONE
        assert directory.log_dir
        assert (directory.total_bytes > 0) == (version >= 4)
        for described in directory.topics:
            assert described.name == topic
            for partition in described.partitions:
                assert (partition.offset_lag, partition.is_future_key) == (0, False)
                sizes[partition.partition_index] = partition.partition_size
    assert sizes.keys() == {0, 1}
    assert sizes[0] == 0
    assert 100_000 <= sizes[1] < 200_000
    everything = wire.ask(DescribeLogDirsRequest(topics=None), version, DescribeLogDirsResponse)
    names = {described.name for directory in everything.results for described in directory.topics}
    assert topic in names


def test_log_directories_have_the_names_that_the_configuration_has(wire: WireClient) -> None:
    broker = DescribeConfigsResource(
        resource_type=ConfigResourceType.BROKER,
        resource_name=str(
            wire.ask(DescribeClusterRequest(), 0, DescribeClusterResponse).controller_id
        ),
        configuration_keys=["log.dirs"],
    )
    request = DescribeConfigsRequest(resources=[broker])
    (described,) = wire.ask(request, 4, DescribeConfigsResponse).results
    answer = wire.ask(DescribeLogDirsRequest(topics=None), 4, DescribeLogDirsResponse)
    assert described.configs[0].value == ",".join(result.log_dir for result in answer.results)


@pytest.mark.parametrize("version", range(1, 3))
def test_a_replica_can_be_moved_to_where_it_is_and_to_no_unknown_place(
    wire: WireClient, cluster: DialogueCluster, version: int
) -> None:
    """B.11: "LOG_DIR_NOT_FOUND (57) [...]". The place is looked at before the partition."""
    topic, nowhere = cluster.new_topic(2), unique("nowhere")
    (result,) = wire.ask(DescribeLogDirsRequest(topics=None), 4, DescribeLogDirsResponse).results
    wanted = {result.log_dir: {topic: [0, 7], nowhere: [0]}, "/no/such/place": {topic: [1]}}
    request = AlterReplicaLogDirsRequest(
        dirs=[
            AlterReplicaLogDir(
                path=path,
                topics=[
                    TopicPartitions(name=name, partitions=partitions)
                    for name, partitions in topics.items()
                ],
            )
            for path, topics in wanted.items()
        ]
    )
    answer = wire.ask(request, version, AlterReplicaLogDirsResponse)
    codes = {
        (moved.name, partition.partition_index): partition.error_code
        for moved in answer.results
        for partition in moved.partitions
    }
    assert codes == {
        (topic, 0): ErrorCode.NONE,
        (topic, 1): ErrorCode.LOG_DIR_NOT_FOUND,
        (topic, 7): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        (nowhere, 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


@pytest.mark.parametrize("version", range(3))
def test_the_quorum_of_controllers_is_described(wire: WireClient, version: int) -> None:
    request = DescribeQuorumRequest(
        topics=[
            TopicPartitionNumbers(
                name="__cluster_metadata",
                partitions=[PartitionNumber(partition_index=0)],
            )
        ]
    )
    answer = wire.ask(request, version, DescribeQuorumResponse)
    assert answer.error_code == ErrorCode.NONE
    (partition,) = answer.topics[0].partitions
    assert partition.error_code == ErrorCode.NONE
    assert partition.leader_id in {voter.replica_id for voter in partition.current_voters}
    assert partition.high_watermark > 0
