"""Committed offsets in `__consumer_offsets`: Kafka's OffsetCommitKey and OffsetCommitValue.

Values are written in version 4, or in version 1 if the commit named its own retention, as Kafka 4.3
does. All versions are read.
"""

from typing import Final

import msgspec

from odradek.coordinator.record_serde import RecordFormat, SchemaValue
from odradek.protocol.schema import int32, int64, string, struct, uuid
from odradek.protocol.types import NO_TIMESTAMP, ZERO_UUID, Uuid


class CommittedOffset(msgspec.Struct, frozen=True, gc=False):
    """A group's position in one partition. `topic_id` is zero if the commit did not know it."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp_ms: int = NO_TIMESTAMP
    expire_timestamp_ms: int = NO_TIMESTAMP
    topic_id: Uuid = ZERO_UUID


class OffsetCommitRecord(msgspec.Struct, frozen=True, gc=False):
    """A group's offset of one partition, or (without one) that it has none any more."""

    group_id: str
    topic: str
    partition: int
    committed: CommittedOffset | None


@struct
class _OffsetKey:
    group_id: str = string()
    topic: str = string()
    partition: int = int32()


@struct
class _OffsetValue:
    offset: int = int64()
    leader_epoch: int = int32(default=-1, since=3, ignorable=True)
    metadata: str = string()
    commit_timestamp_ms: int = int64()
    expire_timestamp_ms: int = int64(default=NO_TIMESTAMP, since=1, until=1)
    topic_id: Uuid = uuid(since=4, tag=0, ignorable=True)


def _committed_offset(read: _OffsetValue) -> CommittedOffset:
    return CommittedOffset(
        read.offset,
        read.leader_epoch,
        read.metadata,
        read.commit_timestamp_ms,
        read.expire_timestamp_ms,
        read.topic_id,
    )


def _written_version(committed: CommittedOffset) -> int:
    return 4 if committed.expire_timestamp_ms == NO_TIMESTAMP else 1


OFFSET_FORMATS: Final = (
    RecordFormat(
        1,
        OffsetCommitRecord,
        _OffsetKey,
        SchemaValue(
            "OffsetCommitValue",
            _OffsetValue,
            _committed_offset,
            version=_written_version,
            version_max=4,
            flexible_since=4,
        ),
        older_types=(0,),
    ),
)
