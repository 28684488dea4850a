"""How one member of a streams group gets from the tasks it has to those it shall have (KIP-1071).

The steps are those of `reconciliation`, over three kinds of tasks at once. What makes a task free
is another matter: an active task must have been given up by whoever runs it, and no process may
have the same task in two roles at a time, because its threads share one folder of state.

| State | Heartbeat says | Goes to |
|---|---|---|
| STABLE, at the target's epoch | anything | stays |
| STABLE, behind | still has what must go, or does not say | UNREVOKED, at its old epoch |
| STABLE, behind | has nothing that must go | as from UNREVOKED when done |
| UNREVOKED | still has what must go, or does not say | stays |
| UNREVOKED | has given it up | what the newest target takes besides: UNREVOKED again |
| | | tasks of others in the target: UNRELEASED, at the target's epoch |
| | | else STABLE, at the target's epoch |
| UNRELEASED | anything | the same once more: gets what is free by now |
| UNKNOWN (a newer release's) | has nothing | as from UNREVOKED when done |
| UNKNOWN | has something, or does not say | must be fenced |

Pure. Invariant: what is returned as assigned is either assigned already or free. Called by
`streams.heartbeats`.
"""

from collections.abc import Callable, Collection
from enum import StrEnum
from typing import Final

from odradek.coordinator.group.consumer.reconciliation import FencedMember
from odradek.coordinator.group.streams.records import (
    NO_TASKS_WITH_EPOCHS,
    StreamsCurrentAssignment,
    StreamsMemberState,
    TaskEpochs,
    Tasks,
    TasksTuple,
    TasksTupleWithEpochs,
)


class TaskRole(StrEnum):
    """What a member does with a task."""

    ACTIVE = "active"
    STANDBY = "standby"
    WARMUP = "warmup"


_STABLE: Final = StreamsMemberState.STABLE

IsFree = Callable[[TaskRole, str, int], bool]
"""Whether the member may have the task (subtopology, partition) in that role just now."""


def is_reconciled_to(current: StreamsCurrentAssignment, target_epoch: int) -> bool:
    """Whether the member is where it shall be: most are, most of the time."""
    return current.member_epoch == target_epoch and current.state is _STABLE


def reconcile(
    current: StreamsCurrentAssignment,
    *,
    target_epoch: int,
    target: TasksTuple,
    owned: TasksTuple | None,
    is_free: IsFree,
) -> StreamsCurrentAssignment:
    """The next step towards the target, or the same object if there is none just now.

    `owned` is what the member says it has, None if it does not say.
    """
    if is_reconciled_to(current, target_epoch):
        return current
    epoch = current.member_epoch
    match current.state:
        case StreamsMemberState.UNREVOKED_TASKS:
            if _owns_revoked(owned, current.pending_revocation):
                return current
            # It has come one epoch further, whichever the target's is by now.
            epoch += 1
        case StreamsMemberState.UNKNOWN:
            if owned is None or any(owned):
                raise FencedMember
            epoch = target_epoch
    next_assignment = _compute_next_assignment(current, epoch, target_epoch, target, owned, is_free)
    return current if next_assignment == current else next_assignment


def _owns_revoked(owned: TasksTuple | None, held: TasksTupleWithEpochs) -> bool:
    """Whether the member still has, or may still have, one of them in the same role."""
    if owned is None:
        return True
    return any(
        not mine.get(subtopology, frozenset()).isdisjoint(indexes)
        for mine, theirs in zip(owned, held, strict=True)
        for subtopology, indexes in theirs.items()
    )


def _compute_next_assignment(
    current: StreamsCurrentAssignment,
    epoch: int,
    target_epoch: int,
    target: TasksTuple,
    owned: TasksTuple | None,
    is_free: IsFree,
) -> StreamsCurrentAssignment:
    assigned = current.assigned
    kept_active, lost_active = _split_epochs(assigned.active, target.active)
    kept_standby, lost_standby = _split(assigned.standby, target.standby)
    kept_warmup, lost_warmup = _split(assigned.warmup, target.warmup)
    lost = TasksTupleWithEpochs(lost_active, lost_standby, lost_warmup)
    if any(lost) and _owns_revoked(owned, lost):
        return StreamsCurrentAssignment(
            epoch,
            _previous(current, epoch),
            StreamsMemberState.UNREVOKED_TASKS,
            TasksTupleWithEpochs(kept_active, kept_standby, kept_warmup),
            lost,
        )
    active = {subtopology: dict(epochs) for subtopology, epochs in kept_active.items()}
    is_complete = True
    for subtopology, indexes in target.active.items():
        mine = active.get(subtopology, {})
        for index in sorted(indexes.difference(mine)):
            if is_free(TaskRole.ACTIVE, subtopology, index):
                active.setdefault(subtopology, {})[index] = target_epoch
            else:
                is_complete = False
    standby, has_standby = _add_free_tasks(kept_standby, target.standby, TaskRole.STANDBY, is_free)
    warmup, has_warmup = _add_free_tasks(kept_warmup, target.warmup, TaskRole.WARMUP, is_free)
    is_complete = is_complete and has_standby and has_warmup
    return StreamsCurrentAssignment(
        target_epoch,
        _previous(current, target_epoch),
        StreamsMemberState.STABLE if is_complete else StreamsMemberState.UNRELEASED_TASKS,
        TasksTupleWithEpochs(active, standby, warmup),
        NO_TASKS_WITH_EPOCHS,
    )


def _split_epochs(held: TaskEpochs, wanted: Tasks) -> tuple[TaskEpochs, TaskEpochs]:
    kept: dict[str, dict[int, int]] = {}
    lost: dict[str, dict[int, int]] = {}
    for subtopology, epochs in held.items():
        stay = wanted.get(subtopology, frozenset())
        for index, since in epochs.items():
            place = kept if index in stay else lost
            place.setdefault(subtopology, {})[index] = since
    return kept, lost


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


def _add_free_tasks(
    kept: Tasks, wanted: Tasks, role: TaskRole, is_free: IsFree
) -> tuple[Tasks, bool]:
    """What is kept and what is free of the rest; whether that is all."""
    taken: dict[str, frozenset[int]] = dict(kept)
    is_complete = True
    for subtopology, indexes in wanted.items():
        mine = taken.get(subtopology, frozenset())
        free = frozenset(i for i in indexes - mine if is_free(role, subtopology, i))
        is_complete = is_complete and len(mine) + len(free) == len(indexes)
        if free:
            taken[subtopology] = mine | free
    return taken, is_complete


def _previous(current: StreamsCurrentAssignment, epoch: int) -> int:
    """The epoch before this one, with which the member may still come (its answer was lost)."""
    return current.previous_member_epoch if epoch == current.member_epoch else current.member_epoch


def is_within(owned: TasksTuple, held: TasksTupleWithEpochs) -> bool:
    """Whether the member has no task that it was not given, in that role."""
    return all(
        indexes <= _indexes(theirs.get(subtopology))
        for mine, theirs in zip(owned, held, strict=True)
        for subtopology, indexes in mine.items()
    )


def _indexes(held: Collection[int] | None) -> frozenset[int]:
    return frozenset() if held is None else frozenset(held)
