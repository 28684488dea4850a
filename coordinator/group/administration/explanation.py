"""What a group does, and why: everything the coordinator knows of it, as ExplainGroup tells it.

Members with what each of them is at, what it owns and how long it took; commits with their times;
what happened lately. Nothing is changed here, and nothing is judged: findings are made of this and
of what the partitions' leaders know (node/cli/findings.py). Called by `shard`.
"""

from collections.abc import Collection, Iterator, Mapping

from odradek.coordinator.group.administration.group_directory import GroupDirectory
from odradek.coordinator.group.classic.group import ClassicGroup, GroupState
from odradek.coordinator.group.classic.groups import GROUP_TYPE_CLASSIC
from odradek.coordinator.group.classic.members import ClassicGroupMember
from odradek.coordinator.group.consumer.group import (
    ConsumerGroup,
)
from odradek.coordinator.group.consumer.groups import ConsumerGroups
from odradek.coordinator.group.events import GroupEvent
from odradek.coordinator.group.group_record import GroupRecord
from odradek.coordinator.group.modern.heartbeats import (
    LEAVE_GROUP_STATIC_EPOCH,
)
from odradek.coordinator.group.modern.records import (
    MemberState,
)
from odradek.coordinator.group.requests import ExplainGroup
from odradek.coordinator.group.share.group import ShareGroup
from odradek.coordinator.group.share.groups import ShareGroups
from odradek.coordinator.group.step import (
    GroupStep,
)
from odradek.coordinator.group.streams.group import StreamsGroup
from odradek.coordinator.group.streams.groups import StreamsGroups
from odradek.coordinator.group.streams.records import TasksTupleWithEpochs
from odradek.coordinator.group.streams.responses import ASSIGNOR_NAME, partitions_read_by
from odradek.coordinator.group.topics import TopicCatalog
from odradek.coordinator.outcome import Command, Outcome, respond
from odradek.protocol.consumer_protocol import decode_assignment
from odradek.protocol.errors import ErrorCode, ProtocolError
from odradek.protocol.messages.diagnostics import (
    ExplainedCommit,
    ExplainedCommits,
    ExplainedEvent,
    ExplainedGroup,
    ExplainedMember,
    ExplainedTopic,
    MemberProgress,
    RebalanceWait,
)
from odradek.protocol.types import Uuid


class GroupExplainer:
    """See the module's docstring."""

    __slots__ = ("_directory",)

    def __init__(self, directory: GroupDirectory) -> None:
        self._directory = directory

    def explain(
        self, command: Command, request: ExplainGroup, step: GroupStep
    ) -> Outcome[GroupRecord]:
        """ExplainGroup; GROUP_ID_NOT_FOUND if there is no such group."""
        group_id, with_events = request.group_id, request.with_events
        explained = ExplainedGroup(group_id=group_id)
        ttl_ms = step.settings.policies.ttl_ms(group_id)
        explained.ttl_ms = -1 if ttl_ms is None else ttl_ms
        explained.commits = self._commits(group_id, step.topics)
        events = self._fill(explained, step)
        explained.events = [_event(event) for event in events] if with_events else []
        return respond(command, explained)

    def _fill(self, explained: ExplainedGroup, step: GroupStep) -> tuple[GroupEvent, ...]:
        """Tell of the group and its members, as its kind does; returns its events."""
        group_id = explained.group_id
        consumers = self._directory.consumers.get(group_id)
        if consumers is not None:
            _fill_consumers(explained, consumers, self._directory.consumers, step)
            return self._directory.consumers.events.newest(group_id)
        share = self._directory.shares.get(group_id)
        if share is not None:
            _fill_share(explained, share, self._directory.shares, step)
            return self._directory.shares.events.newest(group_id)
        streams = self._directory.streams.get(group_id)
        if streams is not None:
            _fill_streams(explained, streams, self._directory.streams, step)
            return self._directory.streams.events.newest(group_id)
        group = self._directory.classic.group(group_id)
        if group is not None:
            _fill_classic(explained, group)
            return group.events.newest()
        if explained.commits:
            explained.group_type, explained.group_state = GROUP_TYPE_CLASSIC, GroupState.EMPTY
        else:
            explained.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            explained.error_message = f"Group {group_id} not found."
        return ()

    def _commits(self, group_id: str, topics: TopicCatalog) -> list[ExplainedCommits]:
        """Offsets on topics that have been deleted are left out."""
        named: dict[str, ExplainedCommits] = {}
        pending_keys = self._directory.pending_offsets.pending_keys(group_id)
        pending = {(topic, index) for _, topic, index in pending_keys}
        known = dict(self._directory.offsets.items(group_id))
        for name, index in sorted({*known, *pending}):
            committed = known.get((name, index))
            commits = named.setdefault(name, ExplainedCommits(name=name))
            commits.partitions.append(
                ExplainedCommit(
                    partition_index=index,
                    committed_offset=-1 if committed is None else committed.offset,
                    committed_at=-1 if committed is None else committed.commit_timestamp_ms,
                    is_unstable=(name, index) in pending,
                )
            )
        return list(named.values())


def _event(event: GroupEvent) -> ExplainedEvent:
    return ExplainedEvent(
        at=event.at_ms, kind=event.kind, member_id=event.member_id, reason=event.reason
    )


# -- classic groups -------------------------------------------------------------------------------


def _fill_classic(explained: ExplainedGroup, group: ClassicGroup) -> None:
    explained.group_type = GROUP_TYPE_CLASSIC
    explained.group_state = group.state
    explained.protocol = group.protocol_name or ""
    explained.epoch = explained.target_epoch = group.generation_id
    explained.topics = sorted(group.subscribed_topics() or ())
    is_rebalancing = group.state in (
        GroupState.PREPARING_REBALANCE,
        GroupState.COMPLETING_REBALANCE,
    )
    if is_rebalancing:
        explained.since = group.rebalance_started_ms
        explained.deadline = group.deadline_ms
        explained.wait = RebalanceWait.SYNC_GROUP
        if group.state is GroupState.PREPARING_REBALANCE:
            explained.wait = (
                RebalanceWait.INITIAL_REBALANCE_DELAY
                if group.is_delayed
                else RebalanceWait.JOIN_GROUP
            )
    explained.members = [_classic_member(member, group) for member in group.members]
    explained.members += (
        ExplainedMember(member_id=member_id, state=MemberProgress.ID_ASSIGNED)
        for member_id in sorted(group.pending)
    )


def _classic_member(member: ClassicGroupMember, group: ClassicGroup) -> ExplainedMember:
    match group.state:
        case GroupState.PREPARING_REBALANCE:
            state = MemberProgress.JOINED if member.is_joining else MemberProgress.NOT_JOINED
        case _:
            state = (
                MemberProgress.NOT_SYNCED
                if member.member_id in group.pending_sync
                else MemberProgress.SYNCED
            )
    is_late = state in (MemberProgress.NOT_JOINED, MemberProgress.NOT_SYNCED)
    return ExplainedMember(
        member_id=member.member_id,
        instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        epoch=group.generation_id,
        state=state,
        deadline=group.deadline_ms if is_late else -1,
        join_ms=_duration_ms(group.rebalance_started_ms, member.joined_at_ms),
        sync_ms=_duration_ms(group.state_timestamp_ms, member.synced_at_ms),
        owned=_owned_by_classic(member) if group.state is GroupState.STABLE else [],
    )


def _duration_ms(since_ms: int, at_ms: int) -> int:
    """How long something took that may belong to an earlier rebalance."""
    return at_ms - since_ms if 0 <= since_ms <= at_ms else -1


def _owned_by_classic(member: ClassicGroupMember) -> list[ExplainedTopic]:
    if not member.assignment:
        return []
    try:
        partitions = decode_assignment(member.assignment).assigned_partitions
    except ProtocolError:
        return []  # of a protocol that is not consumers': nobody here can read it
    return [
        ExplainedTopic(name=topic.topic, partitions=sorted(topic.partitions))
        for topic in partitions
        if topic.partitions
    ]


# -- consumer groups ------------------------------------------------------------------------------


def _fill_consumers(
    explained: ExplainedGroup, group: ConsumerGroup, groups: ConsumerGroups, step: GroupStep
) -> None:
    explained.group_type = groups.group_type
    explained.group_state = group.state
    explained.protocol = groups.assignor_of(group, step)
    explained.epoch, explained.target_epoch = group.epoch, group.target_epoch
    explained.topics = sorted(group.topic_names())
    timings = groups.events.timings(group.group_id)
    explained.since = timings.started_ms if group.state not in ("Stable", "Empty") else -1
    for member_id, member in group.members():
        current = group.current(member_id)
        state, deadline = MemberProgress.STABLE, -1
        if current.member_epoch == LEAVE_GROUP_STATIC_EPOCH:
            state = MemberProgress.STATIC_LEFT
        elif current.state is MemberState.UNREVOKED:
            state = MemberProgress.REVOKING_PARTITIONS
            since_ms = timings.revoking_since_ms.get(member_id, -1)
            deadline = -1 if since_ms < 0 else since_ms + member.rebalance_timeout_ms
        elif current.state is MemberState.UNRELEASED:
            state = MemberProgress.AWAITING_PARTITIONS
        elif current.member_epoch < group.target_epoch:
            state = MemberProgress.EPOCH_BEHIND
        explained.members.append(
            ExplainedMember(
                member_id=member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                epoch=current.member_epoch,
                state=state,
                deadline=deadline,
                join_ms=timings.settled_ms.get(member_id, -1),
                revoke_ms=timings.revoked_ms.get(member_id, -1),
                owned=list(_named(current.assigned, step.topics)),
                to_revoke=list(_named(current.pending_revocation, step.topics)),
            )
        )


def _named(
    partitions: Mapping[Uuid, Collection[int]], topics: TopicCatalog
) -> Iterator[ExplainedTopic]:
    for topic_id, indexes in partitions.items():
        name = topics.name_of(topic_id)
        if name is not None and indexes:
            yield ExplainedTopic(name=name, partitions=sorted(indexes))


# -- share groups ---------------------------------------------------------------------------------


def _fill_share(
    explained: ExplainedGroup, group: ShareGroup, groups: ShareGroups, step: GroupStep
) -> None:
    """Nobody gives anything up for others: a member has its target, or has not heard of it."""
    explained.group_type = groups.group_type
    explained.group_state = group.state
    explained.epoch, explained.target_epoch = group.epoch, group.target_epoch
    explained.topics = sorted(group.topic_names())
    timings = groups.events.timings(group.group_id)
    is_told = True
    for member_id, member in group.members():
        current = group.current(member_id)
        is_behind = current.member_epoch < group.target_epoch
        is_told = is_told and not is_behind
        explained.members.append(
            ExplainedMember(
                member_id=member_id,
                client_id=member.client_id,
                client_host=member.client_host,
                epoch=current.member_epoch,
                state=MemberProgress.EPOCH_BEHIND if is_behind else MemberProgress.STABLE,
                join_ms=timings.settled_ms.get(member_id, -1),
                owned=list(_named(current.assigned, step.topics)),
            )
        )
    explained.since = -1 if is_told else timings.started_ms


# -- streams groups -------------------------------------------------------------------------------


def _fill_streams(
    explained: ExplainedGroup, group: StreamsGroup, groups: StreamsGroups, step: GroupStep
) -> None:
    """What members own is what their active tasks read."""
    explained.group_type = groups.group_type
    explained.group_state = group.state
    explained.protocol = ASSIGNOR_NAME
    explained.epoch, explained.target_epoch = group.epoch, group.target_epoch
    explained.topics = sorted(groups.topic_names(group.group_id))
    timings = groups.events.timings(group.group_id)
    explained.since = -1 if group.state in ("Stable", "Empty") else timings.started_ms
    for member_id, member in group.members():
        current = group.current(member_id)
        state, deadline = MemberProgress.STABLE, -1
        if current.member_epoch == LEAVE_GROUP_STATIC_EPOCH:
            state = MemberProgress.STATIC_LEFT
        elif current.state is MemberState.UNREVOKED:
            state = MemberProgress.REVOKING_TASKS
            since_ms = timings.revoking_since_ms.get(member_id, -1)
            deadline = -1 if since_ms < 0 else since_ms + member.rebalance_timeout_ms
        elif current.state is MemberState.UNRELEASED:
            state = MemberProgress.AWAITING_TASKS
        elif current.member_epoch < group.target_epoch:
            state = MemberProgress.EPOCH_BEHIND
        explained.members.append(
            ExplainedMember(
                member_id=member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                epoch=current.member_epoch,
                state=state,
                deadline=deadline,
                join_ms=timings.settled_ms.get(member_id, -1),
                revoke_ms=timings.revoked_ms.get(member_id, -1),
                owned=_read_by(group, current.assigned, step.topics),
                to_revoke=_read_by(group, current.pending_revocation, step.topics),
            )
        )


def _read_by(
    group: StreamsGroup, held: TasksTupleWithEpochs, topics: TopicCatalog
) -> list[ExplainedTopic]:
    """The partitions that active tasks read, as far as their topics are there."""
    topology = group.topology
    return [
        ExplainedTopic(name=name, partitions=indexes)
        for name, indexes in (
            [] if topology is None else partitions_read_by(topology, held.active, topics)
        )
    ]
