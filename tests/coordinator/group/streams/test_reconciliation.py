"""Every row of the table of steps, and when a task is free."""

import pytest

from odradek.coordinator.group.modern.reconciliation import FencedMember, reconcile
from odradek.coordinator.group.modern.records import MemberState
from odradek.coordinator.group.streams.reconciliation import TASKS, TaskRole
from odradek.coordinator.group.streams.records import (
    NO_TASKS_WITH_EPOCHS,
    StreamsCurrentAssignment,
    TasksTuple,
    TasksTupleWithEpochs,
)

STABLE = MemberState.STABLE
UNREVOKED = MemberState.UNREVOKED
UNRELEASED = MemberState.UNRELEASED
HAS_TWO = StreamsCurrentAssignment(5, 4, STABLE, TasksTupleWithEpochs({"0": {0: 3, 1: 5}}))
BOTH = TasksTuple({"0": frozenset({0, 1})})
FIRST = TasksTuple({"0": frozenset({0})})


def step(
    current: StreamsCurrentAssignment,
    target: TasksTuple,
    *,
    epoch: int = 6,
    owned: TasksTuple | None = None,
    taken: frozenset[tuple[TaskRole, str, int]] = frozenset(),
) -> StreamsCurrentAssignment:
    return reconcile(
        current,
        TASKS,
        target_epoch=epoch,
        target=target,
        owned=owned,
        is_free=lambda role, name, index: (role, name, index) not in taken,
    )


def test_a_member_at_its_target_does_not_change() -> None:
    assert step(HAS_TWO, FIRST, epoch=5) is HAS_TWO


def test_a_new_member_gets_what_is_free_in_every_role() -> None:
    target = TasksTuple({"0": frozenset({0})}, {"1": frozenset({1})}, {"1": frozenset({2})})
    assert step(StreamsCurrentAssignment(), target) == StreamsCurrentAssignment(
        6,
        0,
        STABLE,
        TasksTupleWithEpochs({"0": {0: 6}}, {"1": frozenset({1})}, {"1": frozenset({2})}),
    )


@pytest.mark.parametrize("owned", [None, BOTH])
def test_tasks_are_revoked_before_the_epoch_advances(owned: TasksTuple | None) -> None:
    assert step(HAS_TWO, FIRST, owned=owned) == StreamsCurrentAssignment(
        5, 4, UNREVOKED, TasksTupleWithEpochs({"0": {0: 3}}), TasksTupleWithEpochs({"0": {1: 5}})
    )


def test_deleted_tasks_need_no_revocation() -> None:
    assert step(HAS_TWO, FIRST, owned=FIRST) == StreamsCurrentAssignment(
        6, 5, STABLE, TasksTupleWithEpochs({"0": {0: 3}})
    )


@pytest.mark.parametrize("owned", [None, BOTH])
def test_a_member_that_has_not_revoked_stays_unrevoked(owned: TasksTuple | None) -> None:
    waiting = step(HAS_TWO, FIRST)
    assert step(waiting, FIRST, owned=owned) is waiting


def test_a_member_that_has_revoked_continues() -> None:
    waiting = step(HAS_TWO, FIRST)
    assert step(waiting, FIRST, owned=FIRST) == StreamsCurrentAssignment(
        6, 5, STABLE, TasksTupleWithEpochs({"0": {0: 3}})
    )


def test_a_newer_target_may_require_another_revocation() -> None:
    waiting = step(HAS_TWO, FIRST)
    following = step(waiting, TasksTuple(), epoch=9, owned=FIRST)
    assert following == StreamsCurrentAssignment(
        6, 5, UNREVOKED, NO_TASKS_WITH_EPOCHS, TasksTupleWithEpochs({"0": {0: 3}})
    )


def test_a_task_of_another_member_is_assigned_after_its_revocation() -> None:
    taken = frozenset({(TaskRole.ACTIVE, "0", 1)})
    waiting = step(StreamsCurrentAssignment(), BOTH, taken=taken)
    assert waiting == StreamsCurrentAssignment(
        6, 0, UNRELEASED, TasksTupleWithEpochs({"0": {0: 6}})
    )
    assert step(waiting, BOTH, taken=taken) is waiting
    assert step(waiting, BOTH) == StreamsCurrentAssignment(
        6, 0, STABLE, TasksTupleWithEpochs({"0": {0: 6, 1: 6}})
    )


@pytest.mark.parametrize("role", [TaskRole.STANDBY, TaskRole.WARMUP])
def test_a_task_that_the_process_has_in_another_role_is_not_free(role: TaskRole) -> None:
    wanted = {"0": frozenset({0, 1})}
    target = TasksTuple(standby=wanted) if role is TaskRole.STANDBY else TasksTuple(warmup=wanted)
    waiting = step(StreamsCurrentAssignment(), target, taken=frozenset({(role, "0", 1)}))
    assert waiting.state is UNRELEASED
    assert step(waiting, target).state is STABLE


def test_a_standby_task_is_revoked_like_an_active_one() -> None:
    current = StreamsCurrentAssignment(
        5, 4, STABLE, TasksTupleWithEpochs({}, {"0": frozenset({0})})
    )
    owned = TasksTuple({}, {"0": frozenset({0})})
    waiting = step(current, FIRST, owned=owned)
    assert waiting.state is UNREVOKED
    assert waiting.pending_revocation == TasksTupleWithEpochs({}, {"0": frozenset({0})})
    assert step(waiting, FIRST, owned=owned) is waiting
    done = step(waiting, FIRST, owned=TasksTuple())
    assert done == StreamsCurrentAssignment(6, 5, STABLE, TasksTupleWithEpochs({"0": {0: 6}}))


@pytest.mark.parametrize("owned", [None, FIRST])
def test_an_unknown_state_must_be_fenced(owned: TasksTuple | None) -> None:
    with pytest.raises(FencedMember):
        step(StreamsCurrentAssignment(5, 4, MemberState.UNKNOWN), FIRST, owned=owned)


def test_an_unknown_state_ends_when_the_member_owns_nothing() -> None:
    unknown = StreamsCurrentAssignment(5, 4, MemberState.UNKNOWN)
    assert step(unknown, FIRST, owned=TasksTuple()).state is STABLE


def test_is_within_compares_tasks_by_role() -> None:
    held = TasksTupleWithEpochs({"0": {0: 3}}, {"1": frozenset({1})})
    assert TASKS.is_within(TasksTuple(), held)
    assert TASKS.is_within(TasksTuple({"0": frozenset({0})}, {"1": frozenset({1})}), held)
    assert not TASKS.is_within(TasksTuple({"0": frozenset({0, 1})}), held)
    assert not TASKS.is_within(TasksTuple({"1": frozenset({1})}), held)
    assert not TASKS.is_within(TasksTuple({}, {}, {"1": frozenset({1})}), held)
