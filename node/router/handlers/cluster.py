"""DescribeQuorum (55): versions 0 to 2.

v1 adds fetch times, v2 directories, listeners and messages. The quorum is this node: it leads,
it has everything that is committed, and nobody fetches from it.
"""

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
_TERM = 1
"""A quorum of one elects itself once and for all."""


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
    topics = [
        DescribeQuorumResponseTopicData(
            topic_name=topic.topic_name,
            partitions=[
                _partition(topic.topic_name, partition.partition_index, services)
                for partition in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return DescribeQuorumResponse(
        error_message=None,
        topics=topics,
        nodes=_nodes(context, services) if context.api_version >= 2 else [],
    )


def _partition(
    topic: str, partition: int, services: Services
) -> DescribeQuorumResponsePartitionData:
    if topic != METADATA_TOPIC or partition != 0:
        return DescribeQuorumResponsePartitionData(
            partition_index=partition,
            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            error_message=f"only partition 0 of {METADATA_TOPIC} has a quorum",
        )
    now_ms = services.now_ms()
    return DescribeQuorumResponsePartitionData(
        partition_index=0,
        error_message=None,
        leader_id=services.node_id,
        leader_epoch=_TERM,
        high_watermark=services.image.offset,
        current_voters=[
            ReplicaState(
                replica_id=services.node_id,
                log_end_offset=services.image.offset,
                last_fetch_timestamp=now_ms,
                last_caught_up_timestamp=now_ms,
            )
        ],
    )


def _nodes(context: RequestContext, services: Services) -> list[Node]:
    broker = services.image.brokers.get(services.node_id)
    address = address_of(broker, context, services.node_id) if broker is not None else None
    if address is None:
        return []
    host, port = address
    return [
        Node(
            node_id=services.node_id,
            listeners=[Listener(name=context.listener_name, host=host, port=port)],
        )
    ]
