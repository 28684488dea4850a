"""Finds a partition's batches in a segment with an LMDB cursor.

Keys are ordered by partition number and base offset. The batch that contains an offset has this
base offset, or it is the one before. Views are valid inside the transaction."""

from collections.abc import Iterator
from struct import Struct
from typing import TypeVar

import lmdb

from odradek.storage.layout import KEY, NUMBER, STAMP_SIZE

View = TypeVar("View", bytes, memoryview)

_HEADER_FIELDS = Struct(">i8xq")
_HEADER_FIELDS_AT = STAMP_SIZE + 23


def last_delta_and_timestamp(value: memoryview) -> tuple[int, int]:
    """The last offset delta and the max timestamp in the header of a stamped batch."""
    fields: tuple[int, int] = _HEADER_FIELDS.unpack_from(value, _HEADER_FIELDS_AT)
    return fields


def seek(cursor: "lmdb.Cursor[memoryview]", number: int, offset: int) -> bool:
    """Move the cursor to the partition's batch that contains `offset`, or to the next one, if
    compaction removed it. False if there is neither."""
    found = cursor.set_range(KEY.pack(number, offset))
    if found:
        at_number, base_offset = KEY.unpack(cursor.key())
        if at_number == number and base_offset == offset:
            return True
        has_before = cursor.prev()
    else:
        at_number = -1
        has_before = cursor.last()
    if has_before:
        before_number, base_offset = KEY.unpack(cursor.key())
        if before_number == number:
            delta, _ = last_delta_and_timestamp(cursor.value())
            if base_offset + delta >= offset:
                return True
    if at_number != number:
        return False
    return cursor.next() if has_before else cursor.first()


def rows_from(
    transaction: "lmdb.Transaction[View]",
    database: "lmdb._Database",
    first_key: bytes,
    number_end: int,
) -> Iterator[tuple[View, View]]:
    """(key, row) in key order, from `first_key` on, of partition numbers below `number_end`."""
    cursor = transaction.cursor(database)
    if not cursor.set_range(first_key):
        return
    for key, row in cursor.iternext():
        if NUMBER.unpack_from(key)[0] >= number_end:
            return
        yield key, row


def batches_from(
    transaction: "lmdb.Transaction[memoryview]",
    batches: "lmdb._Database",
    number: int,
    offset: int,
) -> Iterator[tuple[int, memoryview]]:
    """(base offset, stamped value) of the partition's batches, starting with the one of `seek`."""
    cursor = transaction.cursor(batches)
    if not seek(cursor, number, offset):
        return
    for key, value in cursor.iternext():
        at_number, base_offset = KEY.unpack(key)
        if at_number != number:
            return
        yield base_offset, value
