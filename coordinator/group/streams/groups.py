"""All streams groups (KIP-1071) of one shard.

State that determines tasks is stored in the log, other state is in `transient_state`. Timers are
those of all newer groups (`modern.group_type`). Called by `shard`, as one of its group types.
"""

from collections.abc import Collection, Mapping
from typing import Final

from odradek.coordinator.group.classic.groups import GROUP_TYPE_CLASSIC, ClassicGroups
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
    leave_static,
    remove_members,
    unknown_member,
)
from odradek.coordinator.group.requests import UpdateTopics
from odradek.coordinator.group.step import GroupStep
from odradek.coordinator.group.streams import heartbeats
from odradek.coordinator.group.streams.group import StreamsGroup
from odradek.coordinator.group.streams.requests import DescribeStreamsGroup, StreamsHeartbeatResult
from odradek.coordinator.group.streams.responses import (
    DescriptionStatus,
    described,
    heartbeat_response,
)
from odradek.coordinator.group.streams.target_assignment import StreamsTargetAssignmentBuilder
from odradek.coordinator.group.streams.topology import check_description, topic_names
from odradek.coordinator.group.streams.transient_state import OFFSET_INTERVAL_MS, TransientState
from odradek.coordinator.group.streams.warmups import ACCEPTABLE_LAG
from odradek.coordinator.outcome import Command
from odradek.coordinator.timeline import Timeline
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.streams import (
    StreamsGroupDescribedGroup,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    StreamsGroupTopologyDescriptionUpdateRequest,
    StreamsGroupTopologyDescriptionUpdateResponse,
)

_DESCRIPTIONS_SINCE: Final = 1


class StreamsGroups(GroupType[StreamsGroup]):
    """See the module's docstring, and GroupType. An Empty classic group may become one of these."""

    def __init__(
        self, timeline: Timeline, group_type_of: GroupTypeOf, classic: ClassicGroups
    ) -> None:
        super().__init__(timeline, StreamsGroup)
        self._group_type_of = group_type_of
        self._classic = classic
        self._transient: dict[str, TransientState] = {}
        self.handlers: Mapping[type, GroupTypeHandler] = {
            StreamsGroupHeartbeatRequest: with_error_response(
                self._heartbeat,
                lambda **error: StreamsHeartbeatResult(StreamsGroupHeartbeatResponse(**error)),
            ),
            DescribeStreamsGroup: self._describe,
            StreamsGroupTopologyDescriptionUpdateRequest: with_error_response(
                self._update_description, StreamsGroupTopologyDescriptionUpdateResponse
            ),
        }

    def on_loaded(self, step: GroupStep) -> None:
        """See GroupType."""
        super().on_loaded(step)
        for group in self:
            group.expect_lost_responses()

    def _on_dropped(self, group_id: str) -> None:
        self._transient.pop(group_id, None)

    def topic_names(self, group_id: str) -> frozenset[str]:
        """See GroupType: the topics that its tasks read."""
        group = self._groups[group_id]
        topology = group.topology
        if group.is_empty or topology is None:
            return frozenset()
        return frozenset(name for part in topology.subtopologies for name in part.sources())

    def _builder(self, group: StreamsGroup) -> StreamsTargetAssignmentBuilder:
        inputs = self._transient_of(group.group_id).assignment_inputs()
        return StreamsTargetAssignmentBuilder(group, group.topology, inputs)

    def _transient_of(self, group_id: str) -> TransientState:
        """The state of the group; a new one that is not stored if it has none."""
        return self._transient.get(group_id) or TransientState()

    # -- members ----------------------------------------------------------------------------------

    def _heartbeat(
        self, command: Command, request: StreamsGroupHeartbeatRequest, step: GroupStep
    ) -> None:
        heartbeats.check(request)
        if request.member_epoch >= JOIN_GROUP_EPOCH:
            answer = self._member_heartbeat(command, request, step)
        else:
            answer = StreamsHeartbeatResult(self._leave(command, request, step))
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

    def _become(self, request: StreamsGroupHeartbeatRequest) -> StreamsGroup:
        """A group for its first member, as the step's records will make it."""
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
        return self.not_found(group_id, is_other_type=self._group_type_of(group_id) is not None)

    def _leave(
        self, command: Command, request: StreamsGroupHeartbeatRequest, step: GroupStep
    ) -> StreamsGroupHeartbeatResponse:
        group = self.get(request.group_id)
        if group is None:
            raise self._no_group(request.group_id)
        member_id = request.member_id
        check_member(group, member_id, request.instance_id)
        if request.shutdown_application:
            self._transient.setdefault(group.group_id, TransientState()).request_shutdown(member_id)
        if request.member_epoch == LEAVE_GROUP_EPOCH:
            self._remove(group, [member_id], step)
        else:
            leave_static(group, member_id, step)
        if step.records:
            self._note(group, step, heartbeat_reason(command, request.member_epoch))
        return StreamsGroupHeartbeatResponse(
            member_id=member_id, member_epoch=request.member_epoch, status=[]
        )

    def _remove(self, group: StreamsGroup, member_ids: Collection[str], step: GroupStep) -> None:
        builder = self._builder(group)
        builder.is_validating = False
        remove_members(builder, member_ids, step)
        transient = self._transient.get(group.group_id)
        if transient is not None:
            for member_id in member_ids:
                transient.forget(member_id)
            if group.member_count == len(member_ids):
                del self._transient[group.group_id]

    # -- timers and topics ------------------------------------------------------------------------

    def _assign(self, group: StreamsGroup, step: GroupStep) -> None:
        if group.topology is not None and not group.is_empty:
            self._builder(group).assign_now(group.stored_epoch, step)

    def _update_topics(self, group: StreamsGroup, request: UpdateTopics, step: GroupStep) -> None:
        topology = group.topology
        if topology is None or (
            request.names is not None and request.names.isdisjoint(topic_names(topology))
        ):
            return
        configured = group.configured(topology, step.topics)
        stored = group.stored_epoch
        was_ready = stored.validated_topology_epoch == topology.epoch
        if (configured.metadata_hash, configured.is_ready) != (stored.metadata_hash, was_ready):
            builder = self._builder(group)
            builder.assign_if_due(builder.start_epoch(step), step)

    # -- offsets and administration ---------------------------------------------------------------

    def _describe(self, command: Command, request: DescribeStreamsGroup, step: GroupStep) -> None:
        group = self.get(request.group_id)
        if group is None:
            error = self._no_group(request.group_id)
            answer = StreamsGroupDescribedGroup(
                group_id=request.group_id, error_code=error.code, error_message=error.message
            )
        else:
            transient, topology = self._transient_of(request.group_id), group.topology
            answer = described(group, transient, step)
            if request.with_description:
                known = None if topology is None else transient.description(topology.epoch)
                answer.topology_description = known
                answer.topology_description_status = (
                    DescriptionStatus.NOT_STORED if known is None else DescriptionStatus.AVAILABLE
                )
        step.reply(command.request_id, answer)

    def _update_description(
        self,
        command: Command,
        request: StreamsGroupTopologyDescriptionUpdateRequest,
        step: GroupStep,
    ) -> None:
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
        step.reply(command.request_id, StreamsGroupTopologyDescriptionUpdateResponse())
