"""Plans as text, rows and JSON."""

from odradek.cluster.balance.model import Partition, ReassignmentPlan, RegisteredBroker
from odradek.cluster.balance.planner import plan_moves
from odradek.node.cli.plan_text import (
    estimated_s,
    leader_moves,
    move_row,
    node_rows,
    plan_document,
    summary,
)
from odradek.node.cli.replica_placement import ClusterView
from tests.cluster.balance.test_model import move

NODES = [
    RegisteredBroker(node_id=0, rack="a"),
    RegisteredBroker(node_id=1, is_fenced=True),
    RegisteredBroker(node_id=2),
]
PARTITIONS = [
    Partition(topic="t", number=n, replicas=(0,), in_sync=(0,), leader=0, byte_count=1_500_000)
    for n in range(4)
]
VIEW = ClusterView(NODES, PARTITIONS, frozenset({2}))


def planned() -> ReassignmentPlan:
    return plan_moves(NODES, PARTITIONS)


def test_the_busiest_node_determines_the_estimate() -> None:
    # Two copies to each of two nodes, all from the same one.
    moves = [move((2, 3)), move((2, 3))]
    assert estimated_s(moves, 7) == 4.0
    assert estimated_s([], 7) == 0.0


def test_the_summary_has_moves_bytes_and_time() -> None:
    text = summary(planned(), [], None, leader_move_count=2)
    assert text == "2 partitions to move, 2 leaders to move, 3.0 MB to copy"
    text = summary(planned(), [move((2,))], 1_000_000, leader_move_count=0)
    assert text.endswith("1 under way already, at least 3 s at 1.0 MB/s")


def test_leader_moves_are_counted_with_and_without_a_move_of_replicas() -> None:
    partitions = [
        Partition(topic="t", number=n, replicas=(0, 2), in_sync=(0, 2), leader=0) for n in range(2)
    ]
    view = ClusterView(NODES, partitions, frozenset())
    plan = plan_moves(NODES, partitions)
    assert len(leader_moves(view, plan)) == 1
    text = summary(plan, [], None, leader_move_count=1)
    assert text == "0 partitions to move, 1 leader to move, 0 B to copy"
    # Replicas that move to another node take their leader with them.
    assert len(leader_moves(VIEW, planned())) == 2


def test_a_leader_moves_to_the_preferred_replica_only_if_that_can_lead() -> None:
    def found(preferred: int, in_sync: tuple[int, ...], *, is_full: bool = True) -> int:
        partition = Partition(
            topic="t", number=0, replicas=(preferred, 0), in_sync=in_sync, leader=0
        )
        view = ClusterView(NODES, [partition], frozenset())
        nothing = plan_moves(NODES, [])
        return len(leader_moves(view, nothing, is_full_rebalance=is_full))

    assert found(2, (0, 2)) == 1
    assert found(2, (0,)) == 0
    assert found(1, (0, 1)) == 0  # fenced
    assert found(2, (0, 2), is_full=False) == 0


def test_every_node_has_a_row_of_before_and_after() -> None:
    first, second, third = node_rows(NODES, planned(), is_plain=False)
    assert (first["replicas"], first["leaders"], first["rack"]) == ("4 -> 2", "4 -> 2", "a")
    assert first["size"] == "6.0 MB -> 3.0 MB"
    assert (second["state"], second["replicas"]) == ("fenced", "0 -> 0")
    assert third["size"] == "0 B -> 3.0 MB"


def test_every_move_has_a_row() -> None:
    row = {"partition": "t-0", "replicas": [0], "becomes": [2]}
    assert move_row(planned().moves[0], is_plain=False) == {**row, "copies": "1.5 MB"}
    assert move_row(planned().moves[0], is_plain=True) == {**row, "copied_bytes": 1_500_000}


def test_plain_rows_have_a_number_in_each_column() -> None:
    first, _, _ = node_rows(NODES, planned(), is_plain=True)
    assert (first["replicas"], first["replicas_after"]) == (4, 2)
    assert (first["leaders"], first["leaders_after"]) == (4, 2)
    assert (first["bytes"], first["bytes_after"]) == (6_000_000, 3_000_000)


def test_the_json_of_a_plan() -> None:
    document = plan_document(VIEW, planned(), [], 1_000_000, leader_move_count=2)
    assert document["leader_moves"] == 2
    assert (document["copied_bytes"], document["needed_bytes"]) == (3_000_000, 3_000_000)
    assert document["estimated_s"] == 3.0
    assert document["nodes"] == [
        {
            "node": node,
            "rack": rack,
            "fenced": is_fenced,
            "cordoned": is_cordoned,
            "replicas": before,
            "leaders": before,
            "bytes": before * 1_500_000,
            "replicas_after": after,
            "leaders_after": after,
            "bytes_after": after * 1_500_000,
        }
        for node, rack, is_fenced, is_cordoned, before, after in (
            (0, "a", False, False, 4, 2),
            (1, None, True, False, 0, 0),
            (2, None, False, True, 0, 2),
        )
    ]
    assert document["moves"] == [
        {
            "topic": "t",
            "partition": number,
            "replicas": [0],
            "becomes": [2],
            "bytes": 1_500_000,
            "copied_bytes": 1_500_000,
        }
        for number in (0, 1)
    ]
