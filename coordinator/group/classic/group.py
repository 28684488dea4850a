"""A classic group: members join, the leader assigns, all members sync.

The state machine is Kafka's ClassicGroup, with KIP-134 (initial delay), KIP-345 (static members),
KIP-394 (a member gets its id before it joins), KIP-559 (protocol type and name), KIP-800 (reasons)
and KIP-814 (a restarted static leader does not assign again). States and events; errors are
responses, "restart" is the transition to PreparingRebalance, "complete?" ends the join phase if all
members have joined:

| Event | Empty | PreparingRebalance | CompletingRebalance | Stable |
|---|---|---|---|---|
| join, new member | restart | park; complete? | park; restart | park; restart |
| join, known, as before | UNKNOWN_MEMBER_ID | park; complete? | answer | answer (leader: restart) |
| join, known, changed | UNKNOWN_MEMBER_ID | park; complete? | park; restart | park; restart |
| join, static restarted | - | replace; complete? | replace; restart | store, answer (1) |
| sync | UNKNOWN_MEMBER_ID | REBALANCE_IN_PROGRESS | park (2) | answer |
| heartbeat | UNKNOWN_MEMBER_ID | REBALANCE_IN_PROGRESS | NONE | NONE |
| leave, session over | - | remove; complete? | remove; restart | remove; restart |
| pending member gone | forget | forget; complete? | forget | forget |
| commit without member | accept | UNKNOWN_MEMBER_ID | UNKNOWN_MEMBER_ID | UNKNOWN_MEMBER_ID |
| commit by member | UNKNOWN_MEMBER_ID | accept | REBALANCE_IN_PROGRESS | accept |
| join timer | - | complete without the missing (3) | - | - |
| sync timer | - | - | remove the late; restart | remove the late; restart |
| append failed | store again, later | - | - | drop assignments; restart |

(1) If this changes the group's protocol: replace and restart. (2) The leader's sync stores the
assignments, completes all parked requests and makes the group Stable. (3) Static members stay.
After Empty every "complete?" waits for the end of the initial delay.

The end of a join phase starts generation + 1: CompletingRebalance with members, Empty without. Only
two transitions write a new generation: the leader's sync (and the replacement of a static member in
Stable) and becoming Empty. When a member is removed or gets a new id, the stored generation is
written again without it (`stored_generation`). All else is soft state: waiting members join again
after the coordinator has moved, also those that are not in the log (`unstored_members`). JoinGroup
is in `join_group`, LeaveGroup in `leave_group`.

Invariants: the generation never goes back while the group lives here; every parked request is
answered by a transition or a timer; in Stable the log's newest record says what this object says.
Called by `shard`.
"""

from enum import StrEnum
from typing import Final

import msgspec

from odradek.coordinator.group.classic.members import ClassicGroupMember, ClassicMembers
from odradek.coordinator.group.classic.records import GroupMetadata, GroupMetadataRecord
from odradek.coordinator.group.events import EventBuffer, EventKind
from odradek.coordinator.group.step import GroupStep
from odradek.coordinator.outcome import Command, TimerKey
from odradek.protocol.consumer_protocol import CONSUMER_PROTOCOL_TYPE, decode_subscription
from odradek.protocol.errors import ErrorCode, ProtocolError
from odradek.protocol.messages.groups import JoinGroupResponse, SyncGroupRequest, SyncGroupResponse
from odradek.protocol.types import NO_TIMESTAMP

NO_GENERATION: Final = -1
_STORE_AGAIN_MS: Final = 1_000
"""The retry interval; shorter than any session timeout."""


class GroupState(StrEnum):
    """Kafka's names, as DescribeGroups and ListGroups spell them."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"


def session_key(group_id: str, member_id: str) -> TimerKey:
    """The timer of a member's session, a pending member's absence, or a new member's wait."""
    return ("session", group_id, member_id)


def join_error(command: Command, error_code: ErrorCode, member_id: str) -> JoinGroupResponse:
    """A refused JoinGroup. The protocol name is null from v7 on and empty before (KIP-559)."""
    return JoinGroupResponse(
        error_code=error_code,
        member_id=member_id,
        protocol_name=None if command.api_version >= 7 else "",
    )


class ClassicGroup(msgspec.Struct, eq=False):
    """One classic group. Methods change it and add records, replies and timers to the step.

    Its timers are "join" (the end of the initial delay or the join phase), "sync" (the end of the
    wait for SyncGroups), "store" (store again that the group is Empty), "departed" (write the
    stored generation again without those who left), and `session_key`.
    """

    group_id: str
    state: GroupState = GroupState.EMPTY
    generation_id: int = 0
    protocol_type: str | None = None
    protocol_name: str | None = None
    state_timestamp_ms: int = NO_TIMESTAMP
    members: ClassicMembers = msgspec.field(default_factory=ClassicMembers)
    pending: set[str] = set()
    """Generated member ids whose members have not joined yet (KIP-394)."""
    pending_sync: set[str] = set()
    events: EventBuffer = msgspec.field(default_factory=EventBuffer)
    rebalance_started_ms: int = NO_TIMESTAMP
    deadline_ms: int = NO_TIMESTAMP
    """The end of the current phase of a rebalance at the latest."""
    is_delayed: bool = False
    """Whether the join phase is the first one after Empty, which waits for more members
    (group.initial.rebalance.delay.ms)."""
    last_joined_ms: int = NO_TIMESTAMP
    """When the last new member joined: each one restarts the initial delay."""
    has_stale_record: bool = False
    """Whether members have left, or have new ids, since the generation was stored."""
    is_record_scheduled: bool = False
    """Whether the stored generation will be written again by the timer "departed"."""
    _topics: frozenset[str] | None = None
    _topics_generation: int = NO_GENERATION

    @classmethod
    def of_metadata(cls, group_id: str, metadata: GroupMetadata) -> "ClassicGroup":
        """The group as it is stored: Stable if it has members, else Empty."""
        group = cls(
            group_id,
            generation_id=metadata.generation_id,
            protocol_type=metadata.protocol_type or None,
            protocol_name=metadata.protocol_name,
            state_timestamp_ms=metadata.state_timestamp_ms,
        )
        for member in metadata.members:
            group.members.add(ClassicGroupMember.of_metadata(member, metadata.protocol_name))
        if metadata.members:
            group.state = GroupState.STABLE
            if metadata.leader_id is not None and metadata.leader_id in group.members:
                group.members.leader_id = metadata.leader_id
        return group

    def to_metadata(self) -> GroupMetadata:
        """The metadata of this generation to store."""
        return GroupMetadata(
            protocol_type=self.protocol_type or "",
            generation_id=self.generation_id,
            protocol_name=self.protocol_name,
            leader_id=self.members.leader_id,
            state_timestamp_ms=self.state_timestamp_ms,
            members=tuple(member.to_metadata(self.protocol_name) for member in self.members),
        )

    @property
    def is_empty(self) -> bool:
        """Whether it has no members and no join phase."""
        return self.state is GroupState.EMPTY

    @property
    def uses_consumer_protocol(self) -> bool:
        """Whether the members' metadata are consumer subscriptions."""
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    def subscribed_topics(self) -> frozenset[str] | None:
        """The topics that its consumers subscribe to; None if they are not known."""
        if not self.uses_consumer_protocol:
            return None
        if not len(self.members):
            return frozenset()
        if self.protocol_name is None:
            return None
        if self._topics_generation != self.generation_id:
            self._topics_generation = self.generation_id
            try:
                subscribed = (
                    decode_subscription(member.metadata_for(self.protocol_name)).topics
                    for member in self.members
                )
                self._topics = frozenset().union(*subscribed)
            except ProtocolError:
                self._topics = None
        return self._topics

    # -- loading and failed appends ---------------------------------------------------------------

    def on_loaded(self, step: GroupStep, *, is_rebalancing: bool = False) -> None:
        """Every stored member gets a full session timeout: its last heartbeat is not known.

        `is_rebalancing`: the next generation was forming, without members that had left.
        """
        self.events.add(step.now_ms, EventKind.LOADED)
        for member in self.members:
            self.refresh(member, step)
        if is_rebalancing:
            self._prepare(step, "members left before the coordinator moved")
        elif len(self.members) > step.settings.size_max:
            self._prepare(step, f"the group has more than {step.settings.size_max} members")

    def on_append_failed(self, step: GroupStep) -> None:
        """The newest generation was not stored. Its members must rebalance.

        An Empty group is stored again after a while: otherwise the next load would restore the
        generation before, with its members, until their sessions expire.
        """
        if self.state is GroupState.EMPTY:
            step.set_timer(("store", self.group_id), step.now_ms + _STORE_AGAIN_MS)
        elif self.state is GroupState.STABLE:
            for member in self.members:
                member.assignment = b""
            self.events.add(step.now_ms, EventKind.ASSIGNMENT_LOST)
            self._prepare(step, "the assignment could not be stored")

    def abandon(self, step: GroupStep) -> None:
        """The group is converted to another type: waiting members must join that."""
        for member in self.members:
            self.answer_parked(member, ErrorCode.REBALANCE_IN_PROGRESS, step)
            step.cancel_timer(session_key(self.group_id, member.member_id))
        for member_id in list(self.pending):
            self.remove_pending(member_id, step)
        step.cancel_timer(("join", self.group_id))
        self._end_sync_wait(step)

    def on_store_timer(self, step: GroupStep) -> None:
        """Store again that the group is Empty."""
        if self.state is GroupState.EMPTY and self.generation_id:
            step.records.append(GroupMetadataRecord(self.group_id, self.to_metadata()))

    # -- joining ----------------------------------------------------------------------------------

    def remove_pending(self, member_id: str, step: GroupStep) -> None:
        """Remove a pending member."""
        if member_id in self.pending:
            self.pending.discard(member_id)
            step.cancel_timer(session_key(self.group_id, member_id))

    def rename(self, member: ClassicGroupMember, new_id: str, step: GroupStep) -> None:
        """A static member gets a new id."""
        old_id = member.member_id
        step.cancel_timer(session_key(self.group_id, old_id))
        if old_id in self.pending_sync:
            self.pending_sync.remove(old_id)
            self.pending_sync.add(new_id)
        self.members.rename(member, new_id)
        self.has_stale_record = True

    def park_join(self, member: ClassicGroupMember, command: Command, step: GroupStep) -> None:
        """Park a JoinGroup until the next generation. An earlier one of the member is refused."""
        superseded = self.members.park_join(member, command)
        if superseded is not None:
            code = ErrorCode.REBALANCE_IN_PROGRESS
            step.reply(superseded.request_id, join_error(superseded, code, member.member_id))
        member.joined_at_ms = step.now_ms

    def joined_response(self, member: ClassicGroupMember) -> JoinGroupResponse:
        """The response to a member of the current generation; the leader gets all members."""
        is_leader = self.members.leader_id == member.member_id
        return JoinGroupResponse(
            generation_id=self.generation_id,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=self.members.leader_id or "",
            member_id=member.member_id,
            members=self.members.for_leader(self.protocol_name) if is_leader else [],
        )

    # -- the rebalance ----------------------------------------------------------------------------

    def rebalance(self, step: GroupStep, reason: str) -> None:
        """The membership changed: start a join phase, or complete the current one if possible."""
        if self.state is GroupState.PREPARING_REBALANCE:
            self.complete_if_all_joined(step)
        else:
            self._prepare(step, reason)

    def _prepare(self, step: GroupStep, reason: str) -> None:
        if self.state is GroupState.COMPLETING_REBALANCE:
            for member in self.members:
                member.assignment = b""
                if member.sync_request_id is not None:
                    self._answer_sync(member, ErrorCode.REBALANCE_IN_PROGRESS, step)
                    # Sessions do not expire while a request is parked.
                    self.refresh(member, step)
        self._end_sync_wait(step)
        delay_ms = step.settings.initial_rebalance_delay_ms
        self.is_delayed = self.state is GroupState.EMPTY and delay_ms > 0
        self.state = GroupState.PREPARING_REBALANCE
        self.rebalance_started_ms = step.now_ms
        self.events.add(step.now_ms, EventKind.REBALANCE_STARTED, "", reason)
        if self.is_delayed:
            self._set_deadline("join", step.now_ms + delay_ms, step)
        else:
            self.complete_if_all_joined(step)

    def _set_deadline(self, timer: str, deadline_ms: int, step: GroupStep) -> None:
        self.deadline_ms = deadline_ms
        step.set_timer((timer, self.group_id), deadline_ms)

    def complete_if_all_joined(self, step: GroupStep) -> None:
        """End the join phase if all have joined, else after the rebalance timeout."""
        if self.is_delayed:
            return
        if self.members.has_all_joined and not self.pending:
            self._complete(step)
        else:
            deadline_ms = self.rebalance_started_ms + self.members.rebalance_timeout_ms
            self._set_deadline("join", max(deadline_ms, step.now_ms), step)

    def on_join_timer(self, step: GroupStep) -> None:
        """The initial delay or the join phase is over."""
        if self.state is not GroupState.PREPARING_REBALANCE:
            return
        if self.is_delayed:
            # The delay restarts with each new member (KIP-134). Kafka checks at the end of a delay
            # and adds another one, so that members that start together wait for two delays.
            delay_ms = step.settings.initial_rebalance_delay_ms
            end_ms = self.rebalance_started_ms + max(self.members.rebalance_timeout_ms, delay_ms)
            due_ms = min(self.last_joined_ms + delay_ms, end_ms)
            if due_ms > step.now_ms:
                self._set_deadline("join", due_ms, step)
                return
        self._complete(step)

    def _complete(self, step: GroupStep) -> None:
        """End the join phase: the members that have joined are the next generation."""
        step.cancel_timer(("join", self.group_id))
        self.is_delayed = False
        for member in [m for m in self.members if not m.is_joining and m.group_instance_id is None]:
            self.expire(member, "did not join in time", step)
        if not len(self.members):
            self._become_empty(step)
        elif not self.members.elect_joined_leader():
            # Only static members, none of which has joined: wait for one or for their sessions.
            self.rebalance_started_ms = step.now_ms
            deadline_ms = step.now_ms + self.members.rebalance_timeout_ms
            self._set_deadline("join", deadline_ms, step)
        else:
            self._start_generation(step)

    def _become_empty(self, step: GroupStep) -> None:
        self.generation_id += 1
        self.protocol_name = None
        self.state = GroupState.EMPTY
        self.state_timestamp_ms = step.now_ms
        self.events.add(step.now_ms, EventKind.BECAME_EMPTY)
        step.records.append(GroupMetadataRecord(self.group_id, self.to_metadata()))

    def _start_generation(self, step: GroupStep) -> None:
        self.generation_id += 1
        self.protocol_name = self.members.select_protocol()
        self.state = GroupState.COMPLETING_REBALANCE
        self.state_timestamp_ms = step.now_ms
        self.pending_sync.clear()
        for member in self.members:
            member.is_new = False
            self.pending_sync.add(member.member_id)
            self.refresh(member, step)
            command = self.members.park_join(member, None)
            if command is not None:
                step.reply(command.request_id, self.joined_response(member))
        deadline_ms = step.now_ms + self.members.rebalance_timeout_ms
        self._set_deadline("sync", deadline_ms, step)
        took_ms = step.now_ms - self.rebalance_started_ms
        what = f"generation {self.generation_id}, {len(self.members)} members, {took_ms} ms"
        self.events.add(step.now_ms, EventKind.GENERATION_STARTED, "", what)

    # -- SyncGroup --------------------------------------------------------------------------------

    def sync(self, command: Command, request: SyncGroupRequest, step: GroupStep) -> None:
        """SyncGroup of a member; the caller has checked that it is one."""
        error = self._sync_error(request)
        if error is not ErrorCode.NONE:
            step.reply(command.request_id, SyncGroupResponse(error_code=error))
            return
        member = self.members.get(request.member_id)
        assert member is not None
        if self.state is GroupState.STABLE:
            self._synced(member, step)
            self.refresh(member, step)
            step.reply(command.request_id, self._assigned(member))
            return
        self._answer_sync(member, ErrorCode.REBALANCE_IN_PROGRESS, step)
        member.sync_request_id = command.request_id
        self._synced(member, step)
        if self.members.leader_id == member.member_id:
            self._store_assignments(request, step)

    def _sync_error(self, request: SyncGroupRequest) -> ErrorCode:
        if request.generation_id != self.generation_id:
            return ErrorCode.ILLEGAL_GENERATION
        has_other_name = request.protocol_name not in (None, self.protocol_name)
        if request.protocol_type not in (None, self.protocol_type) or (
            self.protocol_name is not None and has_other_name
        ):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if self.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def _store_assignments(self, request: SyncGroupRequest, step: GroupStep) -> None:
        assignments = {given.member_id: given.assignment for given in request.assignments}
        for member in self.members:
            member.assignment = assignments.get(member.member_id, b"")
        self.state = GroupState.STABLE
        step.records.append(GroupMetadataRecord(self.group_id, self.to_metadata()))
        took_ms = step.now_ms - self.rebalance_started_ms
        what = f"generation {self.generation_id}, {took_ms} ms after the rebalance began"
        self.events.add(step.now_ms, EventKind.ASSIGNMENT_STORED, request.member_id, what)
        for member in self.members:
            request_id = member.sync_request_id
            if request_id is not None:
                member.sync_request_id = None
                self.refresh(member, step)
                step.reply(request_id, self._assigned(member))

    def _assigned(self, member: ClassicGroupMember) -> SyncGroupResponse:
        return SyncGroupResponse(
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            assignment=member.assignment,
        )

    def _synced(self, member: ClassicGroupMember, step: GroupStep) -> None:
        if member.member_id in self.pending_sync:
            member.synced_at_ms = step.now_ms
            self.pending_sync.discard(member.member_id)
            if not self.pending_sync:
                step.cancel_timer(("sync", self.group_id))

    def _end_sync_wait(self, step: GroupStep) -> None:
        self.pending_sync.clear()
        step.cancel_timer(("sync", self.group_id))

    def on_sync_timer(self, step: GroupStep) -> None:
        """Remove members that joined and did not sync in time."""
        if self.state is GroupState.PREPARING_REBALANCE or not self.pending_sync:
            return
        late = [member for member in self.members if member.member_id in self.pending_sync]
        for member in late:
            self.expire(member, "joined but did not sync in time", step)
        self._prepare(step, f"{len(late)} members did not sync in time")

    # -- membership -------------------------------------------------------------------------------

    def member_error(self, member_id: str, group_instance_id: str | None) -> ErrorCode:
        """The error of a member id and instance id; NONE if they are a member's."""
        if group_instance_id is not None:
            holder = self.members.static_member_id(group_instance_id)
            if holder is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if holder != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def heartbeat_error(
        self, member_id: str, group_instance_id: str | None, generation_id: int
    ) -> ErrorCode:
        """The error of a heartbeat. On NONE and REBALANCE_IN_PROGRESS the session is extended."""
        error = self.member_error(member_id, group_instance_id)
        if error is not ErrorCode.NONE:
            return error
        if generation_id != self.generation_id:
            return ErrorCode.ILLEGAL_GENERATION
        if self.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def commit_error(
        self, member_id: str, group_instance_id: str | None, generation_id: int
    ) -> ErrorCode:
        """The error of an offset commit in the current state."""
        if generation_id < 0 and self.state is GroupState.EMPTY:
            return ErrorCode.NONE
        if generation_id < 0 and not member_id and group_instance_id is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = self.member_error(member_id, group_instance_id)
        if error is not ErrorCode.NONE:
            return error
        if generation_id != self.generation_id:
            return ErrorCode.ILLEGAL_GENERATION
        if self.state is GroupState.COMPLETING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def refresh(self, member: ClassicGroupMember, step: GroupStep) -> None:
        """Restart the member's session timeout."""
        deadline_ms = step.now_ms + member.session_timeout_ms
        step.set_timer(session_key(self.group_id, member.member_id), deadline_ms)

    def on_session_timer(self, member_id: str, step: GroupStep) -> None:
        """The session of a member, pending or not, has expired."""
        if member_id in self.pending:
            self.pending.discard(member_id)
            if self.state is GroupState.PREPARING_REBALANCE:
                self.complete_if_all_joined(step)
            return
        member = self.members.get(member_id)
        if member is None or (member.is_waiting and not member.is_new):
            return
        reason = f"no heartbeat for {member.session_timeout_ms} ms"
        if member.is_new:
            reason = f"waited {step.settings.new_member_join_timeout_ms} ms for its first rebalance"
        self.expire(member, reason, step)
        self.rebalance(step, f"member {member_id} expired: {reason}")

    def remove(self, member: ClassicGroupMember, step: GroupStep) -> None:
        """Remove a member and refuse its parked requests. The caller starts the rebalance."""
        self.answer_parked(member, ErrorCode.UNKNOWN_MEMBER_ID, step)
        self.members.remove(member.member_id)
        self.has_stale_record |= not member.is_new
        step.cancel_timer(session_key(self.group_id, member.member_id))
        self._synced(member, step)

    def expire(self, member: ClassicGroupMember, reason: str, step: GroupStep) -> None:
        """Remove a member that is late, or that prevents a rewind."""
        self.remove(member, step)
        self.events.add(step.now_ms, EventKind.MEMBER_EXPIRED, member.member_id, reason)

    def answer_parked(
        self, member: ClassicGroupMember, error_code: ErrorCode, step: GroupStep
    ) -> None:
        """Refuse the parked requests of a member."""
        command = self.members.park_join(member, None)
        if command is not None:
            # The client joins as a new member then.
            member_id = "" if error_code is ErrorCode.UNKNOWN_MEMBER_ID else member.member_id
            step.reply(command.request_id, join_error(command, error_code, member_id))
        self._answer_sync(member, error_code, step)

    def _answer_sync(
        self, member: ClassicGroupMember, error_code: ErrorCode, step: GroupStep
    ) -> None:
        if member.sync_request_id is not None:
            step.reply(member.sync_request_id, SyncGroupResponse(error_code=error_code))
            member.sync_request_id = None
