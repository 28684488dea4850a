"""DescribeQuorum (55): versions 0 to 2.

v1 adds fetch times, v2 directories, listeners and messages. Whatever node is asked, its controller
asks the quorum's leader.
"""

from node.bus.messages import QuorumState, ReplicaStanding
from node.router.addresses import address_of
from node.router.authorizer import CLUSTER_NAME, Operation, ResourceType
from node.router.context import RequestContext, Services
from protocol.errors import ErrorCode
from protocol.messages.cluster import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumResponsePartitionData,
    DescribeQuorumResponseTopicData,
    Listener,
    Node,
    ReplicaState,
)

METADATA_TOPIC = "__cluster_metadata"
"""The name under which tools ask for the metadata log; it is no topic that can be read."""
_TIMEOUT_MS = 3_000


async def handle_describe_quorum(
    request: DescribeQuorumRequest, context: RequestContext, services: Services
) -> DescribeQuorumResponse:
    """Leader, term and progress of the quorum. Needs DESCRIBE on the cluster."""
    if not services.authorizer.check(
        context, Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME
    ):
        return DescribeQuorumResponse(
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            error_message=ErrorCode.CLUSTER_AUTHORIZATION_FAILED.message,
        )
    quorum = await services.controller.describe_quorum(_TIMEOUT_MS)
    topics = [
        DescribeQuorumResponseTopicData(
            topic_name=topic.topic_name,
            partitions=[
                _partition(topic.topic_name, partition.partition_index, quorum)
                for partition in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return DescribeQuorumResponse(
        error_message=None,
        topics=topics,
        nodes=_nodes(context, services, quorum) if context.api_version >= 2 else [],
    )


def _partition(
    topic: str, partition: int, quorum: QuorumState | None
) -> DescribeQuorumResponsePartitionData:
    if topic != METADATA_TOPIC or partition != 0:
        return DescribeQuorumResponsePartitionData(
            partition_index=partition,
            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            error_message=f"only partition 0 of {METADATA_TOPIC} has a quorum",
        )
    if quorum is None:
        return DescribeQuorumResponsePartitionData(
            partition_index=0,
            error_code=ErrorCode.LEADER_NOT_AVAILABLE,
            error_message="the quorum has no leader that this node can reach",
        )
    return DescribeQuorumResponsePartitionData(
        partition_index=0,
        error_message=None,
        leader_id=quorum.leader_id,
        leader_epoch=quorum.term,
        high_watermark=quorum.high_watermark,
        current_voters=[_replica(replica) for replica in quorum.voters],
        observers=[_replica(replica) for replica in quorum.observers],
    )


def _replica(replica: ReplicaStanding) -> ReplicaState:
    return ReplicaState(
        replica_id=replica.node_id,
        log_end_offset=replica.log_end_offset,
        last_fetch_timestamp=replica.last_fetch_ms,
        last_caught_up_timestamp=replica.last_caught_up_ms,
    )


def _nodes(context: RequestContext, services: Services, quorum: QuorumState | None) -> list[Node]:
    """Where the voters are for this client; those without an address for it are left out."""
    nodes = []
    for voter in () if quorum is None else quorum.voters:
        broker = services.image.brokers.get(voter.node_id)
        address = address_of(broker, context, services.node_id) if broker is not None else None
        if address is not None:
            host, port = address
            listener = Listener(name=context.listener_name, host=host, port=port)
            nodes.append(Node(node_id=voter.node_id, listeners=[listener]))
    return nodes
