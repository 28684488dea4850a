"""Warm-up tasks: a process restores the state of a task before it gets the task (KIP-441, 1071).

A stateful task that is to move to another process stays where it is until that process is close to
the end of its changelog. Meanwhile a member of that process has the task as a warm-up task; a group
has a few of them at a time. When one has caught up the group gets a new assignment, and the task
moves. Lags are known only from the task offsets that members report: a process that reports none
gets tasks at once.

Pure. Called by `streams.target_assignment` and `streams.heartbeats`.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Final, TypeAlias

from odradek.coordinator.group.modern.records import flat, grouped
from odradek.coordinator.group.streams.assignor import StreamsMemberSpec, TaskId
from odradek.coordinator.group.streams.records import Tasks, TasksTuple

ACCEPTABLE_LAG: Final = 10_000
"""In records: Kafka's default of acceptable.recovery.lag."""
WARMUPS_MAX: Final = 2
"""Of a whole group: Kafka's default of max.warmup.replicas."""

Lags: TypeAlias = Mapping[str, Mapping[TaskId, int]]
"""By member: the lag of each of its tasks in records, of members that report offsets."""
NO_LAGS: Final[Lags] = {}


def has_caught_up(warmups: Tasks, member_id: str, lags: Lags) -> bool:
    """Whether one of a member's warm-up tasks has caught up."""
    member_lags = lags.get(member_id)
    return member_lags is not None and any(
        member_lags.get((subtopology, index), ACCEPTABLE_LAG + 1) <= ACCEPTABLE_LAG
        for subtopology, indexes in warmups.items()
        for index in indexes
    )


def insert_warmups(
    targets: Mapping[str, TasksTuple],
    specs: Collection[StreamsMemberSpec],
    stateful: Collection[str],
    lags: Lags,
) -> dict[str, TasksTuple]:
    """The targets; stateful tasks that cannot move yet stay, with warm-up tasks at their target."""
    if not lags and not any(spec.before.warmup for spec in specs):
        return dict(targets)
    assignment = _WarmupAssignment(targets, specs, lags)
    for task in assignment.moving_tasks():
        if task[0] in stateful and not assignment.can_move_now(task):
            assignment.defer_move(task)
    return assignment.build()


class _WarmupAssignment:
    """The targets while they are changed."""

    def __init__(
        self, targets: Mapping[str, TasksTuple], specs: Collection[StreamsMemberSpec], lags: Lags
    ) -> None:
        self._process_of = {each.member_id: each.process_id for each in specs}
        self._previous_owner = {
            task: each.member_id for each in specs for task in flat(each.before.active)
        }
        self._previous_warmups = {
            (each.process_id, task) for each in specs for task in flat(each.before.warmup)
        }
        self._reporting_processes = {
            self._process_of[name] for name in lags if name in self._process_of
        }
        self._caught_up = {
            (self._process_of[name], task)
            for name, member_lags in lags.items()
            if name in self._process_of
            for task, lag in member_lags.items()
            if lag <= ACCEPTABLE_LAG
        }
        self._target_owner = {
            task: name for name, each in targets.items() for task in flat(each.active)
        }
        self._standby_owner = {
            (self._process_of[name], task): name
            for name, each in targets.items()
            for task in flat(each.standby)
        }
        self._warmups: dict[TaskId, str] = {}
        self._members = list(targets)

    def moving_tasks(self) -> list[TaskId]:
        """Tasks that are to move between processes, sorted."""
        return sorted(
            task
            for task, name in self._target_owner.items()
            if task in self._previous_owner
            and self._process_of[name] != self._process_of.get(self._previous_owner[task])
        )

    def can_move_now(self, task: TaskId) -> bool:
        """Whether the task can move: the process has caught up, or reports no offsets."""
        process_id = self._process_of[self._target_owner[task]]
        if (process_id, task) in self._caught_up:
            return True
        return (
            process_id not in self._reporting_processes
            and (process_id, task) not in self._previous_warmups
        )

    def defer_move(self, task: TaskId) -> None:
        """Keep the task at its member, and warm it up at its target if the limit allows."""
        new_owner, runner = self._target_owner[task], self._previous_owner[task]
        self._target_owner[task] = runner
        # A process must not have a task twice.
        self._standby_owner.pop((self._process_of[runner], task), None)
        if len(self._warmups) < WARMUPS_MAX:
            self._warmups[task] = new_owner

    def build(self) -> dict[str, TasksTuple]:
        standby = ((task, name) for (_, task), name in self._standby_owner.items())
        owners = (self._target_owner.items(), standby, self._warmups.items())
        by_role = [_by_member(pairs) for pairs in owners]
        return {
            name: TasksTuple(*(grouped(by_member[name]) for by_member in by_role))
            for name in self._members
        }


def _by_member(owners: Iterable[tuple[TaskId, str]]) -> dict[str, list[TaskId]]:
    found: dict[str, list[TaskId]] = defaultdict(list)
    for task, name in owners:
        found[name].append(task)
    return found
