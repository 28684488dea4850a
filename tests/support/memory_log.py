"""A shard's partition in memory: storage, bus and worker, with controlled time and failures."""

from typing import Any

from odradek.coordinator.loader import LogEntry
from odradek.node.bus.messages import Appended, ProducersDescribed, RequestFailed
from odradek.node.bus.reply import Reply
from odradek.node.router.shards.shard_log import decode_entries
from odradek.protocol.errors import ErrorCode
from odradek.protocol.records import iter_batches


class MemoryLog:
    """Appends and barriers wait in `queue` until `serve` or `fail` settles the oldest one.

    While there are `refusals`, appends are refused at once. The last `uncommitted_count` entries
    are beyond the high watermark.
    """

    def __init__(self, *, is_serving: bool = True) -> None:
        self.entries: list[LogEntry] = []
        self.batch_sizes: list[int] = []
        self.is_serving = is_serving
        self.is_readable = True
        self.slice_count = 1_000
        self.uncommitted_count = 0
        self.refusals: list[ErrorCode] = []
        self.queue: list[tuple[bytes | None, int, Reply[Any]]] = []

    def barrier(self) -> Reply[Any]:
        return self._enqueue(None)

    def append(self, batch: bytes, leader_epoch: int, base_offset: int) -> Reply[Any]:
        return self._enqueue(batch, base_offset)

    def bounds(self) -> tuple[int, int]:
        return 0, len(self.entries)

    def high_watermark(self) -> int:
        return len(self.entries) - self.uncommitted_count

    def read(self, offset: int, end_offset: int) -> tuple[list[LogEntry], int]:
        if not self.is_readable:
            raise OSError("the disk is gone")
        end = min(offset + self.slice_count, end_offset)
        return self.entries[offset:end], end

    def _enqueue(self, batch: bytes | None, base_offset: int = -1) -> Reply[Any]:
        reply: Reply[Any] = Reply()
        if self.refusals and batch is not None:
            reply.resolve(RequestFailed(0, self.refusals.pop(0)))
            return reply
        self.queue.append((batch, base_offset, reply))
        if self.is_serving:
            self.serve()
        return reply

    def serve(self, *, and_stay: bool = False) -> None:
        """Carry out all waiting requests; `and_stay`: from now on at once."""
        self.is_serving = self.is_serving or and_stay
        while self.queue:
            batch, base_offset, reply = self.queue.pop(0)
            if batch is None:
                reply.resolve(ProducersDescribed(0, ErrorCode.NONE, ()))
            elif base_offset != len(self.entries):
                reply.resolve(RequestFailed(0, ErrorCode.OFFSET_OUT_OF_RANGE))
            else:
                reply.resolve(Appended(0, base_offset=self.write(batch)))

    def write(self, batch: bytes) -> int:
        """Append; returns the base offset."""
        base_offset = len(self.entries)
        self.batch_sizes += [header.record_count for _, header in iter_batches(batch)]
        self.entries += decode_entries(memoryview(batch), 0)
        return base_offset

    def fail(self, error_code: ErrorCode, *, is_written: bool = False) -> None:
        """Answer the oldest one with an error; `is_written`: it is in the log nevertheless."""
        batch, _, reply = self.queue.pop(0)
        if is_written and batch is not None:
            self.write(batch)
        reply.resolve(RequestFailed(0, error_code))
