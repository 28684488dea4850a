"""APIs of our own, that Kafka does not have: RewindGroup (20001), DescribeRewinds (20005),
AlterSnapshot (20006), ReloadShareState (20007); others are in `insight`.

Their keys are from `PRIVATE_KEY_MIN` up, far from any that Kafka gives out. ApiVersions does not
name them, so that no client library stumbles over them; who asks for them knows whom it asks. They
are flexible from version 0 on and grow by versions like any other API.
"""

from __future__ import annotations

from odradek.protocol.schema import array, boolean, int8, int16, int32, int64, string, struct, uuid
from odradek.protocol.types import Request, Uuid

# -- RewindGroup -----------------------------------------------------------------------------------


@struct
class RewindGroupRequestPartition:
    """Where one partition shall go on; index -1 stands for all partitions of the topic.

    `position_kind` says how `position` is meant: 0 an offset; 1 a timestamp in ms, the first record
    that is not older (-1 the end, -2 the beginning, as in ListOffsets); 2 so many records from the
    committed offset, back if negative; 3 so many ms before now.
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
    """Let a group go on elsewhere, while it consumes.

    `target` 0: at the positions of `topics`; 1: where it was when the snapshot of that name was
    taken; 2: where it was before its last rewind; 3: where it is, by giving up the rewind that is
    under way. For 1 `topics` only narrow down what is rewound, their positions mean nothing; for 2
    and 3 they are null.

    A dry run only answers what would be. `rewind_id` is the asker's own: the same rewind asked for
    again, because its answer was lost, is not carried out twice. `isolation_level` says where
    partitions end, as in ListOffsets: 0 at the high watermark, 1 at the last stable offset. After
    `timeout_ms` the answer is REQUEST_TIMED_OUT while the rewind goes on.
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
class RewindGroupResponsePartition:
    """Where the group was and where it goes on (-1: nowhere, it has no committed offset)."""

    partition_index: int = int32()
    error_code: int = int16()
    previous_offset: int = int64(default=-1)
    actual_offset: int = int64(default=-1)


@struct
class RewindGroupResponseTopic:
    """The partitions of one topic."""

    name: str = string()
    partitions: list[RewindGroupResponsePartition] = array(RewindGroupResponsePartition)


@struct
class RewindGroupResponse:
    """The offsets that were set: those that were asked for, within what the log holds.

    If any partition has an error, none has been rewound.
    """

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0, default=None)
    topics: list[RewindGroupResponseTopic] = array(RewindGroupResponseTopic)


# -- what can be gone back to ----------------------------------------------------------------------


@struct
class DescribeRewindsRequest(Request["DescribeRewindsResponse"]):
    """Which rewinds of a group can be undone, and which snapshots are there?"""

    group_id: str = string()


@struct
class SavedOffset:
    """A partition and where the group was in it; -1 if nowhere."""

    partition_index: int = int32()
    offset: int = int64()


@struct
class SavedTopic:
    """Partitions of one topic."""

    name: str = string()
    partitions: list[SavedOffset] = array(SavedOffset)


@struct
class SavedOffsets:
    """Offsets that a group once had, under a name, with when that was noted.

    The name of a rewind that can be undone is its number.
    """

    name: str = string()
    timestamp: int = int64()
    topics: list[SavedTopic] = array(SavedTopic)


@struct
class DescribeRewindsResponse:
    """Rewinds that can be undone, the newest first; snapshots by name."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0, default=None)
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
class AlterSnapshotResponse:
    """The offsets that a new snapshot has."""

    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0, default=None)
    topics: list[SavedTopic] = array(SavedTopic)


# -- between nodes ---------------------------------------------------------------------------------


@struct
class ReloadShareStateTopic:
    """Partitions of one topic."""

    topic_id: Uuid = uuid()
    partitions: list[int] = array(int32)


@struct
class ReloadShareStateRequest(Request["ReloadShareStateResponse"]):
    """Begin anew with what is stored of these partitions of a share group, of which the one that
    is asked is the leader: locks end. Nodes ask each other this."""

    group_id: str = string()
    topics: list[ReloadShareStateTopic] = array(ReloadShareStateTopic)


@struct
class ReloadShareStateResponse:
    """NOT_LEADER_OR_FOLLOWER if any of them is led by somebody else by now."""

    error_code: int = int16()
