"""Throttles are set for moves, found after an earlier run, and removed."""

from collections.abc import Iterator

import pytest

from odradek.cluster.balance.model import PartitionMove
from odradek.cluster.metadata.image import ConfigResourceType
from odradek.node.cli.cluster_client import ClusterClient
from odradek.node.cli.connection import make_connection
from odradek.node.cli.replica_placement import view_cluster
from odradek.node.cli.replication_throttles import (
    ThrottledResources,
    cordon,
    find_throttles,
    throttle,
    unthrottle,
)
from odradek.protocol.messages.configs import IncrementalAlterConfigsRequest
from tests.support.stand_in_cluster import StandInCluster, stand_in_cluster

TOPIC, BROKER = ConfigResourceType.TOPIC, ConfigResourceType.BROKER
LEADER, FOLLOWER = "leader.replication.throttled", "follower.replication.throttled"


@pytest.fixture
def three() -> Iterator[StandInCluster]:
    with stand_in_cluster(3) as cluster:
        cluster.has("a", [0, 1], [1, 2])
        cluster.has("b", [0])
        yield cluster


@pytest.fixture
def client(three: StandInCluster) -> Iterator[ClusterClient]:
    with ClusterClient(make_connection(three.bootstrap, 10.0, None, ())) as client:
        view_cluster(client)
        yield client


def move(topic: str, number: int, before: tuple[int, ...], *adding: int) -> PartitionMove:
    return PartitionMove(
        topic=topic,
        number=number,
        before=before,
        after=(*before[1:], *adding),
        adding=adding,
        removing=before[:1],
        byte_count=1,
    )


MOVES = [move("a", 0, (0, 1), 2), move("a", 1, (1, 2), 0), move("b", 0, (0,))]


def test_only_copying_moves_are_throttled_on_both_sides(
    client: ClusterClient, three: StandInCluster
) -> None:
    throttled = throttle(client, MOVES, [0, 2], 1234)
    assert throttled == ThrottledResources(frozenset({"a"}), frozenset({0, 2}))
    assert three.configs(TOPIC, "a") == {
        f"{LEADER}.replicas": "0:0,0:1,1:1,1:2",
        f"{FOLLOWER}.replicas": "0:2,1:0",
    }
    assert three.configs(TOPIC, "b") == {}
    rates = {f"{LEADER}.rate": "1234", f"{FOLLOWER}.rate": "1234"}
    assert [three.configs(BROKER, str(node)) for node in range(3)] == [rates, {}, rates]
    assert find_throttles(client, ["a", "b"], [0, 1, 2]) == throttled
    unthrottle(client, throttled)
    assert not find_throttles(client, ["a", "b"], [0, 1, 2])


def test_a_broker_changes_its_own_configs(client: ClusterClient, three: StandInCluster) -> None:
    throttle(client, MOVES, [1, 2], 5)
    asked = {
        resource.resource_name: node
        for node, request in three.requests
        if isinstance(request, IncrementalAlterConfigsRequest)
        for resource in request.resources
        if resource.resource_type == BROKER
    }
    assert asked == {"1": 1, "2": 2}


def test_throttles_are_removed_also_from_a_broker_that_is_down(
    client: ClusterClient, three: StandInCluster
) -> None:
    throttled = throttle(client, MOVES, [0, 1, 2], 5)
    three.stop(2)
    unthrottle(client, throttled)
    assert three.configs(BROKER, "2") == {}


def test_other_configs_stay(client: ClusterClient, three: StandInCluster) -> None:
    three.harness.set_config(TOPIC, "a", retention_ms="5")
    three.harness.set_config(BROKER, "0", fetch_max_bytes="2000")
    unthrottle(client, throttle(client, MOVES, [0], 5))
    assert three.configs(TOPIC, "a") == {"retention.ms": "5"}
    assert three.configs(BROKER, "0") == {"fetch.max.bytes": "2000"}


def test_a_deleted_topic_needs_no_throttle_removed(
    client: ClusterClient, three: StandInCluster
) -> None:
    throttled = throttle(client, MOVES, [], 5)
    three.delete("a")
    unthrottle(client, throttled)


def test_a_node_is_cordoned_and_uncordoned(client: ClusterClient, three: StandInCluster) -> None:
    assert cordon(client, 1, is_cordoned=True) is None
    assert three.configs(BROKER, "1") == {"cordoned.log.dirs": "*"}
    assert cordon(client, 1, is_cordoned=False) is None
    assert three.configs(BROKER, "1") == {}
    refusal = cordon(client, 9, is_cordoned=True)
    assert refusal is not None
    assert "Broker 9 is not registered" in refusal
