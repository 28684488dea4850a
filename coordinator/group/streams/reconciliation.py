"""Tasks as the AssignmentUnit of streams groups, for `modern.reconciliation` (KIP-1071).

A task is free depending on its role: an active task must have been revoked by the member that runs
it, and no process may have a task in two roles at a time, because its threads share one state
directory.
"""

from enum import StrEnum
from functools import partial
from typing import Final

from odradek.coordinator.group.modern.reconciliation import IsFree, add_free_epochs, split_epochs
from odradek.coordinator.group.streams.records import (
    NO_TASKS_WITH_EPOCHS,
    Tasks,
    TasksTuple,
    TasksTupleWithEpochs,
)


class TaskRole(StrEnum):
    """What a member does with a task."""

    ACTIVE = "active"
    STANDBY = "standby"
    WARMUP = "warmup"


class TaskUnit:
    """See AssignmentUnit. `is_free` is asked for (role, subtopology, partition)."""

    nothing = NO_TASKS_WITH_EPOCHS

    def split(
        self, assigned: TasksTupleWithEpochs, target: TasksTuple
    ) -> tuple[TasksTupleWithEpochs, TasksTupleWithEpochs]:
        """See AssignmentUnit."""
        kept_active, lost_active = split_epochs(assigned.active, target.active)
        kept_standby, lost_standby = _split(assigned.standby, target.standby)
        kept_warmup, lost_warmup = _split(assigned.warmup, target.warmup)
        return (
            TasksTupleWithEpochs(kept_active, kept_standby, kept_warmup),
            TasksTupleWithEpochs(lost_active, lost_standby, lost_warmup),
        )

    def owns_any(self, owned: TasksTuple | None, held: TasksTupleWithEpochs) -> bool:
        """See AssignmentUnit. A task in another role counts as revoked."""
        if owned is None:
            return True
        return any(
            not owned_tasks.get(subtopology, frozenset()).isdisjoint(indexes)
            for owned_tasks, held_tasks in zip(owned, held, strict=True)
            for subtopology, indexes in held_tasks.items()
        )

    def is_within(self, owned: TasksTuple, *held: TasksTupleWithEpochs) -> bool:
        """See AssignmentUnit. Roles count."""
        return all(
            any(index in tasks[role].get(subtopology, ()) for tasks in held)
            for role, owned_tasks in enumerate(owned)
            for subtopology, indexes in owned_tasks.items()
            for index in indexes
        )

    def add_free(
        self, kept: TasksTupleWithEpochs, target: TasksTuple, target_epoch: int, is_free: IsFree
    ) -> tuple[TasksTupleWithEpochs, bool]:
        """See AssignmentUnit."""
        is_active_free = partial(is_free, TaskRole.ACTIVE)
        active, has_active = add_free_epochs(
            kept.active, target.active, target_epoch, is_active_free
        )
        standby, has_standby = _add_free(kept.standby, target.standby, TaskRole.STANDBY, is_free)
        warmup, has_warmup = _add_free(kept.warmup, target.warmup, TaskRole.WARMUP, is_free)
        is_complete = has_active and has_standby and has_warmup
        return TasksTupleWithEpochs(active, standby, warmup), is_complete


TASKS: Final = TaskUnit()


def _split(held: Tasks, wanted: Tasks) -> tuple[Tasks, Tasks]:
    kept: dict[str, frozenset[int]] = {}
    lost: dict[str, frozenset[int]] = {}
    for subtopology, indexes in held.items():
        stay = indexes & wanted.get(subtopology, frozenset())
        if stay:
            kept[subtopology] = stay
        if indexes - stay:
            lost[subtopology] = indexes - stay
    return kept, lost


def _add_free(kept: Tasks, wanted: Tasks, role: TaskRole, is_free: IsFree) -> tuple[Tasks, bool]:
    taken: dict[str, frozenset[int]] = dict(kept)
    is_complete = True
    for subtopology, indexes in wanted.items():
        held = taken.get(subtopology, frozenset())
        free = frozenset(i for i in indexes - held if is_free(role, subtopology, i))
        is_complete = is_complete and len(held) + len(free) == len(indexes)
        if free:
            taken[subtopology] = held | free
    return taken, is_complete
