"""TxnOffsetCommit: who may commit offsets inside a producer's transaction, and what is written.

The group's members are fenced as in a plain commit (KIP-447), but a rebalance is no reason to
refuse: the transaction decides. A producer whose transaction is not known here yet is only let in
once its coordinator has said that the group takes part (KIP-890), with the guard that was given
before it was asked: if a transaction of that producer has ended meanwhile, it must be asked again.
Called by `offset_commands`.
"""

from typing import Final

from odradek.coordinator.group.classic.group import ClassicGroup
from odradek.coordinator.group.group_record import GroupRecord
from odradek.coordinator.group.modern.group_type import GroupType
from odradek.coordinator.group.offsets.committed_offsets import is_too_long
from odradek.coordinator.group.offsets.records import CommittedOffset, OffsetCommitRecord
from odradek.coordinator.group.requests import CommitInTransaction, VerificationRequired
from odradek.coordinator.group.settings import GroupSettings
from odradek.coordinator.outcome import Command, Outcome, ShardReply, TransactionalRecord
from odradek.protocol.apis import APIS, ApiKey
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from odradek.protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from odradek.protocol.types import NO_TIMESTAMP

_NEWEST_COMMIT: Final = APIS[ApiKey.OFFSET_COMMIT].max_version
_MEMBER_EPOCHS_SINCE: Final = 6


def membership_error(
    group: ClassicGroup | None, request: TxnOffsetCommitRequest, *, has_offsets: bool
) -> ErrorCode:
    """Whether the member that the producer commits for is one, in the group's generation. A group
    that has nothing but offsets, or not even those, is one without members."""
    generation_id = request.generation_id_or_member_epoch
    member_id, instance_id = request.member_id, request.group_instance_id
    if generation_id < 0 and not member_id and instance_id is None:
        # A producer that knows no groups: any group will do.
        return ErrorCode.NONE
    if group is None:
        if generation_id < 0:
            return ErrorCode.NONE
        return ErrorCode.UNKNOWN_MEMBER_ID if has_offsets else ErrorCode.ILLEGAL_GENERATION
    error = group.commit_error(member_id, instance_id, generation_id)
    return ErrorCode.NONE if error is ErrorCode.REBALANCE_IN_PROGRESS else error


def family_error(family: GroupType, request: TxnOffsetCommitRequest, version: int) -> ErrorCode:
    """The same for a group of a newer kind: as in a plain commit, an epoch that is not the newest
    counts for partitions that the member has had since before it (KIP-1251). Producers before v6
    know no epochs of members."""
    epoch, member_id = request.generation_id_or_member_epoch, request.member_id
    if epoch < 0 and not member_id and request.group_instance_id is None:
        # A producer that knows no groups, which is nobody.
        return family.fetch_error(request.group_id, None, epoch)
    plain = OffsetCommitRequest(
        group_id=request.group_id,
        generation_id_or_member_epoch=epoch,
        member_id=member_id,
        group_instance_id=request.group_instance_id,
        topics=[
            OffsetCommitRequestTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitRequestPartition(partition_index=partition.partition_index)
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )
    error = family.commit_error(plain, _NEWEST_COMMIT)
    if error is ErrorCode.STALE_MEMBER_EPOCH and version < _MEMBER_EPOCHS_SINCE:
        return ErrorCode.ILLEGAL_GENERATION
    return error


def needs_verification(asked: CommitInTransaction, *, is_open: bool, ended_count: int) -> bool:
    """Whether the transaction's coordinator must be asked (again) before this may be written."""
    return not asked.is_verified and not is_open and asked.guard != ended_count


def unverified(command: Command, ended_count: int) -> Outcome[GroupRecord]:
    """Ask the coordinator, and come again with this guard."""
    return Outcome(replies=(ShardReply(command.request_id, VerificationRequired(ended_count)),))


def commit(
    command: Command, request: TxnOffsetCommitRequest, now_ms: int, settings: GroupSettings
) -> Outcome[GroupRecord]:
    """The records and the answer of a commit by a producer that may."""
    records: list[GroupRecord] = []
    topics: list[TxnOffsetCommitResponseTopic] = []
    for topic in request.topics:
        partitions: list[TxnOffsetCommitResponsePartition] = []
        for partition in topic.partitions:
            index = partition.partition_index
            error = ErrorCode.NONE
            if is_too_long(partition.committed_metadata, settings.offset_metadata_bytes_max):
                error = ErrorCode.OFFSET_METADATA_TOO_LARGE
            else:
                committed = CommittedOffset(
                    partition.committed_offset,
                    partition.committed_leader_epoch,
                    partition.committed_metadata or "",
                    now_ms,
                    NO_TIMESTAMP,
                    topic.topic_id,
                )
                record = OffsetCommitRecord(request.group_id, topic.name, index, committed)
                records.append(
                    TransactionalRecord(request.producer_id, request.producer_epoch, record)
                )
            partitions.append(
                TxnOffsetCommitResponsePartition(partition_index=index, error_code=error)
            )
        topics.append(
            TxnOffsetCommitResponseTopic(
                name=topic.name, topic_id=topic.topic_id, partitions=partitions
            )
        )
    reply = ShardReply(command.request_id, TxnOffsetCommitResponse(topics=topics))
    return Outcome(records=tuple(records), replies=(reply,))


def refused(
    command: Command, request: TxnOffsetCommitRequest, error: ErrorCode
) -> Outcome[GroupRecord]:
    """The same error for every partition."""
    response = TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    TxnOffsetCommitResponsePartition(
                        partition_index=partition.partition_index, error_code=error
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
    return Outcome(replies=(ShardReply(command.request_id, response),))
