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
from odradek.coordinator.group.consumer.assigning import ConsumerStep
from odradek.coordinator.group.consumer.heartbeats import JOIN, LEAVE
from odradek.coordinator.group.family import FamilyHandler, Occupant
from odradek.coordinator.group.group_table import GroupTable
from odradek.coordinator.group.known_members import check_instance, unknown_member
from odradek.coordinator.group.recorded_events import RecordedEvents, why_of_beat
from odradek.coordinator.group.records import GroupRecord
from odradek.coordinator.group.requests import DescribeStreamsGroup, FollowTopics, StreamsAnswer
from odradek.coordinator.group.streams import heartbeats
from odradek.coordinator.group.streams.answers import (
    DescriptionStatus,
    described,
    heartbeat_response,
)
from odradek.coordinator.group.streams.assigning import (
    Knowledge,
    Roll,
    assign_if_due,
    assign_now,
    assignment_key,
    revocation_key,
    start_epoch,
)
from odradek.coordinator.group.streams.group import StreamsGroup
from odradek.coordinator.group.streams.records import (
    StreamsCurrentStored,
    StreamsEpochStored,
    StreamsGroupRecord,
    StreamsMemberState,
    StreamsMemberStored,
    StreamsTargetEpochStored,
    StreamsTargetStored,
    TopologyStored,
)
from odradek.coordinator.group.streams.soft import OFFSET_INTERVAL_MS, SoftState
from odradek.coordinator.group.streams.topology import check_description, topic_names
from odradek.coordinator.group.streams.warmups import ACCEPTABLE_LAG
from odradek.coordinator.outcome import Command, TimerKey
from odradek.coordinator.timeline import Timeline
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.group_offsets import OffsetCommitRequest
from odradek.protocol.messages.groups import ListedGroup
from odradek.protocol.messages.streams import (
    DescribedGroup,
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

    def __init__(self, timeline: Timeline, occupant: Occupant, classic: ClassicGroups) -> None:
        super().__init__(timeline, StreamsGroup)
        self._occupant = occupant
        self._classic = classic
        self.events = RecordedEvents()
        self._soft: dict[str, SoftState] = {}
        self.handlers: Mapping[type, FamilyHandler] = {
            StreamsGroupHeartbeatRequest: self._heartbeat,
            DescribeStreamsGroup: self._describe,
            StreamsGroupTopologyDescriptionUpdateRequest: self._take_description,
        }

    # -- the log ----------------------------------------------------------------------------------

    def replay(self, record: StreamsGroupRecord) -> None:
        """See Family."""
        for group_id in self._change(record):
            self._soft.pop(group_id, None)
        if type(record) is StreamsEpochStored and record.epoch is None:
            self.events.forget(record.group_id)

    def on_loaded(self, step: ConsumerStep) -> None:
        """Every member gets a whole session: how long it was silent is not known."""
        for group in self._groups.values():
            self._arm(group, step)
            self.events.note_loaded(group, step.now_ms)

    def on_append_failed(self, group_ids: Collection[str], step: ConsumerStep) -> None:
        """See Family: timers that were moved or cancelled meanwhile are set again."""
        for group_id in group_ids:
            group = self.get(group_id)
            if group is not None:
                self._arm(group, step)
            else:
                self._soft.pop(group_id, None)
                self._look_at_end(group_id)

    @staticmethod
    def _arm(group: StreamsGroup, step: ConsumerStep) -> None:
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
            *(StreamsCurrentStored(group_id, member_id, None) for member_id in members),
            *(StreamsTargetStored(group_id, member_id, None) for member_id in members),
            StreamsTargetEpochStored(group_id, None),
            *(StreamsMemberStored(group_id, member_id, None) for member_id in members),
            StreamsEpochStored(group_id, None),
            TopologyStored(group_id, None),
        ]

    def listed(self, group_id: str) -> ListedGroup:
        """See Family."""
        return ListedGroup(
            group_id=group_id,
            protocol_type=PROTOCOL_TYPE_STREAMS,
            group_state=self._groups[group_id].state,
            group_type=self.group_type,
        )

    def _known(self, group_id: str) -> Knowledge:
        soft = self._soft.get(group_id)
        return Knowledge() if soft is None else soft.knowledge()

    # -- members ----------------------------------------------------------------------------------

    def _heartbeat(self, command: Command, step: ConsumerStep) -> None:
        request = command.request
        assert isinstance(request, StreamsGroupHeartbeatRequest)
        try:
            heartbeats.check(request)
            if request.member_epoch >= JOIN:
                answer = self._beat(command, request, step)
            else:
                answer = StreamsAnswer(self._leave(command, request, step))
        except ApiError as error:
            step.records.clear()
            step.timers.clear()
            answer = StreamsAnswer(
                StreamsGroupHeartbeatResponse(error_code=error.code, error_message=error.message)
            )
        step.reply(command.request_id, answer)

    def _beat(
        self, command: Command, request: StreamsGroupHeartbeatRequest, step: ConsumerStep
    ) -> StreamsAnswer:
        group_id = request.group_id
        group = self.get(group_id) or self._become(request)
        soft = self._soft.get(group_id) or SoftState()
        if group.is_empty:
            delay_ms = step.settings.streams_of(group_id).initial_rebalance_delay_ms
            soft.start(step.now_ms + delay_ms)
        if request.member_epoch == JOIN or group.member(request.member_id) is not None:
            soft.hear_offsets(request)
        try:
            done = heartbeats.beat(group, command, request, soft.knowledge(), step)
        except ApiError:
            if group.member(request.member_id) is None:
                soft.forget(request.member_id)
            raise
        soft.hear(request, done)
        self._soft[group_id] = soft
        if step.records:
            self._note(group, step, why_of_beat(command, request.member_epoch))
        if not group.exists and self._classic.group(group_id) is not None:
            self._classic.end(group_id, step)
        response = heartbeat_response(group, request, done, soft, step)
        if command.api_version >= _DESCRIPTIONS_SINCE:
            response.topology_description_required = soft.asks_for_description(done, step.now_ms)
            response.acceptable_recovery_lag = ACCEPTABLE_LAG
            response.task_offset_interval_ms = OFFSET_INTERVAL_MS
        return StreamsAnswer(response, () if done.trouble is None else done.configured.missing)

    def _note(self, group: StreamsGroup, step: ConsumerStep, why: str, *, after: int = 0) -> None:
        """What the records of this step, but the first `after`, mean for the group."""
        self.events.note(group, step.records[after:], step.now_ms, why)

    def _become(self, request: StreamsGroupHeartbeatRequest) -> StreamsGroup:
        """A group for its first member: what the step's records will make of it."""
        group_id = request.group_id
        kind = self._occupant(group_id)
        classic = self._classic.group(group_id) if kind == GROUP_TYPE_CLASSIC else None
        is_free = kind is None or (
            kind == GROUP_TYPE_CLASSIC and (classic is None or classic.is_empty)
        )
        if request.member_epoch != JOIN or not is_free:
            raise self._no_group(group_id)
        return StreamsGroup(group_id, Timeline())

    def _no_group(self, group_id: str) -> ApiError:
        is_other = self._occupant(group_id) is not None
        what = "is not a streams group" if is_other else "not found"
        return ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {what}.")

    def _leave(
        self, command: Command, request: StreamsGroupHeartbeatRequest, step: ConsumerStep
    ) -> StreamsGroupHeartbeatResponse:
        group = self.get(request.group_id)
        if group is None:
            raise self._no_group(request.group_id)
        member_id = request.member_id
        check_instance(group, member_id, request.instance_id)
        if group.member(member_id) is None:
            raise unknown_member(group.group_id, member_id)
        if request.shutdown_application:
            self._soft.setdefault(group.group_id, SoftState()).ask_to_shut_down(member_id)
        if request.member_epoch == LEAVE:
            self._remove(group, member_id, step)
        else:
            heartbeats.step_out(group, member_id, step)
        self._note(group, step, why_of_beat(command, request.member_epoch))
        return StreamsGroupHeartbeatResponse(
            member_id=member_id, member_epoch=request.member_epoch, status=[]
        )

    def _remove(self, group: StreamsGroup, member_id: str, step: ConsumerStep) -> None:
        heartbeats.remove(group, [member_id], self._known(group.group_id), step)
        soft = self._soft.get(group.group_id)
        if soft is not None:
            soft.forget(member_id)
            if group.member_count == 1:
                del self._soft[group.group_id]

    # -- timers and topics ------------------------------------------------------------------------

    def fire(self, key: TimerKey, step: ConsumerStep) -> None:
        """See Family."""
        group = self.get(key[1])
        if group is None:
            return
        if key[0] == "streams-assignment":
            topology = group.topology
            if topology is not None and group.epoch > group.target_epoch and not group.is_empty:
                configured = group.configured(topology, step.topics)
                known = self._known(group.group_id)
                assign_now(group, group.stored_epoch, configured, Roll(group), known, step)
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
        self._note(group, step, f"{member_id} {why}")

    def follow_topics(self, request: FollowTopics, step: ConsumerStep) -> None:
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
            assign_if_due(group, epoch, configured, Roll(group), known, step)
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

    def _describe(self, command: Command, step: ConsumerStep) -> None:
        request = command.request
        assert isinstance(request, DescribeStreamsGroup)
        group = self.get(request.group_id)
        if group is None:
            error = self._no_group(request.group_id)
            answer = DescribedGroup(
                group_id=request.group_id, error_code=error.code, error_message=error.message
            )
        else:
            answer = described(group, self._soft.get(request.group_id) or SoftState(), step)
            if request.with_description:
                self._add_description(group, answer)
        step.reply(command.request_id, answer)

    def _add_description(self, group: StreamsGroup, answer: DescribedGroup) -> None:
        soft, topology = self._soft.get(group.group_id), group.topology
        if soft is not None and topology is not None:
            answer.topology_description = soft.description(topology.epoch)
        is_there = answer.topology_description is not None
        answer.topology_description_status = (
            DescriptionStatus.AVAILABLE if is_there else DescriptionStatus.NOT_STORED
        )

    def _take_description(self, command: Command, step: ConsumerStep) -> None:
        request = command.request
        assert isinstance(request, StreamsGroupTopologyDescriptionUpdateRequest)
        response = StreamsGroupTopologyDescriptionUpdateResponse()
        try:
            self._keep_description(request)
        except ApiError as error:
            response.error_code, response.error_message = error.code, error.message
        step.reply(command.request_id, response)

    def _keep_description(self, request: StreamsGroupTopologyDescriptionUpdateRequest) -> None:
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
        soft = self._soft.setdefault(group_id, SoftState())
        soft.keep_description(epoch, request.topology_description)
