"""DescribeLag (20004, version 0): a consumer's lag in records, bytes and time.

A private API (protocol/messages/diagnostics.py). The partition leader answers from its store's
index, without a message to the worker, in bounded time (storage/backlog.py). The request carries
the committed offset, which another node coordinates for most groups. What lag is, is defined in
coordinator/group/offsets/lag.py.
"""

from typing import Final

from odradek.cluster.metadata.acls import AclOperation
from odradek.cluster.replication.partition import ANY_EPOCH
from odradek.node.router.context import RequestContext, Services
from odradek.node.router.cooperative_iteration import LoopYielder
from odradek.node.router.handlers.offsets import locate_leader
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.diagnostics import (
    DescribeLagRequest,
    DescribeLagRequestPartition,
    DescribeLagResponse,
    DescribeLagResponsePartition,
    DescribeLagResponseTopic,
)
from odradek.storage.backlog import BATCHES_WALKED_MAX
from odradek.storage.environment import StorageError

BATCHES_PER_REQUEST_MAX: Final = 2_048
"""Batches scanned for one request: a few milliseconds."""
BATCHES_PER_PARTITION_MIN: Final = 4
"""Batches scanned for each partition at least."""


async def handle_describe_lag(
    request: DescribeLagRequest, context: RequestContext, services: Services
) -> DescribeLagResponse:
    """Needs DESCRIBE on the topics."""
    count = sum(len(topic.partitions) for topic in request.topics)
    # The router has one loop: the more partitions in a request, the coarser the estimates.
    batches_max = max(
        min(BATCHES_WALKED_MAX, BATCHES_PER_REQUEST_MAX // max(count, 1)), BATCHES_PER_PARTITION_MIN
    )
    pace = LoopYielder(context)
    response = DescribeLagResponse()
    for topic in request.topics:
        answer = DescribeLagResponseTopic(name=topic.name)
        response.topics.append(answer)
        for partition in topic.partitions:
            await pace.step()
            answer.partitions.append(_lag(topic.name, partition, batches_max, context, services))
    return response


def _lag(
    name: str,
    requested: DescribeLagRequestPartition,
    batches_max: int,
    context: RequestContext,
    services: Services,
) -> DescribeLagResponsePartition:
    answer = DescribeLagResponsePartition(partition_index=requested.partition_index)
    if not services.authorizer.is_topic_allowed(context, AclOperation.DESCRIBE, name):
        answer.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return answer
    try:
        answer.error_code = _fill(answer, name, requested.committed_offset, batches_max, services)
    except StorageError:
        answer.error_code = ErrorCode.KAFKA_STORAGE_ERROR
    return answer


def _fill(
    answer: DescribeLagResponsePartition,
    name: str,
    offset: int,
    batches_max: int,
    services: Services,
) -> ErrorCode:
    topic = services.image.topics_by_name.get(name)
    located = locate_leader(topic, answer.partition_index, ANY_EPOCH, services)
    if isinstance(located, ErrorCode):
        return located
    _, reader, number = located
    status = reader.status
    answer.log_start_offset = start = status.log_start_offset(number)
    answer.high_watermark = end = status.high_watermark(number)
    answer.last_stable_offset = min(status.last_stable_offset(number), end)
    if offset >= 0:
        answer.lost_records = max(start - offset, 0)
    answer.records = answer.bytes = answer.lag_ms = 0
    first = max(offset, start)
    if first >= end:
        return ErrorCode.NONE
    backlog = reader.backlog(number, first, end, batches_max=batches_max)
    answer.records, answer.bytes = backlog.record_count, backlog.byte_count
    answer.is_estimate = backlog.is_estimate
    if backlog.record_count:
        is_dated = backlog.first_timestamp >= 0
        answer.lag_ms = max(services.now_ms() - backlog.first_timestamp, 0) if is_dated else -1
    return ErrorCode.NONE
