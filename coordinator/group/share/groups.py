"""All share groups (KIP-932) of one shard: members, and the share states of their partitions.

Timers besides those of all newer groups (`modern.group_type`):

| Timer | Set | When it expires |
|---|---|---|
| share-states | when states could not be initialized or deleted | this is retried |

The share coordinator initializes and deletes the share states (`share.requests`). A request that
waits for it (to alter or delete offsets, to delete a group) is kept in memory only, and answered
when the report arrives. After a move of the shard, incomplete initializations and deletions are
repeated without such a request. A group is deleted after its states.

Called by `shard`, as one of its group types.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, TypeAlias

from odradek.coordinator.group.deleted_groups import deleted_group
from odradek.coordinator.group.group_record import GroupRecord
from odradek.coordinator.group.modern.event_history import heartbeat_reason
from odradek.coordinator.group.modern.group_type import (
    GroupType,
    GroupTypeHandler,
    GroupTypeOf,
    with_error_response,
)
from odradek.coordinator.group.modern.heartbeats import (
    JOIN_GROUP_EPOCH,
    LEAVE_GROUP_EPOCH,
    check_member,
    remove_members,
)
from odradek.coordinator.group.requests import CommitRequest, DeleteGroup, UpdateTopics
from odradek.coordinator.group.share import state_partitions as changes
from odradek.coordinator.group.share.group import NO_STATES, ShareGroup
from odradek.coordinator.group.share.heartbeats import check, heartbeat
from odradek.coordinator.group.share.records import ShareStatePartitionsRecord, TopicStates
from odradek.coordinator.group.share.requests import (
    DeleteStates,
    DescribeShareGroup,
    FindShareStates,
    InitializeStates,
    Outcomes,
    RestartStates,
    StatesDeleted,
    StatesInitialized,
)
from odradek.coordinator.group.share.responses import describe
from odradek.coordinator.group.share.start_offsets import (
    alter_response,
    alterable_offsets,
    deletable_topics,
    delete_response,
)
from odradek.coordinator.group.share.target_assignment import (
    ShareTargetAssignmentBuilder,
    initialize_states,
)
from odradek.coordinator.group.step import GroupStep
from odradek.coordinator.outcome import NO_REQUEST, Command
from odradek.coordinator.timeline import Timeline
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.groups import DeletableGroupResult
from odradek.protocol.messages.share import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    ShareGroupDescribedGroup,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from odradek.protocol.types import Uuid

STATE_RETRY_MS: Final = 1_000
"""After this time the initialization or deletion of states is retried."""


_MakeResponse: TypeAlias = Callable[[Outcomes, GroupStep], object]
"""Makes the response to a request that waits for a report."""


class ShareGroups(GroupType[ShareGroup]):
    """See the module's docstring, and GroupType. `extra_tombstones` returns the tombstones of what
    is deleted with a group."""

    is_kept_empty = True

    def __init__(
        self,
        timeline: Timeline,
        group_type_of: GroupTypeOf,
        extra_tombstones: Callable[[str], Sequence[GroupRecord]],
    ) -> None:
        super().__init__(timeline, ShareGroup)
        self._group_type_of = group_type_of
        self._extra_tombstones = extra_tombstones
        # In memory only: requests that wait for a report of the share coordinator, with their
        # groups.
        self._awaiting_report: dict[int, tuple[str, _MakeResponse]] = {}
        # In memory only: partitions whose states could not be initialized, by group, until the
        # retry.
        self._failed: dict[str, TopicStates] = {}
        self.handlers: Mapping[type, GroupTypeHandler] = {
            ShareGroupHeartbeatRequest: with_error_response(
                self._heartbeat, ShareGroupHeartbeatResponse
            ),
            DescribeShareGroup: self._describe,
            FindShareStates: self._find_states,
            AlterShareGroupOffsetsRequest: with_error_response(
                self._alter_offsets, AlterShareGroupOffsetsResponse
            ),
            DeleteShareGroupOffsetsRequest: with_error_response(
                self._delete_offsets, DeleteShareGroupOffsetsResponse
            ),
            StatesInitialized: self._states_initialized,
            StatesDeleted: self._states_deleted,
        }

    # -- the log ----------------------------------------------------------------------------------

    def on_loaded(self, step: GroupStep) -> None:
        """See GroupType. Incomplete initializations and deletions of states are repeated."""
        super().on_loaded(step)
        for group in self:
            if group.states.initializing or group.states.deleting:
                self._failed[group.group_id] = group.states.initializing
                step.set_timer(group.own_key(), step.now_ms)

    def on_append_failed(self, group_ids: Collection[str], step: GroupStep) -> None:
        """See GroupType. Waiting requests fail: their effects have been dropped."""
        for request_id, (group_id, _) in list(self._awaiting_report.items()):
            if group_id in group_ids:
                self._on_state_report(request_id, changes.ALL_FAILED, step)
        super().on_append_failed(group_ids, step)

    # -- finding groups ---------------------------------------------------------------------------

    def topic_names(self, group_id: str) -> frozenset[str]:
        """See GroupType."""
        return self._groups[group_id].topic_names()

    def commit_error(self, _request: CommitRequest, _version: int) -> ErrorCode:
        """See GroupType. Share groups have no committed offsets."""
        return ErrorCode.GROUP_ID_NOT_FOUND

    def fetch_error(self, _group_id: str, _member_id: str | None, _member_epoch: int) -> ErrorCode:
        """See GroupType."""
        return ErrorCode.GROUP_ID_NOT_FOUND

    def _check_group_id_free(self, group_id: str) -> None:
        """Whether no group of another type has the id; else ApiError."""
        if self._group_type_of(group_id) not in (self.name, None):
            raise self.not_found(group_id, is_other_type=True)

    # -- members ----------------------------------------------------------------------------------

    def _heartbeat(
        self, command: Command, request: ShareGroupHeartbeatRequest, step: GroupStep
    ) -> None:
        check(request)
        group_id, member_id = request.group_id, request.member_id
        group = self.get(group_id)
        if group is None:
            self._check_group_id_free(group_id)
            if request.member_epoch != JOIN_GROUP_EPOCH:
                message = f"Share group {group_id} not found."
                raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, message)
            group = ShareGroup(group_id, Timeline())
        if request.member_epoch != LEAVE_GROUP_EPOCH:
            response = heartbeat(group, command, request, step)
        else:
            check_member(group, member_id, None)
            self._remove(group, [member_id], step)
            response = ShareGroupHeartbeatResponse(
                member_id=member_id, member_epoch=LEAVE_GROUP_EPOCH
            )
        if step.records:
            self._note(group, step, heartbeat_reason(command, request.member_epoch))
        step.reply(command.request_id, response)

    # -- timers and topics ------------------------------------------------------------------------

    def _assign(self, group: ShareGroup, step: GroupStep) -> None:
        ShareTargetAssignmentBuilder(group).assign_now(group.stored_epoch, step)

    def _remove(self, group: ShareGroup, member_ids: Collection[str], step: GroupStep) -> None:
        remove_members(ShareTargetAssignmentBuilder(group), member_ids, step)

    def _fire_own(self, group: ShareGroup, step: GroupStep) -> None:
        self._retry_states(group, step)
        self._note(group, step, "states of partitions are asked for again")

    def _update_topics(self, group: ShareGroup, request: UpdateTopics, step: GroupStep) -> None:
        if request.names is not None and group.topic_names().isdisjoint(request.names):
            return
        builder = ShareTargetAssignmentBuilder(group)
        if builder.hash(step.topics) != group.metadata_hash:
            builder.assign_if_due(builder.start_epoch(step), step)

    def topics(self) -> set[tuple[str, Uuid]]:
        """The names and ids of all topics with share states."""
        return {
            (name, topic_id)
            for group in self
            for topic_id, name in changes.names_of(group.states).items()
        }

    def forget_topics(self, topic_ids: Collection[Uuid]) -> list[GroupRecord]:
        """Forget the states of deleted topics: the share coordinator deletes these itself."""
        return [
            ShareStatePartitionsRecord(
                group.group_id, changes.without_topics(group.states, topic_ids)
            )
            for group in self
            if changes.has_any_topic(group.states, topic_ids)
        ]

    # -- states of partitions ---------------------------------------------------------------------

    def _retry_states(self, group: ShareGroup, step: GroupStep) -> None:
        """Retry the failed initializations, and all deletions, of states.

        The retry is made in a new state epoch, which fences an earlier attempt that may still be
        running: it would reset positions that have advanced since. Nothing is done while one of the
        topics has been deleted and its states have not been forgotten yet.
        """
        group_id, states = group.group_id, group.states
        wanted = changes.intersection(states.initializing, self._failed.get(group_id, {}))
        topic_ids = wanted.keys() | states.deleting.keys()
        if any(step.topics.name_of(topic_id) is None for topic_id in topic_ids):
            self._schedule_state_retry(group, step)
            return
        self._failed.pop(group_id, None)
        if wanted:
            builder = ShareTargetAssignmentBuilder(group)
            epoch = builder.start_epoch(step)
            step.send(initialize_states(group_id, epoch.epoch, wanted))
            builder.assign_if_due(epoch, step)
        if states.deleting:
            step.send(DeleteStates(group_id, changes.all_partitions(states.deleting, step.topics)))

    @staticmethod
    def _schedule_state_retry(group: ShareGroup, step: GroupStep) -> None:
        step.set_timer(group.own_key(), step.now_ms + STATE_RETRY_MS)

    def _await_report(self, command: Command, group_id: str, make_response: _MakeResponse) -> None:
        if command.request_id != NO_REQUEST:
            self._awaiting_report[command.request_id] = (group_id, make_response)

    def _on_state_report(self, request_id: int, outcomes: Outcomes, step: GroupStep) -> None:
        found = self._awaiting_report.pop(request_id, None)
        if found is not None:
            step.reply(request_id, found[1](outcomes, step))

    def _states_initialized(
        self, command: Command, report: StatesInitialized, step: GroupStep
    ) -> None:
        group = self.get(report.group_id)
        if group is not None:
            builder = ShareTargetAssignmentBuilder(group)
            made, failed = changes.split_outcomes(report.outcomes, step.topics)
            builder.store_states(changes.initialized(builder.states, made), step)
            if failed:
                known = self._failed.get(group.group_id, {})
                self._failed[group.group_id] = changes.union(known, failed)
                self._schedule_state_retry(group, step)
            if made and not group.is_empty:
                # Members wait for these partitions only, so the interval is not observed.
                builder.assign_now(builder.start_epoch(step), step)
                self._note(group, step, "partitions have been made ready")
        self._on_state_report(report.request_id, report.outcomes, step)
        step.reply(command.request_id, None)

    def _states_deleted(self, command: Command, report: StatesDeleted, step: GroupStep) -> None:
        group = self.get(report.group_id)
        if group is not None:
            builder = ShareTargetAssignmentBuilder(group)
            gone = {
                topic_id
                for topic_id in report.outcomes.keys() & group.states.deleting.keys()
                if changes.first_error({topic_id: report.outcomes[topic_id]}) is ErrorCode.NONE
            }
            builder.store_states(changes.without_topics(builder.states, gone), step)
            if not report.outcomes.keys() <= gone:
                self._schedule_state_retry(group, step)
            if not group.is_empty:
                builder.ask_for_states(group.epoch, step)
        self._on_state_report(report.request_id, report.outcomes, step)
        step.reply(command.request_id, None)

    def restart(
        self,
        group_id: str,
        offsets: Mapping[Uuid, Mapping[int, int]],
        step: GroupStep,
        *,
        why: str,
    ) -> int:
        """Restart the group at these offsets, with or without members; returns the new state epoch.
        The effect is answered with StatesRestarted, which the shard handles."""
        group = self._groups[group_id]
        builder, before = ShareTargetAssignmentBuilder(group), len(step.records)
        epoch = builder.start_epoch(step)
        builder.assign_now(epoch, step)
        self._note(group, step, why, after=before)
        step.send(RestartStates(group_id, epoch.epoch, offsets))
        return epoch.epoch

    def restarted(self, group_id: str, outcomes: Outcomes, step: GroupStep) -> None:
        """Write that these partitions have a state."""
        builder = ShareTargetAssignmentBuilder(self._groups[group_id])
        made, _ = changes.split_outcomes(outcomes, step.topics)
        builder.store_states(changes.initialized(builder.states, made), step)

    def _find_states(self, command: Command, request: FindShareStates, step: GroupStep) -> None:
        group = self.get(request.group_id)
        step.reply(command.request_id, None if group is None else group.states.initialized)

    # -- offsets and administration ---------------------------------------------------------------

    def _empty_group(self, group_id: str) -> ShareGroup:
        """The group, which must have no members; else ApiError."""
        group = self.get(group_id)
        if group is None:
            self._check_group_id_free(group_id)
            message = f"Share group {group_id} not found."
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, message)
        if not group.is_empty:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP)
        return group

    def _alter_offsets(
        self, command: Command, request: AlterShareGroupOffsetsRequest, step: GroupStep
    ) -> None:
        group_id = request.group_id
        if self.get(group_id) is None:
            self._check_group_id_free(group_id)
            group = ShareGroup(group_id, Timeline())
        else:
            group = self._empty_group(group_id)
            if group.states.deleting:
                # The new offsets would be deleted with the old ones.
                message = "Offsets of the group are being deleted."
                raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, message)
        offsets = alterable_offsets(request, step.topics)
        if not offsets:
            step.reply(command.request_id, alter_response(request, offsets, {}, step.topics))
            return
        # This creates a group that does not exist yet.
        builder = ShareTargetAssignmentBuilder(group)
        epoch = builder.start_epoch(step)
        builder.assign_now(epoch, step)
        self._await_report(
            command,
            group_id,
            lambda outcomes, later: alter_response(request, offsets, outcomes, later.topics),
        )
        step.send(InitializeStates(group_id, epoch.epoch, offsets, command.request_id))

    def _delete_offsets(
        self, command: Command, request: DeleteShareGroupOffsetsRequest, step: GroupStep
    ) -> None:
        group = self._empty_group(request.group_id)
        names = deletable_topics(request, group.states, step.topics)
        if not names:
            step.reply(command.request_id, delete_response(request, names, {}))
            return
        self._await_report(
            command, group.group_id, lambda outcomes, _: delete_response(request, names, outcomes)
        )
        self._delete_states(group, names, step, command.request_id)

    @staticmethod
    def _delete_states(
        group: ShareGroup, names: Mapping[Uuid, str], step: GroupStep, request_id: int = NO_REQUEST
    ) -> None:
        """Write that the states of these topics are being deleted, and delete them."""
        states = group.states
        ShareTargetAssignmentBuilder(group).store_states(changes.deleting(states, names), step)
        deleted_before = changes.all_partitions(states.deleting, step.topics)
        topics = {
            topic_id: changes.indexes_of(states.initializing, topic_id)
            | changes.indexes_of(states.initialized, topic_id)
            | deleted_before.get(topic_id, frozenset())
            for topic_id in names
        }
        step.send(DeleteStates(group.group_id, topics, request_id))

    def has_states(self, group_id: str) -> bool:
        """Whether states must be deleted before the group is."""
        return self._groups[group_id].states != NO_STATES

    def maybe_delete_states(self, group_id: str, step: GroupStep) -> bool:
        """Start to delete the states of the group; False if it has none, or is no share group."""
        if group_id not in self or not self.has_states(group_id):
            return False
        group = self._groups[group_id]
        self._delete_states(group, changes.names_of(group.states), step)
        return True

    def delete(self, command: Command, request: DeleteGroup, step: GroupStep) -> None:
        """Delete the states of a group without members, and then the group."""
        group_id = request.group_id
        group = self._groups[group_id]
        self._await_report(
            command, group_id, lambda outcomes, later: self._finish_deletion(group, outcomes, later)
        )
        self._delete_states(group, changes.names_of(group.states), step, command.request_id)

    def _finish_deletion(
        self, group: ShareGroup, outcomes: Outcomes, step: GroupStep
    ) -> DeletableGroupResult:
        error = changes.first_error(outcomes)
        has_new_states = bool(group.states.initializing or group.states.initialized)
        if error is ErrorCode.NONE and (has_new_states or not group.is_empty):
            error = ErrorCode.NON_EMPTY_GROUP
        if error is ErrorCode.NONE and group.exists:
            step.records += self._extra_tombstones(group.group_id)
            step.records += self.tombstones(group.group_id)
            step.cancel_timer(group.own_key())
        return deleted_group(group.group_id, error)

    def _describe(self, command: Command, request: DescribeShareGroup, step: GroupStep) -> None:
        group_id = request.group_id
        group = self.get(group_id)
        if group is None:
            is_other_type = self._group_type_of(group_id) is not None
            error = self.not_found(group_id, is_other_type=is_other_type)
            described = ShareGroupDescribedGroup(
                group_id=group_id, error_code=error.code, error_message=error.message
            )
        else:
            described = describe(group, step.topics)
        step.reply(command.request_id, described)
