"""One append to one partition, as the write path passes it on.

Made by the worker, prepared by client_batches.py if it comes from a client, carried out by
append.py.
"""

import msgspec

from odradek.protocol.types import NO_EPOCH
from odradek.storage.validation import LATEST_VERSION, AppendOrigin


class LogAppend(msgspec.Struct, eq=False, gc=False):
    """One append to one partition: the batches at [start, start + length) of `arena`.

    The batches' headers are rewritten in place (a read-only arena is copied first). More than one
    batch is accepted from coordinators, from leaders, and from clients of Produce below version 3
    (`request_version`). With `has_headroom` the 16 bytes before `start` belong to this append until
    it returns: they are overwritten and restored, which saves a copy of a large batch.
    """

    arena: memoryview
    start: int
    length: int
    leader_epoch: int = NO_EPOCH
    origin: AppendOrigin = AppendOrigin.CLIENT
    request_version: int = LATEST_VERSION
    has_headroom: bool = False
    log_append_time_ms: int = -1
    """Set where the topic's timestamp type is LogAppendTime."""
    is_prepared: bool = False
    """Whether a client's batches have been checked (client_batches.py)."""
    parts: list["LogAppend"] | None = None
    """A client's batches one by one, if it is not exactly one. Set together with `is_prepared`."""

    @classmethod
    def of_bytes(cls, batches: bytes, origin: AppendOrigin) -> "LogAppend":
        """Batches that are not in an arena."""
        return cls(memoryview(bytearray(batches)), 0, len(batches), origin=origin)

    def replace(self, content: memoryview) -> None:
        """Append `content`, a whole buffer of its own, instead."""
        self.arena, self.start, self.length, self.has_headroom = content, 0, len(content), False
