"""AlterShareGroupOffsets (91) and DeleteShareGroupOffsets (92), v0 (KIP-932).

The plan of a request, and its response. Topics and partitions that do not exist get
UNKNOWN_TOPIC_OR_PARTITION, the others are processed. Pure functions. Called by `share.groups`.
"""

from collections.abc import Mapping

from odradek.coordinator.group.share.records import StatePartitions
from odradek.coordinator.group.share.requests import UNKNOWN_OFFSET, Outcomes
from odradek.coordinator.group.share.state_partitions import has_any_topic
from odradek.coordinator.group.topics import TopicCatalog
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.partitions import DetailedPartitionResult
from odradek.protocol.messages.share import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsResponseTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
)
from odradek.protocol.types import ZERO_UUID, Uuid

_NOT_DONE = ErrorCode.COORDINATOR_NOT_AVAILABLE
"""No result was reported for it."""


def alterable_offsets(
    request: AlterShareGroupOffsetsRequest, topics: TopicCatalog
) -> dict[Uuid, dict[int, int]]:
    """The start offsets that can be set, by topic and partition: those of existing partitions."""
    offsets: dict[Uuid, dict[int, int]] = {}
    for topic in request.topics:
        digest = topics.topic(topic.name)
        if digest is None:
            continue
        for partition in topic.partitions:
            index, start_offset = partition.partition_index, partition.offset
            if 0 <= index < digest.partition_count and start_offset >= UNKNOWN_OFFSET:
                offsets.setdefault(digest.topic_id, {})[index] = start_offset
    return offsets


def alter_response(
    request: AlterShareGroupOffsetsRequest,
    offsets: Mapping[Uuid, Mapping[int, int]],
    outcomes: Outcomes,
    topics: TopicCatalog,
) -> AlterShareGroupOffsetsResponse:
    """The response; `offsets` are those that could be set."""
    response = AlterShareGroupOffsetsResponse()
    for topic in request.topics:
        digest = topics.topic(topic.name)
        topic_id = ZERO_UUID if digest is None else digest.topic_id
        answered = AlterShareGroupOffsetsResponseTopic(topic_name=topic.name, topic_id=topic_id)
        planned, done = offsets.get(topic_id, {}), outcomes.get(topic_id, {})
        for partition in topic.partitions:
            index = partition.partition_index
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if partition.offset < UNKNOWN_OFFSET:
                code = ErrorCode.INVALID_REQUEST
            elif index in planned:
                code = done.get(index, _NOT_DONE)
            answered.partitions.append(
                DetailedPartitionResult(
                    partition_index=index, error_code=code, error_message=_message(code)
                )
            )
        response.responses.append(answered)
    return response


def deletable_topics(
    request: DeleteShareGroupOffsetsRequest, states: StatePartitions, topics: TopicCatalog
) -> dict[Uuid, str]:
    """The names of the topics that have share states, by id."""
    digests = (topics.topic(topic.name) for topic in request.topics)
    return {
        digest.topic_id: digest.name
        for digest in digests
        if digest is not None and has_any_topic(states, (digest.topic_id,))
    }


def delete_response(
    request: DeleteShareGroupOffsetsRequest, names: Mapping[Uuid, str], outcomes: Outcomes
) -> DeleteShareGroupOffsetsResponse:
    """The response; `names` are the topics whose states could be deleted, by id."""
    ids = {name: topic_id for topic_id, name in names.items()}
    response = DeleteShareGroupOffsetsResponse()
    for topic in request.topics:
        topic_id = ids.get(topic.name)
        answered = DeleteShareGroupOffsetsResponseTopic(topic_name=topic.name)
        if topic_id is None:
            answered.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            answered.error_message = "There is no offset information to delete."
        else:
            answered.topic_id = topic_id
            codes = outcomes.get(topic_id, {0: _NOT_DONE}).values()
            code = next((code for code in codes if code is not ErrorCode.NONE), ErrorCode.NONE)
            answered.error_code, answered.error_message = code, _message(code)
        response.responses.append(answered)
    return response


def _message(code: ErrorCode) -> str | None:
    return None if code is ErrorCode.NONE else code.message
