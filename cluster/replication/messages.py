"""Messages of a replica fetch session: between a follower and a leader, for one store.

There is one session for each (follower node, leader node, store). The follower adds each partition
once, under a handle of its choice; later requests contain only changed offsets, and the leader
keeps the rest in the session (as KIP-227). A fetch offset confirms that the follower has everything
below it. The leader delays its response until there is something new. If it does not know the
session, the follower sends everything again.

The batches of all partitions follow the response in one frame, in the response's order. Fields are
only added at the end, with a default.
"""

from typing import Final

import msgspec

from odradek.protocol.types import NO_EPOCH, NO_OFFSET, Uuid

REPLICATION_VERSION: Final = 1
PAYLOAD_HEAD: Final = 16
"""Bytes before the first batch in the frame: headroom for the store."""


class _Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An array on the wire."""


class ReplicaFetchPartition(_Message, frozen=True, array_like=True, gc=False):
    """Add a partition under this handle, or replace it. `last_epoch` is the leader epoch of the
    follower's last record (KIP-595)."""

    handle: int
    topic_id: Uuid
    partition: int
    leader_epoch: int
    fetch_offset: int
    last_epoch: int
    log_start_offset: int = NO_OFFSET


class ReplicaFetchPosition(_Message, frozen=True, array_like=True, gc=False):
    """The follower's log end offset has changed; its last record has the epoch `last_epoch`."""

    handle: int
    fetch_offset: int
    last_epoch: int


class ReplicaFetchRequest(_Message, frozen=True, array_like=True, tag="fetch", gc=False):
    """The changes since the follower's last request; with `is_full` all partitions."""

    request_id: int
    cluster_id: str
    broker_id: int
    broker_epoch: int
    store: int
    is_full: bool
    subscribed: tuple[ReplicaFetchPartition, ...] = ()
    reached: tuple[ReplicaFetchPosition, ...] = ()
    forgotten: tuple[int, ...] = ()
    wait_ms_max: int = 500
    bytes_max: int = 1 << 20
    version: int = REPLICATION_VERSION
    log_starts: tuple[tuple[int, int], ...] = ()
    """(handle, log start offset) of logs whose start alone has changed."""


class ReplicaPartitionData(_Message, frozen=True, array_like=True, gc=False):
    """One partition: `byte_count` bytes of batches, an error, or the diverging epoch.

    `diverging_epoch` and `diverging_end` are set if the follower's last epoch is unknown to the
    leader or ends earlier on its log. With OFFSET_OUT_OF_RANGE, `log_start_offset` is that of the
    leader's first batch.
    """

    handle: int
    error_code: int
    high_watermark: int
    log_start_offset: int
    log_end_offset: int
    byte_count: int = 0
    diverging_epoch: int = NO_EPOCH
    diverging_end: int = NO_OFFSET


class ReplicaFetchResponse(_Message, frozen=True, array_like=True, tag="fetched", gc=False):
    """The response. With an error code the request had no effect: after FETCH_SESSION_ID_NOT_FOUND
    the follower sends a full request; INCONSISTENT_CLUSTER_ID needs an operator."""

    request_id: int
    store: int
    error_code: int
    partitions: tuple[ReplicaPartitionData, ...] = ()
    version: int = REPLICATION_VERSION
    batch_count: int = 0
    """How many batches follow: what it costs to append them. 0 if the leader does not say."""
