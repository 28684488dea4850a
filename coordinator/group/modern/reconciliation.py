"""How a member gets from its current to its target assignment (CurrentAssignmentBuilder).

A partition or task is assigned to a member only after its owner has revoked it. So a member first
revokes what the target lacks, then moves to the target's epoch, then gets what has become free:

| State | Heartbeat says | Goes to |
|---|---|---|
| STABLE, at the target's epoch | anything | stays |
| STABLE, behind | still owns what it must revoke, or does not say | UNREVOKED, at its old epoch |
| STABLE, behind | owns nothing that it must revoke | as from UNREVOKED when revoked |
| UNREVOKED | still owns what it must revoke, or does not say | stays |
| UNREVOKED | has revoked it | if the newest target lacks more: UNREVOKED again |
| | | if others own part of the target: UNRELEASED, at the target's epoch |
| | | else STABLE, at the target's epoch |
| UNRELEASED | anything | as before: gets what is free now, revokes what a newer target lacks |
| UNKNOWN (of a newer release) | owns nothing | as from UNREVOKED when revoked |
| UNKNOWN | owns something, or does not say | must be fenced |

An AssignmentUnit knows what members own: partitions in consumer groups, tasks in streams groups.
Pure. Invariant: what is returned as assigned was assigned before or is free. Called by
`modern.heartbeats`.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import msgspec

from odradek.coordinator.group.modern.records import CurrentAssignment, MemberState

A = TypeVar("A", bound=CurrentAssignment)
T = TypeVar("T")
T_in = TypeVar("T_in", contravariant=True)
H = TypeVar("H")
K = TypeVar("K")

IsFree: TypeAlias = Callable[..., bool]
"""Whether a partition or task may be assigned to the member now: no other member owns it or still
has to revoke it. The unit defines the arguments."""


class FencedMember(Exception):
    """What the member owns is not known: it must drop everything and join again."""


class AssignmentUnit(Protocol, Generic[T_in, H]):
    """Partitions or tasks: T_in as a target or as sent by a member, H as assigned, with epochs."""

    nothing: H

    def split(self, assigned: H, target: T_in) -> tuple[H, H]:
        """The part that is in the target, and the part that is not."""

    def owns_any(self, owned: T_in | None, held: H) -> bool:
        """Whether the member still owns, or may still own (None), a part of `held`."""

    def is_within(self, owned: T_in, *held: H) -> bool:
        """Whether `owned` is a part of `held`."""

    def add_free(self, kept: H, target: T_in, target_epoch: int, is_free: IsFree) -> tuple[H, bool]:
        """`kept` with the free part of the target; whether that is the whole target."""


def split_epochs(
    assigned: Mapping[K, Mapping[int, int]], target: Mapping[K, Collection[int]]
) -> tuple[dict[K, Mapping[int, int]], dict[K, Mapping[int, int]]]:
    """See AssignmentUnit.split: for partitions or tasks with epochs."""
    kept: dict[K, Mapping[int, int]] = {}
    lost: dict[K, Mapping[int, int]] = {}
    for key, epochs in assigned.items():
        wanted = target.get(key, ())
        stay = {index: since for index, since in epochs.items() if index in wanted}
        if stay:
            kept[key] = stay
        if len(stay) < len(epochs):
            lost[key] = {index: epochs[index] for index in epochs if index not in wanted}
    return kept, lost


def add_free_epochs(
    kept: Mapping[K, Mapping[int, int]],
    target: Mapping[K, Collection[int]],
    epoch: int,
    is_free: Callable[[K, int], bool],
) -> tuple[dict[K, Mapping[int, int]], bool]:
    """See AssignmentUnit.add_free: for partitions or tasks with epochs."""
    assigned = dict(kept)
    is_complete = True
    for key, wanted in target.items():
        held = assigned.get(key, {})
        if len(wanted) == len(held):
            continue
        free = {index: epoch for index in wanted if index not in held and is_free(key, index)}
        is_complete = is_complete and len(held) + len(free) == len(wanted)
        if free:
            assigned[key] = {**held, **free}
    return assigned, is_complete


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

    `owned` is what the member says that it owns; None if it does not say.
    """
    if is_reconciled_to(current, target_epoch):
        return current
    epoch = current.member_epoch
    if current.state is MemberState.UNREVOKED:
        if unit.owns_any(owned, current.pending_revocation):
            return current
        # The member advances by one epoch, whatever the target's epoch is now.
        epoch += 1
    elif current.state is MemberState.UNKNOWN:
        if owned is None or owned != unit.nothing:
            raise FencedMember
        epoch = target_epoch
    kept, lost = unit.split(current.assigned, target)
    if lost != unit.nothing and unit.owns_any(owned, lost):
        state, assigned = MemberState.UNREVOKED, kept
    else:
        epoch, lost = target_epoch, unit.nothing
        assigned, is_complete = unit.add_free(kept, target, target_epoch, is_free)
        state = MemberState.STABLE if is_complete else MemberState.UNRELEASED
    is_same_epoch = epoch == current.member_epoch
    following = msgspec.structs.replace(
        current,
        member_epoch=epoch,
        # The member may still send its previous epoch: a response may have been lost.
        previous_member_epoch=(
            current.previous_member_epoch if is_same_epoch else current.member_epoch
        ),
        state=state,
        assigned=assigned,
        pending_revocation=lost,
    )
    return current if following == current else following
