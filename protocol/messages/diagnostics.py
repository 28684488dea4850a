"""Private APIs for diagnosis: ExplainGroup (20002), ExplainTopic (20003), DescribeLag (20004).

Times are milliseconds since 1970 by the clock of the responding node; -1 means unknown.
"""

from __future__ import annotations

from enum import IntEnum

from odradek.protocol.messages.partitions import PartitionResult, TopicPartitions
from odradek.protocol.messages.responses import ErrorCodeResponse
from odradek.protocol.schema import array, boolean, int8, int16, int32, int64, string, struct
from odradek.protocol.types import Request

# -- DescribeLag -----------------------------------------------------------------------------------


@struct
class DescribeLagRequestPartition:
    """A committed offset; -1 if there is none: counted from the log start offset."""

    partition_index: int = int32()
    committed_offset: int = int64(default=-1)


@struct
class DescribeLagRequestTopic:
    """Positions in one topic."""

    name: str = string()
    partitions: list[DescribeLagRequestPartition] = array(DescribeLagRequestPartition)


@struct
class DescribeLagRequest(Request["DescribeLagResponse"]):
    """Compute consumer lag. Sent to the partition leaders."""

    topics: list[DescribeLagRequestTopic] = array(DescribeLagRequestTopic)


@struct
class DescribeLagResponsePartition(PartitionResult):
    """The lag up to the high watermark.

    `records` and `bytes` leave out transaction markers unless there are too many to count. Of the
    first batch, `bytes` has the share of its unread records; if `is_estimate`, of others as well.
    `lag_ms` is the age of the first unread record, 0 without one, -1 if it has no timestamp.
    `lost_records` were deleted before they were read.
    """

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
    """The partitions of one topic, in the order of the request."""

    name: str = string()
    partitions: list[DescribeLagResponsePartition] = array(DescribeLagResponsePartition)


@struct
class DescribeLagResponse:
    """Each partition succeeds or fails by itself."""

    throttle_time_ms: int = int32()
    topics: list[DescribeLagResponseTopic] = array(DescribeLagResponseTopic)


# -- ExplainGroup ----------------------------------------------------------------------------------


class RebalanceWait(IntEnum):
    """What a classic group waits for before its rebalance continues."""

    NONE = 0
    INITIAL_REBALANCE_DELAY = 1
    JOIN_GROUP = 2
    SYNC_GROUP = 3


class MemberProgress(IntEnum):
    """A member's progress towards the current generation or target assignment."""

    STABLE = 0
    JOINED = 1
    NOT_JOINED = 2
    SYNCED = 3
    NOT_SYNCED = 4
    ID_ASSIGNED = 5
    """It has a member id (KIP-394) and has not joined with it."""
    REVOKING_PARTITIONS = 6
    REVOKING_TASKS = 7
    AWAITING_PARTITIONS = 8
    AWAITING_TASKS = 9
    EPOCH_BEHIND = 10
    """It has sent no heartbeat since the newest target assignment."""
    STATIC_LEFT = 11
    """A static member left with epoch -2: its assignment is kept for its session timeout."""


@struct
class ExplainGroupRequest(Request["ExplainGroupResponse"]):
    """Explain groups. Sent to their coordinator. Null ids mean the next groups by id, after the
    group `after` (null: from the first one).

    Events are left out unless `include_events`, and topics on which the client has no DESCRIBE.
    """

    group_ids: list[str] | None = array(string, nullable_since=0, default=None)
    after: str | None = string(nullable_since=0, default=None)
    include_events: bool = boolean()


@struct
class ExplainedMember:
    """A member, the partitions that it owns, and those that it must still revoke.

    `state` is a MemberProgress; `deadline` is when it is removed if it makes no progress.
    Durations are of the last rebalance, -1 if not reached: `join_ms` from its start to the member's
    JoinGroup, `sync_ms` from the new generation to its SyncGroup, `revoke_ms` from the request to
    revoke partitions to the member's confirmation.
    """

    member_id: str = string()
    instance_id: str | None = string(nullable_since=0, default=None)
    client_id: str = string()
    client_host: str = string()
    epoch: int = int32(default=-1)
    state: int = int8()
    deadline: int = int64(default=-1)
    join_ms: int = int64(default=-1)
    sync_ms: int = int64(default=-1)
    revoke_ms: int = int64(default=-1)
    owned: list[TopicPartitions] = array(TopicPartitions)
    to_revoke: list[TopicPartitions] = array(TopicPartitions)


@struct
class ExplainedCommit:
    """A committed offset and its commit time; `is_unstable`: a transaction may still change it."""

    partition_index: int = int32()
    committed_offset: int = int64(default=-1)
    committed_at: int = int64(default=-1)
    is_unstable: bool = boolean()


@struct
class ExplainedCommits:
    """The committed offsets in one topic."""

    name: str = string()
    partitions: list[ExplainedCommit] = array(ExplainedCommit)


@struct
class ExplainedEvent:
    """An event of a member, or without a member id of the group. `kind` is a number of
    coordinator/group/events.py. `reason` is text for people, which nothing parses."""

    at: int = int64()
    kind: int = int8()
    member_id: str = string()
    reason: str = string()


@struct
class ExplainedGroup:
    """A group: `wait` is a RebalanceWait, `epoch` its generation or group epoch, `since` the
    start of the ongoing rebalance and `deadline` the end of its wait. `ttl_ms` is -1 unless the
    group is ephemeral."""

    error_code: int = int16()
    error_message: str | None = string(nullable_since=0, default=None)
    group_id: str = string()
    group_type: str = string()
    group_state: str = string()
    protocol: str = string()
    wait: int = int8()
    epoch: int = int32(default=-1)
    target_epoch: int = int32(default=-1)
    since: int = int64(default=-1)
    deadline: int = int64(default=-1)
    ttl_ms: int = int64(default=-1)
    topics: list[str] = array(string)
    members: list[ExplainedMember] = array(ExplainedMember)
    commits: list[ExplainedCommits] = array(ExplainedCommits)
    events: list[ExplainedEvent] = array(ExplainedEvent)


@struct
class ExplainGroupResponse(ErrorCodeResponse):
    """`now` is the responding node's clock. With an error code the list is incomplete.

    `has_more`: there are groups after the last one.
    """

    now: int = int64()
    has_more: bool = boolean()
    groups: list[ExplainedGroup] = array(ExplainedGroup)


# -- ExplainTopic ----------------------------------------------------------------------------------


@struct
class ExplainTopicRequestTopic:
    """Partitions of one topic; null for all."""

    name: str = string()
    partitions: list[int] | None = array(int32, nullable_since=0, default=None)


@struct
class ExplainTopicRequest(Request["ExplainTopicResponse"]):
    """Explain partitions and their readers. Sent to every node that has a replica: the leader knows
    the log, and each node knows the clients that fetch from it."""

    topics: list[ExplainTopicRequestTopic] = array(ExplainTopicRequestTopic)


@struct
class ExplainedReader:
    """A client that has fetched a partition from this node.

    `idle_ms` is the time since then, `offset` the fetch offset, `error_code` the response's.
    `fetch_idle_ms` is the time since it fetched anything on the same connection.
    """

    client_id: str = string()
    client_host: str = string()
    idle_ms: int = int64()
    fetch_idle_ms: int = int64()
    offset: int = int64()
    is_read_committed: bool = boolean()
    error_code: int = int16()


@struct
class ExplainedLock:
    """Records [start, end) that a share group member has acquired, for `left_ms` more."""

    member_id: str = string()
    start_offset: int = int64()
    end_offset: int = int64()
    delivery_count: int = int16()
    left_ms: int = int64()


@struct
class ExplainedSharePartition:
    """A share-partition: records before `start_offset` are done, those from `end_offset` on were
    not acquired yet.

    The counts are of the records in between: available, acquired, delayed until the next delivery,
    or being archived (written to the dead-letter topic). `locks` are the first acquired ranges.
    """

    group_id: str = string()
    start_offset: int = int64()
    end_offset: int = int64()
    available_count: int = int64()
    acquired_count: int = int64()
    delayed_count: int = int64()
    archiving_count: int = int64()
    locks: list[ExplainedLock] = array(ExplainedLock)


@struct
class ExplainedPartition(PartitionResult):
    """A partition in this node's view; offsets are -1 unless it is the leader.

    The open transaction is the oldest one, at which the last stable offset stays. `open_silent_ms`
    is the age of its producer's last batch. -1 without one. `readers` are told to clients with READ
    on the topic, and of `sharing` the groups on which the client has DESCRIBE.

    v2 adds the group of the topic's archive, if the client has DESCRIBE on it: what it has
    committed (-1: nothing), and how many bytes retention would have deleted and keeps for it.
    """

    leader_id: int = int32(default=-1)
    leader_epoch: int = int32(default=-1)
    replicas: list[int] = array(int32)
    in_sync_replicas: list[int] = array(int32)
    min_in_sync_replicas: int = int32()
    log_start_offset: int = int64(default=-1)
    last_stable_offset: int = int64(default=-1)
    high_watermark: int = int64(default=-1)
    log_end_offset: int = int64(default=-1)
    open_producer_id: int = int64(default=-1)
    open_since_offset: int = int64(default=-1)
    open_silent_ms: int = int64(default=-1)
    readers: list[ExplainedReader] = array(ExplainedReader)
    sharing: list[ExplainedSharePartition] = array(ExplainedSharePartition)
    archive_group: str = string(default="", since=2, ignorable=True)
    archived_offset: int = int64(default=-1, since=2, ignorable=True)
    archive_held_bytes: int = int64(since=2, ignorable=True)


@struct
class ExplainedTopicPartitions:
    """The partitions of one topic."""

    name: str = string()
    error_code: int = int16()
    partitions: list[ExplainedPartition] = array(ExplainedPartition)


@struct
class ExplainTopicResponse:
    """Each partition succeeds or fails by itself.

    v1 adds what keeps the node from writing its data folder; null if nothing does.
    """

    throttle_time_ms: int = int32()
    topics: list[ExplainedTopicPartitions] = array(ExplainedTopicPartitions)
    storage_problem: str | None = string(nullable_since=1, default=None, since=1, ignorable=True)
