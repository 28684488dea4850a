"""Moves are begun, watched and brought to an end, whatever else happens to their partitions."""

from collections.abc import Iterator

import pytest

from odradek.cluster.balance.model import PartitionMove
from odradek.cluster.controller.commands import AlterPartitionReassignments, Reassignment
from odradek.node.cli import reassignment
from odradek.node.cli.cluster_client import ClusterClient
from odradek.node.cli.connection import make_connection
from odradek.node.cli.reassignment import (
    ReassignmentProgress,
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
    return ReassignmentRunner(
        client, moves, batch=batch, on_progress=lambda _progress: None, **more
    )


def test_every_move_is_done(client: ClusterClient, four: StandInCluster) -> None:
    outcome = mover(client, move(0, 2, 1), move(1, 0, 3), move(2, 1, 0)).run()
    assert four.replicas("a") == [(2, 1), (0, 3), (1, 0)]
    assert len(outcome.done) == 3
    assert outcome.deleted == []
    assert outcome.failed == {}


def test_progress_is_told_in_partitions_and_bytes(
    client: ClusterClient, four: StandInCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reassignment, "SIZES_EVERY_S", 0.0)
    four.step_bytes = 300
    told: list[ReassignmentProgress] = []
    moves = (move(0, 2, 1), move(1, 0, 3))
    ReassignmentRunner(client, moves, batch=10, on_progress=told.append).run()
    assert (told[-1].partitions_done, told[-1].partitions) == (2, 2)
    assert (told[-1].bytes_done, told[-1].bytes) == (2000, 2000)
    sizes = [progress.bytes_done for progress in told]
    assert sizes == sorted(sizes)
    assert any(0 < size < 2000 for size in sizes)


def test_what_has_begun_already_is_waited_for(client: ClusterClient, four: StandInCluster) -> None:
    four.reassign("a", 0, 3, 1)
    outcome = mover(client, in_progress=[move(0, 3, 1)]).run()
    assert [done.after for done in outcome.done] == [(3, 1)]


def test_a_topic_that_is_deleted_before_its_turn_or_after_is_gone(
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
    outcome = mover(client, move(0, 2, 1, topic="b"), move(0, 2, 1)).run()
    assert [deleted.topic for deleted in outcome.deleted] == ["b"]
    assert [done.topic for done in outcome.done] == ["a"]
    outcome = mover(client, move(0, 3, 1, topic="b")).run()
    assert [deleted.topic for deleted in outcome.deleted] == ["b"]


def test_a_move_that_is_refused_does_not_keep_the_others_back(client: ClusterClient) -> None:
    outcome = mover(client, move(0, 9, 1), move(1, 2, 1)).run()
    assert [done.number for done in outcome.done] == [1]
    assert "broker 9, but no such broker is registered" in outcome.failed["a", 0]


def test_a_move_that_somebody_calls_off_has_failed(
    client: ClusterClient, four: StandInCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reassignment, "CANCELLED_AFTER_S", 0.0)
    four.step_bytes = 0

    def disturb(request: object) -> None:
        if isinstance(request, ListPartitionReassignmentsRequest):
            four.before = lambda _request: None
            four.harness.do(CANCEL)

    four.before = disturb
    outcome = mover(client, move(0, 2, 1)).run()
    assert "cancelled" in outcome.failed["a", 0]
    assert set(four.replicas("a")[0]) == {0, 1}


def test_a_node_that_is_away_is_named_and_waited_for(
    client: ClusterClient, four: StandInCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reassignment, "CANCELLED_AFTER_S", 0.0)
    told: list[ReassignmentProgress] = []

    def on_progress(progress: ReassignmentProgress) -> None:
        told.append(progress)
        if progress.waiting_for:
            # It is not coming back: somebody directs the partition elsewhere.
            four.harness.do(CANCEL)
            four.reassign("a", 0, 1, 0)

    four.stop(3)
    outcome = ReassignmentRunner(client, [move(0, 3, 1)], batch=1, on_progress=on_progress).run()
    assert any(progress.waiting_for == (3,) for progress in told)
    assert list(outcome.failed) == [("a", 0)]


def test_what_is_under_way_can_be_called_off(client: ClusterClient, four: StandInCluster) -> None:
    four.step_bytes = 0
    reassign(client, {("a", 0): [2, 1], ("a", 1): [2, 1]})
    stopped, kept = cancel_reassignments(client, [("a", 0), ("a", 1), ("a", 2), ("b", 0)])
    assert (stopped, kept) == ([("a", 0), ("a", 1)], {})
    assert [set(replicas) for replicas in four.replicas("a")] == [{0, 1}] * 3
    assert cancel_reassignments(client, []) == ([], {})


def test_the_lead_goes_to_the_first_replica(client: ClusterClient, four: StandInCluster) -> None:
    reassign(client, {("a", 0): [1, 0]})
    assert elect_preferred_leaders(client, [("a", 0), ("a", 1), ("gone", 0)]) == {}
    assert four.harness.partition("a", 0).leader == 1
    four.stop(1)
    reassign(client, {("a", 1): [1, 0]})
    assert "PREFERRED_LEADER" in elect_preferred_leaders(client, [("a", 1)])["a", 1]
    assert elect_preferred_leaders(client, []) == {}


def test_a_standing_says_how_far_how_fast_and_how_long() -> None:
    progress = ReassignmentProgress(
        partitions_done=3, partitions=12, bytes_done=30_000_000, bytes=90_000_000, seconds=2.0
    )
    assert progress.text() == "3 of 12 partitions, 30.0 MB of 90.0 MB, 15.0 MB/s, 4 s left"
    idle = ReassignmentProgress(
        partitions_done=0, partitions=1, bytes_done=0, bytes=5, seconds=1.0, waiting_for=(3,)
    )
    assert idle.text() == "0 of 1 partitions, 0 B of 5 B, waiting for node 3"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0 s"), (42, "42 s"), (180, "3 min"), (7500, "2 h 5 min")]
)
def test_times_are_told_roughly(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text
