"""How a member gets from its current to its target assignment (CurrentAssignmentBuilder).

Nothing is given to a member before its owner has given it up. So a member first gives up what it
shall not keep, then moves to the target's epoch, then gets what has become free:

| State | Heartbeat says | Goes to |
|---|---|---|
| STABLE, at the target's epoch | anything | stays |
| STABLE, behind | still owns what must go, or does not say | UNREVOKED, at its old epoch |
| STABLE, behind | owns nothing that must go | as from UNREVOKED when done |
| UNREVOKED | still owns what must go, or does not say | stays |
| UNREVOKED | has given it up | what the newest target takes besides: UNREVOKED again |
| | | what others own in the target: UNRELEASED, at the target's epoch |
| | | else STABLE, at the target's epoch |
| UNRELEASED | anything | the same once more: gets what is free by now, gives up what a newer \
target takes |
| UNKNOWN (a newer release's) | owns nothing | as from UNREVOKED when done |
| UNKNOWN | owns something, or does not say | must be fenced |

What is owned is the unit's to know: partitions in consumer groups, tasks in streams groups. Pure.
Invariant: what is returned as assigned is either assigned already or free. Called by
`modern.heartbeats`.
"""

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import msgspec

from odradek.coordinator.group.modern.records import CurrentAssignment, MemberState

A = TypeVar("A", bound=CurrentAssignment)
T = TypeVar("T")
T_in = TypeVar("T_in", contravariant=True)
H = TypeVar("H")

IsFree: TypeAlias = Callable[..., bool]
"""Whether the member may have something just now: nobody else owns it or has still to give it up.
Its arguments are the unit's."""


class FencedMember(Exception):
    """What the member owns cannot be known: it must drop everything and join again."""


class AssignmentUnit(Protocol, Generic[T_in, H]):
    """What is owned: T_in as a target or as a member's claim, H as it is held, with its epochs."""

    nothing: H

    def split(self, assigned: H, target: T_in) -> tuple[H, H]:
        """What of it the target has, and what it has not."""

    def owns_any(self, owned: T_in | None, held: H) -> bool:
        """Whether the member still has, or may still have (None), something of what is held."""

    def is_within(self, owned: T_in, *held: H) -> bool:
        """Whether the member claims nothing but what is held."""

    def add_free(self, kept: H, target: T_in, target_epoch: int, is_free: IsFree) -> tuple[H, bool]:
        """What is kept with what is free of the rest of the target; whether that is all of it."""


def is_reconciled_to(current: CurrentAssignment, target_epoch: int) -> bool:
    """Whether the member has reached its target."""
    return current.member_epoch == target_epoch and current.state is MemberState.STABLE


def reconcile(
    current: A,
    unit: AssignmentUnit[T, Any],
    *,
    target_epoch: int,
    target: T,
    owned: T | None,
    is_free: IsFree,
) -> A:
    """The next step towards the target, or the same object if there is none just now.

    `owned` is what the member says it owns, None if it does not say.
    """
    if is_reconciled_to(current, target_epoch):
        return current
    epoch = current.member_epoch
    if current.state is MemberState.UNREVOKED:
        if unit.owns_any(owned, current.pending_revocation):
            return current
        # It has come one epoch further, whichever the target's is by now.
        epoch += 1
    elif current.state is MemberState.UNKNOWN:
        if owned is None or owned != unit.nothing:
            raise FencedMember
        epoch = target_epoch
    following = _next(current, unit, epoch, target_epoch, target, owned, is_free)
    return current if following == current else following


def _next(
    current: A,
    unit: AssignmentUnit[T, Any],
    epoch: int,
    target_epoch: int,
    target: T,
    owned: T | None,
    is_free: IsFree,
) -> A:
    kept, lost = unit.split(current.assigned, target)
    if lost != unit.nothing and unit.owns_any(owned, lost):
        return msgspec.structs.replace(
            current,
            member_epoch=epoch,
            previous_member_epoch=_previous(current, epoch),
            state=MemberState.UNREVOKED,
            assigned=kept,
            pending_revocation=lost,
        )
    assigned, is_complete = unit.add_free(kept, target, target_epoch, is_free)
    return msgspec.structs.replace(
        current,
        member_epoch=target_epoch,
        previous_member_epoch=_previous(current, target_epoch),
        state=MemberState.STABLE if is_complete else MemberState.UNRELEASED,
        assigned=assigned,
        pending_revocation=unit.nothing,
    )


def _previous(current: CurrentAssignment, epoch: int) -> int:
    """The epoch before this one, with which the member may still come (its answer was lost)."""
    return current.previous_member_epoch if epoch == current.member_epoch else current.member_epoch
