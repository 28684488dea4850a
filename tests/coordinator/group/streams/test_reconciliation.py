"""Every row of the table of steps, and what makes a task free."""

import pytest

from odradek.coordinator.group.consumer.reconciliation import MustBeFenced
from odradek.coordinator.group.streams.reconciliation import Role, is_within, reconcile
from odradek.coordinator.group.streams.records import (
    NOTHING_HELD,
    HeldTasks,
    StreamsCurrent,
    StreamsMemberState,
    TaskSets,
)

STABLE = StreamsMemberState.STABLE
UNREVOKED = StreamsMemberState.UNREVOKED_TASKS
UNRELEASED = StreamsMemberState.UNRELEASED_TASKS
HAS_TWO = StreamsCurrent(5, 4, STABLE, HeldTasks({"0": {0: 3, 1: 5}}))
BOTH = TaskSets({"0": frozenset({0, 1})})
FIRST = TaskSets({"0": frozenset({0})})


def step(
    current: StreamsCurrent,
    target: TaskSets,
    *,
    epoch: int = 6,
    owned: TaskSets | None = None,
    taken: frozenset[tuple[Role, str, int]] = frozenset(),
) -> StreamsCurrent:
    return reconcile(
        current,
        target_epoch=epoch,
        target=target,
        owned=owned,
        is_free=lambda role, name, index: (role, name, index) not in taken,
    )


def test_a_member_at_the_target_stays_as_it_is() -> None:
    assert step(HAS_TWO, FIRST, epoch=5) is HAS_TWO


def test_a_new_member_gets_what_is_free_in_every_role() -> None:
    target = TaskSets({"0": frozenset({0})}, {"1": frozenset({1})}, {"1": frozenset({2})})
    assert step(StreamsCurrent(), target) == StreamsCurrent(
        6,
        0,
        STABLE,
        HeldTasks({"0": {0: 6}}, {"1": frozenset({1})}, {"1": frozenset({2})}),
    )


@pytest.mark.parametrize("owned", [None, BOTH])
def test_what_must_go_is_given_up_before_the_epoch_comes(owned: TaskSets | None) -> None:
    assert step(HAS_TWO, FIRST, owned=owned) == StreamsCurrent(
        5, 4, UNREVOKED, HeldTasks({"0": {0: 3}}), HeldTasks({"0": {1: 5}})
    )


def test_what_has_gone_already_need_not_be_given_up() -> None:
    assert step(HAS_TWO, FIRST, owned=FIRST) == StreamsCurrent(
        6, 5, STABLE, HeldTasks({"0": {0: 3}})
    )


@pytest.mark.parametrize("owned", [None, BOTH])
def test_a_member_that_still_has_it_is_waited_for(owned: TaskSets | None) -> None:
    waiting = step(HAS_TWO, FIRST)
    assert step(waiting, FIRST, owned=owned) is waiting


def test_a_member_that_has_given_it_up_goes_on() -> None:
    waiting = step(HAS_TWO, FIRST)
    assert step(waiting, FIRST, owned=FIRST) == StreamsCurrent(
        6, 5, STABLE, HeldTasks({"0": {0: 3}})
    )


def test_a_newer_target_may_take_more_meanwhile() -> None:
    waiting = step(HAS_TWO, FIRST)
    following = step(waiting, TaskSets(), epoch=9, owned=FIRST)
    assert following == StreamsCurrent(6, 5, UNREVOKED, NOTHING_HELD, HeldTasks({"0": {0: 3}}))


def test_a_task_of_somebody_else_is_waited_for_and_then_given() -> None:
    taken = frozenset({(Role.ACTIVE, "0", 1)})
    waiting = step(StreamsCurrent(), BOTH, taken=taken)
    assert waiting == StreamsCurrent(6, 0, UNRELEASED, HeldTasks({"0": {0: 6}}))
    assert step(waiting, BOTH, taken=taken) is waiting
    assert step(waiting, BOTH) == StreamsCurrent(6, 0, STABLE, HeldTasks({"0": {0: 6, 1: 6}}))


@pytest.mark.parametrize("role", [Role.STANDBY, Role.WARMUP])
def test_so_is_a_task_that_the_process_has_in_another_role(role: Role) -> None:
    wanted = {"0": frozenset({0, 1})}
    target = TaskSets(standby=wanted) if role is Role.STANDBY else TaskSets(warmup=wanted)
    waiting = step(StreamsCurrent(), target, taken=frozenset({(role, "0", 1)}))
    assert waiting.state is UNRELEASED
    assert step(waiting, target).state is STABLE


def test_a_standby_task_is_given_up_like_any_other() -> None:
    current = StreamsCurrent(5, 4, STABLE, HeldTasks({}, {"0": frozenset({0})}))
    owned = TaskSets({}, {"0": frozenset({0})})
    waiting = step(current, FIRST, owned=owned)
    assert waiting.state is UNREVOKED
    assert waiting.pending_revocation == HeldTasks({}, {"0": frozenset({0})})
    assert step(waiting, FIRST, owned=owned) is waiting
    done = step(waiting, FIRST, owned=TaskSets())
    assert done == StreamsCurrent(6, 5, STABLE, HeldTasks({"0": {0: 6}}))


@pytest.mark.parametrize("owned", [None, FIRST])
def test_an_unknown_state_must_be_fenced(owned: TaskSets | None) -> None:
    with pytest.raises(MustBeFenced):
        step(StreamsCurrent(5, 4, StreamsMemberState.UNKNOWN), FIRST, owned=owned)


def test_an_unknown_state_is_over_when_the_member_has_nothing() -> None:
    unknown = StreamsCurrent(5, 4, StreamsMemberState.UNKNOWN)
    assert step(unknown, FIRST, owned=TaskSets()).state is STABLE


def test_a_member_is_within_what_it_was_given_role_by_role() -> None:
    held = HeldTasks({"0": {0: 3}}, {"1": frozenset({1})})
    assert is_within(TaskSets(), held)
    assert is_within(TaskSets({"0": frozenset({0})}, {"1": frozenset({1})}), held)
    assert not is_within(TaskSets({"0": frozenset({0, 1})}), held)
    assert not is_within(TaskSets({"1": frozenset({1})}), held)
    assert not is_within(TaskSets({}, {}, {"1": frozenset({1})}), held)
