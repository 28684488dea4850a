"""Internal topics get more replicas when nodes join, without anybody's command."""

from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import FindCoordinatorRequest
from tests.e2e.cluster import WAIT_S, Cluster, cluster
from tests.support.waiting import wait_until

OFFSETS = "__consumer_offsets"
SETTINGS = {"offsets.topic.num.partitions": "6", "log.level": "INFO"}


def factors(nodes: Cluster) -> set[int]:
    """How many replicas the partitions have that are all in sync; others count as 0."""
    return {
        len(p.replica_nodes) if set(p.isr_nodes) == set(p.replica_nodes) else 0
        for p in nodes.partitions(OFFSETS)
    }


def find_coordinator(nodes: Cluster) -> ErrorCode:
    """The error code of FindCoordinator."""
    answer = nodes[0].ask(FindCoordinatorRequest(coordinator_keys=["readers"]))
    return ErrorCode(answer.coordinators[0].error_code)


@pytest.mark.slow
def test_offsets_of_a_single_node_are_on_three_nodes_when_two_have_joined(tmp_path: Path) -> None:
    with cluster(tmp_path, 1, settings=SETTINGS) as nodes:
        nodes.start(0)
        assert nodes.create(0, "orders") == ErrorCode.NONE
        config = {
            "bootstrap.servers": nodes[0].bootstrap_servers,
            "group.id": "readers",
            "log_level": 0,
        }
        consumer = Consumer(config)
        consumer.commit(offsets=[TopicPartition("orders", 0, 7)], asynchronous=False)
        assert factors(nodes) == {1}
        for node_id in (1, 2):
            nodes.join(node_id).start()
        wait_until(lambda: factors(nodes) == {3}, timeout_s=WAIT_S, what="three replicas in sync")
        preferred = {p.replica_nodes[0] for p in nodes.partitions(OFFSETS)}
        assert preferred == {0, 1, 2}, "the coordinators are to be on all nodes"
        [committed] = consumer.committed([TopicPartition("orders", 0)], timeout=30)
        assert committed.offset == 7
        consumer.close()
        assert (
            f'get more replicas, because brokers have joined","topic":"{OFFSETS}","count":6'
            in nodes[0].log()
        )


@pytest.mark.slow
def test_without_adaptation_there_are_no_groups_before_there_are_enough_nodes(
    tmp_path: Path,
) -> None:
    settings = {**SETTINGS, "internal.topics.replication.adaptive": "false"}
    with cluster(tmp_path, 1, settings=settings) as nodes:
        nodes.start(0)
        nodes.join(1).start()
        nodes.wait_for_brokers(0, {0, 1})
        for _ in range(3):
            assert find_coordinator(nodes) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert OFFSETS not in nodes.topics(0)
        assert nodes[0].log().count("an internal topic could not be created") == 1
        nodes.join(2).start()
        wait_until(
            lambda: find_coordinator(nodes) is ErrorCode.NONE,
            timeout_s=WAIT_S,
            what="a coordinator",
        )
        assert factors(nodes) == {3}
