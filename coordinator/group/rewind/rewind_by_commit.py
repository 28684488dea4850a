"""OffsetCommits that are handled as live rewinds (group.rewind.by.commit.enable).

Tools that set offsets (`kafka-consumer-groups --reset-offsets`, kafkactl, any admin client) commit
without a member. Kafka accepts this in a group without members only. With this config the
coordinator rewinds the group to the offsets, and responds when that is complete. Called by
`live_rewinder`.
"""

from typing import Final

from odradek.coordinator.group.offsets.committed_offsets import (
    CommitResponse,
    is_too_long,
    refused_commit,
)
from odradek.coordinator.group.rewind.requests import RewindGroup, RewindPosition, RewindResult
from odradek.coordinator.group.settings import GroupSettings
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.group_offsets import OffsetCommitRequest
from odradek.protocol.types import ZERO_UUID

TIMEOUT_MS: Final = 20_000
"""Then the tool gets an error that it retries: its request.timeout.ms is 30 s."""
_OFFSET_MAX: Final = 2**63 - 1


def is_rewind(request: OffsetCommitRequest, settings: GroupSettings) -> bool:
    """Whether the commit names no member, and the config is set for the group."""
    return (
        request.generation_id_or_member_epoch < 0
        and not request.member_id
        and request.group_instance_id is None
        and request.group_id in settings.rewind_by_commit_groups
    )


def rewind_of(request: OffsetCommitRequest, settings: GroupSettings) -> RewindGroup | None:
    """The rewind to the offsets of the commit; None if its metadata are too long.

    Offsets are not bounded by the logs, as in any other commit: the response has no field for
    another offset. A negative offset becomes 0, because -1 means no committed offset in a rewind.
    """
    partitions = [(topic, at) for topic in request.topics for at in topic.partitions]
    limit = settings.offset_metadata_bytes_max
    if any(is_too_long(at.committed_metadata, limit) for _, at in partitions):
        return None
    return RewindGroup(
        group_id=request.group_id,
        rewind_id=ZERO_UUID,
        positions=tuple(
            RewindPosition(
                topic=topic.name,
                topic_id=topic.topic_id,
                partition=at.partition_index,
                start_offset=0,
                end_offset=_OFFSET_MAX,
                offset=max(at.committed_offset, 0),
                leader_epoch=at.committed_leader_epoch,
                metadata=at.committed_metadata or "",
            )
            for topic, at in partitions
        ),
        timeout_ms=TIMEOUT_MS,
    )


def response_to(request: OffsetCommitRequest, rewound: RewindResult) -> CommitResponse:
    """The response to the commit: all of its offsets are set, or none."""
    error = rewound.error_code
    if error is ErrorCode.REQUEST_TIMED_OUT:
        # The rewind continues, and admin clients retry.
        error = ErrorCode.REBALANCE_IN_PROGRESS
    return refused_commit(request, error)
