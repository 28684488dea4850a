"""Placement: everybody gets the same share, and losing one broker burdens all others."""

import random
from collections import Counter

import pytest

from cluster.controller.placement import place
from protocol.errors import ApiError, ErrorCode
from tests.support.controller_room import topic_id


def placed(start: int, partitions: int, factor: int, brokers: list[int]) -> list[tuple[int, ...]]:
    return place(
        topic_id(start),
        first_partition=0,
        partition_count=partitions,
        replication_factor=factor,
        brokers=brokers,
    )


@pytest.mark.parametrize("seed", range(30))
def test_replicas_are_distinct_and_spread_evenly(seed: int) -> None:
    chance = random.Random(seed)
    brokers = chance.sample(range(100), chance.randint(1, 9))
    factor = chance.randint(1, len(brokers))
    rounds = chance.randint(1, 6) * max(1, len(brokers) - 1)
    replicas = placed(chance.randrange(10**6), len(brokers) * rounds, factor, brokers)
    assert all(len(set(nodes)) == factor for nodes in replicas)
    leaders = Counter(nodes[0] for nodes in replicas)
    assert set(leaders.values()) == {rounds}, "each broker leads as often as any other"
    held = Counter(node for nodes in replicas for node in nodes)
    assert set(held.values()) == {rounds * factor}, "each broker holds as much as any other"


def test_the_followers_of_one_leader_are_spread_over_all_others() -> None:
    replicas = placed(3, 20, 2, [0, 1, 2, 3, 4])
    followers = Counter(nodes[1] for nodes in replicas if nodes[0] == 2)
    assert followers == {0: 1, 1: 1, 3: 1, 4: 1}


def test_topics_begin_at_different_brokers() -> None:
    leaders = {placed(start, 1, 1, [0, 1, 2])[0][0] for start in range(3)}
    assert leaders == {0, 1, 2}


def test_placement_goes_on_where_it_stopped() -> None:
    whole = placed(5, 12, 3, [0, 1, 2, 3])
    rest = place(
        topic_id(5),
        first_partition=5,
        partition_count=7,
        replication_factor=3,
        brokers=[0, 1, 2, 3],
    )
    assert rest == whole[5:]


@pytest.mark.parametrize("brokers", [[], [4]])
def test_more_replicas_than_brokers_is_refused(brokers: list[int]) -> None:
    with pytest.raises(ApiError) as caught:
        placed(0, 1, len(brokers) + 1, brokers)
    assert caught.value.code is ErrorCode.INVALID_REPLICATION_FACTOR
