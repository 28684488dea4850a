"""The classic groups of one shard.

Their newest generations are in the log, and only `replay` changes that table. Soft state (parked
requests, deadlines, recent events) is in `ClassicGroup` objects, which are created by a JoinGroup
or by loading a group with members. An Empty group needs no object.

Invariant: a `ClassicGroup` is Stable or Empty only in the generation of the table. Called by
`shard`, which has checked that the group is of no other type.
"""

from collections.abc import Callable, Collection
from typing import Final

from odradek.coordinator.group.classic.group import ClassicGroup, GroupState
from odradek.coordinator.group.classic.join_group import generated_member_id, join
from odradek.coordinator.group.classic.leave_group import leave
from odradek.coordinator.group.classic.records import GroupMetadata, GroupMetadataRecord
from odradek.coordinator.group.classic.stored_generation import (
    LARGE_GROUP_DELAY_MS,
    LARGE_GROUP_SIZE,
    is_rebalancing,
    remaining_generation,
)
from odradek.coordinator.group.classic.unstored_members import UnstoredMembers
from odradek.coordinator.group.group_record import GroupRecord
from odradek.coordinator.group.step import GroupStep
from odradek.coordinator.outcome import Command, Outcome, ShardReply, Timer, TimerKey
from odradek.coordinator.timeline import Timeline, TimelineTable
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

GROUP_TYPE_CLASSIC: Final = "classic"


def unknown_group_error(group_id: str) -> ErrorCode:
    """The error of a member's request to a group that does not exist."""
    return ErrorCode.UNKNOWN_MEMBER_ID if group_id else ErrorCode.INVALID_GROUP_ID


class ClassicGroups:
    """See the module's docstring."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self.generations: TimelineTable[str, GroupMetadata] = TimelineTable(timeline)
        self.live_groups: dict[str, ClassicGroup] = {}
        self.unstored = UnstoredMembers()
        # Deleted groups whose deletion may be reverted, with the position before it.
        self._deleted: dict[str, tuple[int, ClassicGroup]] = {}

    # -- the log ----------------------------------------------------------------------------------

    def replay(self, record: GroupMetadataRecord) -> None:
        """A group has a new generation, or was deleted."""
        if record.metadata is None:
            self.generations.remove(record.group_id)
        else:
            self.generations.put(record.group_id, record.metadata)

    def on_loaded(self, step: GroupStep) -> None:
        """Groups with members continue; every member gets a full session timeout."""
        self.unstored.on_loaded(self.generations.items(), step.now_ms)
        for group_id, metadata in self.generations.items():
            if metadata.members:
                group = self.live_groups[group_id] = ClassicGroup.of_metadata(group_id, metadata)
                group.on_loaded(step, is_rebalancing=is_rebalancing(metadata))

    def on_append_failed(
        self,
        records: Collection[GroupRecord],
        group_ids: Collection[str],
        modern_type_of: Callable[[str], object | None],
        step: GroupStep,
    ) -> None:
        """The table was reverted; groups that were ahead of it must rebalance."""
        newest = {
            record.group_id: record.metadata
            for record in records
            if isinstance(record, GroupMetadataRecord)
        }
        for group_id in group_ids:
            group = self.live_groups.get(group_id)
            lost = newest.get(group_id)
            # Compare generations before the deleted group is restored.
            is_ahead = (
                group is not None and lost is not None and lost.generation_id == group.generation_id
            )
            self._restore_deleted(group_id)
            if group is not None and modern_type_of(group_id) is not None:
                # Its conversion to a classic group was reverted.
                self.live_groups.pop(group_id, None)
                for member in group.members:
                    group.answer_parked(member, ErrorCode.COORDINATOR_NOT_AVAILABLE, step)
            elif group is not None and is_ahead:
                group.on_append_failed(step)

    # -- finding groups ---------------------------------------------------------------------------

    def __contains__(self, group_id: str) -> bool:
        return group_id in self.live_groups or group_id in self.generations

    def group(self, group_id: str) -> ClassicGroup | None:
        """The group; created from its stored generation if it has no object."""
        group = self.live_groups.get(group_id)
        if group is None:
            metadata = self.generations.get(group_id)
            if metadata is not None:
                group = ClassicGroup.of_metadata(group_id, metadata)
                self.live_groups[group_id] = group
        return group

    def adopt(self, group: ClassicGroup) -> None:
        """Add a group that was converted from another type."""
        self.live_groups[group.group_id] = group

    def end(self, group_id: str, step: GroupStep) -> None:
        """The group was converted to another type: remove it here."""
        self.live_groups[group_id].abandon(step)
        self.delete(group_id, step)

    def _drop_if_never_joined(self, group: ClassicGroup, step: GroupStep) -> None:
        """Drop an Empty group that was never stored and has no pending members."""
        is_stored = group.group_id in self.generations or bool(step.records)
        if group.is_empty and not group.pending and not is_stored:
            self.live_groups.pop(group.group_id, None)

    def delete(self, group_id: str, step: GroupStep) -> None:
        """Delete a group without members."""
        committed = self._timeline.committed
        self._deleted = {
            known: deleted for known, deleted in self._deleted.items() if deleted[0] >= committed
        }
        group = self.live_groups.pop(group_id, None)
        if group is not None:
            self._deleted[group_id] = (self._timeline.position, group)
        if group_id in self.generations:
            step.records.append(GroupMetadataRecord(group_id, None))

    def _restore_deleted(self, group_id: str) -> None:
        """Restore a group whose deletion was not written, in no earlier generation."""
        position, deleted = self._deleted.pop(group_id, (-1, None))
        if deleted is not None and position >= self._timeline.committed:
            group = self.live_groups.setdefault(group_id, deleted)
            group.generation_id = max(group.generation_id, deleted.generation_id)

    def _update_stored(self, group: ClassicGroup, step: GroupStep, *, is_due: bool = False) -> None:
        """Write the stored generation again if members of it have left or have new ids."""
        if group.state in (GroupState.EMPTY, GroupState.STABLE):
            group.has_stale_record = False
        if not group.has_stale_record:
            return
        if len(group.members) > LARGE_GROUP_SIZE and not is_due:
            if not group.is_record_scheduled:
                group.is_record_scheduled = True
                step.set_timer(("departed", group.group_id), step.now_ms + LARGE_GROUP_DELAY_MS)
            return
        group.has_stale_record = False
        stored = self.generations.get(group.group_id)
        remaining = None if stored is None else remaining_generation(stored, group.members)
        if remaining is not None:
            step.records.append(GroupMetadataRecord(group.group_id, remaining))

    # -- members ----------------------------------------------------------------------------------

    def join(self, command: Command, request: JoinGroupRequest, step: GroupStep) -> None:
        """JoinGroup with valid texts and timeouts; the group may be new."""
        group = self.group(request.group_id)
        if group is None:
            group = self.live_groups[request.group_id] = ClassicGroup(request.group_id)
        is_unstored = self.unstored.may_include(request, command.client_id, step.now_ms)
        join(group, command, request, step, is_unstored=is_unstored)
        if is_unstored or not request.member_id:
            self.unstored.note(
                [request.member_id or generated_member_id(command, request)], step.now_ms
            )
        self._update_stored(group, step)
        self._drop_if_never_joined(group, step)

    def sync(self, command: Command, request: SyncGroupRequest, step: GroupStep) -> None:
        """SyncGroup."""
        group = self.live_groups.get(request.group_id)
        error = unknown_group_error(request.group_id)
        if group is not None and request.group_id:
            error = group.member_error(request.member_id, request.group_instance_id)
        generation_id, client_id = request.generation_id, command.client_id
        if group is None or error is not ErrorCode.NONE:
            error = self.unstored.answer(error, request, generation_id, client_id, step.now_ms)
        elif self.is_lost_generation(group, generation_id, step.now_ms):
            error = ErrorCode.REBALANCE_IN_PROGRESS
        else:
            group.sync(command, request, step)
            return
        step.reply(command.request_id, SyncGroupResponse(error_code=error))

    def is_lost_generation(self, group: ClassicGroup, generation_id: int, now_ms: int) -> bool:
        """Whether a member of the group may have been in a generation that was lost."""
        newest = group.generation_id
        return self.unstored.is_lost_generation(group.group_id, generation_id, newest, now_ms)

    def heartbeat(
        self, command: Command, request: HeartbeatRequest, now_ms: int
    ) -> Outcome[GroupRecord]:
        """Heartbeat."""
        group = self.live_groups.get(request.group_id)
        member_id, generation_id = request.member_id, request.generation_id
        error = unknown_group_error(request.group_id)
        if group is not None and request.group_id:
            error = group.heartbeat_error(member_id, request.group_instance_id, generation_id)
            if error is ErrorCode.ILLEGAL_GENERATION and self.is_lost_generation(
                group, generation_id, now_ms
            ):
                error = ErrorCode.REBALANCE_IN_PROGRESS
        error = self.unstored.answer(error, request, generation_id, command.client_id, now_ms)
        reply = ShardReply(
            command.request_id, HeartbeatResponse(error_code=error), is_immediate=True
        )
        member = None if group is None else group.members.get(member_id)
        if member is None or error not in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
            return Outcome(replies=(reply,))
        timer = Timer(("session", request.group_id, member_id), now_ms + member.session_timeout_ms)
        return Outcome(replies=(reply,), timers=(timer,))

    def leave(self, command: Command, request: LeaveGroupRequest, step: GroupStep) -> None:
        """LeaveGroup."""
        if not request.group_id:
            response = LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)
            step.reply(command.request_id, response)
            return
        group = self.live_groups.get(request.group_id)
        leave(group, command, request, self.unstored, step)
        if group is not None:
            self._update_stored(group, step)
            self._drop_if_never_joined(group, step)

    def fire(self, key: TimerKey, step: GroupStep) -> None:
        """A timer of a member or of a group."""
        group = self.live_groups.get(key[1])
        if group is None:
            return
        match key[0]:
            case "session":
                group.on_session_timer(key[2], step)
            case "join":
                group.on_join_timer(step)
            case "sync":
                group.on_sync_timer(step)
            case "store":
                group.on_store_timer(step)
            case "departed":
                group.is_record_scheduled = False
                self._update_stored(group, step, is_due=True)
            case kind:
                raise AssertionError(f"a timer of an unknown kind: {kind}")
        self._update_stored(group, step)
        self._drop_if_never_joined(group, step)
