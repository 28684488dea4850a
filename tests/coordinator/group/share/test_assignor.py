"""The assignor of share groups: members and partitions are assigned, few partitions move."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.coordinator.group.share.assignor import ShareMemberSpec, assign_shared
from odradek.coordinator.group.topics import Partitions
from odradek.protocol.types import Uuid
from tests.support.consumer_playbook import id_of

A, B = id_of("a"), id_of("b")
Targets = dict[str, dict[Uuid, frozenset[int]]]


def spread(
    members: dict[str, set[Uuid]], counts: dict[Uuid, int], before: Targets | None = None
) -> Targets:
    specs = [
        ShareMemberSpec(name, frozenset(topics), (before or {}).get(name, {}))
        for name, topics in members.items()
    ]
    return assign_shared(specs, assignable(counts))


def assignable(counts: dict[Uuid, int]) -> Partitions:
    return {topic_id: frozenset(range(count)) for topic_id, count in counts.items()}


def loads(targets: Targets) -> list[int]:
    return [sum(map(len, target.values())) for target in targets.values()]


def readers(targets: Targets) -> dict[tuple[Uuid, int], int]:
    counts: dict[tuple[Uuid, int], int] = {}
    for target in targets.values():
        for topic_id, indexes in target.items():
            for index in indexes:
                counts[topic_id, index] = counts.get((topic_id, index), 0) + 1
    return counts


def alike(count: int, topics: set[Uuid]) -> dict[str, set[Uuid]]:
    return {f"m{at:03}": topics for at in range(count)}


def moves(before: Targets, after: Targets) -> int:
    """The number of partitions that have moved to a member."""
    return sum(
        len(indexes - before.get(name, {}).get(topic_id, frozenset()))
        for name, target in after.items()
        for topic_id, indexes in target.items()
    )


def test_no_members_or_no_partitions_give_no_assignment() -> None:
    assert spread({}, {A: 3}) == {}
    assert spread({"m": {A}}, {}) == {"m": {}}
    assert spread({"m": set()}, {A: 3}) == {"m": {}}
    assert spread({"m": {A}}, {A: 0}) == {"m": {}}


@pytest.mark.parametrize("member_count", [1, 2, 3, 4, 5, 7, 12, 13, 200])
@pytest.mark.parametrize("partition_count", [1, 2, 4, 6, 25])
def test_members_with_equal_subscriptions_get_equal_shares(
    member_count: int, partition_count: int
) -> None:
    targets = spread(alike(member_count, {A, B}), {A: partition_count, B: 1})
    assert max(loads(targets)) - min(loads(targets)) <= 1
    assert min(loads(targets)) >= 1 or member_count == 0
    found = readers(targets)
    assert len(found) == partition_count + 1
    assert set(found.values()) == {-(-member_count // (partition_count + 1))}


def test_partitions_are_not_shared_while_there_are_enough() -> None:
    assert set(readers(spread(alike(4, {A}), {A: 6})).values()) == {1}


def test_a_new_member_gets_only_its_share() -> None:
    before = spread(alike(4, {A}), {A: 100})
    after = spread(alike(5, {A}), {A: 100}, before)
    assert loads(after) == [20] * 5
    assert moves(before, after) == 20


def test_remaining_members_keep_their_tasks_when_another_leaves() -> None:
    before = spread(alike(5, {A}), {A: 100})
    left = dict(before)
    del left["m002"]
    members = alike(5, {A})
    del members["m002"]
    after = spread(members, {A: 100}, left)
    assert loads(after) == [25] * 4
    assert moves(left, after) == 20


def test_assigning_again_moves_nothing() -> None:
    for count in (3, 7, 30):
        before = spread(alike(count, {A, B}), {A: 7, B: 3})
        assert spread(alike(count, {A, B}), {A: 7, B: 3}, before) == before


def test_members_read_only_what_they_subscribe_to() -> None:
    targets = spread({"m": {A}, "n": {A, B}, "o": {B}}, {A: 2, B: 2})
    assert targets["m"].keys() <= {A}
    assert targets["o"].keys() <= {B}
    assert len(readers(targets)) == 4


def test_unsubscribed_partitions_are_revoked() -> None:
    before = spread({"m": {A, B}}, {A: 2, B: 2})
    assert spread({"m": {B}}, {A: 2, B: 2}, before) == {"m": {B: frozenset({0, 1})}}
    assert spread({"m": {A, B}}, {A: 1}, before) == {"m": {A: frozenset({0})}}


@settings(max_examples=150)
@given(
    st.lists(st.sets(st.sampled_from([A, B, id_of("c")]), min_size=1), min_size=1, max_size=12),
    st.lists(st.integers(1, 6), min_size=3, max_size=3),
)
def test_every_member_and_every_partition_is_assigned(
    wants: list[set[Uuid]], sizes: list[int]
) -> None:
    counts = dict(zip((A, B, id_of("c")), sizes, strict=True))
    members = {f"m{at}": topics for at, topics in enumerate(wants)}
    targets = spread(members, counts)
    wanted = set().union(*wants)
    assert set(readers(targets)) == {
        (topic_id, index) for topic_id in wanted for index in range(counts[topic_id])
    }
    assert min(loads(targets)) >= 1
    for name, target in targets.items():
        assert target.keys() <= members[name]
    assert spread(members, counts, targets) == targets
