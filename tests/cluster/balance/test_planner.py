"""Plans are balanced, copy little and are deterministic; partitions that cannot move are reported.

Small cases are compared with all possible assignments, large ones with fixed bounds.
"""

import itertools
import random
import time
from collections.abc import Iterator, Sequence

import pytest

from odradek.cluster.balance.model import Partition, ReassignmentPlan, RegisteredBroker
from odradek.cluster.balance.planner import BYTE_TOLERANCE, needed_bytes, plan_moves
from tests.cluster.balance.test_replica_distribution import nodes, partition

SLOWEST_PLAN_S = 60.0
"""A liveness bound: it takes less than a second where nothing else runs."""


def spread(figures: Iterator[int] | Sequence[int]) -> int:
    figures = list(figures)
    return max(figures) - min(figures)


def count_spread(plan: ReassignmentPlan, *nodes: int) -> int:
    return spread([load.replicas for load in plan.after if load.node_id in nodes or not nodes])


def byte_spread(plan: ReassignmentPlan, *nodes: int) -> int:
    return spread([load.byte_count for load in plan.after if load.node_id in nodes or not nodes])


def spread_max(plan: ReassignmentPlan, partitions: Sequence[Partition]) -> int:
    mean = sum(load.byte_count for load in plan.after) / len(plan.after)
    return max(max(p.byte_count for p in partitions), int(BYTE_TOLERANCE * mean))


def assert_is_sound(plan: ReassignmentPlan, partitions: Sequence[Partition]) -> None:
    """Checks the invariants of every plan."""
    by_name = {(p.topic, p.number): p for p in partitions}
    assert len({(move.topic, move.number) for move in plan.moves}) == len(plan.moves)
    for move in plan.moves:
        known = by_name[move.topic, move.number]
        assert len(set(move.after)) == len(move.after) == len(known.replicas) - len(known.removing)
        assert set(move.adding) == set(move.after) - set(known.replicas)
        assert set(move.removing) == set(known.replicas) - set(move.after)


def all_assignments(
    cluster: Sequence[RegisteredBroker], partitions: Sequence[Partition]
) -> Iterator[tuple[int, int, int]]:
    """Spread of counts, spread of bytes and copied bytes of every possible assignment."""
    ids = [node.node_id for node in cluster]
    choices = [list(itertools.combinations(ids, len(p.replicas))) for p in partitions]
    for assignment in itertools.product(*choices):
        counts, held, copied = dict.fromkeys(ids, 0), dict.fromkeys(ids, 0), 0
        for known, replicas in zip(partitions, assignment, strict=True):
            for node in replicas:
                counts[node] += 1
                held[node] += known.byte_count
                if node not in known.replicas:
                    copied += known.byte_count
        yield spread(list(counts.values())), spread(list(held.values())), copied


def small_case(seed: int, sizes: Sequence[int]) -> tuple[list[RegisteredBroker], list[Partition]]:
    """Up to four brokers and six partitions; some brokers have no replicas."""
    chance = random.Random(seed)
    count = chance.randint(2, 4)
    partitions = []
    for number in range(chance.randint(1, 6 if count < 4 else 5)):
        factor = chance.randint(1, 2)
        holders = chance.sample(range(count), chance.randint(factor, count))
        replicas = chance.sample(holders, factor)
        partitions.append(partition(number, *replicas, size=chance.choice(sizes)))
    return nodes(count), partitions


@pytest.mark.parametrize("seed", range(150))
def test_equal_sizes_are_balanced_with_the_fewest_copies(seed: int) -> None:
    cluster, partitions = small_case(seed, [10])
    plan = plan_moves(cluster, partitions)
    assert_is_sound(plan, partitions)
    assert count_spread(plan) <= 1
    least = min(copied for counts, _, copied in all_assignments(cluster, partitions) if counts <= 1)
    assert plan.copied_bytes == least


@pytest.mark.parametrize("seed", range(150))
def test_other_sizes_copy_at_most_one_partition_more_than_needed(seed: int) -> None:
    sizes = [0, 1, 2, 5, 10, 30]
    cluster, partitions = small_case(seed, sizes)
    plan = plan_moves(cluster, partitions)
    assert_is_sound(plan, partitions)
    assert count_spread(plan) <= 1
    limit = spread_max(plan, partitions)
    assert byte_spread(plan) <= limit
    least = min(
        copied
        for counts, held, copied in all_assignments(cluster, partitions)
        if counts <= 1 and held <= limit
    )
    largest = max(p.byte_count for p in partitions)
    assert plan.copied_bytes <= max(least, plan.needed_bytes) + largest


def large_case(
    node_count: int,
    *,
    holders: int | None = None,
    racks: int = 1,
    partition_count: int = 10_000,
    is_even: bool = False,
) -> tuple[list[RegisteredBroker], list[Partition]]:
    """Three replicas each on any of the first `holders` nodes; sizes from bytes to gigabytes."""
    chance = random.Random(node_count)
    cluster = [RegisteredBroker(node_id=n, rack=f"r{n % racks}") for n in range(node_count)]
    return cluster, [
        partition(
            number // 50,
            *chance.sample(range(holders or node_count), 3),
            size=10**6 if is_even else int(10**6 * chance.lognormvariate(0, 1.5)),
            topic=f"t{number % 50}",
        )
        for number in range(partition_count)
    ]


@pytest.mark.parametrize(
    ("node_count", "holders", "is_even"),
    [(4, 3, True), (4, 3, False), (10, 10, False), (60, 50, False), (100, 100, False)],
)
def test_ten_thousand_partitions_are_balanced_with_no_more_copies_than_needed(
    node_count: int, holders: int, is_even: bool
) -> None:
    cluster, partitions = large_case(node_count, holders=holders, is_even=is_even)
    begin = time.perf_counter()
    plan = plan_moves(cluster, partitions)
    seconds = time.perf_counter() - begin
    assert seconds < SLOWEST_PLAN_S
    assert_is_sound(plan, partitions)
    assert plan.unmovable == ()
    assert count_spread(plan) <= 1
    assert spread([load.leaders for load in plan.after]) <= 1
    assert byte_spread(plan) <= spread_max(plan, partitions)
    # The bound is the sum of what each node lacks of its share, which any exact level takes.
    mean = -(-sum(load.byte_count for load in plan.before) // node_count)
    assert plan.needed_bytes == sum(max(0, mean - load.byte_count) for load in plan.before)
    assert plan.copied_bytes <= plan.needed_bytes


def test_after_a_plan_the_next_plan_is_empty() -> None:
    cluster, partitions = large_case(7, holders=5, racks=3, partition_count=700)
    done = {(move.topic, move.number): move.after for move in plan_moves(cluster, partitions).moves}
    moved = [
        partition(
            p.number, *done.get((p.topic, p.number), p.replicas), size=p.byte_count, topic=p.topic
        )
        for p in partitions
    ]
    assert plan_moves(cluster, moved).moves == ()


def test_the_plan_does_not_depend_on_the_order_of_input() -> None:
    cluster, partitions = large_case(6, holders=4, racks=2, partition_count=300)
    plan = plan_moves(cluster, partitions)
    chance = random.Random(1)
    for _ in range(3):
        chance.shuffle(cluster)
        chance.shuffle(partitions)
        assert plan_moves(cluster, partitions) == plan


def test_a_partition_that_shares_a_rack_is_spread_where_there_is_another() -> None:
    cluster, partitions = large_case(9, racks=3, partition_count=600)
    plan = plan_moves(cluster, partitions)
    after = {(p.topic, p.number): p.replicas for p in partitions}
    after |= {(move.topic, move.number): move.after for move in plan.moves}
    assert all(len({node % 3 for node in replicas}) == 3 for replicas in after.values())
    assert count_spread(plan) <= 1
    assert byte_spread(plan) <= spread_max(plan, partitions)


def test_racks_have_priority_over_balanced_counts() -> None:
    cluster = nodes(3, "abb")
    partitions = [partition(n, 0, 1 + n % 2) for n in range(6)]
    plan = plan_moves(cluster, partitions)
    # One replica of each partition is in rack a, which has one node.
    assert [load.replicas for load in plan.after] == [6, 3, 3]
    assert all(move.adding == () for move in plan.moves)


def test_replicas_move_over_an_intermediate_broker() -> None:
    # All that 0 has is on 2 already; 1 has what 2 lacks.
    partitions = [partition(n, 0, 2) for n in range(3)]
    partitions += [partition(n, 0, topic="u") for n in range(2)]
    partitions += [partition(n, 1, topic="v") for n in range(4)]
    partitions += [partition(n, 2, 3, topic="w") for n in range(1)]
    cluster = [*nodes(3), RegisteredBroker(node_id=3, is_fenced=True)]
    plan = plan_moves(cluster, partitions)
    assert count_spread(plan, 0, 1, 2) <= 1


def test_few_large_partitions_are_balanced_with_many_small_ones() -> None:
    big = [partition(n, 0, size=1000) for n in range(4)]
    small = [partition(n, 1, size=1, topic="s") for n in range(4)]
    plan = plan_moves(nodes(2), big + small)
    assert [load.replicas for load in plan.after] == [4, 4]
    assert byte_spread(plan) <= 1000
    # Two large ones go to the other node, of which each lacks one at least.
    assert plan.copied_bytes <= plan.needed_bytes + 10


def test_draining_moves_only_the_replicas_of_the_drained_broker() -> None:
    cluster, partitions = large_case(6, partition_count=600)
    cluster[2] = RegisteredBroker(node_id=2, rack="r0", is_draining=True)
    plan = plan_moves(cluster, partitions, is_full_rebalance=False)
    assert_is_sound(plan, partitions)
    assert plan.unmovable == ()
    assert plan.after[2].replicas == plan.after[2].leaders == 0
    assert plan.copied_bytes == plan.before[2].byte_count
    assert all(move.removing == (2,) for move in plan.moves)
    others = [load.replicas for load in plan.before if load.node_id != 2]
    assert count_spread(plan, 0, 1, 3, 4, 5) <= max(1, spread(others))


def test_draining_balances_the_moved_replicas() -> None:
    partitions = [partition(n, 0, size=1 + n % 7) for n in range(60)]
    cluster = [RegisteredBroker(node_id=0, is_draining=True), *nodes(4)[1:]]
    plan = plan_moves(cluster, partitions, is_full_rebalance=False)
    assert [load.replicas for load in plan.after] == [0, 20, 20, 20]
    assert [load.leaders for load in plan.after] == [0, 20, 20, 20]
    assert byte_spread(plan, 1, 2, 3) <= 7


def test_draining_moves_nothing_to_cordoned_or_fenced_brokers() -> None:
    cluster = [
        RegisteredBroker(node_id=0, is_draining=True),
        RegisteredBroker(node_id=1, is_cordoned=True),
        RegisteredBroker(node_id=2, is_fenced=True),
        RegisteredBroker(node_id=3),
    ]
    plan = plan_moves(cluster, [partition(n, 0) for n in range(4)], is_full_rebalance=False)
    assert [load.replicas for load in plan.after] == [0, 0, 0, 4]


def test_too_few_remaining_brokers_make_a_partition_unmovable() -> None:
    cluster = [RegisteredBroker(node_id=0, is_draining=True), *nodes(3)[1:]]
    plan = plan_moves(cluster, [partition(0, 0, 1, 2), partition(1, 0, 1)], is_full_rebalance=False)
    (obstacle,) = plan.unmovable
    assert (obstacle.topic, obstacle.number) == ("t", 0)
    assert "3 replicas" in obstacle.reason
    assert "2 nodes" in obstacle.reason
    assert [move.number for move in plan.moves] == [1]


def test_a_partition_without_an_active_in_sync_replica_is_unmovable() -> None:
    cluster = [RegisteredBroker(node_id=0, is_draining=True, is_fenced=True), *nodes(3)[1:]]
    lost = partition(0, 0, 1, in_sync=(0,))
    plan = plan_moves(cluster, [lost, partition(1, 0, 1)], is_full_rebalance=False)
    (obstacle,) = plan.unmovable
    assert (obstacle.number, "in-sync" in obstacle.reason) == (0, True)
    # A node that is away can be drained of what others have.
    assert [(move.number, move.after) for move in plan.moves] == [(1, (2, 1))]


def test_replicas_on_unregistered_brokers_are_replaced() -> None:
    plan = plan_moves(nodes(3), [partition(0, 7, 1, in_sync=(1,))])
    assert [set(move.after) for move in plan.moves] in ([{0, 1}], [{1, 2}])


def test_replicas_on_fenced_brokers_stay() -> None:
    cluster = [
        RegisteredBroker(node_id=0, is_fenced=True),
        RegisteredBroker(node_id=1),
        RegisteredBroker(node_id=2),
    ]
    plan = plan_moves(cluster, [partition(n, 0, 1) for n in range(4)])
    assert [load.replicas for load in plan.after] == [4, 2, 2]


def test_a_reassignment_in_progress_counts_with_its_target() -> None:
    moving = Partition(
        topic="t",
        number=0,
        replicas=(1, 0),
        in_sync=(0,),
        leader=0,
        byte_count=5,
        adding=(1,),
        removing=(0,),
    )
    plan = plan_moves(nodes(2), [moving, partition(1, 0, size=5)])
    assert plan.moves == ()
    assert [load.replicas for load in plan.before] == [2, 0]
    assert [load.replicas for load in plan.after] == [1, 1]


def test_a_reassignment_to_a_drained_broker_is_redirected() -> None:
    moving = Partition(
        topic="t",
        number=0,
        replicas=(1, 0),
        in_sync=(0,),
        leader=0,
        byte_count=5,
        adding=(1,),
        removing=(0,),
    )
    cluster = [RegisteredBroker(node_id=0), RegisteredBroker(node_id=1, is_draining=True)]
    (move,) = plan_moves(cluster, [moving], is_full_rebalance=False).moves
    # Back to where it came from, which copies nothing.
    assert (move.after, move.adding, move.removing, move.copied_bytes) == ((0,), (), (1,), 0)


def test_moves_are_interleaved_by_target_and_reorders_come_last() -> None:
    partitions = [partition(n, 0, size=10 - n) for n in range(9)]
    partitions += [partition(n, 0, 1, 2, size=1, topic="u") for n in range(3)]
    plan = plan_moves(nodes(3), partitions)
    copying = [move for move in plan.moves if move.adding]
    assert plan.moves[: len(copying)] == tuple(copying)
    targets = [move.adding for move in copying]
    assert all(before != after for before, after in itertools.pairwise(targets))


def test_an_empty_cluster_has_an_empty_plan() -> None:
    assert plan_moves([], []).moves == ()
    assert plan_moves(nodes(3), []).moves == ()
    assert needed_bytes([], []) == 0
    assert plan_moves([], [partition(0, 1)]).unmovable
