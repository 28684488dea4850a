"""Assignors: every partition is assigned once, loads are balanced, few partitions move."""

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.coordinator.group.consumer.assignors import Assignment, MemberSpec, assign
from odradek.coordinator.group.topics import TopicDigest
from odradek.protocol.types import Uuid

Topics = dict[Uuid, TopicDigest]


def topic_id(number: int) -> Uuid:
    return number.to_bytes(16, "big")


def topics_of(*counts: int, racks: tuple[str, ...] = ()) -> Topics:
    """Topics 1, 2 and so on, of these sizes; partition p on the racks p and p + 1, if any."""
    found = {}
    for at, count in enumerate(counts):
        sets = tuple(
            frozenset({racks[index % len(racks)], racks[(index + 1) % len(racks)]})
            for index in range(count if racks else 0)
        )
        found[topic_id(at + 1)] = TopicDigest(f"t{at + 1}", topic_id(at + 1), count, sets)
    return found


def candidates_of(
    wants: dict[str, set[int]],
    before: Assignment | None = None,
    racks: dict[str, str] | None = None,
) -> list[MemberSpec]:
    return [
        MemberSpec(
            name,
            None,
            (racks or {}).get(name),
            frozenset(topic_id(number) for number in numbers),
            (before or {}).get(name, {}),
        )
        for name, numbers in wants.items()
    ]


def pairs(assignment: Assignment) -> Iterator[tuple[str, Uuid, int]]:
    for member_id, owned in assignment.items():
        for topic, indexes in owned.items():
            for index in indexes:
                yield member_id, topic, index


def sizes(assignment: Assignment) -> list[int]:
    return sorted(sum(map(len, owned.values())) for owned in assignment.values())


def kept_count(before: Assignment, after: Assignment) -> int:
    return len(set(pairs(before)) & set(pairs(after)))


def check_complete(wants: dict[str, set[int]], topics: Topics, assignment: Assignment) -> None:
    """Each partition of a subscribed topic has one owner, which subscribes to it."""
    owned = [(topic, index) for _, topic, index in pairs(assignment)]
    wanted = {topic_id(number) for numbers in wants.values() for number in numbers}
    expected = [
        (topic, index) for topic in wanted for index in range(topics[topic].partition_count)
    ]
    assert sorted(owned) == sorted(expected)
    for member_id, topic, _ in pairs(assignment):
        assert topic in {topic_id(number) for number in wants[member_id]}


wishes = st.dictionaries(
    st.sampled_from("abcdefg"), st.sets(st.integers(1, 3), max_size=3), min_size=1
)
counts = st.lists(st.integers(0, 9), min_size=3, max_size=3)


@settings(deadline=None)
@given(st.sampled_from(["uniform", "range"]), wishes, wishes, counts, counts)
def test_every_partition_is_assigned_once_to_a_subscriber(
    name: str,
    first: dict[str, set[int]],
    second: dict[str, set[int]],
    first_counts: list[int],
    second_counts: list[int],
) -> None:
    """Also after changes of members, subscriptions and topics."""
    topics = topics_of(*first_counts)
    before = assign(name, candidates_of(first), topics)
    check_complete(first, topics, before)
    topics = topics_of(*second_counts)
    after = assign(name, candidates_of(second, before), topics)
    check_complete(second, topics, after)
    assert after == assign(name, candidates_of(second, before), topics)


@settings(deadline=None)
@given(wishes, wishes, counts)
def test_uniform_is_stable(
    first: dict[str, set[int]], second: dict[str, set[int]], sizes_: list[int]
) -> None:
    """A balanced assignment does not change."""
    topics = topics_of(*sizes_)
    before = assign("uniform", candidates_of(first), topics)
    after = assign("uniform", candidates_of(second, before), topics)
    assert assign("uniform", candidates_of(second, after), topics) == after


@settings(deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), counts)
def test_uniform_is_even_and_moves_as_few_partitions_as_possible(
    first_count: int, second_count: int, sizes_: list[int]
) -> None:
    """With equal subscriptions loads differ by one at most. Every member keeps its partitions up to
    its share; members that had most get the larger shares."""
    topics = topics_of(*sizes_)
    everything = {1, 2, 3}
    first = {f"m{at}": everything for at in range(first_count)}
    second = {f"m{at}": everything for at in range(second_count)}
    before = assign("uniform", candidates_of(first), topics)
    after = assign("uniform", candidates_of(second, before), topics)
    found = sizes(after)
    assert found[-1] - found[0] <= 1
    had = sorted((sum(map(len, before.get(name, {}).values())) for name in second), reverse=True)
    shares = sorted(found, reverse=True)
    assert kept_count(before, after) == sum(map(min, had, shares))


def best_sizes(wants: dict[str, set[int]], topics: Topics) -> list[int]:
    """By trying everything: the sizes of the assignment with the smallest sum of squares."""
    partitions = [
        (topic, index) for topic in sorted(topics) for index in range(topics[topic].partition_count)
    ]
    choices = [
        [name for name, numbers in wants.items() if topic in {topic_id(n) for n in numbers}]
        for topic, _ in partitions
    ]
    best: list[int] | None = None
    for chosen in itertools.product(*[choice for choice in choices if choice]):
        found = sorted(chosen.count(name) for name in wants)
        if best is None or sum(n * n for n in found) < sum(n * n for n in best):
            best = found
    assert best is not None
    return best


@settings(deadline=None, max_examples=60)
@given(
    st.dictionaries(st.sampled_from("abcd"), st.sets(st.integers(1, 3)), min_size=1),
    st.lists(st.integers(0, 3), min_size=3, max_size=3),
)
def test_uniform_is_as_even_as_subscriptions_allow(
    wants: dict[str, set[int]], sizes_: list[int]
) -> None:
    topics = topics_of(*sizes_)
    found = sizes(assign("uniform", candidates_of(wants), topics))
    assert sum(n * n for n in found) == sum(n * n for n in best_sizes(wants, topics))


def test_uniform_moves_partitions_along_a_path() -> None:
    """a and c have no topic in common, but a and b, and b and c."""
    topics = topics_of(4, 2)
    wants = {"a": {1}, "b": {1, 2}, "c": {2}}
    before: Assignment = {
        "a": {topic_id(1): frozenset(range(4))},
        "b": {topic_id(2): frozenset({0, 1})},
    }
    after = assign("uniform", candidates_of(wants, before), topics)
    assert sizes(after) == [2, 2, 2]
    check_complete(wants, topics, after)


def test_uniform_takes_the_share_of_a_new_member_from_those_with_most() -> None:
    topics = topics_of(6)
    before: Assignment = {
        "a": {topic_id(1): frozenset({0, 1, 2})},
        "b": {topic_id(1): frozenset({3, 4, 5})},
    }
    after = assign("uniform", candidates_of({"a": {1}, "b": {1}, "c": {1}}, before), topics)
    assert sizes(after) == [2, 2, 2]
    assert kept_count(before, after) == 4


def test_uniform_prefers_members_on_the_rack_of_a_replica() -> None:
    topics = topics_of(6, racks=("r0", "r1", "r2"))
    racks = {"a": "r0", "b": "r1", "c": "r2"}
    assignment = assign(
        "uniform", candidates_of({name: {1} for name in racks}, racks=racks), topics
    )
    assert sizes(assignment) == [2, 2, 2]
    for member_id, topic, index in pairs(assignment):
        assert racks[member_id] in topics[topic].racks[index]


def test_uniform_does_not_let_racks_unbalance_a_group() -> None:
    topics = topics_of(7, racks=("r0", "r0"))
    racks = {"a": "r0", "b": "r1", "c": "r1"}
    assignment = assign(
        "uniform", candidates_of({name: {1} for name in racks}, racks=racks), topics
    )
    assert sizes(assignment) == [2, 2, 3]


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_range_assigns_the_same_range_of_topics_of_the_same_size(count: int) -> None:
    topics = topics_of(6, 6)
    wants = {f"m{at}": {1, 2} for at in range(count)}
    for name, owned in assign("range", candidates_of(wants), topics).items():
        first, second = (sorted(owned.get(topic_id(number), ())) for number in (1, 2))
        assert first == second, name
        assert first == list(range(first[0], first[0] + len(first)))


def test_range_keeps_members_in_the_order_of_their_ranges() -> None:
    """A new member is last, whatever its name, so that the others keep the start of their range."""
    topics = topics_of(6)
    before = assign("range", candidates_of({"m": {1}, "n": {1}}), topics)
    after = assign("range", candidates_of({"a": {1}, "m": {1}, "n": {1}}, before), topics)
    assert [sorted(after[name][topic_id(1)]) for name in "mna"] == [[0, 1], [2, 3], [4, 5]]


def test_without_members_the_assignment_is_empty() -> None:
    assert assign("uniform", [], {}) == {}
    assert assign("range", [], {}) == {}
    assert assign("uniform", candidates_of({"a": set()}), {}) == {"a": {}}
