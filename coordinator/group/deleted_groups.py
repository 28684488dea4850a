"""Objects of deleted groups, which are kept until the deletion is committed.

A deletion may be reverted, and there is no notification of its commit. So deleted groups are
queued, and every replayed record checks two of them: more than one record can add, so the work per
record is constant and the queue drains.
"""

from collections.abc import MutableMapping
from typing import Protocol, TypeVar

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import DeletableGroupResult

_CHECKED_COUNT = 2


class DeletedGroup(Protocol):
    """The part of a group that is used here."""

    @property
    def exists(self) -> bool:
        """Whether there is such a group."""

    @property
    def is_droppable(self) -> bool:
        """Whether newest and committed state are empty: the object may be dropped."""


G = TypeVar("G", bound=DeletedGroup)


def drop_deleted(groups: MutableMapping[str, G], ended: dict[str, None]) -> list[str]:
    """Drop groups whose deletion is committed; `ended` are the ids to check, oldest first.

    Returns the ids of the dropped groups.
    """
    dropped = []
    for group_id in [group_id for _, group_id in zip(range(_CHECKED_COUNT), ended, strict=False)]:
        del ended[group_id]
        group = groups.get(group_id)
        if group is None or group.exists:
            continue
        if group.is_droppable:
            del groups[group_id]
            dropped.append(group_id)
        else:
            ended[group_id] = None
    return dropped


def deleted_group(group_id: str, error: ErrorCode) -> DeletableGroupResult:
    """One group of DeleteGroups: deleted, or the error."""
    message = None if error is ErrorCode.NONE else error.message
    return DeletableGroupResult(group_id=group_id, error_code=error, error_message=message)
