"""APIs of our own by which groups and topics are looked into: ExplainGroup (20002), ExplainTopic
(20003), DescribeLag (20004).

Times are milliseconds since 1970 by the clock of whoever answers; -1 stands for unknown.
"""

from __future__ import annotations

from protocol.schema import array, boolean, int16, int32, int64, string, struct

# -- DescribeLag -----------------------------------------------------------------------------------


@struct
class DescribeLagRequestPartition:
    """Where a reader stands; -1 if it stands nowhere."""

    partition_index: int = int32()
    committed_offset: int = int64(default=-1)


@struct
class DescribeLagRequestTopic:
    """Positions in one topic."""

    name: str = string()
    partitions: list[DescribeLagRequestPartition] = array(DescribeLagRequestPartition)


@struct
class DescribeLagRequest:
    """How far readers are behind; asked of the leaders of the partitions."""

    topics: list[DescribeLagRequestTopic] = array(DescribeLagRequestTopic)


@struct
class DescribeLagResponsePartition:
    """What lies before the reader, up to the high watermark.

    `records` leaves out markers of transactions, where there are not too many to count; `bytes` are
    whole batches as they are fetched, by proportion if `is_estimate`. Both are -1 for a reader that
    stands nowhere. `lag_ms` is the age of the first unread record, 0 if all is read and -1 if it
    has no timestamp. `lost_records` are those that were deleted before they were read.
    """

    partition_index: int = int32()
    error_code: int = int16()
    log_start_offset: int = int64(default=-1)
    last_stable_offset: int = int64(default=-1)
    high_watermark: int = int64(default=-1)
    records: int = int64(default=-1)
    bytes: int = int64(default=-1)
    is_estimate: bool = boolean()
    lag_ms: int = int64(default=-1)
    lost_records: int = int64()


@struct
class DescribeLagResponseTopic:
    """The partitions of one topic, in the order in which they were asked for."""

    name: str = string()
    partitions: list[DescribeLagResponsePartition] = array(DescribeLagResponsePartition)


@struct
class DescribeLagResponse:
    """Each partition succeeds or fails by itself."""

    throttle_time_ms: int = int32()
    topics: list[DescribeLagResponseTopic] = array(DescribeLagResponseTopic)
