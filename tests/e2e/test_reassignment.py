"""Replicas are moved between running nodes, leadership returns to preferred replicas, and a node is
removed.
"""

from pathlib import Path

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.cluster import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from odradek.protocol.messages.metadata import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    MetadataResponsePartition,
)
from odradek.protocol.messages.partitions import TopicPartitions
from odradek.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tests.conformance.dialogue import append, fetch, values_of
from tests.e2e.cluster import Cluster, running_cluster
from tests.support.waiting import wait_until
from tests.support.wire import WireClient

TOPIC = "moving"
VALUES = [b"%d" % number * 1000 for number in range(100)]


def create_at(nodes: Cluster, replicas: list[int]) -> None:
    assignment = CreatableReplicaAssignment(partition_index=0, broker_ids=replicas)
    topic = CreatableTopic(
        name=TOPIC, num_partitions=-1, replication_factor=-1, assignments=[assignment]
    )
    with WireClient(nodes[replicas[0]].bootstrap_servers) as wire:
        request = CreateTopicsRequest(topics=[topic], timeout_ms=10_000)
        (created,) = wire.ask(request, 5, CreateTopicsResponse).topics
    assert created.error_code == ErrorCode.NONE, created.error_message


def reassign(nodes: Cluster, at: int, replicas: list[int] | None) -> int:
    partition = ReassignablePartition(partition_index=0, replicas=replicas)
    request = AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic(name=TOPIC, partitions=[partition])]
    )
    with WireClient(nodes[at].bootstrap_servers) as wire:
        answer = wire.ask(request, 1, AlterPartitionReassignmentsResponse)
    assert answer.error_code == ErrorCode.NONE, answer.error_message
    return answer.responses[0].partitions[0].error_code


def is_moving(nodes: Cluster, at: int) -> bool:
    with WireClient(nodes[at].bootstrap_servers) as wire:
        request = ListPartitionReassignmentsRequest(topics=None)
        return bool(wire.ask(request, 0, ListPartitionReassignmentsResponse).topics)


def elect(nodes: Cluster, at: int) -> int:
    named = [TopicPartitions(name=TOPIC, partitions=[0])]
    with WireClient(nodes[at].bootstrap_servers) as wire:
        answer = wire.ask(ElectLeadersRequest(topic_partitions=named), 2, ElectLeadersResponse)
    return answer.replica_election_results[0].partitions[0].error_code


def state(nodes: Cluster) -> MetadataResponsePartition:
    return nodes.partitions(TOPIC)[0]


def test_a_partition_moves_with_its_records_and_a_node_is_taken_out(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as nodes:
        create_at(nodes, [0])
        with WireClient(nodes[0].bootstrap_servers) as wire:
            append(wire, TOPIC, *VALUES)
        assert reassign(nodes, 1, [2, 1]) == ErrorCode.NONE
        wait_until(lambda: not is_moving(nodes, 1), what="the partition has moved")
        wait_until(lambda: state(nodes).replica_nodes == [2, 1], what="everybody knows")
        assert set(state(nodes).isr_nodes) == {1, 2}
        assert reassign(nodes, 0, None) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS

        # A new order of the same replicas moves no data; leadership follows with the next election.
        leader = state(nodes).leader_id
        other = 3 - leader
        assert reassign(nodes, leader, [other, leader]) == ErrorCode.NONE
        assert elect(nodes, 0) == ErrorCode.NONE
        assert elect(nodes, 0) == ErrorCode.ELECTION_NOT_NEEDED
        wait_until(lambda: state(nodes).leader_id == other, what="everybody knows who leads")
        with WireClient(nodes[other].bootstrap_servers) as wire:
            wait_until(
                lambda: values_of(fetch(wire, TOPIC, 0)) == VALUES, what="its records are readable"
            )

        nodes[0].kill()
        with WireClient(nodes[other].bootstrap_servers) as wire:
            request = UnregisterBrokerRequest(broker_id=0)
            answer = wire.ask(request, 0, UnregisterBrokerResponse)
            assert answer.error_code == ErrorCode.NONE, answer.error_message
            described_cluster = wire.ask(
                DescribeClusterRequest(include_fenced_brokers=True), 2, DescribeClusterResponse
            )
            assert {broker.broker_id for broker in described_cluster.brokers} == {1, 2}
            again = wire.ask(request, 0, UnregisterBrokerResponse)
            assert again.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
