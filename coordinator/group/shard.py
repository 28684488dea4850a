"""The groups of one shard: dispatches requests, records and timers to the type of the group.

A group id belongs to a classic group (`classic.groups`) or to one of the newer types
(`modern.group_type`); a group with offsets only is in neither table. Offsets belong to no type:
they outlive the group. The state in the log is in tables, which only `replay` changes. Called by
coordinator.runtime, with one shard per partition of `__consumer_offsets`.
"""

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from odradek.coordinator.group.administration.admission import protocol_refusal
from odradek.coordinator.group.administration.ephemeral_groups import (
    EPHEMERAL_TIMERS,
    EphemeralGroups,
)
from odradek.coordinator.group.administration.explanation import GroupExplainer
from odradek.coordinator.group.administration.group_cleanup import EXPIRY_KEY, GroupCleanup
from odradek.coordinator.group.classic.group import join_error
from odradek.coordinator.group.classic.records import GroupMetadataRecord
from odradek.coordinator.group.consumer.heartbeats import check
from odradek.coordinator.group.group_directory import GroupDirectory
from odradek.coordinator.group.group_record import GroupRecord, group_ids_of
from odradek.coordinator.group.modern.group_type import GroupType
from odradek.coordinator.group.modern.heartbeats import JOIN_GROUP_EPOCH
from odradek.coordinator.group.offset_commands import OffsetCommands
from odradek.coordinator.group.offsets.records import OffsetCommitRecord
from odradek.coordinator.group.records import decode, encode
from odradek.coordinator.group.requests import (
    ConsumerHeartbeat,
    DeleteGroup,
    ExplainGroup,
    UpdateTopics,
)
from odradek.coordinator.group.rewind.live_rewinder import LiveRewinder
from odradek.coordinator.group.rewind.rewind_tables import RewindTables
from odradek.coordinator.group.settings import GroupSettings
from odradek.coordinator.group.step import GroupStep
from odradek.coordinator.group.topics import NO_TOPICS, TopicCatalog
from odradek.coordinator.outcome import (
    Command,
    Outcome,
    TimerKey,
    TransactionalRecord,
    TransactionMarker,
    respond,
)
from odradek.coordinator.record_serde import TEXT_LENGTH_MAX
from odradek.coordinator.timeline import Timeline
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.groups import (
    ConsumerGroupHeartbeatResponse,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)

_Outcome: TypeAlias = Outcome[GroupRecord]
_Handler: TypeAlias = Callable[[Command, Any, GroupStep], _Outcome | None]
"""Handles a request within a step; the outcome is that of the step, unless another is returned."""


class GroupShard:
    """The groups of one shard. `settings` may be replaced at any time."""

    is_log_compacted: Final = True
    encode = staticmethod(encode)
    decode = staticmethod(decode)

    def __init__(self, settings: GroupSettings, topics: TopicCatalog = NO_TOPICS) -> None:
        self.settings = settings
        self.timeline = Timeline()
        self.rewinds = RewindTables(self.timeline)
        self.directory = directory = GroupDirectory(self.timeline, self.rewinds.tombstones)
        self.classic = directory.classic
        self.consumers = directory.consumers
        self.shares = directory.shares
        self.streams = directory.streams
        self.group_types = directory.group_types
        self.offsets = directory.offsets
        self.pending_offsets = directory.pending_offsets
        # Replaced by the host when they change, like the settings.
        self.topics = topics
        self.member_count_total = 1
        self.loop_delay_ms = 0
        self._rewinder = LiveRewinder(self.rewinds, directory)
        self._cleanup = GroupCleanup(directory, self.rewinds)
        self._ephemeral_groups = EphemeralGroups(directory, self._cleanup)
        self._register_handlers()

    def _register_handlers(self) -> None:
        """Fill the tables of requests, records and timers."""
        self._handlers: dict[type, _Handler] = {
            JoinGroupRequest: self._join,
            SyncGroupRequest: self._sync,
            LeaveGroupRequest: self._leave,
            ConsumerHeartbeat: self._consumer_heartbeat,
            UpdateTopics: self._update_topics,
            **OffsetCommands(self.directory, self._rewinder).handlers,
            **self.directory.handlers,
            DeleteGroup: self._cleanup.delete,
            ExplainGroup: GroupExplainer(self.directory).explain,
            **self._rewinder.handlers,
        }
        self._replay: dict[type, Callable[[Any], None]] = {
            GroupMetadataRecord: self.classic.replay,
            OffsetCommitRecord: self._replay_offset,
            TransactionalRecord: self.pending_offsets.add,
            TransactionMarker: self._replay_marker,
            **dict.fromkeys(self.rewinds.record_types, self.rewinds.replay),
        }
        self._type_of_timer: dict[str, GroupType[Any] | LiveRewinder] = dict.fromkeys(
            self._rewinder.timer_kinds, self._rewinder
        )
        for group_type in self.group_types:
            self._replay |= dict.fromkeys(group_type.record_types, group_type.replay)
            self._type_of_timer |= dict.fromkeys(group_type.timer_kinds, group_type)
            self._handlers |= group_type.handlers

    # -- the shard of the runtime -----------------------------------------------------------------

    def handle(self, command: Command, now_ms: int) -> _Outcome:
        """Handle a request."""
        policies = self.settings.policies
        refused = protocol_refusal(command, policies) if policies.has_protocol_limits else None
        if refused is not None:
            return respond(command, refused)
        return self._with_consequences(self._decide(command, now_ms), now_ms)

    def _decide(self, command: Command, now_ms: int) -> _Outcome:
        request = command.request
        if type(request) is HeartbeatRequest:
            # The most frequent request of all: classic groups handle it without a step.
            return self._heartbeat(command, request, now_ms)
        step = self._step(now_ms)
        outcome = self._handlers[type(request)](command, request, step)
        return step.build() if outcome is None else outcome

    def _with_consequences(self, outcome: _Outcome, now_ms: int) -> _Outcome:
        """The outcome, with what its records mean for live rewinds and for ephemeral groups."""
        if not outcome.records:
            return outcome
        if self.rewinds.has_pending:
            outcome = self._rewinder.follow(outcome, self._step(now_ms))
        policies = self.settings.policies
        if policies.has_ephemeral:
            outcome = self._ephemeral_groups.with_check_timers(outcome, policies, now_ms)
        return outcome

    def replay(self, record: GroupRecord) -> None:
        """Apply a record to the tables."""
        self._replay[type(record)](record)

    def _replay_offset(self, record: OffsetCommitRecord) -> None:
        self.offsets.replay(record)
        self.pending_offsets.supersede(record)

    def _replay_marker(self, record: TransactionMarker) -> None:
        for real in self.pending_offsets.end(record):
            self.offsets.replay(real)

    def on_loaded(self, now_ms: int) -> _Outcome:
        """Groups with members continue; every member gets a full session timeout."""
        step = self._step(now_ms)
        self.classic.on_loaded(step)
        for group_type in self.group_types:
            group_type.on_loaded(step)
        self._rewinder.on_loaded(step)
        step.set_timer(EXPIRY_KEY, now_ms + self.settings.retention_check_interval_ms)
        if self.settings.policies.has_ephemeral:
            self._ephemeral_groups.schedule_checks(self.directory.group_ids(), step)
        return step.build()

    def fire(self, key: TimerKey, now_ms: int) -> _Outcome:
        """A timer of a member, of a group or of the shard."""
        step = self._step(now_ms)
        if key == EXPIRY_KEY:
            self._cleanup.expire(step)
            return step.build(is_atomic=False)
        if key[0] in EPHEMERAL_TIMERS:
            self._ephemeral_groups.fire(key, step)
            return step.build(is_atomic=False)
        group_type = self._type_of_timer.get(key[0])
        if group_type is not None:
            group_type.fire(key, step)
        else:
            self.classic.fire(key, step)
        return self._with_consequences(step.build(), now_ms)

    def on_append_failed(self, records: tuple[GroupRecord, ...], now_ms: int) -> _Outcome:
        """The tables were reverted; classic groups that were ahead of them must rebalance."""
        step = self._step(now_ms)
        group_ids = group_ids_of(records)
        self.classic.on_append_failed(records, group_ids, self.directory.modern_type_of, step)
        for group_type in self.group_types:
            group_type.on_append_failed(group_ids, step)
        self._rewinder.on_append_failed(records, step)
        self._ephemeral_groups.schedule_checks(group_ids, step)
        return step.build()

    def _step(self, now_ms: int) -> GroupStep:
        return GroupStep(
            now_ms,
            self.settings,
            self.topics,
            self.member_count_total,
            self._rewinder.withheld,
            loop_delay_ms=self.loop_delay_ms,
        )

    # -- membership -------------------------------------------------------------------------------

    def _join(self, command: Command, request: JoinGroupRequest, step: GroupStep) -> None:
        settings = self.settings
        group_id = request.group_id
        error = ErrorCode.NONE
        consumers = self.consumers.get(group_id)
        group_type = self.directory.modern_type_of(group_id)
        is_occupied = group_type is not None and not group_type.is_empty(group_id)
        if not group_id or len(group_id) > TEXT_LENGTH_MAX:
            error = ErrorCode.INVALID_GROUP_ID
        elif not (
            settings.session_timeout_min_ms
            <= request.session_timeout_ms
            <= settings.session_timeout_max_ms
        ):
            error = ErrorCode.INVALID_SESSION_TIMEOUT
        elif group_type is self.shares or (is_occupied and consumers is None):
            # An empty share group keeps its type: groups of other types cannot use its state.
            error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        elif (
            request.member_id
            and not is_occupied
            and self.classic.group(group_id) is None
            and (
                group_type is not None
                or not self.classic.unstored.may_include(request, command.client_id, step.now_ms)
            )
        ):
            # No group can have this member.
            error = ErrorCode.UNKNOWN_MEMBER_ID
        if error is not ErrorCode.NONE:
            step.reply(command.request_id, join_error(command, error, request.member_id))
        elif consumers is not None and is_occupied:
            self.consumers.join(consumers, command, request, step)
        else:
            if group_type is not None:
                # The group is empty. Its offsets stay, and a group of any type may use them.
                step.records += group_type.tombstones(group_id)
            self.classic.join(command, request, step)

    def _sync(self, command: Command, request: SyncGroupRequest, step: GroupStep) -> None:
        consumers = self.consumers.get(request.group_id)
        if consumers is not None:
            self.consumers.sync(consumers, command, request, step)
            self._rewinder.after_sync(request.group_id, step)
        elif self.rewinds.has_pending:
            self.classic.sync(command, self._rewinder.before_sync(request, step), step)
            self._rewinder.after_sync(request.group_id, step)
        else:
            self.classic.sync(command, request, step)

    def _heartbeat(self, command: Command, request: HeartbeatRequest, now_ms: int) -> _Outcome:
        consumers = self.consumers.get(request.group_id)
        if consumers is None:
            if self.rewinds.has_pending:
                self._rewinder.on_heartbeat(request)
            return self.classic.heartbeat(command, request, now_ms)
        step = self._step(now_ms)
        self.consumers.classic_heartbeat(consumers, command, request, step)
        return step.build()

    def _leave(self, command: Command, request: LeaveGroupRequest, step: GroupStep) -> None:
        consumers = self.consumers.get(request.group_id)
        if consumers is not None:
            self.consumers.leave(consumers, command, request, step)
        else:
            self.classic.leave(command, request, step)

    # -- consumer groups --------------------------------------------------------------------------

    def _consumer_heartbeat(
        self, command: Command, request: ConsumerHeartbeat, step: GroupStep
    ) -> _Outcome:
        heartbeat = request.request
        try:
            check(heartbeat, command.api_version, self.settings.consumer.assignors)
            group = self.consumers.get(heartbeat.group_id)
            if group is None:
                if self.directory.modern_type_of(heartbeat.group_id) is not None:
                    raise self.consumers.not_found(heartbeat.group_id, is_other_type=True)
                group = self.consumers.create_or_convert(
                    self.classic.group(heartbeat.group_id), heartbeat, step
                )
            self.consumers.heartbeat(group, command, request, step)
        except ApiError as error:
            response = ConsumerGroupHeartbeatResponse(
                error_code=error.code, error_message=error.message
            )
            return respond(command, response)
        if (
            heartbeat.group_id in self.classic.live_groups
            and heartbeat.group_id not in self.consumers
        ):
            self.classic.end(heartbeat.group_id, step)
        # Members of a reconciling group write one small record each. Heartbeats can linger, so that
        # these records share a batch.
        return step.build(can_linger=heartbeat.member_epoch > JOIN_GROUP_EPOCH)

    def _update_topics(self, command: Command, request: UpdateTopics, step: GroupStep) -> _Outcome:
        for group_type in self.group_types:
            group_type.update_topics(request, step)
        if request.has_new_rules:
            self._ephemeral_groups.schedule_checks(self.directory.group_ids(), step)
        step.reply(command.request_id, None)
        return step.build(is_atomic=False)
