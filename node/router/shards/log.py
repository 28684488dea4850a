"""The partition behind a coordinator's shard: read it whole, append, know where one stands.

The shell of a shard sees its log through this face alone, so that tests can put a log in memory
there. Reading goes straight to the store; appending takes the way of every produce, with acks=all.
"""

from collections.abc import Iterator
from typing import Protocol

from odradek.coordinator.loading import LogEntry, TransactionalEntry
from odradek.coordinator.outcome import Marker
from odradek.node.bus.messages import Failed
from odradek.node.bus.reply import Reply
from odradek.node.router.fanout import Answer, Fanout
from odradek.node.router.logs import Logs, Place
from odradek.protocol.control_records import ControlType, read_control_batch
from odradek.protocol.errors import ErrorCode
from odradek.protocol.records import is_control, is_transactional, iter_batches, iter_records
from odradek.storage.reader import StoreReader

READ_BYTES = 65_536
"""Read at a time while a shard loads: some milliseconds of replaying."""


class ShardLog(Protocol):
    """What a shard's host needs of its partition."""

    def barrier(self) -> Reply[Answer]:
        """Answered by the partition's worker after everything that was sent to it before.

        From then on `bounds` is true, and no earlier append can still arrive.
        """

    def bounds(self) -> tuple[int, int]:
        """The log's offsets: [start, end)."""

    def high_watermark(self) -> int:
        """Below it everything is committed; 0 while nobody knows."""

    def read(self, offset: int, end_offset: int) -> tuple[list[LogEntry], int]:
        """Some records from `offset` on, and where to read next; `end_offset` when all are read."""

    def append(self, batch: bytes, leader_epoch: int, base_offset: int) -> Reply[Answer]:
        """Append a record batch where the log ends at `base_offset`, else nothing
        (OFFSET_OUT_OF_RANGE); answered when it is committed. Answers come in order."""


class StoreLog:
    """A partition of this node. It may be asked for before its worker has created it."""

    def __init__(self, logs: Logs, fanout: Fanout, topic_id: bytes, partition: int) -> None:
        self._logs = logs
        self._fanout = fanout
        self._topic_id = topic_id
        self._partition = partition

    def barrier(self) -> Reply[Answer]:
        """Asking for the producers changes nothing, and goes through the same queue."""
        place = self._logs.locate(self._topic_id, self._partition)
        if place is None:
            return _not_yet()
        store, number = place
        return self._fanout.describe_producers(store=store, number=number)

    def bounds(self) -> tuple[int, int]:
        """From the status table; after the barrier."""
        reader, number = self._reader()
        return reader.status.log_start_offset(number), reader.status.log_end_offset(number)

    def high_watermark(self) -> int:
        """From the status table."""
        place = self._logs.locate(self._topic_id, self._partition)
        reader = self._logs.reader(place[0]) if place is not None else None
        if place is None or reader is None:
            return 0
        return reader.status.high_watermark(place[1])

    def read(self, offset: int, end_offset: int) -> tuple[list[LogEntry], int]:
        """Whole batches of about READ_BYTES."""
        reader, number = self._reader()
        found = reader.read(number, offset, max_bytes=READ_BYTES, end_offset=end_offset)
        entries = [
            entry for buffer in found.buffers for entry in entries_of(memoryview(buffer), offset)
        ]
        # Where compaction has taken the last records there is nothing left to read.
        return entries, found.next_offset if found.buffers else end_offset

    def append(self, batch: bytes, leader_epoch: int, base_offset: int) -> Reply[Answer]:
        """Through the worker, to all in-sync replicas."""
        place = self._logs.locate(self._topic_id, self._partition)
        if place is None:
            return _not_yet()
        store, number = place
        return self._fanout.append_bytes(
            store=store,
            number=number,
            batches=batch,
            acks=-1,
            leader_epoch=leader_epoch,
            base_offset=base_offset,
        )

    def _reader(self) -> tuple[StoreReader, int]:
        place: Place | None = self._logs.locate(self._topic_id, self._partition)
        reader = self._logs.reader(place[0]) if place is not None else None
        assert place is not None, "asked before the barrier was answered"
        assert reader is not None, "a place lies in a store that can be read"
        return reader, place[1]


def _not_yet() -> Reply[Answer]:
    reply: Reply[Answer] = Reply()
    reply.resolve(Failed(0, ErrorCode.NOT_LEADER_OR_FOLLOWER))
    return reply


def entries_of(view: memoryview, offset: int) -> Iterator[LogEntry]:
    """What the batches hold from `offset` on, without control records that end no transaction."""
    for start, header in iter_batches(view):
        if is_control(header.attributes):
            marker = read_control_batch(view[start:], header)
            if marker is not None and header.base_offset >= offset:
                is_commit = marker.type is ControlType.COMMIT
                yield Marker(
                    header.producer_id, header.producer_epoch, marker.coordinator_epoch, is_commit
                )
            continue
        producer = header.producer_id, header.producer_epoch
        is_open = is_transactional(header.attributes)
        for record in iter_records(view[start:], header):
            if record.offset >= offset:
                if is_open:
                    yield TransactionalEntry(*producer, record.key, record.value)
                else:
                    yield record.key, record.value
