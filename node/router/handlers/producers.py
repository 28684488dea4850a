"""DescribeProducers (61): version 0 (KIP-664). The active producers of a partition.

Every replica answers from its own state: tools that look for hanging transactions on one broker
name all its partitions, not only those that it leads.
"""

from odradek.cluster.metadata.acls import AclOperation
from odradek.cluster.metadata.topic_names import topic_name_error
from odradek.node.bus.messages import UNSENT, DescribeProducers, ProducersDescribed
from odradek.node.router.context import RequestContext, Services
from odradek.node.router.cooperative_iteration import LoopYielder
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.transactions import (
    DescribeProducersPartitionResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopicResponse,
    ProducerState,
)


async def handle_describe_producers(
    request: DescribeProducersRequest, context: RequestContext, services: Services
) -> DescribeProducersResponse:
    """The active producers of each requested partition, as this replica has them."""
    topics = []
    pace = LoopYielder(context)
    named: set[tuple[str, int]] = set()
    for topic in request.topics:
        partitions = []
        for index in topic.partitions:
            await pace.step()
            # A partition that is named twice is answered once: its answer may be large.
            if (topic.name, index) not in named:
                named.add((topic.name, index))
                partitions.append(await _describe(topic.name, index, context, services))
        topics.append(DescribeProducersTopicResponse(name=topic.name, partitions=partitions))
    return DescribeProducersResponse(topics=topics)


async def _describe(
    name: str, index: int, context: RequestContext, services: Services
) -> DescribeProducersPartitionResponse:
    answer = DescribeProducersPartitionResponse(partition_index=index)
    topic = services.image.topics_by_name.get(name)
    if not services.authorizer.is_topic_allowed(context, AclOperation.READ, name):
        answer.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return answer
    if topic is None:
        invalid = topic_name_error(name)
        code = (
            ErrorCode.INVALID_TOPIC_EXCEPTION if invalid else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )
        answer.error_code = code
        # Kafka's words.
        answer.error_message = invalid or "This server does not host this topic-partition."
        return answer
    if not 0 <= index < len(topic.partitions):
        answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return answer
    location = services.logs.locate(topic.topic_id, index)
    if services.node_id not in topic.partitions[index].replicas or location is None:
        answer.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        return answer
    described = await services.worker_client.send(
        DescribeProducers(UNSENT, *location, allow_follower=True)
    )
    answer.error_code = described.error_code
    if isinstance(described, ProducersDescribed):
        context.worker_ns += described.work_ns
        answer.active_producers = [
            ProducerState(
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                last_sequence=producer.last_sequence,
                last_timestamp=producer.last_timestamp,
                coordinator_epoch=producer.coordinator_epoch,
                current_txn_start_offset=producer.transaction_start_offset,
            )
            for producer in described.producers
        ]
    return answer
