"""ExplainGroup: the coordinator's knowledge of a group.

Members with their progress, their partitions and their durations; commits with their times; recent
events. Nothing is changed here; node/cli/findings.py draws the conclusions. Called by `shard`.
"""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from odradek.coordinator.group.classic.group import ClassicGroup, GroupState
from odradek.coordinator.group.classic.groups import GROUP_TYPE_CLASSIC
from odradek.coordinator.group.classic.members import ClassicGroupMember
from odradek.coordinator.group.consumer.group import ConsumerGroup
from odradek.coordinator.group.events import GroupEvent
from odradek.coordinator.group.group_directory import GroupDirectory
from odradek.coordinator.group.group_record import GroupRecord
from odradek.coordinator.group.modern.event_history import RebalanceTimings
from odradek.coordinator.group.modern.group import AnyGroup, ModernGroupState
from odradek.coordinator.group.modern.heartbeats import LEAVE_GROUP_STATIC_EPOCH
from odradek.coordinator.group.modern.records import MemberState
from odradek.coordinator.group.requests import ExplainGroup
from odradek.coordinator.group.step import GroupStep
from odradek.coordinator.group.streams.group import StreamsGroup
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
    MemberProgress,
    RebalanceWait,
)
from odradek.protocol.messages.partitions import TopicPartitions
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
        """Describe the group and its members; returns its events."""
        group_id = explained.group_id
        directory = self._directory
        group_type = directory.modern_type_of(group_id)
        modern = None if group_type is None else group_type.get(group_id)
        if group_type is not None and modern is not None:
            explained.group_type = group_type.name
            explained.topics = sorted(group_type.topic_names(group_id))
            if isinstance(modern, ConsumerGroup):
                explained.protocol = directory.consumers.assignor_of(modern, step)
            elif isinstance(modern, StreamsGroup):
                explained.protocol = ASSIGNOR_NAME
            _fill_modern(explained, modern, group_type.events.timings(group_id), step.topics)
            return group_type.events.newest(group_id)
        group = directory.classic.group(group_id)
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
    """The duration from `since_ms` to `at_ms`; -1 if `at_ms` belongs to an earlier rebalance."""
    return at_ms - since_ms if 0 <= since_ms <= at_ms else -1


def _owned_by_classic(member: ClassicGroupMember) -> list[TopicPartitions]:
    if not member.assignment:
        return []
    try:
        partitions = decode_assignment(member.assignment).assigned_partitions
    except ProtocolError:
        return []  # it has another protocol type
    return [
        TopicPartitions(name=topic.name, partitions=sorted(topic.partitions))
        for topic in partitions
        if topic.partitions
    ]


# -- newer types of groups ------------------------------------------------------------------------


def _fill_modern(
    explained: ExplainedGroup,
    group: AnyGroup,
    timings: RebalanceTimings,
    topics: TopicCatalog,
) -> None:
    revoking, awaiting = MemberProgress.REVOKING_PARTITIONS, MemberProgress.AWAITING_PARTITIONS
    topics_of: Callable[[Any], list[TopicPartitions]] = partial(_named, topics)
    if isinstance(group, StreamsGroup):
        revoking, awaiting = MemberProgress.REVOKING_TASKS, MemberProgress.AWAITING_TASKS
        topics_of = partial(_read_by, topics, group)
    explained.group_state = group.state
    explained.epoch, explained.target_epoch = group.epoch, group.target_epoch
    is_behind = False
    for member_id, member in group.members():
        current = group.current(member_id)
        state, deadline = MemberProgress.STABLE, -1
        if current.member_epoch == LEAVE_GROUP_STATIC_EPOCH:
            state = MemberProgress.STATIC_LEFT
        elif current.state is MemberState.UNREVOKED:
            state = revoking
            since_ms = timings.revoking_since_ms.get(member_id, -1)
            deadline = -1 if since_ms < 0 else since_ms + member.rebalance_timeout_ms
        elif current.state is MemberState.UNRELEASED:
            state = awaiting
        elif current.member_epoch < group.target_epoch:
            state = MemberProgress.EPOCH_BEHIND
            is_behind = True
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
                owned=topics_of(current.assigned),
                to_revoke=topics_of(current.pending_revocation),
            )
        )
    is_settled = group.state in (ModernGroupState.STABLE, ModernGroupState.EMPTY)
    explained.since = -1 if is_settled and not is_behind else timings.started_ms


def _named(
    topics: TopicCatalog, partitions: Mapping[Uuid, Collection[int]]
) -> list[TopicPartitions]:
    return [
        TopicPartitions(name=name, partitions=indexes)
        for _, name, indexes in topics.named(partitions)
        if indexes
    ]


def _read_by(
    topics: TopicCatalog, group: StreamsGroup, tasks: TasksTupleWithEpochs
) -> list[TopicPartitions]:
    """The partitions that active tasks read, of topics that exist."""
    topology = group.topology
    read = [] if topology is None else partitions_read_by(topology, tasks.active, topics)
    return [TopicPartitions(name=name, partitions=indexes) for name, indexes in read]
