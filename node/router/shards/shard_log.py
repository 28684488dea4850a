"""The log of a coordinator's shard: read for loading, append records.

ShardHost uses this interface only, so that tests can use a log in memory. Reads go to the store
directly; appends go to the worker with acks=all, like any Produce.
"""

from collections.abc import Iterator
from typing import Any, Protocol

from odradek.coordinator.loader import LogEntry, TransactionalEntry
from odradek.coordinator.outcome import TransactionMarker
from odradek.node.bus.messages import (
    UNSENT,
    AppendBytes,
    AppendReply,
    DescribeProducers,
    DescribeProducersReply,
    RequestFailed,
)
from odradek.node.bus.reply import Reply
from odradek.node.router.logs import Logs
from odradek.node.router.worker_client import WorkerClient
from odradek.protocol.control_records import ControlType, read_control_batch
from odradek.protocol.errors import ErrorCode
from odradek.protocol.records import iter_batches, iter_records
from odradek.storage.reader import StoreReader

READ_BYTES = 65_536
"""Read at a time while a shard loads: a few milliseconds of replay."""


class ShardLog(Protocol):
    """The partition of a shard."""

    def barrier(self) -> Reply[DescribeProducersReply]:
        """The worker replies after everything that was sent to it before.

        From then on `bounds` is exact, and no earlier append is still in flight.
        """

    def bounds(self) -> tuple[int, int]:
        """The offsets of the log: [start, end)."""

    def high_watermark(self) -> int:
        """The high watermark; 0 while it is unknown."""

    def read(self, offset: int, end_offset: int) -> tuple[list[LogEntry], int]:
        """Records from `offset` on, and the offset to read next; `end_offset` at the end."""

    def append(self, batch: bytes, leader_epoch: int, base_offset: int) -> Reply[AppendReply]:
        """Append a record batch if the log ends at `base_offset`, else fail with
        OFFSET_OUT_OF_RANGE. Replies come in order, when the batch is committed."""


class StoreShardLog:
    """A partition of this broker, which its worker may not have created yet."""

    def __init__(
        self, logs: Logs, worker_client: WorkerClient, topic_id: bytes, partition: int
    ) -> None:
        self._logs = logs
        self._worker_client = worker_client
        self._topic_id = topic_id
        self._partition = partition

    def barrier(self) -> Reply[DescribeProducersReply]:
        """DescribeProducers changes nothing, and passes the same queue as appends."""
        location = self._logs.locate(self._topic_id, self._partition)
        if location is None:
            return _not_leader()
        return self._worker_client.send(DescribeProducers(UNSENT, *location))

    def bounds(self) -> tuple[int, int]:
        """From the status table. Call it after the barrier."""
        reader, number = self._reader()
        return reader.status.log_start_offset(number), reader.status.log_end_offset(number)

    def high_watermark(self) -> int:
        """From the status table."""
        located = self._logs.open(self._topic_id, self._partition)
        return 0 if located is None else located.reader.status.high_watermark(located.number)

    def read(self, offset: int, end_offset: int) -> tuple[list[LogEntry], int]:
        """Whole batches of about READ_BYTES."""
        reader, number = self._reader()
        result = reader.read(number, offset, max_bytes=READ_BYTES, end_offset=end_offset)
        entries = [
            entry
            for buffer in result.buffers
            for entry in decode_entries(memoryview(buffer), offset)
        ]
        # Without a buffer the last records were compacted away: nothing is left to read.
        return entries, result.next_offset if result.buffers else end_offset

    def append(self, batch: bytes, leader_epoch: int, base_offset: int) -> Reply[AppendReply]:
        """With acks=all."""
        location = self._logs.locate(self._topic_id, self._partition)
        if location is None:
            return _not_leader()
        return self._worker_client.append_bytes(
            AppendBytes(
                UNSENT, *location, batch, leader_epoch=leader_epoch, base_offset=base_offset
            )
        )

    def _reader(self) -> tuple[StoreReader, int]:
        located = self._logs.open(self._topic_id, self._partition)
        assert located is not None, "called before the barrier was answered"
        return located.reader, located.number


def _not_leader() -> Reply[Any]:
    reply: Reply[Any] = Reply()
    reply.resolve(RequestFailed(0, ErrorCode.NOT_LEADER_OR_FOLLOWER))
    return reply


def decode_entries(view: memoryview, offset: int) -> Iterator[LogEntry]:
    """The entries of the batches from `offset` on; of control records only transaction markers."""
    for start, header in iter_batches(view):
        if header.is_control:
            marker = read_control_batch(view[start:], header)
            if marker is not None and header.base_offset >= offset:
                is_commit = marker.type is ControlType.COMMIT
                yield TransactionMarker(
                    header.producer_id, header.producer_epoch, marker.coordinator_epoch, is_commit
                )
            continue
        producer = header.producer_id, header.producer_epoch
        is_open = header.is_transactional
        for record in iter_records(view[start:], header):
            if record.offset >= offset:
                if is_open:
                    yield TransactionalEntry(*producer, record.key, record.value)
                else:
                    yield record.key, record.value
