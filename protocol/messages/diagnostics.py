"""APIs of our own by which groups and topics are looked into: ExplainGroup (20002), ExplainTopic
(20003), DescribeLag (20004).

Times are milliseconds since 1970 by the clock of whoever answers; -1 stands for unknown.
"""

from __future__ import annotations

from enum import IntEnum

from odradek.protocol.schema import array, boolean, int8, int16, int32, int64, string, struct
from odradek.protocol.types import Request

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
class DescribeLagRequest(Request["DescribeLagResponse"]):
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


# -- ExplainGroup ----------------------------------------------------------------------------------


class RebalanceWait(IntEnum):
    """What a classic group waits for before its rebalance goes on."""

    NONE = 0
    INITIAL_REBALANCE_DELAY = 1
    JOIN_GROUP = 2
    SYNC_GROUP = 3


class MemberProgress(IntEnum):
    """How far a member is with the current generation or target assignment."""

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
    """What do these groups do, and why? Asked of their coordinator; null: the next ones it has in
    the order of their ids, behind `after` (null: from the first one on).

    Events are left out unless `include_events`.
    """

    group_ids: list[str] | None = array(string, nullable_since=0, default=None)
    after: str | None = string(nullable_since=0, default=None)
    include_events: bool = boolean()


@struct
class ExplainedTopic:
    """Partitions of one topic."""

    name: str = string()
    partitions: list[int] = array(int32)


@struct
class ExplainedMember:
    """A member, what it owns, and what it has still to give up.

    `state` is a MemberProgress; `deadline` is when it will be removed if it does not move
    on. Durations are of the last rebalance, -1 if it has not come so far: `join_ms` from its
    beginning to the member's JoinGroup, `sync_ms` from the new generation to its SyncGroup,
    `revoke_ms` from the demand to give partitions up to its consent.
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
    owned: list[ExplainedTopic] = array(ExplainedTopic)
    to_revoke: list[ExplainedTopic] = array(ExplainedTopic)


@struct
class ExplainedCommit:
    """A committed offset, and when that was; `is_unstable`: a transaction may still change it."""

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
    """Something that happened; without a member id it happened to the group. `kind` is a number of
    coordinator/group/events.py, `reason` a text for people that nothing parses."""

    at: int = int64()
    kind: int = int8()
    member_id: str = string()
    reason: str = string()


@struct
class ExplainedGroup:
    """A group: `wait` is a RebalanceWait, `epoch` its generation or group epoch, `since` when the
    rebalance under way began and `deadline` when its wait is over at the latest. `ttl_ms` is -1
    unless it is ephemeral."""

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
class ExplainGroupResponse:
    """`now` is the clock by which all times are told. With an error code the list is not whole.

    `has_more`: there are groups behind the last one here.
    """

    throttle_time_ms: int = int32()
    error_code: int = int16()
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
    """How do these partitions stand, and who reads them? Asked of every node that has a replica:
    the leader knows the log, and each node who fetches from it."""

    topics: list[ExplainTopicRequestTopic] = array(ExplainTopicRequestTopic)


@struct
class ExplainedReader:
    """A client that has fetched a partition from this node lately.

    `idle_ms` is how long ago that was, `offset` what it asked for, `error_code` what it was told.
    `fetch_idle_ms` is how long ago it fetched anything at all by the same connection.
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
    """Records [start, end) that a member of a share group holds, for `left_ms` more."""

    member_id: str = string()
    start_offset: int = int64()
    end_offset: int = int64()
    delivery_count: int = int16()
    left_ms: int = int64()


@struct
class ExplainedSharePartition:
    """A share group in a partition: it is done with what lies before `start_offset`, and has had
    nothing from `end_offset` on yet.

    Of the records between, so many may be had now, are held, rest until they are delivered again,
    or are on their way to the dead-letter topic. `locks` are the first of those that are held.
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
class ExplainedPartition:
    """A partition as this node sees it; offsets are -1 unless it leads.

    The open transaction is the oldest one, behind which the last stable offset stays: since when
    it has been silent by its last batch's timestamp, -1 if there is none.
    """

    partition_index: int = int32()
    error_code: int = int16()
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


@struct
class ExplainedTopicPartitions:
    """The partitions of one topic."""

    name: str = string()
    error_code: int = int16()
    partitions: list[ExplainedPartition] = array(ExplainedPartition)


@struct
class ExplainTopicResponse:
    """Each partition succeeds or fails by itself."""

    throttle_time_ms: int = int32()
    topics: list[ExplainedTopicPartitions] = array(ExplainedTopicPartitions)
