"""RewindGroup (20001), DescribeRewinds (20005), AlterSnapshot (20006) and ReloadShareState (20007):
private APIs, each version 0.

A group is rewound while it consumes (protocol/messages/rewinds.py, coordinator/group/rewind). The
group's coordinator handles the request. It looks up the log bounds of the partitions at their
leaders, so that the offsets in its response are the ones that it has set.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from odradek.cluster.metadata.acls import AclOperation, ResourceType
from odradek.cluster.metadata.image import TopicImage
from odradek.coordinator.group.modern.group import GROUP_TYPE_SHARE
from odradek.coordinator.group.rewind.records import OffsetMove
from odradek.coordinator.group.rewind.requests import (
    CANCEL,
    DescribeRewinds,
    DropSnapshot,
    RewindGroup,
    RewindHistory,
    RewindPosition,
    RewindResult,
    TakeSnapshot,
)
from odradek.coordinator.group.rewind.rewind_tables import MOVE_COUNT_MAX
from odradek.coordinator.group.share.requests import FindShareStates
from odradek.coordinator.share.requests import ShareStateSummary
from odradek.node.router.context import RequestContext, Services
from odradek.node.router.handlers.offsets import EARLIEST
from odradek.node.router.offset_lookup import LogBounds
from odradek.node.router.share.state_reload import topic_id_partitions
from odradek.protocol.errors import ApiError, ErrorCode
from odradek.protocol.messages.partitions import PartitionOffset, TopicOffsets
from odradek.protocol.messages.rewinds import (
    AlterSnapshotRequest,
    AlterSnapshotResponse,
    DescribeRewindsRequest,
    DescribeRewindsResponse,
    ReloadShareStateRequest,
    ReloadShareStateResponse,
    RewindGroupRequest,
    RewindGroupRequestPartition,
    RewindGroupResponse,
    RewindGroupResponsePartition,
    RewindGroupResponseTopic,
    SavedOffsets,
)
from odradek.protocol.types import NO_OFFSET, ZERO_UUID

TO_POSITIONS: Final = 0
TO_SNAPSHOT: Final = 1
TO_BEFORE: Final = 2
TO_WITHDRAW: Final = 3
"""The values of `target`."""
AT_OFFSET: Final = 0
AT_TIME: Final = 1
BY_RECORDS: Final = 2
BY_DURATION: Final = 3
"""The values of `position_kind`."""
ALL_PARTITIONS: Final = -1
TIMEOUT_MS_MAX: Final = 600_000
_INT64_MAX: Final = 2**63 - 1
_NO_STATE_ERRORS: Final = frozenset(
    {ErrorCode.INVALID_REQUEST, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
)
"""The share coordinator's errors for a partition that was never read, or was deleted."""


class _PartitionTarget(NamedTuple):
    """The target of one partition. With the kind AT_OFFSET the position can be NO_OFFSET."""

    topic: TopicImage
    partition: int
    kind: int
    position: int
    leader_epoch: int = -1
    metadata: str = ""


class _RewindError(ApiError):
    """Nothing is rewound, because of these partitions."""

    def __init__(
        self, code: ErrorCode, message: str, partitions: Sequence[tuple[str, int, ErrorCode]]
    ) -> None:
        super().__init__(code, message)
        self.partitions = partitions


# -- RewindGroup -----------------------------------------------------------------------------------


async def handle_rewind_group(
    request: RewindGroupRequest, context: RequestContext, services: Services
) -> RewindGroupResponse:
    """Needs READ on the group and on each topic, as OffsetCommit does."""
    services.authorizer.authorize(context, AclOperation.READ, ResourceType.GROUP, request.group_id)
    try:
        result = await _rewind(request, context, services)
    except _RewindError as error:
        result = RewindResult(
            error_code=error.code, error_message=error.message, refused=tuple(error.partitions)
        )
    topics: dict[str, dict[int, RewindGroupResponsePartition]] = {}
    for move in result.moves:
        topics.setdefault(move.topic, {})[move.partition] = RewindGroupResponsePartition(
            partition_index=move.partition,
            previous_offset=move.previous,
            actual_offset=move.offset,
        )
    for topic, partition, code in result.refused:
        answers = topics.setdefault(topic, {})
        answer = answers.setdefault(
            partition, RewindGroupResponsePartition(partition_index=partition)
        )
        answer.error_code, answer.actual_offset = code, NO_OFFSET
    return RewindGroupResponse(
        error_code=result.error_code,
        error_message=result.error_message,
        topics=[
            RewindGroupResponseTopic(name=name, partitions=list(answers.values()))
            for name, answers in topics.items()
        ],
    )


async def _rewind(
    request: RewindGroupRequest, context: RequestContext, services: Services
) -> RewindResult:
    _check_named_topics(request, context, services)
    undoes, targets = await _target(request, context, services)
    _check_saved_topics(targets, context, services)
    positions = await _positions(targets, request.isolation_level, services)
    history = await _history(request.group_id, context, services)
    if history.group_type == GROUP_TYPE_SHARE:
        positions = await _from_share_states(request.group_id, positions, services)
    rewind = RewindGroup(
        group_id=request.group_id,
        rewind_id=request.rewind_id,
        positions=positions,
        is_dry_run=request.is_dry_run,
        undoes=undoes,
        timeout_ms=max(0, min(request.timeout_ms, TIMEOUT_MS_MAX)),
    )
    return await _change_offsets(rewind, context, services)


async def _change_offsets(
    command: RewindGroup | TakeSnapshot | DropSnapshot, context: RequestContext, services: Services
) -> RewindResult:
    try:
        return await services.group_coordinator.call(command.group_id, command, context)
    except ApiError as error:
        if error.code is not ErrorCode.MESSAGE_TOO_LARGE:
            raise
        message = "The offsets do not fit into one record batch. Name fewer partitions."
        raise ApiError(error.code, message) from None


async def _target(
    request: RewindGroupRequest, context: RequestContext, services: Services
) -> tuple[int, list[_PartitionTarget]]:
    """The number of the undo point that is used (0 for none), and the targets."""
    if request.target == TO_POSITIONS:
        return 0, _requested_targets(request, services)
    if request.target == TO_SNAPSHOT:
        return 0, await _snapshot_targets(request, context, services)
    if request.target == TO_BEFORE:
        return await _undo_targets(request, context, services)
    if request.target == TO_WITHDRAW:
        return CANCEL, []
    raise _invalid(f"Unknown rewind target {request.target}; it must be 0 to 3.")


def _invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, message)


def _requested_targets(request: RewindGroupRequest, services: Services) -> list[_PartitionTarget]:
    """The partitions that the request names, which must exist."""
    if not request.topics:
        raise _invalid("Name the topics to rewind.")
    targets: list[_PartitionTarget] = []
    unknown = []
    for named in request.topics:
        topic = services.image.topics_by_name.get(named.name)
        for at in named.partitions:
            _check_position(at)
            count = 0 if topic is None else len(topic.partitions)
            if topic is None or not ALL_PARTITIONS <= at.partition_index < count:
                error = named.name, at.partition_index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                unknown.append(error)
                continue
            is_all = at.partition_index == ALL_PARTITIONS
            indexes = range(count) if is_all else (at.partition_index,)
            targets += (
                _PartitionTarget(topic, index, at.position_kind, at.position) for index in indexes
            )
            if len(targets) > MOVE_COUNT_MAX:
                # Checked before the bounds of so many logs are looked up.
                raise _invalid(f"At most {MOVE_COUNT_MAX} partitions can be rewound at once.")
    if unknown:
        name, index, code = unknown[0]
        is_topic = name in services.image.topics_by_name
        what = f"Partition {name}-{index}" if is_topic else f"Topic '{name}'"
        raise _RewindError(code, f"{what} does not exist.", unknown)
    return targets


def _check_position(at: RewindGroupRequestPartition) -> None:
    lowest = {AT_OFFSET: 0, AT_TIME: EARLIEST, BY_RECORDS: -_INT64_MAX, BY_DURATION: 0}
    if at.position_kind not in lowest:
        raise _invalid(f"Unknown position kind {at.position_kind}; it must be 0 to 3.")
    if at.position < lowest[at.position_kind]:
        raise _invalid(f"Invalid position {at.position} for position kind {at.position_kind}.")


async def _history(group_id: str, context: RequestContext, services: Services) -> RewindHistory:
    history = await services.group_coordinator.call(group_id, DescribeRewinds(group_id), context)
    if history is None:
        raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
    return history


async def _snapshot_targets(
    request: RewindGroupRequest, context: RequestContext, services: Services
) -> list[_PartitionTarget]:
    history = await _history(request.group_id, context, services)
    snapshot = history.snapshots.get(request.snapshot or "")
    if snapshot is None:
        raise ApiError(
            ErrorCode.RESOURCE_NOT_FOUND,
            f"Group {request.group_id} has no snapshot {request.snapshot or ''}.",
        )
    targets = _targets_of_moves(snapshot.moves, services)
    if not targets:
        raise _invalid(f"The topics of snapshot {request.snapshot} do not exist any more.")
    if request.topics is None:
        return targets
    named = {
        (topic.name, at.partition_index) for topic in request.topics for at in topic.partitions
    }
    found = [
        target
        for target in targets
        if (target.topic.name, target.partition) in named
        or (target.topic.name, ALL_PARTITIONS) in named
    ]
    if not found:
        raise _invalid(f"Snapshot {request.snapshot} contains none of these partitions.")
    return found


async def _undo_targets(
    request: RewindGroupRequest, context: RequestContext, services: Services
) -> tuple[int, list[_PartitionTarget]]:
    """The newest undo point, by its number."""
    if request.topics is not None:
        raise _invalid("A rewind can only be undone as a whole. Name no topics.")
    history = await _history(request.group_id, context, services)
    if request.rewind_id != ZERO_UUID and request.rewind_id in history.known_ids:
        # It is in progress or done. The shard knows the result.
        return 0, []
    if not history.undo_points:
        raise ApiError(
            ErrorCode.RESOURCE_NOT_FOUND, f"Group {request.group_id} has no rewind to undo."
        )
    number = max(history.undo_points)
    moves = history.undo_points[number].moves
    return number, _targets_of_moves(map(_reversed, moves), services)


def _reversed(move: OffsetMove) -> OffsetMove:
    """The move back to the previous offset."""
    return OffsetMove(
        move.topic,
        move.topic_id,
        move.partition,
        move.previous,
        move.previous_leader_epoch,
        move.previous_metadata,
    )


def _targets_of_moves(moves: Iterable[OffsetMove], services: Services) -> list[_PartitionTarget]:
    """The saved offsets as targets. Deleted partitions are left out."""
    return [
        _PartitionTarget(
            topic, move.partition, AT_OFFSET, move.offset, move.leader_epoch, move.metadata
        )
        for move in moves
        if (topic := services.image.topics_by_name.get(move.topic)) is not None
        and move.topic_id in (ZERO_UUID, topic.topic_id)
        and move.partition < len(topic.partitions)
    ]


def _check_named_topics(
    request: RewindGroupRequest, context: RequestContext, services: Services
) -> None:
    """Before it is known which of them exist: that is nobody's business who may not read them."""
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    denied = [
        topic
        for topic in request.topics or ()
        if not services.authorizer.is_topic_allowed(context, AclOperation.READ, topic.name)
    ]
    if denied:
        refused = [
            (topic.name, at.partition_index, code) for topic in denied for at in topic.partitions
        ]
        raise _RewindError(code, code.message, refused)


def _check_saved_topics(
    targets: Iterable[_PartitionTarget], context: RequestContext, services: Services
) -> None:
    """Offsets that the group has saved may be of topics that the client does not know of."""
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    is_allowed = services.authorizer.is_topic_allowed
    denied = [
        target
        for target in targets
        if not is_allowed(context, AclOperation.READ, target.topic.name)
    ]
    if denied:
        refused = [
            (target.topic.name, target.partition, code)
            for target in denied
            if is_allowed(context, AclOperation.DESCRIBE, target.topic.name)
        ]
        raise _RewindError(code, code.message, refused)


async def _positions(
    targets: Sequence[_PartitionTarget], isolation_level: int, services: Services
) -> tuple[RewindPosition, ...]:
    """The targets as offsets, limited to what the logs contain."""
    keys = [(target.topic.name, target.partition) for target in targets]
    now_ms = services.now_ms()
    times = {
        key: target.position if target.kind == AT_TIME else max(0, now_ms - target.position)
        for key, target in zip(keys, targets, strict=True)
        if target.kind in (AT_TIME, BY_DURATION)
    }
    bounds = await services.offset_lookup.bounds(keys, isolation_level)
    found = await services.offset_lookup.offsets_for_times(times, isolation_level) if times else {}
    positions = []
    failed: list[tuple[str, int, ErrorCode]] = []
    for key, target in zip(keys, targets, strict=True):
        bound, at = bounds[key], found.get(key)
        if isinstance(bound, ErrorCode):
            failed.append((*key, bound))
        elif isinstance(at, ErrorCode):
            failed.append((*key, at))
        else:
            positions.append(_position(target, bound, at))
    if failed:
        name, partition, code = failed[0]
        raise _RewindError(code, f"{name}-{partition}: {code.message}", failed)
    return tuple(positions)


async def _from_share_states(
    group_id: str, positions: Sequence[RewindPosition], services: Services
) -> tuple[RewindPosition, ...]:
    """The positions with the current start offsets of a share group, from the share coordinator."""
    known = await services.share_persister.summaries(
        group_id, [(at.topic_id, at.partition) for at in positions]
    )
    found = []
    for at in positions:
        summary = known[at.topic_id, at.partition]
        if isinstance(summary, ShareStateSummary):
            at = msgspec.structs.replace(at, previous=summary.start_offset)
        elif summary is not ErrorCode.INVALID_REQUEST:
            # INVALID_REQUEST: the partition was never read. Other errors can be retried.
            message = f"{at.topic}-{at.partition}: {summary.message}"
            raise _RewindError(summary, message, [(at.topic, at.partition, summary)])
        found.append(at)
    return tuple(found)


def _position(target: _PartitionTarget, bounds: LogBounds, found: int | None) -> RewindPosition:
    offset: int | None = target.position
    if target.kind in (AT_TIME, BY_DURATION):
        # No record is that young: the group continues at the end.
        offset = bounds.end_offset if found is None else found
    elif target.kind == BY_RECORDS:
        offset = None
    return RewindPosition(
        topic=target.topic.name,
        topic_id=target.topic.topic_id,
        partition=target.partition,
        start_offset=bounds.start_offset,
        end_offset=bounds.end_offset,
        offset=offset,
        shift=target.position if target.kind == BY_RECORDS else 0,
        leader_epoch=target.leader_epoch,
        metadata=target.metadata,
    )


async def handle_reload_share_state(
    request: ReloadShareStateRequest, context: RequestContext, services: Services
) -> ReloadShareStateResponse:
    """Between nodes of the cluster. Others need CLUSTER_ACTION."""
    if not services.authorizer.is_cluster_allowed(context, AclOperation.CLUSTER_ACTION):
        return ReloadShareStateResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    partitions = topic_id_partitions({topic.topic_id: topic.partitions for topic in request.topics})
    return ReloadShareStateResponse(
        error_code=services.share_state_reloader.reload_local(request.group_id, partitions)
    )


# -- DescribeRewinds and AlterSnapshot -------------------------------------------------------------


async def handle_describe_rewinds(
    request: DescribeRewindsRequest, context: RequestContext, services: Services
) -> DescribeRewindsResponse:
    """Needs DESCRIBE on the group. Topics that the client may not describe are left out."""
    services.authorizer.authorize(
        context, AclOperation.DESCRIBE, ResourceType.GROUP, request.group_id
    )
    history = await _history(request.group_id, context, services)
    return DescribeRewindsResponse(
        is_under_way=history.pending is not None,
        undo_points=[
            SavedOffsets(
                name=str(number),
                timestamp=point.at_ms,
                topics=_topics(map(_reversed, point.moves), context, services),
            )
            for number, point in sorted(history.undo_points.items(), reverse=True)
        ],
        snapshots=[
            SavedOffsets(
                name=name,
                timestamp=snapshot.at_ms,
                topics=_topics(snapshot.moves, context, services),
            )
            for name, snapshot in sorted(history.snapshots.items())
        ],
    )


async def handle_alter_snapshot(
    request: AlterSnapshotRequest, context: RequestContext, services: Services
) -> AlterSnapshotResponse:
    """Needs READ on the group, as OffsetCommit does."""
    group_id, name = request.group_id, request.name
    services.authorizer.authorize(context, AclOperation.READ, ResourceType.GROUP, group_id)
    command: DropSnapshot | TakeSnapshot = DropSnapshot(group_id, name)
    if not request.is_deletion:
        starts = await _share_starts(group_id, context, services)
        command = TakeSnapshot(group_id, name, starts)
    result = await _change_offsets(command, context, services)
    return AlterSnapshotResponse(
        error_code=result.error_code,
        error_message=result.error_message,
        topics=_topics(result.moves, context, services),
    )


async def _share_starts(
    group_id: str, context: RequestContext, services: Services
) -> tuple[OffsetMove, ...]:
    """The start offsets of a share group. Empty for other groups."""
    states = await services.group_coordinator.call(group_id, FindShareStates(group_id), context)
    if states is None:
        return ()
    partitions = sorted(
        (name, topic_id, index) for topic_id, (name, indexes) in states.items() for index in indexes
    )
    known = await services.share_persister.summaries(group_id, [key[1:] for key in partitions])
    starts = []
    for name, topic_id, index in partitions:
        summary = known[topic_id, index]
        if isinstance(summary, ShareStateSummary):
            # Without a start offset the partition was never read.
            if summary.start_offset != NO_OFFSET:
                starts.append(OffsetMove(name, topic_id, index, summary.start_offset))
        elif summary not in _NO_STATE_ERRORS:
            raise ApiError(summary, f"{name}-{index}: {summary.message}")
    return tuple(starts)


def _topics(
    moves: Iterable[OffsetMove], context: RequestContext, services: Services
) -> list[TopicOffsets]:
    topics: dict[str, TopicOffsets] = {}
    for move in moves:
        topic = topics.setdefault(move.topic, TopicOffsets(name=move.topic))
        topic.partitions.append(PartitionOffset(partition_index=move.partition, offset=move.offset))
    return [
        topic
        for name, topic in topics.items()
        if services.authorizer.is_topic_allowed(context, AclOperation.DESCRIBE, name)
    ]
