"""All consumer groups (KIP-848) of one shard: finds the group, lets it decide, keeps its timers.

Whatever a consumer group is stands in the log, so that loading it is replaying it: members go on
where they were, each with a whole session. Timers by kind, and what comes of them:

| Timer | Set | When it is due |
|---|---|---|
| member-session | with every heartbeat | the member is removed |
| member-revocation | when a member is to give up partitions | it is removed if it still is |
| member-rejoin | when a classic member is told to join again | it is removed |
| member-sync | when a classic member has joined | it is removed |
| assignment | when a target assignment is put off | it is made |
| downgrade | when a static member has come back as a classic one | if all are, the group is too |

Called by `shard`, which owns the groups of the other kind and hands over what this one becomes.
"""

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Final, get_args

from odradek.coordinator.group.classic.group import ClassicGroup, join_error
from odradek.coordinator.group.classic.leave_group import SEVERAL_MEMBERS_SINCE
from odradek.coordinator.group.classic.records import GroupMetadataRecord
from odradek.coordinator.group.classic.unstored_members import UnstoredMembers
from odradek.coordinator.group.consumer import classic_members, heartbeats
from odradek.coordinator.group.consumer.group import UNKNOWN_CONNECTION, ConsumerGroup
from odradek.coordinator.group.consumer.migration import (
    can_upgrade,
    classic_generation_of,
    consumer_group_of,
    tombstones,
)
from odradek.coordinator.group.consumer.records import (
    ConsumerCurrentAssignment,
    ConsumerEpochRecord,
    ConsumerGroupRecord,
    MemberState,
)
from odradek.coordinator.group.consumer.target_assignment import (
    ConsumerTargetAssignmentBuilder,
    assign_if_due,
    assign_now,
    assignment_key,
    cancel_timers,
    choose_assignor,
    hash_of,
    resolve_regex,
    revocation_key,
    start_epoch,
)
from odradek.coordinator.group.events import REASON_NOT_PROVIDED
from odradek.coordinator.group.group_record import GroupRecord
from odradek.coordinator.group.modern.event_history import EventHistory, heartbeat_reason
from odradek.coordinator.group.modern.group_table import GroupTable
from odradek.coordinator.group.modern.group_type import GroupTypeHandler
from odradek.coordinator.group.modern.member_checks import check_instance_id, unknown_member
from odradek.coordinator.group.requests import ConsumerHeartbeat, UpdateTopics
from odradek.coordinator.group.step import (
    GroupStep,
)
from odradek.coordinator.outcome import Command, TimerKey
from odradek.coordinator.timeline import Timeline
from odradek.protocol.consumer_protocol import CONSUMER_PROTOCOL_TYPE
from odradek.protocol.errors import ApiError, ErrorCode, ProtocolError
from odradek.protocol.messages.group_offsets import OffsetCommitRequest
from odradek.protocol.messages.groups import (
    ConsumerGroupDescribeAssignment,
    ConsumerGroupDescribedGroup,
    ConsumerGroupDescribeMember,
    ConsumerGroupDescribeTopicPartitions,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListedGroup,
    MemberIdentity,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from odradek.protocol.types import Uuid

GROUP_TYPE_CONSUMER: Final = "consumer"
_CONSUMER_COMMITS_SINCE: Final = 9
_CLASSIC_MEMBER: Final = 0
_CONSUMER_MEMBER: Final = 1

Adopt = Callable[[ClassicGroup], None]


class ConsumerGroups(GroupTable[ConsumerGroup, ConsumerGroupRecord]):
    """See the module's docstring. `adopt` takes the classic group that a group has become.

    A Family, but that heartbeats, joins and the like go through the shard: these groups may change
    into classic ones and back.
    """

    group_type = GROUP_TYPE_CONSUMER
    is_kept_empty = False
    record_types = get_args(ConsumerGroupRecord)
    timer_kinds = frozenset(
        {
            "assignment",
            "downgrade",
            "member-session",
            "member-revocation",
            "member-rejoin",
            "member-sync",
        }
    )
    handlers: Mapping[type, GroupTypeHandler] = MappingProxyType({})

    def __init__(self, timeline: Timeline, adopt: Adopt, unstored: UnstoredMembers) -> None:
        super().__init__(timeline, ConsumerGroup)
        self._adopt = adopt
        self._unstored = unstored
        self.events = EventHistory()
        # Whether the groups may have been loaded with topics that have changed since.
        self.needs_topics = True

    # -- the log ----------------------------------------------------------------------------------

    def replay(self, record: ConsumerGroupRecord) -> None:
        """Change the group that the record is about."""
        self._replay_record(record)
        if type(record) is ConsumerEpochRecord and record.epoch is None:
            self.events.forget(record.group_id)

    def on_loaded(self, step: GroupStep) -> None:
        """Every member gets a whole session: how long it was silent is not known."""
        for group in self._groups.values():
            self._schedule_timers(group, step)
            self.events.add_loaded(group, step.now_ms)
            known = (id_ for id_, member in group.members() if member.classic is not None)
            self._unstored.note(known, step.now_ms)
            # What the coordinator before has told last may have been lost.
            others = (id_ for id_, member in group.members() if member.classic is None)
            group.unconfirmed_connections.update(dict.fromkeys(others, UNKNOWN_CONNECTION))

    def on_append_failed(self, group_ids: Collection[str], step: GroupStep) -> None:
        """The groups are as before; timers that were moved or cancelled meanwhile are set again."""
        for group_id in group_ids:
            group = self.get(group_id)
            if group is not None:
                self._schedule_timers(group, step)
            else:
                self._drop_unless_stored(group_id)

    def _schedule_timers(self, group: ConsumerGroup, step: GroupStep) -> None:
        for member_id, member in group.members():
            heartbeats.refresh(group, member_id, member, step)
            is_revoking = group.current(member_id).state is MemberState.UNREVOKED_PARTITIONS
            if is_revoking and member.classic is None:
                key = revocation_key(group.group_id, member_id)
                step.set_timer(key, step.now_ms + member.rebalance_timeout_ms)
        if group.epoch > group.target_epoch:
            step.set_timer(assignment_key(group.group_id), step.now_ms)

    # -- finding groups ---------------------------------------------------------------------------

    def topic_names(self, group_id: str) -> frozenset[str]:
        """See Family."""
        return frozenset(self._groups[group_id].topic_names())

    def tombstones(self, group_id: str) -> list[GroupRecord]:
        """See Family."""
        return [*tombstones(self._groups[group_id])]

    def listed(self, group_id: str) -> ListedGroup:
        """See Family."""
        return ListedGroup(
            group_id=group_id,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            group_state=self._groups[group_id].state,
            group_type=self.group_type,
        )

    def regexes(self) -> set[str]:
        """Every expression by which a member subscribes."""
        return {regex for group in self for regex, _ in group.regexes()}

    def create_or_convert(
        self, classic: ClassicGroup | None, beat: ConsumerGroupHeartbeatRequest, step: GroupStep
    ) -> ConsumerGroup:
        """A group for the first member of the consumer protocol, with the classic ones if any.

        It is what the step's records will make of it. ApiError(GROUP_ID_NOT_FOUND) if there can be
        none.
        """
        group_id = beat.group_id
        if beat.member_epoch != heartbeats.JOIN_GROUP_EPOCH:
            kind = "not found" if classic is None else "is not a consumer group"
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {kind}.")
        if classic is None or not len(classic.members):
            return ConsumerGroup(group_id, Timeline())
        if not can_upgrade(classic, step.settings):
            message = f"Group {group_id} is not a consumer group."
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, message)
        try:
            group, records = consumer_group_of(classic, step.topics)
        except ProtocolError as error:
            message = f"Group {group_id} cannot become a consumer group: {error}"
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, message) from None
        step.records += records
        for member_id, member in group.members():
            heartbeats.refresh(group, member_id, member, step)
        return group

    # -- members of the consumer protocol ---------------------------------------------------------

    def heartbeat(
        self, group: ConsumerGroup, command: Command, request: ConsumerHeartbeat, step: GroupStep
    ) -> None:
        """A checked heartbeat to a group that exists or is about to. ApiError if it is refused."""
        beat = request.request
        before = len(step.records)
        response: ConsumerGroupHeartbeatResponse
        if beat.member_epoch >= heartbeats.JOIN_GROUP_EPOCH:
            member_id = beat.member_id or command.fresh_id
            response = heartbeats.beat(group, command, request, member_id, step)
        else:
            if beat.instance_id is not None:
                check_instance_id(group, beat.member_id, beat.instance_id)
            if group.member(beat.member_id) is None:
                raise unknown_member(group.group_id, beat.member_id)
            if beat.member_epoch == heartbeats.LEAVE_GROUP_EPOCH:
                self.remove(group, [beat.member_id], step)
                response = ConsumerGroupHeartbeatResponse(
                    member_id=beat.member_id, member_epoch=beat.member_epoch
                )
            else:
                response = heartbeats.leave_static(group, beat, step)
        if len(step.records) > before:
            why = heartbeat_reason(command, beat.member_epoch)
            self.events.note(group, step.records[before:], step.now_ms, why)
        step.reply(command.request_id, response)

    def remove(self, group: ConsumerGroup, member_ids: Collection[str], step: GroupStep) -> None:
        """Members are gone. If only classic ones are left the group becomes a classic one."""
        if not self._can_downgrade(group, member_ids, step):
            heartbeats.remove(group, member_ids, step)
        else:
            self._downgrade(group, member_ids, step)

    def _downgrade(
        self, group: ConsumerGroup, member_ids: Collection[str], step: GroupStep
    ) -> None:
        metadata = classic_generation_of(group, member_ids, step.topics, step.now_ms)
        for member_id, _ in group.members():
            cancel_timers(group.group_id, member_id, step)
        step.cancel_timer(assignment_key(group.group_id))
        step.records += tombstones(group)
        step.records.append(GroupMetadataRecord(group.group_id, metadata))
        classic = ClassicGroup.of_metadata(group.group_id, metadata)
        self._adopt(classic)
        for member in classic.members:
            classic.refresh(member, step)
        classic.rebalance(step, "the last member of the consumer protocol has gone")

    def _can_downgrade(
        self, group: ConsumerGroup, member_ids: Collection[str], step: GroupStep
    ) -> bool:
        leaving = [group.member(member_id) for member_id in member_ids]
        staying_count = group.member_count - len(leaving)
        classic_left = sum(member is not None and member.classic is not None for member in leaving)
        return (
            step.settings.consumer.migration_policy.allows_downgrade
            and 0 < staying_count <= step.settings.size_max
            and group.classic_count - classic_left == staying_count
        )

    # -- members of the classic protocol ----------------------------------------------------------

    def join(
        self, group: ConsumerGroup, command: Command, request: JoinGroupRequest, step: GroupStep
    ) -> None:
        """JoinGroup to a consumer group."""
        try:
            found = classic_members.join(group, command, request, step)
            why = request.reason or f"{command.client_id} at {command.client_host} joined"
            self.events.note(group, step.records, step.now_ms, why)
            if found is not None:
                self._unstored.note([found.member_id], step.now_ms)
            if found is not None and found.member is not None and found.member.classic is None:
                # It may have been the last one of the other protocol.
                step.set_timer(("downgrade", group.group_id), step.now_ms)
        except ApiError as error:
            step.reply(command.request_id, join_error(command, error.code, request.member_id))

    def sync(
        self, group: ConsumerGroup, command: Command, request: SyncGroupRequest, step: GroupStep
    ) -> None:
        """SyncGroup to a consumer group."""
        try:
            response = classic_members.sync(group, request, step)
        except ApiError as error:
            code = self._refusal(error.code, command, request, step)
            response = SyncGroupResponse(error_code=code)
        step.reply(command.request_id, response)

    def classic_heartbeat(
        self, group: ConsumerGroup, command: Command, request: HeartbeatRequest, step: GroupStep
    ) -> None:
        """Heartbeat to a consumer group."""
        try:
            response = classic_members.heartbeat(group, request, step)
        except ApiError as error:
            code = self._refusal(error.code, command, request, step)
            response = HeartbeatResponse(error_code=code)
        step.reply(command.request_id, response)

    def _refusal(
        self,
        code: ErrorCode,
        command: Command,
        request: SyncGroupRequest | HeartbeatRequest,
        step: GroupStep,
    ) -> ErrorCode:
        """The group may have been a classic one when its coordinator moved."""
        generation_id, client_id = request.generation_id, command.client_id
        return self._unstored.answer(code, request, generation_id, client_id, step.now_ms)

    def leave(
        self, group: ConsumerGroup, command: Command, request: LeaveGroupRequest, step: GroupStep
    ) -> None:
        """LeaveGroup to a consumer group: members of either protocol go."""
        identities = request.members
        if command.api_version < SEVERAL_MEMBERS_SINCE:
            identities = [MemberIdentity(member_id=request.member_id)]
        members = []
        removed_ids: list[str] = []
        for identity in identities:
            answer = MemberResponse(
                member_id=identity.member_id, group_instance_id=identity.group_instance_id
            )
            try:
                member_id = classic_members.leaving_member(group, identity)
                if member_id not in removed_ids:
                    removed_ids.append(member_id)
            except ApiError as error:
                answer.error_code = error.code
            members.append(answer)
        if removed_ids:
            self.remove(group, removed_ids, step)
            why = next((identity.reason for identity in identities if identity.reason), None)
            self.events.note(group, step.records, step.now_ms, why or REASON_NOT_PROVIDED)
        response = LeaveGroupResponse(members=members)
        if command.api_version < SEVERAL_MEMBERS_SINCE:
            response = LeaveGroupResponse(error_code=members[0].error_code)
        step.reply(command.request_id, response)

    # -- timers and topics ------------------------------------------------------------------------

    def fire(self, key: TimerKey, step: GroupStep) -> None:
        """A timer of a group or member is due."""
        group = self.get(key[1])
        if group is None:
            return
        if key[0] == "assignment":
            if group.epoch > group.target_epoch:
                assign_now(group, group.epoch, ConsumerTargetAssignmentBuilder(group), step)
                self.events.note(group, step.records, step.now_ms, "it was due")
            return
        if key[0] == "downgrade":
            if self._can_downgrade(group, (), step):
                self._downgrade(group, (), step)
            return
        member_id = key[2]
        member = group.member(member_id)
        if member is None:
            return
        why = f"no heartbeat for {heartbeats.session_timeout_of(group, member, step)} ms"
        if key[0] == "member-revocation":
            state = group.current(member_id).state
            if state is not MemberState.UNREVOKED_PARTITIONS or member.classic is not None:
                return
            why = f"did not give up its partitions within {member.rebalance_timeout_ms} ms"
        elif key[0] in ("member-rejoin", "member-sync"):
            group.awaiting_rejoin.discard(member_id)
            if member.classic is None:
                return
            what = "join again" if key[0] == "member-rejoin" else "ask for its assignment"
            why = f"did not {what} in time"
        self.remove(group, [member_id], step)
        self.events.note(group, step.records, step.now_ms, f"{member_id} {why}", is_expired=True)

    def update_topics(self, request: UpdateTopics, step: GroupStep) -> None:
        """Start an epoch in every group whose topics are not what they were."""
        self.needs_topics = False
        for group in self:
            if not group.is_empty:
                self._update_topics(group, request, step)

    def _update_topics(self, group: ConsumerGroup, request: UpdateTopics, step: GroupStep) -> None:
        stale = [
            regex
            for regex, resolved in group.regexes()
            if request.regexes.get(regex, resolved.topic_names) != resolved.topic_names
        ]
        names = request.names
        if not stale and names is not None and group.topic_names().isdisjoint(names):
            return
        builder = ConsumerTargetAssignmentBuilder(group)
        for regex in stale:
            resolve_regex(group, builder, regex, request.regexes[regex], step)
        if stale or hash_of(group, builder, step) != group.metadata_hash:
            before = len(step.records)
            epoch = start_epoch(group, builder, step)
            assign_if_due(group, epoch, builder, step)
            self.events.note(group, step.records[before:], step.now_ms, "topics have changed")

    # -- offsets and administration ---------------------------------------------------------------

    def commit_error(self, request: OffsetCommitRequest, version: int) -> ErrorCode:
        """Whether the asker may commit these offsets.

        A member may be an epoch behind when its commit arrives; what it commits counts for
        partitions that it has had since before that epoch (KIP-1251).
        """
        group = self._groups[request.group_id]
        member_id, epoch = request.member_id, request.generation_id_or_member_epoch
        if epoch < 0 and group.is_empty:
            return ErrorCode.NONE
        member = group.member(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        is_classic = member.classic is not None
        if not is_classic and version < _CONSUMER_COMMITS_SINCE:
            return ErrorCode.UNSUPPORTED_VERSION
        current = group.current(member_id)
        if epoch == current.member_epoch:
            return ErrorCode.NONE
        if is_classic:
            return ErrorCode.ILLEGAL_GENERATION
        if epoch < 0 or epoch > current.member_epoch:
            return ErrorCode.STALE_MEMBER_EPOCH
        for topic in request.topics:
            since = current.assigned.get(topic.topic_id, {})
            for partition in topic.partitions:
                known = since.get(partition.partition_index)
                if known is None or not 0 <= known <= epoch:
                    return ErrorCode.STALE_MEMBER_EPOCH
        return ErrorCode.NONE

    def fetch_error(self, group_id: str, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Whether the asker may fetch offsets; administrators are nobody at epoch -1."""
        if member_id is None and member_epoch < 0:
            return ErrorCode.NONE
        group = self._groups[group_id]
        member = group.member(member_id or "")
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if group.current(member_id or "").member_epoch != member_epoch:
            is_classic = member.classic is not None
            return ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH
        return ErrorCode.NONE

    @staticmethod
    def assignor_of(group: ConsumerGroup, step: GroupStep) -> str:
        """The assignor that makes the group's targets."""
        return choose_assignor(dict(group.members()), step.settings)

    def describe(self, group: ConsumerGroup, step: GroupStep) -> ConsumerGroupDescribedGroup:
        """The group with what every member owns, also while it has to give it up, and shall own."""
        return ConsumerGroupDescribedGroup(
            group_id=group.group_id,
            group_state=group.state,
            group_epoch=group.epoch,
            assignment_epoch=group.target_epoch,
            assignor_name=self.assignor_of(group, step),
            members=[
                ConsumerGroupDescribeMember(
                    member_id=member_id,
                    instance_id=member.instance_id,
                    rack_id=member.rack_id,
                    member_epoch=group.current(member_id).member_epoch,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    subscribed_topic_names=list(member.topic_names),
                    subscribed_topic_regex=member.topic_regex,
                    assignment=_described(_owned_partitions(group.current(member_id)), step),
                    target_assignment=_described(group.target(member_id), step),
                    member_type=_CONSUMER_MEMBER if member.classic is None else _CLASSIC_MEMBER,
                )
                for member_id, member in group.members()
            ],
        )


def _owned_partitions(current: ConsumerCurrentAssignment) -> dict[Uuid, set[int]]:
    """What the member may be reading: what it has to give up is its own until it says that it has
    done so."""
    assigned, pending = current.assigned, current.pending_revocation
    return {
        topic_id: {*assigned.get(topic_id, ()), *pending.get(topic_id, ())}
        for topic_id in (*assigned, *pending)
    }


def _described(
    topics: Mapping[Uuid, Collection[int]], step: GroupStep
) -> ConsumerGroupDescribeAssignment:
    """Partitions with their topics' names; topics that are gone are left out, as in Kafka."""
    named = ((topic_id, step.topics.name_of(topic_id), found) for topic_id, found in topics.items())
    return ConsumerGroupDescribeAssignment(
        topic_partitions=[
            ConsumerGroupDescribeTopicPartitions(
                topic_id=topic_id, topic_name=name, partitions=sorted(indexes)
            )
            for topic_id, name, indexes in named
            if name is not None
        ]
    )
