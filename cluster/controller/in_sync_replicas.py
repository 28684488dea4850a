"""AlterPartition: ISR changes by the leaders (KIP-497, KIP-903). ResignReplicas: full disks.

A change has the leader epoch and partition epoch that the leader knew. If one of them is not the
present one the change fails, and the leader tries again with what it has learned. Each partition of
a command succeeds or fails by itself. A leader that asks for the ISR as it is gets a new partition
epoch, so that its earlier changes fail.

A replica whose disk is full resigns: it leaves the ISR at once, not after replica.lag.time.max.ms,
and does not lead if another replica can. It returns as any other, when it has caught up.
"""

from typing import Final

import msgspec

from odradek.cluster.controller.brokers import check_broker_epoch
from odradek.cluster.controller.commands import (
    AlterPartition,
    InSyncChange,
    InSyncReplica,
    InSyncReply,
    InSyncResult,
    PartitionsReply,
    ResignReplicas,
)
from odradek.cluster.controller.partition_changes import PartitionChangeSet, changed_partition
from odradek.cluster.controller.state import (
    ControllerResult,
    ControllerState,
    is_active,
    is_shutting_down,
)
from odradek.cluster.metadata.image import PartitionImage
from odradek.protocol.errors import ErrorCode

CHANGES_MAX: Final = 20_000
"""The most partitions of one command: no entry of the log shall exceed a few megabytes."""


def alter_partition(state: ControllerState, command: AlterPartition) -> ControllerResult:
    """Change the ISRs. Changes beyond CHANGES_MAX are not attempted.

    ApiError(BROKER_ID_NOT_REGISTERED) or ApiError(STALE_BROKER_EPOCH) for all of them. The codes of
    single partitions, in the order of the checks: OPERATION_NOT_ATTEMPTED,
    UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION, NOT_CONTROLLER (the leader has seen more than
    this controller), FENCED_LEADER_EPOCH, INVALID_REQUEST, INVALID_UPDATE_VERSION,
    INELIGIBLE_REPLICA, NEW_LEADER_ELECTED (accepted, and it completed a reassignment that takes
    the lead away).
    """
    check_broker_epoch(state, command.broker_id, command.broker_epoch)
    decisions = state.decisions()
    results = [
        _alter_isr(state, decisions, command.broker_id, change)
        if number < CHANGES_MAX
        else InSyncResult(change.topic_id, change.partition, ErrorCode.OPERATION_NOT_ATTEMPTED)
        for number, change in enumerate(command.changes)
    ]
    return ControllerResult(tuple(decisions.records), InSyncReply(tuple(results)))


def resign_replicas(state: ControllerState, command: ResignReplicas) -> ControllerResult:
    """Remove a broker from those of these ISRs that have another active member. Otherwise it
    stays, so that its records can be read. Partitions that do not exist are skipped.

    ApiError(BROKER_ID_NOT_REGISTERED) or ApiError(STALE_BROKER_EPOCH). Partitions beyond
    CHANGES_MAX are skipped.
    """
    check_broker_epoch(state, command.broker_id, command.broker_epoch)
    decisions = state.decisions()
    for topic_id, number in command.partitions[:CHANGES_MAX]:
        topic = state.image.topics_by_id.get(topic_id)
        if topic is None or not 0 <= number < len(topic.partitions):
            continue
        before = decisions.partition((topic_id, number))
        rest = tuple(r for r in before.in_sync_replicas if r != command.broker_id)
        if rest != before.in_sync_replicas and decisions.active & set(rest):
            after = changed_partition(before, decisions.rules(topic_id), in_sync=rest)
            decisions.put((topic_id, number), after)
    return ControllerResult(tuple(decisions.records), PartitionsReply(()))


def _alter_isr(
    state: ControllerState, decisions: PartitionChangeSet, broker_id: int, change: InSyncChange
) -> InSyncResult:
    topic_id, number = topic_partition = change.topic_id, change.partition
    topic = state.image.topics_by_id.get(topic_id)
    if topic is None:
        return InSyncResult(topic_id, number, ErrorCode.UNKNOWN_TOPIC_ID)
    if not 0 <= number < len(topic.partitions):
        return InSyncResult(topic_id, number, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    before = decisions.partition(topic_partition)
    code = _check(state, before, broker_id, change)
    if code is not ErrorCode.NONE:
        return InSyncResult(topic_id, number, code)
    wanted = {replica.broker_id for replica in change.in_sync}
    in_sync = before.in_sync_replicas
    if wanted != set(in_sync):
        in_sync = tuple(replica for replica in before.replicas if replica in wanted)
    after = changed_partition(before, decisions.rules(topic_id), in_sync=in_sync)
    if after is None:
        # The ISR as it is: a new partition epoch makes earlier changes fail.
        after = msgspec.structs.replace(before, partition_epoch=before.partition_epoch + 1)
    decisions.put(topic_partition, after)
    if after.leader != broker_id:
        return InSyncResult(topic_id, number, ErrorCode.NEW_LEADER_ELECTED, after)
    return InSyncResult(topic_id, number, state=after)


def _check(
    state: ControllerState, before: PartitionImage, broker_id: int, change: InSyncChange
) -> ErrorCode:
    if change.leader_epoch > before.leader_epoch or change.partition_epoch > before.partition_epoch:
        return ErrorCode.NOT_CONTROLLER
    if change.leader_epoch < before.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if before.leader != broker_id:
        return ErrorCode.INVALID_REQUEST
    if change.partition_epoch < before.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    wanted = [replica.broker_id for replica in change.in_sync]
    if (
        len(set(wanted)) != len(wanted)
        or not set(wanted) <= set(before.replicas)
        or broker_id not in wanted
    ):
        return ErrorCode.INVALID_REQUEST
    if not all(_is_eligible(state, before, replica) for replica in change.in_sync):
        return ErrorCode.INELIGIBLE_REPLICA
    return ErrorCode.NONE


def _is_eligible(state: ControllerState, before: PartitionImage, replica: InSyncReplica) -> bool:
    """Whether a replica may be in an ISR: its broker is active, with the epoch that fetched, and
    its log directory is online. One in controlled shutdown may stay in an ISR, but not join one."""
    broker = state.image.brokers.get(replica.broker_id)
    stays = replica.broker_id in before.in_sync_replicas
    return (
        broker is not None
        and (is_active(broker) or (stays and is_shutting_down(broker)))
        and replica.broker_epoch in (-1, broker.broker_epoch)
        and broker.is_online(before.directory_of(replica.broker_id))
    )
