"""All consumer groups (KIP-848) of one shard, with their members of the classic protocol.

Timers besides those of all newer groups (`modern.group_type`):

| Timer | Set | When it expires |
|---|---|---|
| member-rejoin | when a classic member must join again | the member is removed |
| member-sync | when a classic member has joined | the member is removed |
| downgrade | when a static member rejoins as a classic one | if all are classic, so is the group |

Called by `shard`, which also owns the classic groups.
"""

from collections.abc import Callable, Collection
from typing import Final

from odradek.coordinator.group.classic.group import ClassicGroup, join_error
from odradek.coordinator.group.classic.leave_group import SEVERAL_MEMBERS_SINCE
from odradek.coordinator.group.classic.records import GroupMetadataRecord
from odradek.coordinator.group.classic.unstored_members import UnstoredMembers
from odradek.coordinator.group.consumer import classic_members, heartbeats
from odradek.coordinator.group.consumer.group import REJOIN, ConsumerGroup
from odradek.coordinator.group.consumer.migration import (
    can_upgrade,
    classic_generation_of,
    consumer_group_of,
)
from odradek.coordinator.group.consumer.records import ConsumerCurrentAssignment
from odradek.coordinator.group.consumer.target_assignment import (
    ConsumerTargetAssignmentBuilder,
    choose_assignor,
)
from odradek.coordinator.group.events import REASON_NOT_PROVIDED
from odradek.coordinator.group.modern.event_history import heartbeat_reason
from odradek.coordinator.group.modern.group_type import (
    GroupType,
    described_assignment,
)
from odradek.coordinator.group.modern.heartbeats import (
    JOIN_GROUP_EPOCH,
    LEAVE_GROUP_EPOCH,
    check_member,
    leave_static,
    remove_members,
    schedule_session_timeout,
)
from odradek.coordinator.group.requests import ConsumerHeartbeat, UpdateTopics
from odradek.coordinator.group.step import GroupStep
from odradek.coordinator.outcome import Command
from odradek.coordinator.timeline import Timeline
from odradek.protocol.errors import ApiError, ErrorCode, ProtocolError
from odradek.protocol.messages.groups import (
    ConsumerGroupDescribedGroup,
    ConsumerGroupDescribeMember,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from odradek.protocol.types import Uuid

_CLASSIC_MEMBER: Final = 0
_CONSUMER_MEMBER: Final = 1


class ConsumerGroups(GroupType[ConsumerGroup]):
    """See the module's docstring. `adopt` takes the classic group that a group has become.

    A GroupType whose heartbeats, joins and so on go through the shard, because these groups may
    become classic groups and back.
    """

    def __init__(
        self, timeline: Timeline, adopt: Callable[[ClassicGroup], None], unstored: UnstoredMembers
    ) -> None:
        super().__init__(timeline, ConsumerGroup)
        self._adopt = adopt
        self._unstored = unstored
        # Whether topics may have changed since the groups were stored.
        self.needs_topics = True

    def on_loaded(self, step: GroupStep) -> None:
        """See GroupType."""
        super().on_loaded(step)
        for group in self:
            known = (id_ for id_, member in group.members() if member.classic is not None)
            self._unstored.note(known, step.now_ms)
            group.expect_lost_responses()

    # -- finding groups ---------------------------------------------------------------------------

    def topic_names(self, group_id: str) -> frozenset[str]:
        """See GroupType."""
        return frozenset(self._groups[group_id].topic_names())

    def regexes(self) -> set[str]:
        """The regular expressions of all subscriptions."""
        return {regex for group in self for regex, _ in group.regexes()}

    def create_or_convert(
        self, classic: ClassicGroup | None, beat: ConsumerGroupHeartbeatRequest, step: GroupStep
    ) -> ConsumerGroup:
        """A group for the first member of the consumer protocol, with the classic members if any.

        The group is as the step's records will make it. ApiError(GROUP_ID_NOT_FOUND) if the member
        does not join, or the classic group cannot be upgraded.
        """
        group_id = beat.group_id
        if beat.member_epoch != JOIN_GROUP_EPOCH:
            raise self.not_found(group_id, is_other_type=classic is not None)
        if classic is None or not len(classic.members):
            return ConsumerGroup(group_id, Timeline())
        if not can_upgrade(classic, step.settings):
            raise self.not_found(group_id, is_other_type=True)
        try:
            group, records = consumer_group_of(classic, step.topics)
        except ProtocolError as error:
            message = f"Group {group_id} cannot become a consumer group: {error}"
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, message) from None
        step.records += records
        for member_id, member in group.members():
            schedule_session_timeout(group, member_id, member, step)
        return group

    # -- members of the consumer protocol ---------------------------------------------------------

    def heartbeat(
        self, group: ConsumerGroup, command: Command, sent: ConsumerHeartbeat, step: GroupStep
    ) -> None:
        """A validated heartbeat to a group that exists or is created by it. ApiError if refused."""
        request, before = sent.request, len(step.records)
        response: ConsumerGroupHeartbeatResponse
        if request.member_epoch >= JOIN_GROUP_EPOCH:
            member_id = request.member_id or command.fresh_id
            response = heartbeats.heartbeat(group, command, sent, member_id, step)
        else:
            member_id = request.member_id
            check_member(group, member_id, request.instance_id)
            if request.member_epoch == LEAVE_GROUP_EPOCH:
                self._remove(group, [member_id], step)
            else:
                leave_static(group, member_id, step)
            response = ConsumerGroupHeartbeatResponse(
                member_id=member_id, member_epoch=request.member_epoch
            )
        if len(step.records) > before:
            why = heartbeat_reason(command, request.member_epoch)
            self._note(group, step, why, after=before)
        step.reply(command.request_id, response)

    def _remove(self, group: ConsumerGroup, member_ids: Collection[str], step: GroupStep) -> None:
        """Remove members. If only classic members remain the group becomes a classic one."""
        if not self._can_downgrade(group, member_ids, step):
            remove_members(ConsumerTargetAssignmentBuilder(group), member_ids, step)
        else:
            self._downgrade(group, member_ids, step)

    def _downgrade(
        self, group: ConsumerGroup, member_ids: Collection[str], step: GroupStep
    ) -> None:
        metadata = classic_generation_of(group, member_ids, step.topics, step.now_ms)
        for member_id, _ in group.members():
            for key in group.member_keys(member_id):
                step.cancel_timer(key)
        step.cancel_timer(group.assignment_key())
        step.records += group.tombstones()
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
            self._note(group, step, why)
            if found is not None:
                self._unstored.note([found.member_id], step.now_ms)
            if found is not None and found.member is not None and found.member.classic is None:
                # The replaced member may have been the last one of the consumer protocol.
                step.set_timer(group.own_key(), step.now_ms)
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
        """The error; a member may be unstored, of when the group was a classic one."""
        generation_id, client_id = request.generation_id, command.client_id
        return self._unstored.answer(code, request, generation_id, client_id, step.now_ms)

    def leave(
        self, group: ConsumerGroup, command: Command, request: LeaveGroupRequest, step: GroupStep
    ) -> None:
        """LeaveGroup to a consumer group: removes members of either protocol."""
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
            self._remove(group, removed_ids, step)
            why = next((identity.reason for identity in identities if identity.reason), None)
            self._note(group, step, why or REASON_NOT_PROVIDED)
        response = LeaveGroupResponse(members=members)
        if command.api_version < SEVERAL_MEMBERS_SINCE:
            response = LeaveGroupResponse(error_code=members[0].error_code)
        step.reply(command.request_id, response)

    # -- timers and topics ------------------------------------------------------------------------

    def _why_removed(
        self,
        group: ConsumerGroup,
        timer: str,
        member_id: str,
        step: GroupStep,
    ) -> str | None:
        if timer not in group.timers.of_members:
            return super()._why_removed(group, timer, member_id, step)
        group.awaiting_rejoin.discard(member_id)
        member = group.member(member_id)
        if member is None or member.classic is None:
            return None
        what = "join again" if timer == REJOIN else "ask for its assignment"
        return f"did not {what} in time"

    def _fire_own(self, group: ConsumerGroup, step: GroupStep) -> None:
        if self._can_downgrade(group, (), step):
            self._downgrade(group, (), step)

    def _assign(self, group: ConsumerGroup, step: GroupStep) -> None:
        ConsumerTargetAssignmentBuilder(group).assign_now(group.stored_epoch, step)

    def update_topics(self, request: UpdateTopics, step: GroupStep) -> None:
        """See GroupType."""
        self.needs_topics = False
        super().update_topics(request, step)

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
            builder.resolve_regex(regex, request.regexes[regex], step)
        if stale or builder.hash(step.topics) != group.metadata_hash:
            builder.assign_if_due(builder.start_epoch(step), step)

    # -- offsets and administration ---------------------------------------------------------------

    @staticmethod
    def assignor_of(group: ConsumerGroup, step: GroupStep) -> str:
        """The assignor that makes the group's targets."""
        return choose_assignor((member for _, member in group.members()), step.settings)

    def describe(self, group: ConsumerGroup, step: GroupStep) -> ConsumerGroupDescribedGroup:
        """ConsumerGroupDescribe. The assignment includes partitions that must be revoked."""
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
                    assignment=described_assignment(
                        _owned_partitions(group.current(member_id)), step.topics
                    ),
                    target_assignment=described_assignment(group.target(member_id), step.topics),
                    member_type=_CONSUMER_MEMBER if member.classic is None else _CLASSIC_MEMBER,
                )
                for member_id, member in group.members()
            ],
        )


def _owned_partitions(current: ConsumerCurrentAssignment) -> dict[Uuid, set[int]]:
    """The partitions that the member may read. It owns those that it must revoke until it confirms
    the revocation."""
    assigned, pending = current.assigned, current.pending_revocation
    return {
        topic_id: {*assigned.get(topic_id, ()), *pending.get(topic_id, ())}
        for topic_id in (*assigned, *pending)
    }
