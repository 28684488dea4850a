"""Expires offsets. Deletes groups: on request, or when they have neither members nor offsets.

Called by `shard`.
"""

from typing import Final

from odradek.coordinator.group.classic.group import ClassicGroup, GroupState
from odradek.coordinator.group.classic.records import GroupMetadata
from odradek.coordinator.group.deleted_groups import deleted_group
from odradek.coordinator.group.group_directory import GroupDirectory
from odradek.coordinator.group.group_record import GroupRecord
from odradek.coordinator.group.offsets.committed_offsets import OffsetExpiration
from odradek.coordinator.group.offsets.records import OffsetCommitRecord
from odradek.coordinator.group.requests import DeleteGroup
from odradek.coordinator.group.rewind.rewind_tables import RewindTables
from odradek.coordinator.group.step import GroupStep
from odradek.coordinator.outcome import Command, Outcome, TimerKey
from odradek.protocol.errors import ErrorCode
from odradek.protocol.types import NO_TIMESTAMP

EXPIRY_KEY: Final[TimerKey] = ("expiry",)
_SLICE_COUNT: Final = 2_000
"""Offsets that are checked at once; about a millisecond."""


class GroupCleanup:
    """See the module's docstring."""

    def __init__(self, directory: GroupDirectory, rewinds: RewindTables) -> None:
        self._directory = directory
        self._classic = directory.classic
        self._offsets = directory.offsets
        self._pending_offsets = directory.pending_offsets
        self._rewinds = rewinds
        self._to_check: list[str] = []

    def expire(self, step: GroupStep) -> None:
        """Check some groups; the others follow after 1 ms, the next round after the interval."""
        if not self._to_check:
            # A group may have undo points only, after the topic of its last offset was deleted.
            self._to_check = list(self._directory.group_ids() | self._rewinds.group_ids())
        budget = _SLICE_COUNT
        while self._to_check and budget > 0:
            group_id = self._to_check.pop()
            budget -= 1 + self._offsets.count(group_id)
            self._expire_group(group_id, step)
        pause_ms = 1 if self._to_check else step.settings.retention_check_interval_ms
        step.set_timer(EXPIRY_KEY, step.now_ms + pause_ms)

    def _expire_group(self, group_id: str, step: GroupStep) -> None:
        group = self._classic.live_groups.get(group_id)
        group_type = self._directory.modern_type_of(group_id)
        read_topics = None if group_type is None else group_type.topic_names(group_id)
        expiry = offset_expiration(group, self._classic.generations.get(group_id), read_topics)
        expired = self._offsets.expired(
            group_id, expiry, step.now_ms, step.settings.offsets_retention_ms
        )
        step.records += expired
        self._offsets.drop_blank(group_id)
        has_more = len(expired) < self._offsets.count(group_id)
        if has_more or self._pending_offsets.has_any(group_id):
            return
        if group_type is not None:
            if group_type.is_empty(group_id) and not group_type.is_kept_empty:
                step.records += self._rewinds.tombstones(group_id)
                step.records += group_type.tombstones(group_id)
        elif group is None or (group.is_empty and not group.pending):
            step.records += self._rewinds.tombstones(group_id)
            self._classic.delete(group_id, step)

    def delete(
        self, command: Command, request: DeleteGroup, step: GroupStep
    ) -> Outcome[GroupRecord]:
        """One group of DeleteGroups. A share group's states are deleted first."""
        # The empty group id is no error here: old clients could commit offsets under it.
        group_id = request.group_id
        shares = self._directory.shares
        error = ErrorCode.NONE
        if not self._directory.exists(group_id):
            error = ErrorCode.GROUP_ID_NOT_FOUND
        elif not self._directory.is_empty(group_id):
            error = ErrorCode.NON_EMPTY_GROUP
        elif group_id in shares and shares.has_states(group_id):
            shares.delete(command, request, step)
            return step.build()
        else:
            self.end(group_id, step)
        step.reply(command.request_id, deleted_group(group_id, error))
        return step.build(is_atomic=False)

    def end(self, group_id: str, step: GroupStep) -> None:
        """Delete a group without members, of any type, with its offsets. The group itself is last:
        if only a part is written, the deletion can be repeated."""
        group = self._classic.live_groups.get(group_id)
        group_type = self._directory.modern_type_of(group_id)
        step.records += self._offsets.tombstones(group_id)
        step.records += (
            OffsetCommitRecord(*key, None) for key in self._pending_offsets.pending_keys(group_id)
        )
        step.records += self._rewinds.tombstones(group_id)
        if group_type is not None:
            step.records += group_type.tombstones(group_id)
        if group is not None:
            for member_id in list(group.pending):
                group.remove_pending(member_id, step)
        self._classic.delete(group_id, step)


def offset_expiration(
    group: ClassicGroup | None, metadata: GroupMetadata | None, read_topics: frozenset[str] | None
) -> OffsetExpiration | None:
    """When the offsets of a group expire; None if they do not expire in its current state.

    Offsets of subscribed topics are kept: `read_topics` for groups of the newer types.
    """
    if read_topics is not None:
        return OffsetExpiration(None, read_topics)
    if group is not None and not group.is_empty:
        topics = group.subscribed_topics()
        if group.state is not GroupState.STABLE or topics is None:
            return None
        return OffsetExpiration(None, topics)
    if metadata is None or not metadata.protocol_type:
        return OffsetExpiration(None)
    since_ms = metadata.state_timestamp_ms
    return OffsetExpiration(None if since_ms == NO_TIMESTAMP else since_ms)
