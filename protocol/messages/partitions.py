"""Structs of partitions that several APIs share. Kafka declares one for each API, and some of the
fields have other names there.
"""

from __future__ import annotations

from odradek.protocol.schema import array, int16, int32, string, struct, uuid
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
