"""How one member of a consumer group gets from what it owns to what it shall own (KIP-848).

A partition is taken from its owner before anybody else is given it. So a member first gives up
what it shall not keep, then moves to the target's epoch, then gets what has become free:

| State | Heartbeat says | Goes to |
|---|---|---|
| STABLE, at the target's epoch | anything | stays |
| STABLE, behind | still owns what must go, or does not say | UNREVOKED, at its old epoch |
| STABLE, behind | owns nothing that must go | as from UNREVOKED when done |
| UNREVOKED | still owns what must go, or does not say | stays |
| UNREVOKED | has given it up | what the newest target takes besides: UNREVOKED again |
| | | partitions of others in the target: UNRELEASED, at the target's epoch |
| | | else STABLE, at the target's epoch |
| UNRELEASED | anything | the same once more: gets what is free by now, gives up what a newer \
target takes |
| UNKNOWN (a newer release's) | owns nothing | as from UNREVOKED when done |
| UNKNOWN | owns something, or does not say | must be fenced |

Pure. Invariant: what is returned as assigned is either assigned already or free. Called by
`heartbeats`.
"""

from collections.abc import Callable
from typing import Final

from odradek.coordinator.group.consumer.records import (
    ConsumerCurrentAssignment,
    MemberState,
    PartitionEpochs,
)
from odradek.coordinator.group.topics import (
    Partitions,
)
from odradek.protocol.types import Uuid

_STABLE: Final = MemberState.STABLE


class FencedMember(Exception):
    """What the member owns cannot be known: it must drop everything and join again."""


def is_reconciled_to(current: ConsumerCurrentAssignment, target_epoch: int) -> bool:
    """Whether the member is where it shall be: most are, most of the time."""
    return current.member_epoch == target_epoch and current.state is _STABLE


def reconcile(
    current: ConsumerCurrentAssignment,
    *,
    target_epoch: int,
    target: Partitions,
    owned: Partitions | None,
    is_free: Callable[[Uuid, int], bool],
) -> ConsumerCurrentAssignment:
    """The next step towards the target, or the same object if there is none just now.

    `owned` is what the member says it owns, None if it does not say. `is_free` tells whether nobody
    else has, or has still to give up, a partition.
    """
    if is_reconciled_to(current, target_epoch):
        return current
    epoch = current.member_epoch
    match current.state:
        case MemberState.UNREVOKED_PARTITIONS:
            if _owns_revoked(owned, current.pending_revocation):
                return current
            # It has come one epoch further, whichever the target's is by now.
            epoch += 1
        case MemberState.UNKNOWN:
            if owned is None or owned:
                raise FencedMember
            epoch = target_epoch
    next_assignment = _compute_next_assignment(current, epoch, target_epoch, target, owned, is_free)
    return current if next_assignment == current else next_assignment


def _owns_revoked(owned: Partitions | None, partitions: PartitionEpochs) -> bool:
    """Whether the member still has, or may still have, one of them."""
    if owned is None:
        return True
    return any(
        not owned.get(topic_id, frozenset()).isdisjoint(epochs)
        for topic_id, epochs in partitions.items()
    )


def _compute_next_assignment(
    current: ConsumerCurrentAssignment,
    epoch: int,
    target_epoch: int,
    target: Partitions,
    owned: Partitions | None,
    is_free: Callable[[Uuid, int], bool],
) -> ConsumerCurrentAssignment:
    kept: dict[Uuid, dict[int, int]] = {}
    to_revoke: dict[Uuid, dict[int, int]] = {}
    for topic_id, epochs in current.assigned.items():
        wanted = target.get(topic_id, frozenset())
        if wanted.issuperset(epochs):
            kept[topic_id] = dict(epochs)
            continue
        for index, since in epochs.items():
            place = kept if index in wanted else to_revoke
            place.setdefault(topic_id, {})[index] = since
    if to_revoke and _owns_revoked(owned, to_revoke):
        return ConsumerCurrentAssignment(
            epoch,
            _previous(current, epoch),
            MemberState.UNREVOKED_PARTITIONS,
            kept,
            to_revoke,
        )
    is_complete = True
    for topic_id, wanted in target.items():
        mine = kept.get(topic_id, {})
        if len(wanted) == len(mine):
            continue
        for index in wanted:
            if index in mine:
                continue
            if is_free(topic_id, index):
                kept.setdefault(topic_id, {})[index] = target_epoch
            else:
                is_complete = False
    return ConsumerCurrentAssignment(
        target_epoch,
        _previous(current, target_epoch),
        MemberState.STABLE if is_complete else MemberState.UNRELEASED_PARTITIONS,
        kept,
        {},
    )


def _previous(current: ConsumerCurrentAssignment, epoch: int) -> int:
    """The epoch before this one, with which the member may still come (its answer was lost)."""
    return current.previous_member_epoch if epoch == current.member_epoch else current.member_epoch
