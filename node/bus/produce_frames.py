"""Where the records are in a Produce request of one topic and one partition, without decoding it.

Used where such requests are compared with an earlier one of their connection: by the router
(produce_routes.py) and by a worker that has taken over the connection (handed_connections.py).
"""

from struct import Struct
from typing import Final

from odradek.protocol.records import ATTRIBUTES_AT, HEADER_BYTES, MAGIC, MAGIC_AT, TRANSACTIONAL

FLEXIBLE_SINCE: Final = 9
"""The version of Produce since which lengths are varints and tags follow."""
PREFIX_AT: Final = 8
"""Behind API key, version and correlation id."""
NO_TAGS: Final = b"\0\0\0"
"""Of partition, topic and request, which end a flexible request."""
_ATTRIBUTES_LOW_AT: Final = ATTRIBUTES_AT + 1
_read_int32 = Struct(">i").unpack_from


def records_at(
    frame: memoryview | bytes,
    at: int,
    end: int,
    version: int,
    *,
    is_transactional: bool = False,
) -> tuple[int, int] | None:
    """Position and size of the records in the frame that ends at `end`; their length is at `at`.
    None if the frame does not end with them, or if they are not one batch or more of format 2, or
    if the first of them is of a transaction and must not be, or the other way round."""
    if end - at < HEADER_BYTES:
        return None
    if version < FLEXIBLE_SINCE:
        (size,) = _read_int32(frame, at)
        at += 4
    else:
        size = frame[at]
        at += 1
        if size >= 0x80:
            shift = 7
            size &= 0x7F
            while True:
                byte = frame[at]
                at += 1
                size |= (byte & 0x7F) << shift
                shift += 7
                if byte < 0x80:
                    break
                if shift > 28:
                    return None
        size -= 1
        end -= 3
        if frame[end : end + 3] != NO_TAGS:
            return None
    if (
        at + size != end
        or size < HEADER_BYTES
        or frame[at + MAGIC_AT] != MAGIC
        or bool(frame[at + _ATTRIBUTES_LOW_AT] & TRANSACTIONAL) is not is_transactional
    ):
        return None
    return at, size
