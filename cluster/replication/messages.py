"""What a follower and a leader say to each other about the partitions of one store.

One conversation per (follower node, leader node, store), one request of it under way at a time. The
follower names each partition once, with a handle of its choice, and later says only which offsets
have changed; the leader remembers the rest in a session. An offset is at the same time the
follower's word that it holds everything below it. A request waits with the leader until there is
something to say. A session that the leader does not know is begun anew.

Records do not stand in these messages: the batches of all partitions travel in one frame behind the
answer, in the answer's order. Fields are only ever added at the end and with a default.
"""

from typing import Final

import msgspec

from odradek.protocol.types import NO_EPOCH, NO_OFFSET, Uuid

REPLICATION_VERSION: Final = 1
PAYLOAD_HEAD: Final = 16
"""Bytes before the first batch in the frame of batches: room for whoever stores it."""


class _Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An array on the wire."""


class ReplicaFetchPartition(_Message, frozen=True, array_like=True, gc=False):
    """A partition that the follower wants from now on, or wants anew: under this handle, in this
    leader epoch, from this offset. `last_epoch` is the epoch of its last record (KIP-595),
    `log_start_offset` is where its log starts."""

    handle: int
    topic_id: Uuid
    partition: int
    leader_epoch: int
    fetch_offset: int
    last_epoch: int
    log_start_offset: int = NO_OFFSET


class ReplicaFetchPosition(_Message, frozen=True, array_like=True, gc=False):
    """The follower's log of that handle ends elsewhere now; its last record is of `last_epoch`."""

    handle: int
    fetch_offset: int
    last_epoch: int


class ReplicaFetchRequest(_Message, frozen=True, array_like=True, tag="fetch", gc=False):
    """What has changed on the follower since its last request; with `is_full` all there is."""

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
    """(handle, offset) of those whose logs start elsewhere now; nothing else has changed."""


class ReplicaPartitionData(_Message, frozen=True, array_like=True, gc=False):
    """News of one partition: `byte_count` bytes of batches, or an error, or where the logs part.

    `diverging_epoch` and `diverging_end` are set if the follower's last epoch is not the leader's
    or ends earlier there. Of OFFSET_OUT_OF_RANGE the start is that of the leader's first batch.
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
    """The answer to the request of that id. An error code means that nothing of it was done:
    FETCH_SESSION_ID_NOT_FOUND asks for a full request, INCONSISTENT_CLUSTER_ID for an operator."""

    request_id: int
    store: int
    error_code: int
    partitions: tuple[ReplicaPartitionData, ...] = ()
    version: int = REPLICATION_VERSION
