"""Manual partition assignments, and the initial state of a partition on its replicas."""

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
                f"Found multiple manual partition assignments for partition {assignment.partition}",
            )
        by_partition[assignment.partition] = assignment.replicas
    if by_partition.keys() != set(range(len(by_partition))):
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "partitions should be a consecutive 0-based integer sequence",
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

    One of them must be active, so that it can lead, unless the partition has a leader already
    (`may_be_inactive`).
    """
    complaint = None
    if not replicas:
        complaint = "The manual partition assignment includes an empty replica list."
    elif (fault := _faulty_broker(state, replicas)) is not None:
        complaint = fault
    elif len(replicas) != replication_factor:
        complaint = (
            f"The manual partition assignment includes a partition with {len(replicas)} replica(s),"
            " but this is not consistent with previous partitions, which have"
            f" {replication_factor} replica(s)."
        )
    elif not may_be_inactive and not any(
        is_active(state.image.brokers[replica]) for replica in replicas
    ):
        complaint = (
            f"All brokers specified in the manual partition assignment {list(replicas)} are"
            " fenced or in controlled shutdown."
        )
    if complaint is not None:
        raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, complaint)


def _faulty_broker(state: ControllerState, replicas: Sequence[int]) -> str | None:
    """What is wrong with the first broker, by id, that may not be in an assignment."""
    before = None
    for broker in sorted(replicas):
        if broker not in state.image.brokers:
            return (
                f"The manual partition assignment includes broker {broker}, but no such broker is"
                " registered."
            )
        if broker == before:
            return f"The manual partition assignment includes the broker {broker} more than once."
        before = broker
    return None


def initial_partition(state: ControllerState, replicas: Sequence[int]) -> PartitionImage:
    """A new partition: its active replicas are in sync, and the first of them leads."""
    brokers = state.image.brokers
    in_sync = tuple(replica for replica in replicas if is_active(brokers.get(replica)))
    return PartitionImage(replicas=tuple(replicas), in_sync_replicas=in_sync, leader=in_sync[0])
