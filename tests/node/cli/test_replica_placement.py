"""The view of a cluster from the reports of its brokers."""

from collections.abc import Iterator

import click
import pytest

from odradek.cluster.metadata.image import ConfigResourceType
from odradek.node.cli.cluster_client import ClusterClient
from odradek.node.cli.connection import make_connection
from odradek.node.cli.replica_placement import (
    ClusterView,
    describe_partitions,
    list_reassignments,
    log_dir_usage,
    view_cluster,
)
from odradek.protocol.messages.cluster import ListPartitionReassignmentsRequest
from odradek.protocol.messages.metadata import MetadataRequest
from tests.support.stand_in_cluster import StandInCluster, stand_in_cluster


@pytest.fixture
def four() -> Iterator[StandInCluster]:
    with stand_in_cluster(4, racks="abab") as cluster:
        cluster.has("a", [0, 1], [2, 3], size=500)
        cluster.has("b", [1])
        cluster.step_bytes = 0
        yield cluster


@pytest.fixture
def client(four: StandInCluster) -> Iterator[ClusterClient]:
    with ClusterClient(make_connection(four.bootstrap, 10.0, None, ())) as client:
        yield client


def names(view: ClusterView) -> list[tuple[str, int]]:
    return [(partition.topic, partition.number) for partition in view.partitions]


def test_a_view_has_nodes_and_partitions_with_their_sizes(client: ClusterClient) -> None:
    view = view_cluster(client)
    assert [(node.node_id, node.rack) for node in view.nodes] == [
        (0, "a"),
        (1, "b"),
        (2, "a"),
        (3, "b"),
    ]
    assert names(view) == [("a", 0), ("a", 1), ("b", 0)]
    first = view.partitions[0]
    assert (first.replicas, first.in_sync, first.leader) == ((0, 1), (0, 1), 0)
    assert (first.byte_count, view.partitions[2].byte_count) == (500, 0)
    assert [partition.number for partition in view.on(2)] == [1]
    assert view.cordoned == view.fenced == frozenset()


def test_a_view_of_some_topics_has_no_others(client: ClusterClient) -> None:
    assert names(view_cluster(client, topics=["b"])) == [("b", 0)]
    with pytest.raises(click.ClickException, match="c: no such topic"):
        view_cluster(client, topics=["b", "c"])


def test_moves_in_progress_are_distinguished(client: ClusterClient, four: StandInCluster) -> None:
    four.reassign("a", 0, 3, 1)
    (moving,) = view_cluster(client).moving
    assert (moving.replicas, moving.adding, moving.removing) == ((3, 1, 0), (3,), (0,))
    # The copy has not begun, so the leader says how large it is.
    assert moving.byte_count == 500
    assert list(list_reassignments(client)) == [("a", 0)]


def test_a_reassignment_that_ends_between_two_requests_is_seen_consistently(
    client: ClusterClient, four: StandInCluster
) -> None:
    four.reassign("a", 0, 3, 1)

    def finish(request: object) -> None:
        if isinstance(request, MetadataRequest):
            four.step_bytes = 500

    four.before = finish
    first = view_cluster(client).partitions[0]
    assert (first.replicas, first.adding, first.removing) == ((3, 1), (), ())
    listed = [r for _, r in four.requests if isinstance(r, ListPartitionReassignmentsRequest)]
    assert len(listed) > 2


def test_fenced_and_cordoned_nodes_are_known(client: ClusterClient, four: StandInCluster) -> None:
    four.harness.set_config(ConfigResourceType.BROKER, "1", cordoned_log_dirs="*")
    four.stop(3)
    view = view_cluster(client)
    assert (set(view.cordoned), set(view.fenced)) == ({1}, {3})
    # What the node that is away leads is as large as the others say.
    assert view.partitions[1].byte_count == 500


def test_sizes_of_some_partitions_come_from_one_node(
    client: ClusterClient, four: StandInCluster
) -> None:
    view_cluster(client)
    held = log_dir_usage(client, 1, [("a", 0), ("a", 1)])
    assert held is not None
    assert held.sizes == {("a", 0): 500}
    four.stop(1)
    assert log_dir_usage(client, 1, [("a", 0)]) is None


def test_metadata_requests_do_not_create_topics(
    client: ClusterClient, four: StandInCluster
) -> None:
    describe_partitions(client)
    requests = [r for _, r in four.requests if isinstance(r, MetadataRequest)]
    assert not any(request.allow_auto_topic_creation for request in requests)
