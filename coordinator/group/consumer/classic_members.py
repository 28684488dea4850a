"""Members of a consumer group that speak the classic protocol (KIP-848, online migration).

To such a member the group is a classic one with another leader: JoinGroup takes the next step of
reconciliation and returns the member epoch as generation, SyncGroup returns the assignment,
Heartbeat returns REBALANCE_IN_PROGRESS when there is a next step, LeaveGroup removes the member.

| State at a Heartbeat | Error |
|---|---|
| the group epoch is ahead of the member epoch | REBALANCE_IN_PROGRESS |
| the member has partitions to revoke | REBALANCE_IN_PROGRESS |
| its missing partitions have become free | REBALANCE_IN_PROGRESS |
| else | NONE |

A member that gets REBALANCE_IN_PROGRESS must send JoinGroup within its rebalance timeout, and
SyncGroup within that time again; else it is removed. Called by `consumer.groups`.
"""

from typing import Final

from odradek.coordinator.group.classic.group import join_error
from odradek.coordinator.group.classic.join_group import generated_member_id
from odradek.coordinator.group.classic.members import Protocols, protocols_of, rebalance_timeout_of
from odradek.coordinator.group.consumer.group import REJOIN, SYNC, ConsumerGroup
from odradek.coordinator.group.consumer.heartbeats import Resolved, maybe_reconcile, update_member
from odradek.coordinator.group.consumer.migration import assignment_bytes, by_id
from odradek.coordinator.group.consumer.records import ClassicMemberMetadata, ConsumerGroupMember
from odradek.coordinator.group.modern.heartbeats import (
    check_group_size,
    check_instance_id,
    check_member,
    replacement,
    schedule_session_timeout,
    unknown_member,
)
from odradek.coordinator.group.modern.records import MemberState
from odradek.coordinator.group.step import GroupStep
from odradek.coordinator.outcome import Command
from odradek.protocol.consumer_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    ConsumerProtocolSubscription,
    decode_subscription,
    has_owned_partitions,
)
from odradek.protocol.errors import ApiError, ErrorCode, ProtocolError
from odradek.protocol.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupResponse,
)

_REQUIRES_KNOWN_ID_SINCE: Final = 4


def join(
    group: ConsumerGroup, command: Command, request: JoinGroupRequest, step: GroupStep
) -> Resolved | None:
    """JoinGroup; returns the member that joined, None if it got MEMBER_ID_REQUIRED."""
    member_id = request.member_id
    instance_id = request.group_instance_id
    protocols = protocols_of(request.protocols)
    subscription = _subscription(group, request.protocol_type, protocols)
    if not member_id:
        member_id = generated_member_id(command, request)
    resolved = _find(group, member_id, request)
    if resolved.member is None:
        check_group_size(group, step)
    is_id_required = command.api_version >= _REQUIRES_KNOWN_ID_SINCE
    if not request.member_id and instance_id is None and is_id_required:
        refusal = join_error(command, ErrorCode.MEMBER_ID_REQUIRED, member_id)
        step.reply(command.request_id, refusal)
        return None
    known = resolved.member or ConsumerGroupMember()
    member = ConsumerGroupMember(
        instance_id=known.instance_id if instance_id is None else instance_id,
        rack_id=known.rack_id if subscription.rack_id is None else subscription.rack_id,
        client_id=command.client_id,
        client_host=command.client_host,
        topic_names=tuple(sorted(set(subscription.topics))),
        rebalance_timeout_ms=rebalance_timeout_of(command, request),
        server_assignor=known.server_assignor,
        classic=ClassicMemberMetadata.of(request.session_timeout_ms, protocols),
    )
    goal = update_member(group, resolved, member, None, step)
    owned = by_id(subscription.owned_partitions, step.topics)
    current = maybe_reconcile(group, resolved, member, goal, owned, step)
    group.awaiting_rejoin.discard(member_id)
    step.cancel_timer(group.member_key(REJOIN, member_id))
    schedule_session_timeout(group, member_id, member, step)
    deadline_ms = step.now_ms + member.rebalance_timeout_ms
    step.set_timer(group.member_key(SYNC, member_id), deadline_ms)
    if not has_owned_partitions(protocols[0][1]):
        group.awaiting_sync.add(member_id)
    response = JoinGroupResponse(
        generation_id=current.member_epoch,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocol_name=protocols[0][0],
        member_id=member_id,
    )
    step.reply(command.request_id, response)
    return resolved


def _subscription(
    group: ConsumerGroup, protocol_type: str, protocols: Protocols
) -> ConsumerProtocolSubscription:
    """The member's subscription. ApiError(INCONSISTENT_GROUP_PROTOCOL) if the classic members have
    no protocol in common with it."""
    refusal = ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if protocol_type != CONSUMER_PROTOCOL_TYPE or not protocols:
        raise refusal
    common = {name for name, _ in protocols}
    if group.classic_count:
        for _, member in group.members():
            if member.classic is not None:
                common &= {protocol.name for protocol in member.classic.protocols}
    if not common:
        raise refusal
    try:
        return decode_subscription(protocols[0][1])
    except ProtocolError:
        raise refusal from None


def _find(group: ConsumerGroup, member_id: str, request: JoinGroupRequest) -> Resolved:
    instance_id = request.group_instance_id
    if instance_id is not None and not request.member_id:
        holder = group.static_member_id(instance_id)
        if holder is not None:
            # A restart: the previous holder of the instance id is fenced.
            return replacement(group, member_id, holder)
    elif instance_id is not None:
        check_instance_id(group, member_id, instance_id)
    return Resolved(member_id, group.member(member_id), group.current(member_id))


def _member(
    group: ConsumerGroup, member_id: str, instance_id: str | None
) -> tuple[ConsumerGroupMember, ClassicMemberMetadata]:
    """The classic member of that id; ApiError if there is none."""
    check_instance_id(group, member_id, instance_id)
    member = group.member(member_id)
    if member is None or member.classic is None:
        raise unknown_member(group.group_id, member_id)
    return member, member.classic


def _schedule_rejoin_timeout(
    group: ConsumerGroup, member_id: str, member: ConsumerGroupMember, step: GroupStep
) -> None:
    if member_id not in group.awaiting_rejoin:
        group.awaiting_rejoin.add(member_id)
        deadline_ms = step.now_ms + member.rebalance_timeout_ms
        step.set_timer(group.member_key(REJOIN, member_id), deadline_ms)


def sync(group: ConsumerGroup, request: SyncGroupRequest, step: GroupStep) -> SyncGroupResponse:
    """SyncGroup: returns the assignment. ApiError if it is refused."""
    member_id = request.member_id
    member, classic = _member(group, member_id, request.group_instance_id)
    current = group.current(member_id)
    if request.generation_id != current.member_epoch:
        raise ApiError(ErrorCode.ILLEGAL_GENERATION)
    protocol_name = classic.protocols[0].name
    if request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE):
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if request.protocol_name not in (None, protocol_name):
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    # A member that must revoke has joined already, and joins again when it has revoked.
    is_behind = group.epoch > current.member_epoch
    if is_behind and current.state is not MemberState.UNREVOKED:
        _schedule_rejoin_timeout(group, member_id, member, step)
        raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)
    step.cancel_timer(group.member_key(SYNC, member_id))
    group.awaiting_sync.discard(member_id)
    schedule_session_timeout(group, member_id, member, step)
    return SyncGroupResponse(
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocol_name=protocol_name,
        assignment=assignment_bytes(current, step.topics),
    )


def heartbeat(
    group: ConsumerGroup, request: HeartbeatRequest, step: GroupStep
) -> HeartbeatResponse:
    """Heartbeat, by the table above. ApiError if it is refused."""
    member_id = request.member_id
    member, _ = _member(group, member_id, request.group_instance_id)
    current = group.current(member_id)
    if request.generation_id != current.member_epoch:
        raise ApiError(ErrorCode.ILLEGAL_GENERATION)
    schedule_session_timeout(group, member_id, member, step)
    state = current.state
    if (
        current.member_epoch < group.epoch
        or state is MemberState.UNREVOKED
        or (state is MemberState.UNRELEASED and not group.is_waiting_for_partitions(member_id))
    ):
        _schedule_rejoin_timeout(group, member_id, member, step)
        return HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
    return HeartbeatResponse()


def leaving_member(group: ConsumerGroup, identity: MemberIdentity) -> str:
    """The id of the member that leaves or is removed; ApiError if there is no such member.

    Administrators remove members of both protocols in this way.
    """
    member_id = identity.member_id
    if not member_id and identity.group_instance_id is not None:
        member_id = group.static_member_id(identity.group_instance_id) or ""
    check_member(group, member_id, identity.group_instance_id)
    return member_id
