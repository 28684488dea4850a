"""The sticky task assignor of streams groups (KIP-1071): active and standby tasks.

Active tasks are assigned first. A member keeps its tasks up to its fair share. Then a task moves to
a member that had it as a standby task. The others go to the process with the fewest tasks per
thread, and there to the thread with the fewest tasks. Standby tasks are assigned in the same way;
no process has a task twice. Stateless subtopologies have no standby tasks.

Pure and deterministic. Called by `streams.target_assignment`.
"""

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from odradek.coordinator.group.modern.records import flat, grouped
from odradek.coordinator.group.streams.records import TasksTuple

TaskId = tuple[str, int]
"""Subtopology and partition."""


class StreamsMemberSpec(NamedTuple):
    """A member, which is one thread of a process; `before` is its target."""

    member_id: str
    process_id: str
    before: TasksTuple


def assign(
    specs: Collection[StreamsMemberSpec],
    task_counts: Mapping[str, int],
    stateful: Collection[str],
    standby_count: int,
) -> dict[str, TasksTuple]:
    """The tasks of every member. A stateful task has at most `standby_count` standby tasks, fewer
    where there are not as many processes."""
    if not specs:
        return {}
    assignment = _StickyAssignment(specs, task_counts, stateful, standby_count)
    tasks = sorted(
        ((subtopology, index) for subtopology, n in task_counts.items() for index in range(n)),
        # Partition by partition: the order of tasks that were assigned in ranges before.
        key=lambda task: (task[1], task[0]),
    )
    assignment.assign_active(tasks)
    if standby_count:
        assignment.assign_standby([task for task in tasks if task[0] in stateful], standby_count)
    return assignment.build()


class _FairShare:
    """The fair share of tasks: the average over the members that do not have their share yet."""

    def __init__(self, task_count: int, member_count: int) -> None:
        self._task_count = task_count
        self._member_count = member_count
        self.size = 0
        self._count()

    def _count(self) -> None:
        self.size = -(-self._task_count // self._member_count) if self._member_count else 0

    def note(self, load: int) -> None:
        """A member has `load` tasks now; a member with its share no longer counts."""
        if load == self.size:
            self._member_count -= 1
            self._task_count -= load
            self._count()


class _StickyAssignment:
    """The assignment while it is made."""

    def __init__(
        self,
        specs: Collection[StreamsMemberSpec],
        task_counts: Mapping[str, int],
        stateful: Collection[str],
        standby_count: int,
    ) -> None:
        active_count = sum(task_counts.values())
        standby_total = standby_count * sum(task_counts[name] for name in stateful)
        self._active_share = _FairShare(active_count, len(specs))
        self._total_share = _FairShare(active_count + standby_total, len(specs))
        self._process_of: dict[str, str] = {}
        self._threads: dict[str, list[str]] = defaultdict(list)
        self._loads: dict[str, int] = {}
        self._process_loads: dict[str, int] = {}
        self._held: dict[str, set[TaskId]] = defaultdict(set)
        self._active: dict[str, set[TaskId]] = {}
        self._standby: dict[str, set[TaskId]] = {}
        self._previous_active: dict[TaskId, str] = {}
        self._previous_standby: dict[TaskId, list[str]] = defaultdict(list)
        for member_id, process_id, before in sorted(specs):
            self._process_of[member_id] = process_id
            self._threads[process_id].append(member_id)
            self._loads[member_id] = 0
            self._process_loads[process_id] = 0
            self._active[member_id], self._standby[member_id] = set(), set()
            for task in flat(before.active):
                self._previous_active[task] = member_id
            for task in flat(before.standby, before.warmup):
                self._previous_standby[task].append(member_id)

    def _assign(self, member_id: str, task: TaskId, by_member: dict[str, set[TaskId]]) -> None:
        process_id = self._process_of[member_id]
        by_member[member_id].add(task)
        self._held[process_id].add(task)
        self._process_loads[process_id] += 1
        load = self._loads[member_id] = self._loads[member_id] + 1
        if by_member is self._active:
            self._active_share.note(load)
        self._total_share.note(load)

    def _process_load(self, process_id: str) -> float:
        return self._process_loads[process_id] / len(self._threads[process_id])

    def _least_loaded_thread(self, process_id: str) -> str:
        return min(self._threads[process_id], key=lambda member_id: self._loads[member_id])

    def assign_active(self, tasks: Iterable[TaskId]) -> None:
        rest = []
        for task in tasks:
            member_id = self._previous_active.get(task)
            if member_id is not None and self._loads[member_id] < self._active_share.size:
                self._assign(member_id, task, self._active)
            else:
                rest.append(task)
        unassigned = []
        for task in rest:
            member_id = self._least_loaded_member(self._previous_standby.get(task, ()))
            if member_id is not None and self._loads[member_id] < self._active_share.size:
                self._assign(member_id, task, self._active)
            else:
                unassigned.append(task)
        heap = [(self._process_load(process_id), process_id) for process_id in self._threads]
        heapq.heapify(heap)
        # Range by range: adjacent subtopologies of one partition get different members.
        for task in sorted(unassigned):
            process_id = heap[0][1]
            self._assign(self._least_loaded_thread(process_id), task, self._active)
            heapq.heapreplace(heap, (self._process_load(process_id), process_id))

    def _least_loaded_member(
        self, member_ids: Iterable[str], without: TaskId | None = None
    ) -> str | None:
        """The least loaded member whose process does not have the task already."""
        fit = [
            member_id
            for member_id in member_ids
            if without is None or without not in self._held[self._process_of[member_id]]
        ]
        if not fit:
            return None
        return min(
            fit,
            key=lambda member_id: (
                self._process_load(self._process_of[member_id]),
                self._loads[member_id],
            ),
        )

    def assign_standby(self, tasks: list[TaskId], count: int) -> None:
        rest: list[TaskId] = []
        # In reverse order: members that got active tasks last get standby tasks first.
        for task in reversed(tasks):
            given = 0
            while given < count and self._assign_sticky_standby(task):
                given += 1
            rest += [task] * (count - given)
        heap = [(self._process_load(process_id), process_id) for process_id in self._threads]
        heapq.heapify(heap)
        for task in sorted(rest, reverse=True):
            passed = []
            while heap:
                _, process_id = heapq.heappop(heap)
                passed.append(process_id)
                if task not in self._held[process_id]:
                    self._assign(self._least_loaded_thread(process_id), task, self._standby)
                    break
            for process_id in passed:
                heapq.heappush(heap, (self._process_load(process_id), process_id))

    def _assign_sticky_standby(self, task: TaskId) -> bool:
        """Assign the standby task to a member with the task's state; False if there is none."""
        runner = self._previous_active.get(task)
        for member_ids in (
            [] if runner is None else [runner],
            self._previous_standby.get(task, ()),
        ):
            member_id = self._least_loaded_member(member_ids, without=task)
            if member_id is not None and self._loads[member_id] < self._total_share.size:
                self._assign(member_id, task, self._standby)
                return True
        return False

    def build(self) -> dict[str, TasksTuple]:
        return {
            member_id: TasksTuple(grouped(tasks), grouped(self._standby[member_id]))
            for member_id, tasks in self._active.items()
        }
