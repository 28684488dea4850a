"""Preferred leaders are balanced, also over intermediate brokers; only the order changes."""

import itertools
import random
from collections import Counter

from odradek.cluster.balance.preferred_leaders import balance_leaders


def leads(orders: list[tuple[int, ...]], members: list[int]) -> list[int]:
    counts = Counter(order[0] for order in orders)
    return [counts[member] for member in members]


def spread(counts: list[int]) -> int:
    return max(counts) - min(counts)


def test_leadership_moves_over_an_intermediate_broker() -> None:
    before = [(0, 1), (0, 1), (0, 1), (1, 2), (1, 2)]
    after = balance_leaders(before, [True] * 5, [0, 1, 2])
    assert sorted(leads(after, [0, 1, 2])) == [1, 2, 2]
    assert [set(order) for order in after] == [set(order) for order in before]


def test_balanced_leaders_do_not_change() -> None:
    before = [(0, 1), (1, 0), (0, 1)]
    assert balance_leaders(before, [True] * 3, [0, 1]) == before


def test_the_rest_of_the_order_of_preference_stays() -> None:
    assert balance_leaders([(0, 1, 2), (0, 2, 1)], [True, True], [0, 1, 2])[0] == (1, 0, 2)


def test_other_brokers_neither_gain_nor_lose_leadership() -> None:
    before = [(9, 0), (9, 0), (0, 9), (0, 9)]
    assert balance_leaders(before, [True] * 4, [0, 1]) == before


def test_a_partition_that_may_not_change_counts_where_it_is() -> None:
    before = [(0, 1), (0, 1), (0, 1), (0, 1)]
    after = balance_leaders(before, [False, False, True, True], [0, 1])
    assert after == [(0, 1), (0, 1), (1, 0), (1, 0)]
    assert balance_leaders(before, [False] * 4, [0, 1]) == before


def test_no_choice_of_leaders_is_better_balanced() -> None:
    for seed in range(200):
        chance = random.Random(seed)
        members = list(range(chance.randint(1, 4)))
        before = [
            tuple(chance.sample(members, chance.randint(1, min(3, len(members)))))
            for _ in range(chance.randint(1, 6))
        ]
        after = balance_leaders(before, [True] * len(before), members)
        best_replica = min(
            spread([choice.count(member) for member in members])
            for choice in itertools.product(*before)
        )
        # Two nodes may differ by one; where no way leads from the one to the other, by more.
        assert spread(leads(after, members)) <= max(1, best_replica), (seed, before, after)
