"""Placement: balanced over the racks, then over the brokers, also after the loss of one."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.cluster.controller.placement import place_replicas
from odradek.protocol.errors import ApiError, ErrorCode
from tests.support.controller_harness import topic_id

NO_RACKS: Mapping[int, str | None] = {}


def placed(
    start: int,
    partitions: int,
    factor: int,
    brokers: Sequence[int],
    racks: Mapping[int, str | None] = NO_RACKS,
) -> list[tuple[int, ...]]:
    return place_replicas(
        topic_id(start),
        partition_count=partitions,
        replication_factor=factor,
        brokers=brokers,
        racks=racks,
    )


def spread(counts: Counter[int], brokers: Sequence[int]) -> int:
    """The difference between the largest and the smallest count."""
    shares = [counts[broker] for broker in brokers]
    return max(shares) - min(shares)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[int], dict[int, str | None]]:
    """Brokers with any ids, each in one of a few racks of any size, or in none."""
    brokers = draw(st.lists(st.integers(0, 999), min_size=1, max_size=12, unique=True))
    rack = st.sampled_from(["a", "b", "c", "d", None])
    return brokers, {broker: draw(rack) for broker in brokers}


@st.composite
def even_clusters(draw: st.DrawFn) -> tuple[list[int], dict[int, str | None]]:
    """Racks of one size."""
    rack_count = draw(st.integers(1, 6))
    count = rack_count * draw(st.integers(1, 12 // rack_count))
    brokers = draw(st.permutations(range(count)))
    return brokers, {broker: f"rack-{broker % rack_count}" for broker in brokers}


@given(clusters(), st.integers(0, 10**6), st.integers(1, 30), st.data())
@settings(deadline=None, max_examples=150)
def test_no_broker_has_two_replicas_and_no_rack_two_while_another_has_none(
    cluster: tuple[list[int], dict[int, str | None]],
    start: int,
    partitions: int,
    data: st.DataObject,
) -> None:
    brokers, racks = cluster
    factor = data.draw(st.integers(1, len(brokers)))
    sizes = Counter(racks.values())
    for replicas in placed(start, partitions, factor, brokers, racks):
        assert len(replicas) == factor
        assert len(set(replicas)) == factor
        used = Counter(racks[broker] for broker in replicas)
        assert len(used) == min(factor, len(sizes))
        most = max(used.values())
        assert all(used[rack] >= min(most - 1, size) for rack, size in sizes.items())


@given(clusters(), st.integers(0, 10**6), st.integers(1, 60), st.data())
@settings(deadline=None, max_examples=150)
def test_leaders_are_balanced_within_one_whatever_the_racks(
    cluster: tuple[list[int], dict[int, str | None]],
    start: int,
    partitions: int,
    data: st.DataObject,
) -> None:
    brokers, racks = cluster
    factor = data.draw(st.integers(1, len(brokers)))
    replicas = placed(start, partitions, factor, brokers, racks)
    assert spread(Counter(nodes[0] for nodes in replicas), brokers) <= 1


@given(even_clusters(), st.integers(0, 10**6), st.integers(1, 40), st.data())
@settings(deadline=None, max_examples=200)
def test_replicas_are_balanced_within_one_where_racks_are_of_one_size(
    cluster: tuple[list[int], dict[int, str | None]],
    start: int,
    partitions: int,
    data: st.DataObject,
) -> None:
    brokers, racks = cluster
    factor = data.draw(st.integers(1, len(brokers)))
    replicas = placed(start, partitions, factor, brokers, racks)
    assert spread(Counter(node for nodes in replicas for node in nodes), brokers) <= 1


@pytest.mark.parametrize("rack_count", range(1, 9))
def test_every_small_cluster_of_even_racks_is_balanced_after_every_partition(
    rack_count: int,
) -> None:
    for count in range(rack_count, 9, rack_count):
        brokers = list(range(count))
        racks: dict[int, str | None] = {broker: str(broker % rack_count) for broker in brokers}
        for factor in range(1, count + 1):
            held: Counter[int] = Counter()
            for replicas in placed(3, 3 * count, factor, brokers, racks):
                held.update(replicas)
                assert spread(held, brokers) <= 1, (count, factor)


@pytest.mark.parametrize("seed", range(30))
def test_complete_rounds_give_every_broker_the_same_load(seed: int) -> None:
    chance = random.Random(seed)
    brokers = chance.sample(range(100), chance.randint(1, 9))
    factor = chance.randint(1, len(brokers))
    rounds = chance.randint(1, 6) * max(1, len(brokers) - 1)
    replicas = placed(chance.randrange(10**6), len(brokers) * rounds, factor, brokers)
    leaders = Counter(nodes[0] for nodes in replicas)
    assert set(leaders.values()) == {rounds}, "each broker leads as often as any other"
    held = Counter(node for nodes in replicas for node in nodes)
    assert set(held.values()) == {rounds * factor}, "each broker holds as much as any other"


def test_the_followers_of_one_leader_are_spread_over_all_others() -> None:
    replicas = placed(3, 20, 2, [0, 1, 2, 3, 4])
    followers = Counter(nodes[1] for nodes in replicas if nodes[0] == 2)
    assert followers == {0: 1, 1: 1, 3: 1, 4: 1}


def test_a_small_rack_has_a_replica_of_each_partition_but_not_every_leader() -> None:
    racks = {0: "small", 1: "big", 2: "big", 3: "big"}
    replicas = placed(0, 12, 2, [0, 1, 2, 3], racks)
    assert all(0 in nodes for nodes in replicas)
    assert Counter(nodes[0] for nodes in replicas) == {0: 3, 1: 3, 2: 3, 3: 3}
    held = Counter(node for nodes in replicas for node in nodes)
    assert held == {0: 12, 1: 4, 2: 4, 3: 4}


def test_topics_begin_at_different_brokers() -> None:
    leaders = {placed(start, 1, 1, [0, 1, 2])[0][0] for start in range(3)}
    assert leaders == {0, 1, 2}


def test_placement_continues_from_the_existing_partitions() -> None:
    whole = placed(5, 12, 3, [0, 1, 2, 3])
    rest = place_replicas(
        topic_id(5),
        existing=whole[:5],
        partition_count=7,
        replication_factor=3,
        brokers=[0, 1, 2, 3],
    )
    assert rest == whole[5:]


def test_a_broker_that_came_later_gets_more_of_the_new_partitions() -> None:
    before = placed(0, 8, 1, [0, 1])
    added = place_replicas(
        topic_id(0), existing=before, partition_count=4, replication_factor=1, brokers=[0, 1, 2]
    )
    assert added == [(2,)] * 4


def test_inactive_brokers_get_replicas_only_if_others_are_missing() -> None:
    def with_spare(factor: int) -> list[tuple[int, ...]]:
        return place_replicas(
            topic_id(0),
            partition_count=4,
            replication_factor=factor,
            brokers=[0, 1],
            inactive=[7, 8],
        )

    assert all(set(nodes) == {0, 1} for nodes in with_spare(2))
    assert [set(nodes[:2]) for nodes in with_spare(3)] == [{0, 1}] * 4
    assert Counter(nodes[2] for nodes in with_spare(3)) == {7: 2, 8: 2}
    assert all(set(nodes) == {0, 1, 7, 8} for nodes in with_spare(4))


@pytest.mark.parametrize(
    ("brokers", "inactive"), [([], []), ([4], []), ([4], [5]), ([], [5, 6, 7])]
)
def test_more_replicas_than_brokers_is_refused(brokers: list[int], inactive: list[int]) -> None:
    factor = len(brokers) + len(inactive) + bool(brokers or not inactive)
    with pytest.raises(ApiError) as caught:
        place_replicas(
            topic_id(0),
            partition_count=1,
            replication_factor=factor,
            brokers=brokers,
            inactive=inactive,
        )
    assert caught.value.code is ErrorCode.INVALID_REPLICATION_FACTOR
