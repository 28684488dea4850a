"""The books of a plan: what is where, what may go, and what goes best."""

import random

from odradek.cluster.balance.model import Node, Partition
from odradek.cluster.balance.shares import Shares, wanted_of


def partition(
    number: int,
    *replicas: int,
    size: int = 1,
    topic: str = "t",
    in_sync: tuple[int, ...] | None = None,
) -> Partition:
    return Partition(
        topic=topic,
        number=number,
        replicas=replicas,
        in_sync=replicas if in_sync is None else in_sync,
        leader=replicas[0],
        byte_count=size,
    )


def nodes(count: int, racks: str = "") -> list[Node]:
    return [Node(node_id=n, rack=racks[n] if racks else None) for n in range(count)]


def test_the_books_are_right_after_any_moves() -> None:
    chance = random.Random(3)
    cluster = nodes(5)
    partitions = [
        partition(n, *chance.sample(range(5), 2), size=chance.randint(0, 9)) for n in range(40)
    ]
    shares = Shares(cluster, partitions)
    for _ in range(300):
        index = chance.randrange(40)
        source = chance.choice(shares.replicas[index])
        target = chance.choice([n for n in range(5) if n not in shares.replicas[index]])
        # Asked for before, so that it is kept up and not made anew.
        list(shares.legal(chance.randrange(5), target))
        shares.move(index, source, target)
    for source in range(5):
        held = [n for n in range(40) if source in shares.replicas[n]]
        assert shares.counts[source] == len(held)
        assert shares.bytes[source] == sum(partitions[n].byte_count for n in held)
        for target in set(range(5)) - {source}:
            may_go = {n for n in held if target not in shares.replicas[n]}
            found = list(shares.legal(source, target))
            assert set(found) == may_go
            sizes = [partitions[n].byte_count for n in found]
            assert sizes == sorted(sizes)


def test_a_replica_keeps_its_place_in_the_order_of_preference() -> None:
    shares = Shares(nodes(4), [partition(0, 0, 1, 2)])
    shares.move(0, 1, 3)
    assert shares.replicas == [(0, 3, 2)]


def test_the_closest_size_goes_and_nothing_above_the_limit() -> None:
    shares = Shares(nodes(2), [partition(n, 0, size=size) for n, size in enumerate((1, 50, 90))])
    assert shares.best(0, 1, wanted=60, limit=60) == 1
    assert shares.best(0, 1, wanted=80, limit=100) == 2
    assert shares.best(0, 1, wanted=40, limit=49) == 0


def test_the_smallest_goes_when_all_are_above_the_limit() -> None:
    shares = Shares(nodes(2), [partition(n, 0, size=size) for n, size in enumerate((70, 50, 90))])
    assert shares.best(0, 1, wanted=10, limit=10) == 1


def test_of_one_size_the_topic_goes_that_the_target_has_least_of() -> None:
    held = [partition(n, 0, topic="a") for n in range(3)] + [partition(0, 0, topic="b")]
    there = [partition(3, 1, topic="a"), partition(4, 1, topic="a"), partition(5, 1, topic="a")]
    shares = Shares(nodes(2), [*held, *there])
    assert shares.best(0, 1, wanted=1, limit=1) == 3


def test_what_the_plan_has_brought_goes_before_what_must_be_copied() -> None:
    shares = Shares(nodes(3), [partition(0, 1), partition(1, 0)])
    shares.move(1, 0, 1)
    assert shares.cost(1, 1, 2) == 0
    assert shares.cost(1, 1, 0) == -1
    assert shares.cost(0, 1, 2) == 1
    assert shares.best(1, 2, wanted=1, limit=1) == 1


def test_racks_are_shared_no_worse() -> None:
    shares = Shares(nodes(4, "aabb"), [partition(0, 0, 2), partition(1, 0, 1)])
    assert not shares.is_legal(0, 0, 3)
    assert shares.is_legal(0, 0, 1)
    assert shares.rack_change(1, 0, 2) < 0


def test_fenced_closed_and_emptied_nodes_take_nothing() -> None:
    cluster = [
        Node(node_id=0),
        Node(node_id=1, is_fenced=True),
        Node(node_id=2, is_closed=True),
        Node(node_id=3, is_emptied=True),
    ]
    shares = Shares(cluster, [partition(0, 1, 2, 3)])
    assert shares.members == [0, 2]
    assert shares.takers == [0]
    assert shares.counts == {0: 0, 2: 1}


def test_without_anybody_in_sync_nothing_can_be_copied() -> None:
    cluster = [Node(node_id=0, is_fenced=True), Node(node_id=1), Node(node_id=2)]
    shares = Shares(cluster, [partition(0, 1, 0, in_sync=(0,)), partition(1, 1, 0)])
    assert list(shares.legal(1, 2)) == [1]


def test_a_reassignment_under_way_counts_as_done() -> None:
    moving = Partition(
        topic="t", number=0, replicas=(2, 1, 0), in_sync=(0, 1), adding=(2,), removing=(0,)
    )
    assert wanted_of(moving) == (2, 1)
    shares = Shares(nodes(4), [moving])
    assert shares.counts == {0: 0, 1: 1, 2: 1, 3: 0}
    # The removed one still has everything, the added one has begun to copy.
    assert shares.cost(0, 1, 0) == 0
    assert shares.cost(0, 2, 3) == 1
