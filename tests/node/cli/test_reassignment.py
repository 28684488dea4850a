"""Moves are submitted, watched and ended, also when their partitions change meanwhile."""

from collections.abc import Iterator

import pytest

from odradek.cluster.balance.model import PartitionMove
from odradek.cluster.controller.commands import AlterPartitionReassignments, Reassignment
from odradek.node.cli import reassignment
from odradek.node.cli.cluster_client import ClusterClient
from odradek.node.cli.connection import make_connection
from odradek.node.cli.reassignment import (
    ReassignmentRunner,
    cancel_reassignments,
    elect_preferred_leaders,
    reassign,
    seconds_text,
)
from odradek.node.cli.replica_placement import view_cluster
from odradek.protocol.messages.cluster import ListPartitionReassignmentsRequest
from tests.support.stand_in_cluster import StandInCluster, stand_in_cluster

CANCEL = AlterPartitionReassignments((Reassignment("a", 0, None),))


@pytest.fixture
def four() -> Iterator[StandInCluster]:
    with stand_in_cluster(4) as cluster:
        cluster.has("a", [0, 1], [0, 1], [0, 1], size=1000)
        yield cluster


@pytest.fixture
def client(four: StandInCluster) -> Iterator[ClusterClient]:
    with ClusterClient(make_connection(four.bootstrap, 10.0, None, ())) as client:
        view_cluster(client)
        yield client


def move(
    number: int, *after: int, topic: str = "a", before: tuple[int, ...] = (0, 1)
) -> PartitionMove:
    return PartitionMove(
        topic=topic,
        number=number,
        before=before,
        after=after,
        adding=tuple(node for node in after if node not in before),
        removing=tuple(node for node in before if node not in after),
        byte_count=1000,
    )


def mover(
    client: ClusterClient, *moves: PartitionMove, batch: int = 10, **more: list[PartitionMove]
) -> ReassignmentRunner:
    return ReassignmentRunner(client, moves, batch=batch, **more)


def ignore(_done: int, _total: int, _text: str) -> None:
    """A progress that is not shown."""


def test_every_move_is_done(client: ClusterClient, four: StandInCluster) -> None:
    outcome = mover(client, move(0, 2, 1), move(1, 0, 3), move(2, 1, 0)).run(ignore)
    assert four.replicas("a") == [(2, 1), (0, 3), (1, 0)]
    assert len(outcome.done) == 3
    assert outcome.deleted == []
    assert outcome.failed == {}


def test_progress_is_shown_in_partitions_bytes_and_time(
    client: ClusterClient, four: StandInCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reassignment, "SIZES_EVERY_S", 0.0)
    four.step_bytes = 300
    shown: list[tuple[int, int, str]] = []
    moves = (move(0, 2, 1), move(1, 0, 3))
    mover(client, *moves).run(lambda *progress: shown.append(progress))
    assert shown[-1][:2] == (2000, 2000)
    assert shown[-1][2].startswith("2 of 2 partitions, 2.0 kB of 2.0 kB, ")
    assert shown[-1][2].endswith("/s, 0 s left")
    sizes = [size for size, _, _ in shown]
    assert sizes == sorted(sizes)
    assert any(0 < size < 2000 for size in sizes)


def test_moves_in_progress_are_waited_for(client: ClusterClient, four: StandInCluster) -> None:
    four.reassign("a", 0, 3, 1)
    outcome = mover(client, in_progress=[move(0, 3, 1)]).run(ignore)
    assert [done.after for done in outcome.done] == [(3, 1)]


def test_moves_of_a_deleted_topic_count_as_deleted(
    client: ClusterClient, four: StandInCluster
) -> None:
    four.has("b", [0, 1], size=1000)
    four.step_bytes = 0

    def disturb(request: object) -> None:
        if isinstance(request, ListPartitionReassignmentsRequest):
            four.before = lambda _request: None
            four.delete("b")
            four.step_bytes = 1000

    four.before = disturb
    outcome = mover(client, move(0, 2, 1, topic="b"), move(0, 2, 1)).run(ignore)
    assert [deleted.topic for deleted in outcome.deleted] == ["b"]
    assert [done.topic for done in outcome.done] == ["a"]
    outcome = mover(client, move(0, 3, 1, topic="b")).run(ignore)
    assert [deleted.topic for deleted in outcome.deleted] == ["b"]


def test_a_refused_move_does_not_affect_others(client: ClusterClient) -> None:
    outcome = mover(client, move(0, 9, 1), move(1, 2, 1)).run(ignore)
    assert [done.number for done in outcome.done] == [1]
    assert "broker 9, but no such broker is registered" in outcome.failed["a", 0]


def test_a_move_that_another_client_cancels_has_failed(
    client: ClusterClient, four: StandInCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reassignment, "CANCELLED_AFTER_S", 0.0)
    four.step_bytes = 0

    def disturb(request: object) -> None:
        if isinstance(request, ListPartitionReassignmentsRequest):
            four.before = lambda _request: None
            four.harness.do(CANCEL)

    four.before = disturb
    outcome = mover(client, move(0, 2, 1)).run(ignore)
    assert "cancelled" in outcome.failed["a", 0]
    assert set(four.replicas("a")[0]) == {0, 1}


def test_a_node_that_is_down_is_named_and_waited_for(
    client: ClusterClient, four: StandInCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reassignment, "CANCELLED_AFTER_S", 0.0)
    shown: list[str] = []

    def on_progress(_done: int, _total: int, text: str) -> None:
        shown.append(text)
        if "waiting" in text:
            # Another client reassigns the partition to other nodes.
            four.harness.do(CANCEL)
            four.reassign("a", 0, 1, 0)

    four.stop(3)
    outcome = mover(client, move(0, 3, 1)).run(on_progress)
    assert any(text == "0 of 1 partitions, 0 B of 1.0 kB, waiting for node 3" for text in shown)
    assert list(outcome.failed) == [("a", 0)]


def test_moves_in_progress_can_be_cancelled(client: ClusterClient, four: StandInCluster) -> None:
    four.step_bytes = 0
    reassign(client, {("a", 0): [2, 1], ("a", 1): [2, 1]})
    stopped, kept = cancel_reassignments(client, [("a", 0), ("a", 1), ("a", 2), ("b", 0)])
    assert (stopped, kept) == ([("a", 0), ("a", 1)], {})
    assert [set(replicas) for replicas in four.replicas("a")] == [{0, 1}] * 3
    assert cancel_reassignments(client, []) == ([], {})


def test_the_first_replica_is_elected_leader(client: ClusterClient, four: StandInCluster) -> None:
    reassign(client, {("a", 0): [1, 0]})
    assert elect_preferred_leaders(client, [("a", 0), ("a", 1), ("gone", 0)]) == {}
    assert four.harness.partition("a", 0).leader == 1
    four.stop(1)
    reassign(client, {("a", 1): [1, 0]})
    assert "PREFERRED_LEADER" in elect_preferred_leaders(client, [("a", 1)])["a", 1]
    assert elect_preferred_leaders(client, []) == {}


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0 s"), (42, "42 s"), (180, "3 min"), (7500, "2 h 5 min")]
)
def test_times_are_rounded(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text
