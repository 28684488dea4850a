"""AlterPartitionReassignments and ListPartitionReassignments (KIP-455).

A reassignment is part of a partition's state: `replicas` has the target replicas in order, then
those to remove; `adding_replicas` are new, `removing_replicas` are to be removed. It is accepted at
once, and completes with the change that brings the last of the added replicas into the ISR, see
`partition_changes`. It can be redirected or cancelled while it is in progress.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from odradek.cluster.controller.commands import (
    AlterPartitionReassignments,
    PartitionChangeResult,
    PartitionsReply,
    Reassignment,
)
from odradek.cluster.controller.partition_changes import (
    ElectionRules,
    LeaderElection,
    PartitionChangeSet,
    changed_partition,
)
from odradek.cluster.controller.replica_assignments import check_assignment
from odradek.cluster.controller.state import ControllerResult, ControllerState
from odradek.cluster.metadata.image import MetadataImage, PartitionImage, TopicImage
from odradek.protocol.errors import ApiError, ErrorCode


def alter_reassignments(
    state: ControllerState, command: AlterPartitionReassignments
) -> ControllerResult:
    """Begin, redirect or cancel reassignments, in their order: a partition may occur twice.

    Codes of single partitions: UNKNOWN_TOPIC_OR_PARTITION, NO_REASSIGNMENT_IN_PROGRESS,
    INVALID_REPLICA_ASSIGNMENT, INVALID_REPLICATION_FACTOR.
    """
    decisions = state.decisions()
    results: list[PartitionChangeResult] = []
    for reassignment in command.reassignments:
        code, message = ErrorCode.NONE, None
        try:
            _reassign(state, decisions, reassignment, command.allow_replication_factor_change)
        except ApiError as error:
            code, message = error.code, error.message
        results.append(
            PartitionChangeResult(reassignment.topic, reassignment.partition, code, message)
        )
    return ControllerResult(tuple(decisions.records), PartitionsReply(tuple(results)))


class OngoingReassignment(NamedTuple):
    """One partition that is being reassigned."""

    topic: TopicImage
    partition: int
    state: PartitionImage


def ongoing_reassignments(
    image: MetadataImage, wanted: Mapping[str, Iterable[int]] | None
) -> Iterator[OngoingReassignment]:
    """The reassignments in progress of the `wanted` partitions by topic; None: of all.

    Topics and partitions that do not exist are skipped, as in Kafka.
    """
    if wanted is None:
        wanted = {name: range(len(t.partitions)) for name, t in image.topics_by_name.items()}
    for name, numbers in wanted.items():
        topic = image.topics_by_name.get(name)
        if topic is None:
            continue
        for number in dict.fromkeys(numbers):
            state = image.partition(topic.topic_id, number)
            if state is not None and is_reassigned(state):
                yield OngoingReassignment(topic, number, state)


def is_reassigned(partition: PartitionImage) -> bool:
    """Whether a reassignment of the partition is in progress."""
    return bool(partition.adding_replicas or partition.removing_replicas)


def _reassign(
    state: ControllerState,
    decisions: PartitionChangeSet,
    wanted: Reassignment,
    may_change_factor: bool,
) -> None:
    name, number = wanted.topic, wanted.partition
    topic = state.image.topics_by_name.get(name)
    if topic is None:
        raise ApiError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}."
        )
    if not 0 <= number < len(topic.partitions):
        raise ApiError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{number}."
        )
    topic_partition = (topic.topic_id, number)
    before = decisions.partition(topic_partition)
    rules = decisions.rules(topic.topic_id)
    if wanted.replicas is None:
        decisions.put(topic_partition, _cancel_reassignment(f"{name}:{number}", before, rules))
        return
    check_assignment(state, wanted.replicas, len(wanted.replicas), may_be_inactive=True)
    original = _original_replicas(before)
    if not may_change_factor and len(wanted.replicas) != len(original):
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor is changed from {len(original)} to {len(wanted.replicas)}",
        )
    removing = tuple(replica for replica in before.replicas if replica not in wanted.replicas)
    after = changed_partition(
        before,
        rules,
        replicas=wanted.replicas + removing,
        adding=tuple(replica for replica in wanted.replicas if replica not in original),
        removing=removing,
    )
    decisions.put(topic_partition, after)


def _original_replicas(partition: PartitionImage) -> tuple[int, ...]:
    """The replicas before the reassignment, if one is in progress."""
    adding = partition.adding_replicas
    return tuple(replica for replica in partition.replicas if replica not in adding)


def _cancel_reassignment(
    name: str, before: PartitionImage, rules: ElectionRules
) -> PartitionImage | None:
    """The partition with the replicas from before its reassignment.

    If only added replicas are in sync, that would lose records: it needs unclean elections to be
    allowed.
    """
    if not is_reassigned(before):
        raise ApiError(
            ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress."
        )
    original = _original_replicas(before)
    in_sync = [replica for replica in before.in_sync_replicas if replica in original]
    election = LeaderElection.ONLINE
    if not in_sync and before.in_sync_replicas:
        if not rules.is_unclean_allowed or not original:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Unable to revert partition assignment for {name} because it would require an"
                " unclean leader election.",
            )
        in_sync = [original[0]]
        election = LeaderElection.UNCLEAN
    return changed_partition(
        before,
        rules,
        replicas=original,
        adding=(),
        removing=(),
        in_sync=in_sync,
        election=election,
    )
