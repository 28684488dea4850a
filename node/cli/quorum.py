"""The quorum of the metadata: its state, and changes of its voters (KIP-853).

Any broker answers: it forwards the request to the leader of the quorum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from odradek.node.cli.cluster_client import ClusterClient, raise_on_error
from odradek.protocol.apis import ApiKey
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.cluster import (
    AddRaftVoterRequest,
    AddRaftVoterResponse,
    DescribeQuorumReplicaState,
    DescribeQuorumRequest,
    DescribeQuorumResponsePartitionData,
    RemoveRaftVoterRequest,
)
from odradek.protocol.messages.partitions import PartitionNumber, TopicPartitionNumbers

METADATA_TOPIC: Final = "__cluster_metadata"


@dataclass(frozen=True, slots=True)
class Quorum:
    """The voters and observers that the leader reports."""

    leader_id: int
    voters: tuple[DescribeQuorumReplicaState, ...]
    observers: tuple[DescribeQuorumReplicaState, ...]

    @property
    def voter_ids(self) -> list[int]:
        """The ids of the voters, in order."""
        return sorted(voter.replica_id for voter in self.voters)

    @property
    def end(self) -> int:
        """The highest log end offset of all voters."""
        return max((replica.log_end_offset for replica in self.voters), default=0)

    def voter(self, node_id: int) -> DescribeQuorumReplicaState | None:
        """The replica of a node that is a voter."""
        return next((voter for voter in self.voters if voter.replica_id == node_id), None)

    def observer(self, node_id: int) -> DescribeQuorumReplicaState | None:
        """The replica of a node that is an observer: of several, the one that fetched last."""
        return max(
            (observer for observer in self.observers if observer.replica_id == node_id),
            key=lambda observer: observer.last_fetch_timestamp,
            default=None,
        )


def quorum_request() -> DescribeQuorumRequest:
    """The request for the state of the quorum."""
    topic = TopicPartitionNumbers(
        name=METADATA_TOPIC,
        partitions=[PartitionNumber(partition_index=0)],
    )
    return DescribeQuorumRequest(topics=[topic])


def quorum_state(client: ClusterClient) -> DescribeQuorumResponsePartitionData | None:
    """The state of the quorum as some broker reports it; None if it does not."""
    if not client.serves(ApiKey.DESCRIBE_QUORUM):
        return None
    answer = client.ask(quorum_request())
    if answer.error_code or not answer.topics:
        return None
    return answer.topics[0].partitions[0]


def describe(client: ClusterClient) -> Quorum | None:
    """State of the quorum; None while it has no leader."""
    answer = client.ask(quorum_request())
    raise_on_error(answer, "the quorum is not described")
    (partition,) = answer.topics[0].partitions
    if partition.error_code == ErrorCode.LEADER_NOT_AVAILABLE:
        return None
    raise_on_error(partition, "the quorum is not described")
    return Quorum(partition.leader_id, tuple(partition.current_voters), tuple(partition.observers))


def add_voter(client: ClusterClient, replica: DescribeQuorumReplicaState) -> AddRaftVoterResponse:
    """Request that an observer becomes a voter; the response."""
    request = AddRaftVoterRequest(
        cluster_id=None,
        # Shorter than the client's timeout.
        timeout_ms=max(1, int(client.timeout_s * 800)),
        voter_id=replica.replica_id,
        voter_directory_id=replica.replica_directory_id,
    )
    return client.ask(request)


def remove_voter(client: ClusterClient, replica: DescribeQuorumReplicaState) -> None:
    """Remove a voter; ClickException if it stays one."""
    request = RemoveRaftVoterRequest(
        cluster_id=None,
        voter_id=replica.replica_id,
        voter_directory_id=replica.replica_directory_id,
    )
    answer = client.ask(request)
    if answer.error_code == ErrorCode.VOTER_NOT_FOUND:
        quorum = describe(client)
        voters = () if quorum is None else quorum.voters
        # If it is no voter any more, the answer to an earlier attempt was lost.
        left = {(voter.replica_id, voter.replica_directory_id) for voter in voters}
        if left and (replica.replica_id, replica.replica_directory_id) not in left:
            return
    raise_on_error(answer, f"node {replica.replica_id} keeps its vote")
