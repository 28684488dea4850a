"""All share groups (KIP-932) of one shard: finds the group, lets it decide, keeps its timers.

Whatever a share group is stands in the log, as with consumer groups. Timers by kind, and what comes
of them:

| Timer | Set | When it is due |
|---|---|---|
| share-session | with every heartbeat | the member is removed |
| share-assignment | when a target assignment is put off | it is made, if all topics are known |
| share-states | when states could not be made or deleted | they are asked for again |

States of partitions are made and deleted elsewhere (`share.requests`). Who waits for that (offsets
that are set or deleted, a group that is deleted) is remembered in memory only, and answered when
the report comes; after a move of the shard what is unfinished is asked for again, for nobody. The
group of which states are deleted stays until they are: then it goes with all that it had.

Called by `shard`, as one of its families.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, TypeAlias, get_args

from odradek.coordinator.group.consumer.heartbeats import JOIN_GROUP_EPOCH, LEAVE_GROUP_EPOCH
from odradek.coordinator.group.deleted_groups import deleted_group
from odradek.coordinator.group.group_record import GroupRecord
from odradek.coordinator.group.modern.event_history import EventHistory, heartbeat_reason
from odradek.coordinator.group.modern.group_table import GroupTable
from odradek.coordinator.group.modern.group_type import GroupTypeHandler, GroupTypeOf
from odradek.coordinator.group.modern.member_checks import unknown_member
from odradek.coordinator.group.requests import DeleteGroup, UpdateTopics
from odradek.coordinator.group.share import state_partitions as changes
from odradek.coordinator.group.share.group import ShareGroup
from odradek.coordinator.group.share.heartbeats import check, heartbeat, refresh, remove
from odradek.coordinator.group.share.records import (
    ShareEpochRecord,
    ShareGroupRecord,
    ShareStatePartitionsRecord,
    ShareTargetEpochRecord,
    TopicStates,
)
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
from odradek.coordinator.group.share.responses import describe, not_a_share_group
from odradek.coordinator.group.share.start_offsets import (
    OffsetAlteration,
    OffsetDeletion,
    alter_response,
    delete_response,
)
from odradek.coordinator.group.share.target_assignment import (
    ShareTargetAssignmentBuilder,
    ask_for_states,
    assign_if_due,
    assign_now,
    assignment_key,
    hash_of,
    initialize_states,
    start_epoch,
    store_states,
)
from odradek.coordinator.group.step import (
    GroupStep,
)
from odradek.coordinator.outcome import NO_REQUEST, Command, TimerKey
from odradek.coordinator.timeline import Timeline
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.group_offsets import OffsetCommitRequest
from odradek.protocol.messages.groups import DeletableGroupResult, ListedGroup
from odradek.protocol.messages.share import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from odradek.protocol.types import Uuid

GROUP_TYPE_SHARE: Final = "share"
STATE_RETRY_MS: Final = 1_000
"""After this, states that could not be made or deleted are asked for again."""


def states_key(group_id: str) -> TimerKey:
    """The timer after which states are asked for again."""
    return ("share-states", group_id)


ExtraTombstones: TypeAlias = Callable[[str], Sequence[GroupRecord]]
_OnStateReport = Callable[[Outcomes, GroupStep], None]


class ShareGroups(GroupTable[ShareGroup, ShareGroupRecord]):
    """See the module's docstring. A Family; `group_type_of` tells what kind of group has an id, and
    `extra_tombstones` drops what is kept beside a group: it goes with it."""

    group_type = GROUP_TYPE_SHARE
    is_kept_empty = True
    record_types = get_args(ShareGroupRecord)
    timer_kinds = frozenset({"share-session", "share-assignment", "share-states"})

    def __init__(
        self, timeline: Timeline, group_type_of: GroupTypeOf, extra_tombstones: ExtraTombstones
    ) -> None:
        super().__init__(timeline, ShareGroup)
        self._group_type_of = group_type_of
        self._extra_tombstones = extra_tombstones
        self.events = EventHistory()
        # Soft: requests that wait until states have been made or deleted, with their groups.
        self._awaiting_report: dict[int, tuple[str, _OnStateReport]] = {}
        # Soft: partitions whose states could not be made, by group, until they are asked for again.
        self._failed: dict[str, TopicStates] = {}
        self.handlers: Mapping[type, GroupTypeHandler] = {
            ShareGroupHeartbeatRequest: self._heartbeat,
            DescribeShareGroup: self._describe,
            FindShareStates: self._find_states,
            AlterShareGroupOffsetsRequest: self._alter_offsets,
            DeleteShareGroupOffsetsRequest: self._delete_offsets,
            StatesInitialized: self._states_initialized,
            StatesDeleted: self._states_deleted,
        }

    # -- the log ----------------------------------------------------------------------------------

    def replay(self, record: ShareGroupRecord) -> None:
        """Change the group that the record is about."""
        self._replay_record(record)
        if type(record) is ShareEpochRecord and record.epoch is None:
            self.events.forget(record.group_id)

    def on_loaded(self, step: GroupStep) -> None:
        """Every member gets a whole session; states that are on the way are asked for again."""
        for group in self:
            self._schedule_timers(group, step)
            self.events.add_loaded(group, step.now_ms)
            if group.states.initializing or group.states.deleting:
                self._failed[group.group_id] = group.states.initializing
                step.set_timer(states_key(group.group_id), step.now_ms)

    def on_append_failed(self, group_ids: Collection[str], step: GroupStep) -> None:
        """The groups are as before; timers that were moved or cancelled meanwhile are set again,
        and what waits for states may wait for ever."""
        for request_id, (group_id, answer) in list(self._awaiting_report.items()):
            if group_id in group_ids:
                del self._awaiting_report[request_id]
                answer(changes.ALL_FAILED, step)
        for group_id in group_ids:
            group = self.get(group_id)
            if group is not None:
                self._schedule_timers(group, step)
            else:
                self._drop_unless_stored(group_id)

    def _schedule_timers(self, group: ShareGroup, step: GroupStep) -> None:
        for member_id, _ in group.members():
            refresh(group, member_id, step)
        if group.epoch > group.target_epoch:
            step.set_timer(assignment_key(group.group_id), step.now_ms)

    # -- finding groups ---------------------------------------------------------------------------

    def topic_names(self, group_id: str) -> frozenset[str]:
        """See Family."""
        return self._groups[group_id].topic_names()

    def tombstones(self, group_id: str) -> list[GroupRecord]:
        """See Family. The group has no members, and its states are gone."""
        return [
            ShareTargetEpochRecord(group_id, None),
            ShareStatePartitionsRecord(group_id, None),
            ShareEpochRecord(group_id, None),
        ]

    def listed(self, group_id: str) -> ListedGroup:
        """See Family."""
        return ListedGroup(
            group_id=group_id,
            protocol_type=GROUP_TYPE_SHARE,
            group_state=self._groups[group_id].state,
            group_type=GROUP_TYPE_SHARE,
        )

    def commit_error(self, _request: OffsetCommitRequest, _version: int) -> ErrorCode:
        """See Family. Offsets are not what a share group has."""
        return ErrorCode.GROUP_ID_NOT_FOUND

    def fetch_error(self, _group_id: str, _member_id: str | None, _member_epoch: int) -> ErrorCode:
        """See Family."""
        return ErrorCode.GROUP_ID_NOT_FOUND

    def _check_group_id_free(self, group_id: str) -> None:
        """Whether the id is a share group's or nobody's; else ApiError."""
        if self._group_type_of(group_id) not in (GROUP_TYPE_SHARE, None):
            message = f"Group {group_id} is not a share group."
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, message)

    # -- members ----------------------------------------------------------------------------------

    def _heartbeat(self, command: Command, step: GroupStep) -> None:
        request = command.request
        assert isinstance(request, ShareGroupHeartbeatRequest)
        try:
            check(request)
            response = self._member_heartbeat(command, request, step)
        except ApiError as error:
            response = ShareGroupHeartbeatResponse(
                error_code=error.code, error_message=error.message
            )
        step.reply(command.request_id, response)

    def _member_heartbeat(
        self, command: Command, request: ShareGroupHeartbeatRequest, step: GroupStep
    ) -> ShareGroupHeartbeatResponse:
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
        elif group.member(member_id) is None:
            raise unknown_member(group.group_id, member_id)
        else:
            remove(group, [member_id], step)
            response = ShareGroupHeartbeatResponse(
                member_id=member_id, member_epoch=LEAVE_GROUP_EPOCH
            )
        if step.records:
            self._note(group, step, heartbeat_reason(command, request.member_epoch))
        return response

    def _note(
        self,
        group: ShareGroup,
        step: GroupStep,
        why: str,
        *,
        after: int = 0,
        is_expired: bool = False,
    ) -> None:
        """What the records of this step, but the first `after`, mean for the group."""
        self.events.note(group, step.records[after:], step.now_ms, why, is_expired=is_expired)

    # -- timers and topics ------------------------------------------------------------------------

    def fire(self, key: TimerKey, step: GroupStep) -> None:
        """A timer of a group or member is due."""
        group = self.get(key[1])
        if group is None:
            return
        if key[0] == "share-assignment":
            if group.epoch > group.target_epoch:
                assign_now(ShareTargetAssignmentBuilder(group), group.epoch, step)
                self._note(group, step, "it was due")
        elif key[0] == "share-states":
            self._retry_states(group, step)
            self._note(group, step, "states of partitions are asked for again")
        elif group.member(key[2]) is not None:
            remove(group, [key[2]], step)
            timeout_ms = step.settings.share_of(group.group_id).session_timeout_ms
            self._note(group, step, f"{key[2]} no heartbeat for {timeout_ms} ms", is_expired=True)

    def update_topics(self, request: UpdateTopics, step: GroupStep) -> None:
        """Start an epoch in every group whose topics are not what they were."""
        for group in self:
            is_meant = request.names is None or not group.topic_names().isdisjoint(request.names)
            if group.is_empty or not is_meant:
                continue
            builder = ShareTargetAssignmentBuilder(group)
            if hash_of(builder, step) != group.metadata_hash:
                before = len(step.records)
                assign_if_due(builder, start_epoch(builder, step), step)
                self._note(group, step, "topics have changed", after=before)

    def topics(self) -> set[tuple[str, Uuid]]:
        """Every topic of which a group has states, with its name."""
        found: set[tuple[str, Uuid]] = set()
        for group in self:
            states = group.states
            for known in (states.initializing, states.initialized):
                found.update((name, topic_id) for topic_id, (name, _) in known.items())
            found.update((name, topic_id) for topic_id, name in states.deleting.items())
        return found

    def forget_topics(self, topic_ids: Collection[Uuid]) -> list[GroupRecord]:
        """These topics are no more: their states go by themselves."""
        return [
            ShareStatePartitionsRecord(
                group.group_id, changes.without_topics(group.states, topic_ids)
            )
            for group in self
            if changes.has_any_topic(group.states, topic_ids)
        ]

    # -- states of partitions ---------------------------------------------------------------------

    def _retry_states(self, group: ShareGroup, step: GroupStep) -> None:
        """Ask once more for states that could not be made, and for all that are to be deleted.

        That is done in an epoch of its own, in which the attempt that may still be under way comes
        too late: it would undo what has been read by then. Nothing is done while one of the topics
        is no more and its states have not been forgotten yet.
        """
        group_id, states = group.group_id, group.states
        wanted = changes.intersection(states.initializing, self._failed.get(group_id, {}))
        topic_ids = wanted.keys() | states.deleting.keys()
        if any(step.topics.name_of(topic_id) is None for topic_id in topic_ids):
            self._schedule_state_retry(group_id, step)
            return
        self._failed.pop(group_id, None)
        if wanted:
            builder = ShareTargetAssignmentBuilder(group)
            epoch = start_epoch(builder, step)
            step.send(initialize_states(group_id, epoch, wanted))
            assign_if_due(builder, epoch, step)
        if states.deleting:
            step.send(DeleteStates(group_id, changes.all_partitions(states.deleting, step.topics)))

    @staticmethod
    def _schedule_state_retry(group_id: str, step: GroupStep) -> None:
        step.set_timer(states_key(group_id), step.now_ms + STATE_RETRY_MS)

    def _await_report(self, command: Command, group_id: str, answer: _OnStateReport) -> None:
        if command.request_id != NO_REQUEST:
            self._awaiting_report[command.request_id] = (group_id, answer)

    def _on_state_report(self, request_id: int, outcomes: Outcomes, step: GroupStep) -> None:
        found = self._awaiting_report.pop(request_id, None)
        if found is not None:
            found[1](outcomes, step)

    def _states_initialized(self, command: Command, step: GroupStep) -> None:
        report = command.request
        assert isinstance(report, StatesInitialized)
        group = self.get(report.group_id)
        if group is not None:
            builder = ShareTargetAssignmentBuilder(group)
            made, failed = changes.split_outcomes(report.outcomes, step.topics)
            store_states(builder, changes.initialized(builder.states, made), step)
            if failed:
                known = self._failed.get(group.group_id, {})
                self._failed[group.group_id] = changes.union(known, failed)
                self._schedule_state_retry(group.group_id, step)
            if made and builder.members:
                # Members wait for nothing else: they are not made to wait for the interval, too.
                assign_now(builder, start_epoch(builder, step), step)
                self._note(group, step, "partitions have been made ready")
        self._on_state_report(report.request_id, report.outcomes, step)
        step.reply(command.request_id, None)

    def _states_deleted(self, command: Command, step: GroupStep) -> None:
        report = command.request
        assert isinstance(report, StatesDeleted)
        group = self.get(report.group_id)
        if group is not None:
            builder = ShareTargetAssignmentBuilder(group)
            gone = {
                topic_id
                for topic_id in report.outcomes.keys() & group.states.deleting.keys()
                if changes.first_error({topic_id: report.outcomes[topic_id]}) is ErrorCode.NONE
            }
            store_states(builder, changes.without_topics(builder.states, gone), step)
            if not report.outcomes.keys() <= gone:
                self._schedule_state_retry(group.group_id, step)
            if builder.members:
                ask_for_states(builder, group.epoch, step)
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
        """Have the group begin anew at these offsets, with members or without; returns the state
        epoch in which that is. Answered with StatesRestarted, which is the shard's to hear."""
        group = self._groups[group_id]
        builder, before = ShareTargetAssignmentBuilder(group), len(step.records)
        epoch = start_epoch(builder, step)
        assign_now(builder, epoch, step)
        self._note(group, step, why, after=before)
        step.send(RestartStates(group_id, epoch, offsets))
        return epoch

    def restarted(self, group_id: str, outcomes: Outcomes, step: GroupStep) -> None:
        """Write that these partitions have a state, if they had none."""
        builder = ShareTargetAssignmentBuilder(self._groups[group_id])
        made, _ = changes.split_outcomes(outcomes, step.topics)
        store_states(builder, changes.initialized(builder.states, made), step)

    def _find_states(self, command: Command, step: GroupStep) -> None:
        request = command.request
        assert isinstance(request, FindShareStates)
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

    def _alter_offsets(self, command: Command, step: GroupStep) -> None:
        request = command.request
        assert isinstance(request, AlterShareGroupOffsetsRequest)
        group_id = request.group_id
        try:
            if self.get(group_id) is None:
                self._check_group_id_free(group_id)
                group = ShareGroup(group_id, Timeline())
            else:
                group = self._empty_group(group_id)
                if group.states.deleting:
                    # What is set now would be deleted with what was there before.
                    message = "Offsets of the group are being deleted."
                    raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, message)
        except ApiError as error:
            response = AlterShareGroupOffsetsResponse(
                error_code=error.code, error_message=error.message
            )
            step.reply(command.request_id, response)
            return
        plan = OffsetAlteration.of(request, step.topics)
        if not plan.offsets:
            step.reply(command.request_id, alter_response(request, plan, {}, step.topics))
            return
        # A group that is not there yet comes to be with its offsets.
        builder = ShareTargetAssignmentBuilder(group)
        epoch = start_epoch(builder, step)
        assign_now(builder, epoch, step)

        def answer(outcomes: Outcomes, later: GroupStep) -> None:
            later.reply(command.request_id, alter_response(request, plan, outcomes, later.topics))

        self._await_report(command, group_id, answer)
        step.send(InitializeStates(group_id, epoch, plan.offsets, command.request_id))

    def _delete_offsets(self, command: Command, step: GroupStep) -> None:
        request = command.request
        assert isinstance(request, DeleteShareGroupOffsetsRequest)
        try:
            group = self._empty_group(request.group_id)
        except ApiError as error:
            response = DeleteShareGroupOffsetsResponse(
                error_code=error.code, error_message=error.message
            )
            step.reply(command.request_id, response)
            return
        plan = OffsetDeletion.of(request, group.states, step.topics)
        if not plan.names:
            step.reply(command.request_id, delete_response(request, plan, {}))
            return
        topics = self._begin_deletion(group, plan.names, step)

        def answer(outcomes: Outcomes, later: GroupStep) -> None:
            later.reply(command.request_id, delete_response(request, plan, outcomes))

        self._await_report(command, group.group_id, answer)
        step.send(DeleteStates(group.group_id, topics, command.request_id))

    def _begin_deletion(
        self, group: ShareGroup, names: Mapping[Uuid, str], step: GroupStep
    ) -> dict[Uuid, frozenset[int]]:
        """Write that the states of these topics go; returns the partitions to delete them of."""
        topics = {}
        states = group.states
        for topic_id, name in names.items():
            digest = step.topics.topic(name)
            is_it = digest is not None and digest.topic_id == topic_id
            existing = range(digest.partition_count if is_it and digest is not None else 0)
            topics[topic_id] = (
                changes.indexes_of(states.initializing, topic_id)
                | changes.indexes_of(states.initialized, topic_id)
                | frozenset(existing if topic_id in states.deleting else ())
            )
        builder = ShareTargetAssignmentBuilder(group)
        store_states(builder, changes.deleting(states, names), step)
        return topics

    def has_states(self, group_id: str) -> bool:
        """Whether states must be deleted before the group can be."""
        return not changes.is_blank(self._groups[group_id].states)

    def maybe_delete_states(self, group_id: str, step: GroupStep) -> bool:
        """Whether the group, if it is one of these, has states to be deleted before its end; then
        that is begun."""
        if group_id not in self or not self.has_states(group_id):
            return False
        group = self._groups[group_id]
        topics = self._begin_deletion(group, changes.names_of(group.states), step)
        step.send(DeleteStates(group_id, topics))
        return True

    def delete(self, command: Command, request: DeleteGroup, step: GroupStep) -> None:
        """Delete a group without members, and its states before."""
        group = self._groups[request.group_id]
        topics = self._begin_deletion(group, changes.names_of(group.states), step)

        def answer(outcomes: Outcomes, later: GroupStep) -> None:
            later.reply(command.request_id, self._finish_deletion(group, outcomes, later))

        self._await_report(command, group.group_id, answer)
        step.send(DeleteStates(group.group_id, topics, command.request_id))

    def _finish_deletion(
        self, group: ShareGroup, outcomes: Outcomes, step: GroupStep
    ) -> DeletableGroupResult:
        error = changes.first_error(outcomes)
        has_begun_anew = bool(group.states.initializing or group.states.initialized)
        if error is ErrorCode.NONE and (has_begun_anew or not group.is_empty):
            error = ErrorCode.NON_EMPTY_GROUP
        if error is ErrorCode.NONE and group.exists:
            step.records += self._extra_tombstones(group.group_id)
            step.records += self.tombstones(group.group_id)
            step.cancel_timer(states_key(group.group_id))
        return deleted_group(group.group_id, error)

    def _describe(self, command: Command, step: GroupStep) -> None:
        request = command.request
        assert isinstance(request, DescribeShareGroup)
        group_id = request.group_id
        group = self.get(group_id)
        if group is None:
            described = not_a_share_group(
                group_id, exists=self._group_type_of(group_id) is not None
            )
        else:
            described = describe(group, step.topics)
        step.reply(command.request_id, described)
