"""Where an empty share group begins to read: what of a request can be done, and the answers.

AlterShareGroupOffsets (91) and DeleteShareGroupOffsets (92), v0 (KIP-932). Topics and partitions
that are not there are answered with UNKNOWN_TOPIC_OR_PARTITION, the others go on. Pure functions of
values. Called by `share.groups`.
"""

from collections.abc import Mapping
from typing import NamedTuple

from odradek.coordinator.group.share.records import StatePartitions
from odradek.coordinator.group.share.requests import UNKNOWN_OFFSET, Outcomes
from odradek.coordinator.group.topics import TopicCatalog
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.share import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
)
from odradek.protocol.types import ZERO_UUID, Uuid

_NOT_DONE = ErrorCode.COORDINATOR_NOT_AVAILABLE
"""No result was reported for it."""


class OffsetAlteration(NamedTuple):
    """The start offsets that can be set, by topic and partition."""

    offsets: Mapping[Uuid, Mapping[int, int]]

    @classmethod
    def of(cls, request: AlterShareGroupOffsetsRequest, topics: TopicCatalog) -> "OffsetAlteration":
        """What the request asks for of topics and partitions that exist."""
        offsets: dict[Uuid, dict[int, int]] = {}
        for topic in request.topics:
            digest = topics.topic(topic.topic_name)
            for partition in () if digest is None else topic.partitions:
                assert digest is not None
                is_there = 0 <= partition.partition_index < digest.partition_count
                if is_there and partition.start_offset >= UNKNOWN_OFFSET:
                    found = offsets.setdefault(digest.topic_id, {})
                    found[partition.partition_index] = partition.start_offset
        return cls(offsets)


def alter_response(
    request: AlterShareGroupOffsetsRequest,
    plan: OffsetAlteration,
    outcomes: Outcomes,
    topics: TopicCatalog,
) -> AlterShareGroupOffsetsResponse:
    """The answer, partition by partition."""
    response = AlterShareGroupOffsetsResponse()
    for topic in request.topics:
        digest = topics.topic(topic.topic_name)
        topic_id = ZERO_UUID if digest is None else digest.topic_id
        answered = AlterShareGroupOffsetsResponseTopic(
            topic_name=topic.topic_name, topic_id=topic_id
        )
        planned, done = plan.offsets.get(topic_id, {}), outcomes.get(topic_id, {})
        for partition in topic.partitions:
            index = partition.partition_index
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if partition.start_offset < UNKNOWN_OFFSET:
                code = ErrorCode.INVALID_REQUEST
            elif index in planned:
                code = done.get(index, _NOT_DONE)
            answered.partitions.append(
                AlterShareGroupOffsetsResponsePartition(
                    partition_index=index, error_code=code, error_message=_message(code)
                )
            )
        response.responses.append(answered)
    return response


class OffsetDeletion(NamedTuple):
    """The topics whose states can be deleted, by id."""

    names: Mapping[Uuid, str]

    @classmethod
    def of(
        cls, request: DeleteShareGroupOffsetsRequest, states: StatePartitions, topics: TopicCatalog
    ) -> "OffsetDeletion":
        """What the request asks for of topics of which the group has states."""
        names = {}
        for topic in request.topics:
            digest = topics.topic(topic.topic_name)
            if digest is not None and (
                digest.topic_id in states.initialized
                or digest.topic_id in states.initializing
                or digest.topic_id in states.deleting
            ):
                names[digest.topic_id] = digest.name
        return cls(names)


def delete_response(
    request: DeleteShareGroupOffsetsRequest, plan: OffsetDeletion, outcomes: Outcomes
) -> DeleteShareGroupOffsetsResponse:
    """The answer, topic by topic."""
    ids = {name: topic_id for topic_id, name in plan.names.items()}
    response = DeleteShareGroupOffsetsResponse()
    for topic in request.topics:
        topic_id = ids.get(topic.topic_name)
        answered = DeleteShareGroupOffsetsResponseTopic(topic_name=topic.topic_name)
        if topic_id is None:
            answered.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            answered.error_message = "There is no offset information to delete."
        else:
            answered.topic_id = topic_id
            done = outcomes.get(topic_id)
            code = _NOT_DONE
            if done is not None:
                wrong = (code for code in done.values() if code is not ErrorCode.NONE)
                code = next(wrong, ErrorCode.NONE)
            answered.error_code, answered.error_message = code, _message(code)
        response.responses.append(answered)
    return response


def _message(code: ErrorCode) -> str | None:
    return None if code is ErrorCode.NONE else code.message
