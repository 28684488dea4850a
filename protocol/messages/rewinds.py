"""Private APIs, which Kafka does not have: RewindGroup (20001), DescribeRewinds (20005),
AlterSnapshot (20006), ReloadShareState (20007); others are in `diagnostics`.

Their keys are from `PRIVATE_KEY_MIN` up, far from those that Kafka assigns. ApiVersions does not
list them, because client libraries do not expect unknown keys. They are flexible from version 0 on
and get new versions like any other API.
"""

from __future__ import annotations

from odradek.protocol.messages.partitions import PartitionResult, TopicIdPartitions, TopicOffsets
from odradek.protocol.messages.responses import ErrorMessageResponse
from odradek.protocol.schema import array, boolean, int8, int16, int32, int64, string, struct, uuid
from odradek.protocol.types import Request, Uuid

# -- RewindGroup -----------------------------------------------------------------------------------


@struct
class RewindGroupRequestPartition:
    """The target of one partition; index -1 means all partitions of the topic.

    `position_kind` gives the meaning of `position`: 0 an offset; 1 a timestamp in ms, for the first
    record that is not older (-1 the end, -2 the beginning, as in ListOffsets); 2 a count of records
    from the committed offset, negative for backwards; 3 a duration in ms before now.
    """

    partition_index: int = int32(default=-1)
    position_kind: int = int8()
    position: int = int64()


@struct
class RewindGroupRequestTopic:
    """The partitions of one topic."""

    name: str = string()
    partitions: list[RewindGroupRequestPartition] = array(RewindGroupRequestPartition)


@struct
class RewindGroupRequest(Request["RewindGroupResponse"]):
    """Rewind a group while it consumes.

    `target` 0: to the positions in `topics`; 1: to the named snapshot; 2: to before the last
    rewind; 3: cancel the rewind in progress. For 1 `topics` selects partitions of the snapshot,
    positions are ignored; for 2 and 3 it is null.

    A dry run only returns the result. The client chooses `rewind_id`: a repeated request with the
    same id is not executed twice. `isolation_level` is as in ListOffsets: partitions end at the
    high watermark (0) or at the last stable offset (1). After `timeout_ms` the response is
    REQUEST_TIMED_OUT and the rewind continues.
    """

    group_id: str = string()
    rewind_id: Uuid = uuid()
    target: int = int8()
    snapshot: str | None = string(nullable_since=0, default=None)
    topics: list[RewindGroupRequestTopic] | None = array(
        RewindGroupRequestTopic, nullable_since=0, default=None
    )
    isolation_level: int = int8()
    is_dry_run: bool = boolean()
    timeout_ms: int = int32(default=30_000)


@struct
class RewindGroupResponsePartition(PartitionResult):
    """The group's offset before and after (-1: no committed offset)."""

    previous_offset: int = int64(default=-1)
    actual_offset: int = int64(default=-1)


@struct
class RewindGroupResponseTopic:
    """The partitions of one topic."""

    name: str = string()
    partitions: list[RewindGroupResponsePartition] = array(RewindGroupResponsePartition)


@struct
class RewindGroupResponse(ErrorMessageResponse):
    """The offsets that were set: the requested ones, limited to what the log contains.

    If any partition has an error, none has been rewound.
    """

    topics: list[RewindGroupResponseTopic] = array(RewindGroupResponseTopic)


# -- DescribeRewinds, AlterSnapshot ----------------------------------------------------------------


@struct
class DescribeRewindsRequest(Request["DescribeRewindsResponse"]):
    """List the rewinds of a group that can be undone, and its snapshots."""

    group_id: str = string()


@struct
class SavedOffsets:
    """Saved offsets of a group, with name and time.

    The name of a rewind that can be undone is its number.
    """

    name: str = string()
    timestamp: int = int64()
    topics: list[TopicOffsets] = array(TopicOffsets)


@struct
class DescribeRewindsResponse(ErrorMessageResponse):
    """Rewinds that can be undone, the newest first; snapshots by name."""

    is_under_way: bool = boolean()
    undo_points: list[SavedOffsets] = array(SavedOffsets)
    snapshots: list[SavedOffsets] = array(SavedOffsets)


@struct
class AlterSnapshotRequest(Request["AlterSnapshotResponse"]):
    """Take a snapshot of a group's offsets, or delete it."""

    group_id: str = string()
    name: str = string()
    is_deletion: bool = boolean()


@struct
class AlterSnapshotResponse(ErrorMessageResponse):
    """The offsets in a new snapshot."""

    topics: list[TopicOffsets] = array(TopicOffsets)


# -- between nodes ---------------------------------------------------------------------------------


@struct
class ReloadShareStateRequest(Request["ReloadShareStateResponse"]):
    """Reload the stored state of these partitions of a share group, and drop their locks. Sent to
    the partition leader by other nodes."""

    group_id: str = string()
    topics: list[TopicIdPartitions] = array(TopicIdPartitions)


@struct
class ReloadShareStateResponse:
    """NOT_LEADER_OR_FOLLOWER if another broker leads one of them."""

    error_code: int = int16()
