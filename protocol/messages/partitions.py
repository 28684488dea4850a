"""Structs of partitions that several APIs share. Kafka declares one for each API, and some of the
fields have other names there.
"""

from __future__ import annotations

from odradek.protocol.schema import array, int16, int32, int64, string, struct, uuid
from odradek.protocol.types import Uuid


@struct
class TopicPartitions:
    """Partitions of one topic."""

    name: str = string()
    partitions: list[int] = array(int32)


@struct
class TopicIdPartitions:
    """Partitions of one topic."""

    topic_id: Uuid = uuid()
    partitions: list[int] = array(int32)


@struct
class PartitionResult:
    """The result for one partition."""

    partition_index: int = int32()
    error_code: int = int16()


@struct
class TopicPartitionResults:
    """The results for the partitions of one topic."""

    name: str = string()
    partitions: list[PartitionResult] = array(PartitionResult)


@struct
class DetailedPartitionResult(PartitionResult):
    """The result for one partition, with an error message."""

    error_message: str | None = string(nullable_since=0, default=None)


@struct
class DetailedTopicResults:
    """The results for the partitions of one topic."""

    name: str = string()
    partitions: list[DetailedPartitionResult] = array(DetailedPartitionResult)


@struct
class PartitionOffset:
    """A partition and an offset in it; -1 if there is none."""

    partition_index: int = int32()
    offset: int = int64()


@struct
class TopicOffsets:
    """Partitions of one topic with an offset each."""

    name: str = string()
    partitions: list[PartitionOffset] = array(PartitionOffset)


@struct
class PartitionNumber:
    """A partition."""

    partition_index: int = int32()


@struct
class TopicPartitionNumbers:
    """Partitions of one topic, as structs."""

    name: str = string()
    partitions: list[PartitionNumber] = array(PartitionNumber)


@struct
class TopicName:
    """A topic."""

    name: str = string()
