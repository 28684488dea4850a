"""The bytes that a move and a plan copy."""

from odradek.cluster.balance.model import BrokerLoad, PartitionMove, ReassignmentPlan


def move(adding: tuple[int, ...]) -> PartitionMove:
    return PartitionMove(
        topic="t",
        number=0,
        before=(0, 1),
        after=(1, *adding),
        adding=adding,
        removing=(0,) if adding else (),
        byte_count=7,
    )


def test_a_move_copies_the_partition_once_for_each_new_replica() -> None:
    assert move((2, 3)).copied_bytes == 14
    assert move(()).copied_bytes == 0


def test_a_plan_copies_what_its_moves_do() -> None:
    load = (BrokerLoad(node_id=0, replicas=1, leaders=1, byte_count=7),)
    moves = (move((2,)), move(()), move((2, 3)))
    plan = ReassignmentPlan(moves=moves, unmovable=(), before=load, after=load, needed_bytes=0)
    assert plan.copied_bytes == 21
