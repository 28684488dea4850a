"""Replicas that somebody chose by hand, and what a new partition looks like on its replicas."""

from collections.abc import Sequence

from odradek.cluster.controller.commands import ReplicaAssignment
from odradek.cluster.controller.state import ControllerState, is_active
from odradek.cluster.metadata.image import PartitionImage
from odradek.protocol.errors import ApiError, ErrorCode


def replicas_by_partition(
    state: ControllerState, assignments: Sequence[ReplicaAssignment]
) -> list[tuple[int, ...]]:
    """The replicas by partition number, checked; ApiError(INVALID_REPLICA_ASSIGNMENT)."""
    by_partition: dict[int, tuple[int, ...]] = {}
    for assignment in assignments:
        if assignment.partition in by_partition:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"partition {assignment.partition} is assigned twice",
            )
        by_partition[assignment.partition] = assignment.replicas
    if by_partition.keys() != set(range(len(by_partition))):
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "partitions must be numbered 0, 1, 2 and so on without a gap",
        )
    replication_factor = len(by_partition[0])
    for partition in range(len(by_partition)):
        check_assignment(state, by_partition[partition], replication_factor)
    return [by_partition[partition] for partition in range(len(by_partition))]


def check_assignment(
    state: ControllerState,
    replicas: Sequence[int],
    replication_factor: int,
    *,
    may_be_inactive: bool = False,
) -> None:
    """ApiError(INVALID_REPLICA_ASSIGNMENT) unless a partition may have these replicas.

    One of them has to be there to lead, unless others do as yet (`may_be_inactive`).
    """
    complaint = None
    if not replicas:
        complaint = "a partition cannot be assigned to no replicas"
    elif len(set(replicas)) != len(replicas):
        complaint = f"the assignment {list(replicas)} names a broker twice"
    elif len(replicas) != replication_factor:
        complaint = (
            f"the assignment {list(replicas)} has {len(replicas)} replicas, but the topic's other"
            f" partitions have {replication_factor}"
        )
    else:
        brokers = state.image.brokers
        unknown = [replica for replica in replicas if replica not in brokers]
        if unknown:
            complaint = f"broker {unknown[0]} is not registered"
        elif not may_be_inactive and not any(is_active(brokers[replica]) for replica in replicas):
            complaint = f"none of the brokers {list(replicas)} is available"
    if complaint is not None:
        raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, complaint)


def initial_partition(state: ControllerState, replicas: Sequence[int]) -> PartitionImage:
    """A partition at its birth: who is active is in sync, the first of those leads."""
    brokers = state.image.brokers
    in_sync = tuple(replica for replica in replicas if is_active(brokers.get(replica)))
    return PartitionImage(replicas=tuple(replicas), in_sync_replicas=in_sync, leader=in_sync[0])
