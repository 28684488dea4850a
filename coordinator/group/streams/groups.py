"""All streams groups (KIP-1071) of one shard: finds the group, lets it decide, keeps its timers.

Whatever decides about tasks stands in the log, so that loading it is replaying it: members go on
where they were, each with a whole session. What only passes through is in `streams.soft`.

| Timer | Set | When it is due |
|---|---|---|
| streams-session | with every heartbeat | the member is removed |
| streams-revocation | when a member is to give up tasks | it is removed if it still is |
| streams-assignment | when a target assignment is put off | it is made, if all topics are known |

Called by `shard`.
"""

from collections.abc import Collection, Mapping
from typing import Final, get_args

from odradek.coordinator.group.classic.groups import GROUP_TYPE_CLASSIC, ClassicGroups
from odradek.coordinator.group.consumer.heartbeats import JOIN_GROUP_EPOCH, LEAVE_GROUP_EPOCH
from odradek.coordinator.group.group_record import GroupRecord
from odradek.coordinator.group.modern.event_history import EventHistory, heartbeat_reason
from odradek.coordinator.group.modern.group_table import GroupTable
from odradek.coordinator.group.modern.group_type import GroupTypeHandler, GroupTypeOf
from odradek.coordinator.group.modern.member_checks import check_instance_id, unknown_member
from odradek.coordinator.group.requests import UpdateTopics
from odradek.coordinator.group.step import (
    GroupStep,
)
from odradek.coordinator.group.streams import heartbeats
from odradek.coordinator.group.streams.group import StreamsGroup
from odradek.coordinator.group.streams.records import (
    StreamsCurrentRecord,
    StreamsEpochRecord,
    StreamsGroupRecord,
    StreamsMemberRecord,
    StreamsMemberState,
    StreamsTargetEpochRecord,
    StreamsTargetRecord,
    StreamsTopologyRecord,
)
from odradek.coordinator.group.streams.requests import DescribeStreamsGroup, StreamsHeartbeatResult
from odradek.coordinator.group.streams.responses import (
    DescriptionStatus,
    described,
    heartbeat_response,
)
from odradek.coordinator.group.streams.target_assignment import (
    AssignmentInputs,
    StreamsTargetAssignmentBuilder,
    assign_if_due,
    assign_now,
    assignment_key,
    revocation_key,
    start_epoch,
)
from odradek.coordinator.group.streams.topology import check_description, topic_names
from odradek.coordinator.group.streams.transient_state import OFFSET_INTERVAL_MS, TransientState
from odradek.coordinator.group.streams.warmups import ACCEPTABLE_LAG
from odradek.coordinator.outcome import Command, TimerKey
from odradek.coordinator.timeline import Timeline
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.group_offsets import OffsetCommitRequest
from odradek.protocol.messages.groups import ListedGroup
from odradek.protocol.messages.streams import (
    StreamsGroupDescribedGroup,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    StreamsGroupTopologyDescriptionUpdateRequest,
    StreamsGroupTopologyDescriptionUpdateResponse,
)

GROUP_TYPE_STREAMS: Final = "streams"
PROTOCOL_TYPE_STREAMS: Final = "streams"
_COMMITS_SINCE: Final = 9
_DESCRIPTIONS_SINCE: Final = 1


class StreamsGroups(GroupTable[StreamsGroup, StreamsGroupRecord]):
    """See the module's docstring. A Family; an Empty classic group may become one of these."""

    group_type = GROUP_TYPE_STREAMS
    is_kept_empty = False
    record_types = get_args(StreamsGroupRecord)
    timer_kinds = frozenset({"streams-assignment", "streams-revocation", "streams-session"})

    def __init__(
        self, timeline: Timeline, group_type_of: GroupTypeOf, classic: ClassicGroups
    ) -> None:
        super().__init__(timeline, StreamsGroup)
        self._group_type_of = group_type_of
        self._classic = classic
        self.events = EventHistory()
        self._transient: dict[str, TransientState] = {}
        self.handlers: Mapping[type, GroupTypeHandler] = {
            StreamsGroupHeartbeatRequest: self._heartbeat,
            DescribeStreamsGroup: self._describe,
            StreamsGroupTopologyDescriptionUpdateRequest: self._update_description,
        }

    # -- the log ----------------------------------------------------------------------------------

    def replay(self, record: StreamsGroupRecord) -> None:
        """See Family."""
        for group_id in self._replay_record(record):
            self._transient.pop(group_id, None)
        if type(record) is StreamsEpochRecord and record.epoch is None:
            self.events.forget(record.group_id)

    def on_loaded(self, step: GroupStep) -> None:
        """Every member gets a whole session: how long it was silent is not known."""
        for group in self._groups.values():
            self._schedule_timers(group, step)
            self.events.add_loaded(group, step.now_ms)

    def on_append_failed(self, group_ids: Collection[str], step: GroupStep) -> None:
        """See Family: timers that were moved or cancelled meanwhile are set again."""
        for group_id in group_ids:
            group = self.get(group_id)
            if group is not None:
                self._schedule_timers(group, step)
            else:
                self._transient.pop(group_id, None)
                self._drop_unless_stored(group_id)

    @staticmethod
    def _schedule_timers(group: StreamsGroup, step: GroupStep) -> None:
        for member_id, member in group.members():
            heartbeats.refresh(group.group_id, member_id, step)
            if group.current(member_id).state is StreamsMemberState.UNREVOKED_TASKS:
                key = revocation_key(group.group_id, member_id)
                step.set_timer(key, step.now_ms + member.rebalance_timeout_ms)
        if group.epoch > group.target_epoch and not group.is_empty:
            step.set_timer(assignment_key(group.group_id), step.now_ms)

    # -- finding groups ---------------------------------------------------------------------------

    def topic_names(self, group_id: str) -> frozenset[str]:
        """See Family: the topics that its tasks read."""
        group = self._groups[group_id]
        topology = group.topology
        if group.is_empty or topology is None:
            return frozenset()
        return frozenset(name for part in topology.subtopologies for name in part.sources())

    def tombstones(self, group_id: str) -> list[GroupRecord]:
        """See Family. Kafka reads them in this order only."""
        members = [member_id for member_id, _ in self._groups[group_id].members()]
        return [
            *(StreamsCurrentRecord(group_id, member_id, None) for member_id in members),
            *(StreamsTargetRecord(group_id, member_id, None) for member_id in members),
            StreamsTargetEpochRecord(group_id, None),
            *(StreamsMemberRecord(group_id, member_id, None) for member_id in members),
            StreamsEpochRecord(group_id, None),
            StreamsTopologyRecord(group_id, None),
        ]

    def listed(self, group_id: str) -> ListedGroup:
        """See Family."""
        return ListedGroup(
            group_id=group_id,
            protocol_type=PROTOCOL_TYPE_STREAMS,
            group_state=self._groups[group_id].state,
            group_type=self.group_type,
        )

    def _known(self, group_id: str) -> AssignmentInputs:
        transient = self._transient.get(group_id)
        return AssignmentInputs() if transient is None else transient.assignment_inputs()

    # -- members ----------------------------------------------------------------------------------

    def _heartbeat(self, command: Command, step: GroupStep) -> None:
        request = command.request
        assert isinstance(request, StreamsGroupHeartbeatRequest)
        try:
            heartbeats.check(request)
            if request.member_epoch >= JOIN_GROUP_EPOCH:
                answer = self._member_heartbeat(command, request, step)
            else:
                answer = StreamsHeartbeatResult(self._leave(command, request, step))
        except ApiError as error:
            step.records.clear()
            step.timers.clear()
            answer = StreamsHeartbeatResult(
                StreamsGroupHeartbeatResponse(error_code=error.code, error_message=error.message)
            )
        step.reply(command.request_id, answer)

    def _member_heartbeat(
        self, command: Command, request: StreamsGroupHeartbeatRequest, step: GroupStep
    ) -> StreamsHeartbeatResult:
        group_id = request.group_id
        group = self.get(group_id) or self._become(request)
        transient = self._transient.get(group_id) or TransientState()
        if group.is_empty:
            delay_ms = step.settings.streams_of(group_id).initial_rebalance_delay_ms
            transient.start_initial_delay(step.now_ms + delay_ms)
        if request.member_epoch == JOIN_GROUP_EPOCH or group.member(request.member_id) is not None:
            transient.update_task_offsets(request)
        try:
            result = heartbeats.heartbeat(
                group, command, request, transient.assignment_inputs(), step
            )
        except ApiError:
            if group.member(request.member_id) is None:
                transient.forget(request.member_id)
            raise
        transient.update(request, result)
        self._transient[group_id] = transient
        if step.records:
            self._note(group, step, heartbeat_reason(command, request.member_epoch))
        if not group.exists and self._classic.group(group_id) is not None:
            self._classic.end(group_id, step)
        response = heartbeat_response(group, request, result, transient, step)
        if command.api_version >= _DESCRIPTIONS_SINCE:
            response.topology_description_required = transient.request_description(
                result, step.now_ms
            )
            response.acceptable_recovery_lag = ACCEPTABLE_LAG
            response.task_offset_interval_ms = OFFSET_INTERVAL_MS
        return StreamsHeartbeatResult(
            response, () if result.topology_error is None else result.configured.missing
        )

    def _note(
        self,
        group: StreamsGroup,
        step: GroupStep,
        why: str,
        *,
        after: int = 0,
        is_expired: bool = False,
    ) -> None:
        """What the records of this step, but the first `after`, mean for the group."""
        self.events.note(group, step.records[after:], step.now_ms, why, is_expired=is_expired)

    def _become(self, request: StreamsGroupHeartbeatRequest) -> StreamsGroup:
        """A group for its first member: what the step's records will make of it."""
        group_id = request.group_id
        kind = self._group_type_of(group_id)
        classic = self._classic.group(group_id) if kind == GROUP_TYPE_CLASSIC else None
        is_free = kind is None or (
            kind == GROUP_TYPE_CLASSIC and (classic is None or classic.is_empty)
        )
        if request.member_epoch != JOIN_GROUP_EPOCH or not is_free:
            raise self._no_group(group_id)
        return StreamsGroup(group_id, Timeline())

    def _no_group(self, group_id: str) -> ApiError:
        is_other = self._group_type_of(group_id) is not None
        what = "is not a streams group" if is_other else "not found"
        return ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {what}.")

    def _leave(
        self, command: Command, request: StreamsGroupHeartbeatRequest, step: GroupStep
    ) -> StreamsGroupHeartbeatResponse:
        group = self.get(request.group_id)
        if group is None:
            raise self._no_group(request.group_id)
        member_id = request.member_id
        check_instance_id(group, member_id, request.instance_id)
        if group.member(member_id) is None:
            raise unknown_member(group.group_id, member_id)
        if request.shutdown_application:
            self._transient.setdefault(group.group_id, TransientState()).request_shutdown(member_id)
        if request.member_epoch == LEAVE_GROUP_EPOCH:
            self._remove(group, member_id, step)
        else:
            heartbeats.leave_static(group, member_id, step)
        self._note(group, step, heartbeat_reason(command, request.member_epoch))
        return StreamsGroupHeartbeatResponse(
            member_id=member_id, member_epoch=request.member_epoch, status=[]
        )

    def _remove(self, group: StreamsGroup, member_id: str, step: GroupStep) -> None:
        heartbeats.remove(group, [member_id], self._known(group.group_id), step)
        transient = self._transient.get(group.group_id)
        if transient is not None:
            transient.forget(member_id)
            if group.member_count == 1:
                del self._transient[group.group_id]

    # -- timers and topics ------------------------------------------------------------------------

    def fire(self, key: TimerKey, step: GroupStep) -> None:
        """See Family."""
        group = self.get(key[1])
        if group is None:
            return
        if key[0] == "streams-assignment":
            topology = group.topology
            if topology is not None and group.epoch > group.target_epoch and not group.is_empty:
                configured = group.configured(topology, step.topics)
                known = self._known(group.group_id)
                assign_now(
                    group,
                    group.stored_epoch,
                    configured,
                    StreamsTargetAssignmentBuilder(group),
                    known,
                    step,
                )
                self._note(group, step, "it was due")
            return
        member_id = key[2]
        member = group.member(member_id)
        if member is None:
            return
        timeout_ms = step.settings.streams_of(group.group_id).session_timeout_ms
        why = f"no heartbeat for {timeout_ms} ms"
        if key[0] == "streams-revocation":
            if group.current(member_id).state is not StreamsMemberState.UNREVOKED_TASKS:
                return
            why = f"did not give up its tasks within {member.rebalance_timeout_ms} ms"
        self._remove(group, member_id, step)
        self._note(group, step, f"{member_id} {why}", is_expired=True)

    def update_topics(self, request: UpdateTopics, step: GroupStep) -> None:
        """See Family: an epoch starts in every group whose topics are not what they were."""
        for group in self._groups.values():
            topology = group.topology
            if not group.exists or group.is_empty or topology is None:
                continue
            if request.names is not None and request.names.isdisjoint(topic_names(topology)):
                continue
            configured = group.configured(topology, step.topics)
            stored = group.stored_epoch
            was_ready = stored.validated_topology_epoch == topology.epoch
            if configured.metadata_hash == stored.metadata_hash and (
                configured.is_ready == was_ready
            ):
                continue
            before = len(step.records)
            epoch = start_epoch(group, topology, configured, step)
            known = self._known(group.group_id)
            assign_if_due(
                group, epoch, configured, StreamsTargetAssignmentBuilder(group), known, step
            )
            self._note(group, step, "topics have changed", after=before)

    # -- offsets and administration ---------------------------------------------------------------

    def commit_error(self, request: OffsetCommitRequest, version: int) -> ErrorCode:
        """See Family.

        A member may be an epoch behind when its commit arrives; what it commits counts for
        tasks that it has had since before that epoch.
        """
        group = self._groups[request.group_id]
        member_id, epoch = request.member_id, request.generation_id_or_member_epoch
        if epoch < 0 and group.is_empty:
            return ErrorCode.NONE
        if group.member(member_id) is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if version < _COMMITS_SINCE:
            return ErrorCode.UNSUPPORTED_VERSION
        current = group.current(member_id)
        if epoch == current.member_epoch:
            return ErrorCode.NONE
        topology = group.topology
        if epoch < 0 or epoch > current.member_epoch or topology is None:
            return ErrorCode.STALE_MEMBER_EPOCH
        reader_of = {
            name: part.subtopology_id for part in topology.subtopologies for name in part.sources()
        }
        for topic in request.topics:
            subtopology = reader_of.get(topic.name, "")
            since = {
                **current.pending_revocation.active.get(subtopology, {}),
                **current.assigned.active.get(subtopology, {}),
            }
            for partition in topic.partitions:
                known = since.get(partition.partition_index)
                if known is None or not 0 <= known <= epoch:
                    return ErrorCode.STALE_MEMBER_EPOCH
        return ErrorCode.NONE

    def fetch_error(self, group_id: str, member_id: str | None, member_epoch: int) -> ErrorCode:
        """See Family; administrators are nobody at epoch -1."""
        if member_id is None and member_epoch < 0:
            return ErrorCode.NONE
        group = self._groups[group_id]
        if group.member(member_id or "") is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if group.current(member_id or "").member_epoch != member_epoch:
            return ErrorCode.STALE_MEMBER_EPOCH
        return ErrorCode.NONE

    def _describe(self, command: Command, step: GroupStep) -> None:
        request = command.request
        assert isinstance(request, DescribeStreamsGroup)
        group = self.get(request.group_id)
        if group is None:
            error = self._no_group(request.group_id)
            answer = StreamsGroupDescribedGroup(
                group_id=request.group_id, error_code=error.code, error_message=error.message
            )
        else:
            answer = described(
                group, self._transient.get(request.group_id) or TransientState(), step
            )
            if request.with_description:
                self._add_description(group, answer)
        step.reply(command.request_id, answer)

    def _add_description(self, group: StreamsGroup, answer: StreamsGroupDescribedGroup) -> None:
        transient, topology = self._transient.get(group.group_id), group.topology
        if transient is not None and topology is not None:
            answer.topology_description = transient.description(topology.epoch)
        is_there = answer.topology_description is not None
        answer.topology_description_status = (
            DescriptionStatus.AVAILABLE if is_there else DescriptionStatus.NOT_STORED
        )

    def _update_description(self, command: Command, step: GroupStep) -> None:
        request = command.request
        assert isinstance(request, StreamsGroupTopologyDescriptionUpdateRequest)
        response = StreamsGroupTopologyDescriptionUpdateResponse()
        try:
            self._store_description(request)
        except ApiError as error:
            response.error_code, response.error_message = error.code, error.message
        step.reply(command.request_id, response)

    def _store_description(self, request: StreamsGroupTopologyDescriptionUpdateRequest) -> None:
        group_id = request.group_id
        group = self.get(group_id)
        if group is None:
            raise self._no_group(group_id)
        if group.member(request.member_id) is None:
            raise unknown_member(group.group_id, request.member_id)
        epoch = -1 if group.topology is None else group.topology.epoch
        if request.topology_epoch != epoch:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"Topology epoch {request.topology_epoch} does not match the group's current"
                f" topology epoch {epoch}.",
            )
        check_description(request.topology_description)
        transient = self._transient.setdefault(group_id, TransientState())
        transient.store_description(epoch, request.topology_description)
