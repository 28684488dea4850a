"""The sticky task assignor by its properties."""

import random
from collections import Counter
from collections.abc import Mapping

import pytest

from odradek.coordinator.group.streams.assignor import StreamsMemberSpec, assign
from odradek.coordinator.group.streams.records import NO_TASKS, TasksTuple

TaskIds = set[tuple[str, int]]


def ids(tasks: Mapping[str, frozenset[int]]) -> TaskIds:
    return {(name, index) for name, indexes in tasks.items() for index in indexes}


def fresh(*names: str, process: str = "") -> list[StreamsMemberSpec]:
    return [StreamsMemberSpec(name, process or f"p-{name}", NO_TASKS) for name in names]


def again(
    specs: list[StreamsMemberSpec], targets: Mapping[str, TasksTuple]
) -> list[StreamsMemberSpec]:
    return [each._replace(before=targets.get(each.member_id, NO_TASKS)) for each in specs]


def test_no_members_get_no_assignment() -> None:
    assert assign([], {"0": 3}, (), 0) == {}


def test_every_task_runs_once_and_loads_differ_by_one_at_most() -> None:
    targets = assign(fresh("a", "b", "c"), {"0": 4, "1": 4}, {"1"}, 0)
    run = Counter(task for each in targets.values() for task in ids(each.active))
    assert run == Counter({(name, index): 1 for name in "01" for index in range(4)})
    assert sorted(len(ids(each.active)) for each in targets.values()) == [2, 3, 3]
    assert not any(each.standby or each.warmup for each in targets.values())


def test_members_keep_their_tasks_when_another_joins() -> None:
    two = fresh("a", "b")
    before = assign(two, {"0": 6}, (), 0)
    after = assign([*again(two, before), *fresh("c")], {"0": 6}, (), 0)
    for name in "ab":
        assert ids(after[name].active) < ids(before[name].active)
    assert [len(ids(after[name].active)) for name in "abc"] == [2, 2, 2]


def test_only_the_partitions_of_a_leaving_member_move() -> None:
    three = fresh("a", "b", "c")
    before = assign(three, {"0": 6}, (), 0)
    after = assign(again(three, before)[:2], {"0": 6}, (), 0)
    for name in "ab":
        assert ids(after[name].active) > ids(before[name].active)


def test_the_tasks_of_a_process_are_spread_over_its_threads() -> None:
    specs = [*fresh("a1", "a2", process="a"), *fresh("b1", process="b")]
    targets = assign(specs, {"0": 6}, (), 0)
    assert [len(ids(targets[name].active)) for name in ("a1", "a2", "b1")] == [2, 2, 2]


def test_standby_tasks_are_stateful_and_in_other_processes() -> None:
    specs = [*fresh("a1", "a2", process="a"), *fresh("b1", process="b")]
    targets = assign(specs, {"0": 2, "1": 3}, {"1"}, 1)
    stand_by = Counter(task for each in targets.values() for task in ids(each.standby))
    assert stand_by == Counter({("1", index): 1 for index in range(3)})
    by_process = {"a": ("a1", "a2"), "b": ("b1",)}
    for names in by_process.values():
        active = {task for name in names for task in ids(targets[name].active)}
        standby = {task for name in names for task in ids(targets[name].standby)}
        assert not active & standby


def test_standby_tasks_are_limited_by_the_number_of_processes() -> None:
    targets = assign(fresh("a", "b"), {"1": 1}, {"1"}, 5)
    assert sum(len(ids(each.standby)) for each in targets.values()) == 1
    alone = assign(fresh("a"), {"1": 1}, {"1"}, 1)
    assert alone["a"].standby == {}


def test_a_standby_task_becomes_active() -> None:
    both = fresh("a", "b", "c")
    before = assign(both, {"1": 3}, {"1"}, 1)
    [gone] = [name for name in "abc" if ("1", 0) in ids(before[name].active)]
    [next_one] = [name for name in "abc" if ("1", 0) in ids(before[name].standby)]
    left = [each for each in again(both, before) if each.member_id != gone]
    after = assign(left, {"1": 3}, {"1"}, 0)
    assert ("1", 0) in ids(after[next_one].active)


def test_standby_tasks_stay_where_they_are() -> None:
    three = fresh("a", "b", "c")
    before = assign(three, {"1": 6}, {"1"}, 1)
    assert assign(again(three, before), {"1": 6}, {"1"}, 1) == before


@pytest.mark.parametrize("seed", range(40))
def test_random_groups_keep_the_invariants(seed: int) -> None:
    random_ = random.Random(seed)
    counts = {str(at): random_.randrange(1, 9) for at in range(random_.randrange(1, 5))}
    stateful = {name for name in counts if random_.random() < 0.6}
    targets: Mapping[str, TasksTuple] = {}
    for _ in range(6):
        standby_count = random_.randrange(3)
        specs = [
            StreamsMemberSpec(f"m{at}", f"p{random_.randrange(4)}", NO_TASKS)
            for at in random_.sample(range(9), random_.randrange(1, 9))
        ]
        targets = assign(again(specs, targets), counts, stateful, standby_count)
        assert set(targets) == {each.member_id for each in specs}
        run = Counter(task for each in targets.values() for task in ids(each.active))
        assert run == Counter((name, i) for name, count in counts.items() for i in range(count))
        processes = {each.process_id for each in specs}
        holders: Counter[tuple[str, tuple[str, int]]] = Counter()
        stood: Counter[tuple[str, int]] = Counter()
        for each in specs:
            target = targets[each.member_id]
            holders.update((each.process_id, task) for task in ids(target.active))
            holders.update((each.process_id, task) for task in ids(target.standby))
            stood.update(ids(target.standby))
        assert max(holders.values(), default=0) <= 1, f"seed {seed}: a process has a task twice"
        wanted = min(standby_count, len(processes) - 1)
        for name in stateful:
            for index in range(counts[name]):
                assert stood[name, index] == wanted, f"seed {seed}"
        loads = [len(ids(target.active)) for target in targets.values()]
        # Processes of unequal size are filled by thread: no thread exceeds its fair share.
        assert max(loads) <= -(-sum(counts.values()) // len(specs)) + 1, f"seed {seed}"
