"""What has to be done for replicas that are wanted, in a cluster that has some of it."""

from collections.abc import Iterator

import click
import pytest

from odradek.node.cli.cluster_client import ClusterClient
from odradek.node.cli.connection import make_connection
from odradek.node.cli.parameters import TopicSelection
from odradek.node.cli.reassignment_file import WantedReplicas, assignment_document
from odradek.node.cli.reassignment_request import (
    RequestedReassignment,
    requested_reassignment,
    selected_replicas,
)
from odradek.node.cli.replica_placement import view_cluster
from tests.support.stand_in_cluster import StandInCluster, stand_in_cluster


@pytest.fixture
def four() -> Iterator[StandInCluster]:
    with stand_in_cluster(4) as cluster:
        cluster.has("a", [0, 1], [0, 1], [0, 1], size=1000)
        cluster.log_dirs = ["/data", "/more"]
        cluster.step_bytes = 0
        yield cluster


@pytest.fixture
def client(four: StandInCluster) -> Iterator[ClusterClient]:
    with ClusterClient(make_connection(four.bootstrap, 10.0, None, ())) as client:
        yield client


def wanted(number: int, *replicas: int, **log_dirs: str) -> WantedReplicas:
    paths = {int(node.removeprefix("on_")): path for node, path in log_dirs.items()}
    return WantedReplicas(topic="a", number=number, replicas=replicas, log_dirs=paths)


def request(client: ClusterClient, *each: WantedReplicas) -> RequestedReassignment:
    return requested_reassignment(client, view_cluster(client), each)


def test_only_what_differs_is_moved(client: ClusterClient, four: StandInCluster) -> None:
    four.reassign("a", 2, 3, 1)
    found = request(client, wanted(0, 0, 1), wanted(1, 1, 2), wanted(2, 3, 1))
    assert [(move.number, move.after, move.adding) for move in found.moves] == [(1, (1, 2), (2,))]
    assert [(move.number, move.adding, move.removing) for move in found.ongoing] == [
        (2, (3,), (0,))
    ]
    assert found.copied_bytes == 2000
    assert not request(client, wanted(0, 0, 1))


def test_a_reassignment_in_progress_is_redirected_and_rolled_back_to_its_origin(
    client: ClusterClient, four: StandInCluster
) -> None:
    four.reassign("a", 2, 3, 1)
    found = request(client, wanted(2, 1, 2))
    # The order from before a reassignment is nowhere.
    assert [(move.before, move.after) for move in found.moves] == [((1, 0), (1, 2))]
    assert found.rollback == assignment_document({("a", 2): (1, 0)})


def test_replicas_that_are_in_their_directory_stay(
    client: ClusterClient, four: StandInCluster
) -> None:
    four.directories[1, "a", 0] = "/more"
    found = request(
        client,
        wanted(0, 0, 1, on_1="/more", on_0="/data"),
        wanted(1, 0, 1, on_1="/more"),
        wanted(2, 0, 2, on_2="/more"),
    )
    assert found.directories == {(1, "/more"): {("a", 1)}, (2, "/more"): {("a", 2)}}
    assert found.document(None)["directory_moves"] == [
        {"node": 1, "directory": "/more", "topic": "a", "partition": 1},
        {"node": 2, "directory": "/more", "topic": "a", "partition": 2},
    ]


def test_selections_may_overlap(client: ClusterClient) -> None:
    view = view_cluster(client)
    selections = [TopicSelection("a", frozenset({2, 1})), TopicSelection("a", frozenset())]
    assert selected_replicas(view, selections[:1], (1,)) == [wanted(1, 1), wanted(2, 1)]
    assert len(selected_replicas(view, selections, (1,))) == 3


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (wanted(5, 1), "a-5: no such partition; a has partitions 0 to 2"),
        (wanted(0, 1, 9), "9: no such node; the cluster has 0, 1, 2, 3"),
        (
            wanted(0, 0, 1, on_1="/nowhere"),
            "/nowhere is no log directory of node 1. It has /data, /more.",
        ),
    ],
)
def test_what_does_not_exist_is_named_with_what_does(
    client: ClusterClient, four: StandInCluster, asked: WantedReplicas, says: str
) -> None:
    with pytest.raises(click.ClickException) as raised:
        request(client, wanted(1, 2, 3), asked)
    assert raised.value.message == says
    assert four.replicas("a") == [(0, 1)] * 3
