"""Decodes the records of batches into columns of numbers. Every record of a topic comes through
here.

mypyc compiles this module where there is a C compiler. Without one it runs as it is, with the same
results and in thirty times the time. No object is made for a record, and no byte of a key or a
value is touched: the decoder notes where they lie, and Arrow gathers them (arrow_columns.py).

A record (Kafka's documentation, "Record"); all numbers but the attributes are zigzag varints:

    length, attributes (int8), timestamp delta, offset delta, key length, key, value length, value,
    header count, then for each header: key length, key, value length, value

Where a key or a value lies is one number, a span: its start in the lower 32 bits, its end in the
upper ones. So a list of spans is, on little-endian machines, also one of starts and ends with 32
bits each: what Arrow wants to have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    # Only for the compiler: a 64-bit integer instead of a Python one.
    from mypy_extensions import i64

IS_COMPILED: Final = not __file__.endswith(".py")
"""Whether mypyc has compiled this module."""
RECORD_BYTES_MIN: Final = 6
"""Attributes, two deltas, two empty fields and the header count."""
INT64_MAX: Final = 2**63 - 1


class RecordsCut(Exception):
    """The bytes are not the records that the batch header promises."""


class RecordDecoder:
    """Collects the records of any number of batches. What is collected is read from the lists."""

    def __init__(self, with_headers: bool) -> None:
        self._with_headers = with_headers
        self.rows: i64 = 0
        """The records so far."""
        self.offset_runs: list[int] = []
        """Where offsets are not consecutive: a row and its offset, in turns. Row 0 is the first."""
        self.timestamps: list[int] = []
        """In milliseconds, of each row."""
        self.values: list[int] = []
        """The span of each row's value."""
        self.null_values: list[int] = []
        """The rows that have none."""
        self.keys: list[int] = []
        """The span of each row's key; empty if no row has one."""
        self.null_keys: list[int] = []
        """The rows that have none, if any row has one."""
        self.header_ends: list[int] = []
        """As many headers there are up to and with each row; empty if no row has one."""
        self.header_keys: list[int] = []
        """The span of each header's key."""
        self.header_values: list[int] = []
        """The span of each header's value."""
        self.null_header_values: list[int] = []
        """The headers that have none."""
        self._next_offset: i64 = -1

    def decode(
        self,
        data: bytes,
        at: int,
        end: int,
        shift: int,
        record_count: int,
        base_offset: int,
        base_timestamp: int,
        has_timestamps: bool,
        first_offset: int,
        end_offset: int,
    ) -> None:
        """Add the records in the bytes [at, end) with offsets in [first_offset, end_offset).

        Spans are positions in `data` plus `shift`, and must stay below 2**31. Without
        `has_timestamps` all records have the base timestamp. Raises RecordsCut.
        """
        try:
            self._decode(
                data,
                at,
                end,
                shift,
                record_count,
                base_offset,
                base_timestamp,
                1 if has_timestamps else 0,
                first_offset,
                end_offset,
            )
        except IndexError:
            raise RecordsCut("The fields of a record exceed its batch.") from None

    def _decode(
        self,
        data: bytes,
        at: i64,
        end: i64,
        shift: i64,
        count: i64,
        base_offset: i64,
        base_timestamp: i64,
        delta_factor: i64,
        first_offset: i64,
        end_offset: i64,
    ) -> None:
        # Varints of one byte, which are nearly all, are read inline.
        rows = self.rows
        next_offset = self._next_offset
        timestamps = self.timestamps
        values = self.values
        keys = self.keys
        has_keys = len(keys) > 0
        has_headers = len(self.header_ends) > 0
        while at < end:
            if count == 0:
                raise RecordsCut("Bytes follow the records that the batch header claims.")
            count -= 1
            byte: i64 = data[at]
            at += 1
            if byte < 128:
                length = (byte >> 1) ^ -(byte & 1)
            else:
                length, at = _read_int32(data, at - 1)
            record_end = at + length
            if length < RECORD_BYTES_MIN or record_end > end:
                raise RecordsCut("A record is cut.")
            at += 1  # the attributes, which have no meaning
            byte = data[at]
            at += 1
            if byte < 128:
                delta = (byte >> 1) ^ -(byte & 1)
            else:
                delta, at = _read_int64(data, at - 1)
            byte = data[at]
            at += 1
            if byte < 128:
                offset = (byte >> 1) ^ -(byte & 1)
            else:
                offset, at = _read_int32(data, at - 1)
            offset += base_offset
            byte = data[at]
            at += 1
            if byte < 128:
                key_length = (byte >> 1) ^ -(byte & 1)
            else:
                key_length, at = _read_int32(data, at - 1)
            key_at = at + shift
            if key_length > 0:
                at += key_length
            byte = data[at]
            at += 1
            if byte < 128:
                length = (byte >> 1) ^ -(byte & 1)
            else:
                length, at = _read_int32(data, at - 1)
            value_at = at + shift
            if length > 0:
                at += length
            if at >= record_end:
                raise RecordsCut("The fields of a record exceed its length.")
            if offset < first_offset or offset >= end_offset:
                at = record_end
                continue
            value_end = at + shift
            if length < 0:
                self.null_values.append(rows)
            values.append(value_at | (value_end << 32))
            timestamps.append(base_timestamp + delta * delta_factor)
            if offset != next_offset:
                if offset < next_offset:
                    raise RecordsCut("The offsets of records do not ascend.")
                self.offset_runs.append(rows)
                self.offset_runs.append(offset)
            next_offset = offset + 1
            if key_length >= 0:
                if not has_keys:
                    has_keys = True
                    self._without_keys(rows)
                keys.append(key_at | ((key_at + key_length) << 32))
            elif has_keys:
                self.null_keys.append(rows)
                keys.append(key_at | (key_at << 32))
            if data[at]:
                if self._with_headers:
                    if not has_headers:
                        has_headers = True
                        self.header_ends.extend([0] * rows)
                    at = self._take_headers(data, at, record_end, shift)
                    self.header_ends.append(len(self.header_keys))
                else:
                    at = record_end
            else:
                at += 1
                if has_headers:
                    self.header_ends.append(len(self.header_keys))
            if at != record_end:
                raise RecordsCut("The fields of a record do not match its length.")
            rows += 1
        if count > 0:
            raise RecordsCut(f"{count} records that the batch header claims are missing.")
        self.rows = rows
        self._next_offset = next_offset

    def _without_keys(self, rows: i64) -> None:
        """The first key comes: those before it are null."""
        row: i64 = 0
        while row < rows:
            self.keys.append(0)
            self.null_keys.append(row)
            row += 1

    def _take_headers(self, data: bytes, at: i64, end: i64, shift: i64) -> i64:
        """Add the headers, whose count is at `at`. Returns the end of the last one."""
        count, at = _read_int32(data, at)
        while count > 0 and at < end:
            length, at = _read_int32(data, at)
            if length < 0:
                raise RecordsCut("A header of a record has no key.")
            start = at + shift
            at += length
            self.header_keys.append(start | ((at + shift) << 32))
            length, at = _read_int32(data, at)
            start = at + shift
            if length < 0:
                self.null_header_values.append(len(self.header_values))
            else:
                at += length
            self.header_values.append(start | ((at + shift) << 32))
            count -= 1
        if count != 0 or at > end:
            raise RecordsCut("The headers of a record exceed its length.")
        return at


def _read_int32(data: bytes, at: i64) -> tuple[i64, i64]:
    """A signed 32-bit varint and the position behind it."""
    value: i64 = 0
    shift: i64 = 0
    while True:
        byte: i64 = data[at]
        at += 1
        if shift == 28 and byte > 15:
            raise RecordsCut("A number of a record exceeds 32 bits.")
        value |= (byte & 127) << shift
        if byte < 128:
            return (value >> 1) ^ -(value & 1), at
        shift += 7


def _read_int64(data: bytes, at: i64) -> tuple[i64, i64]:
    """A signed 64-bit varint and the position behind it."""
    value: i64 = 0
    shift: i64 = 0
    while True:
        byte: i64 = data[at]
        at += 1
        if shift == 63 and byte > 1:
            raise RecordsCut("A number of a record exceeds 64 bits.")
        value |= (byte & 127) << shift
        if byte < 128:
            return ((value >> 1) & INT64_MAX) ^ -(value & 1), at
        shift += 7
