"""Walks over the records of a batch without taking them apart. Every batch of a client is checked
this way before it is appended (Kafka's LogValidator).

mypyc compiles this module where there is a C compiler. Without one it runs as it is, with the same
results and in fifty times the time (docs/adr/0013-every-record-is-checked.md). The bytes come in
pieces of any size, so that a batch is decompressed piece by piece. Keys and values are skipped, and
nothing is kept of them.

A record (Kafka's documentation, "Record"); all numbers but the attributes are zigzag varints:

    length, attributes (int8), timestamp delta, offset delta, key length, key, value length, value,
    header count, then for each header: key length, key, value length, value

Records that lie in one piece as a whole are read in one loop. A record that is cut is read field by
field. Timestamps are signed 64-bit numbers, all others are signed 32-bit numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    # Only for the compiler: a 64-bit integer instead of a Python one.
    from mypy_extensions import i64

INT64_MIN: Final = -(2**63 - 1) - 1
INT64_MAX: Final = 2**63 - 1
IS_COMPILED: Final = not __file__.endswith(".py")
"""Whether mypyc has compiled this module."""
RECORD_BYTES_MIN: Final = 7
"""Length, attributes, two deltas, two empty fields and the header count."""
RECORD_ERRORS_MAX: Final = 100
"""As many records are named as faulty."""

NO_KEY: Final = 0
OFFSET_NOT_CONSECUTIVE: Final = 1
TIMESTAMP_OUT_OF_RANGE: Final = 2

# Of a batch.
_BATCH_HEADER_BYTES: Final = 61
_TRANSACTIONAL: Final = 16
_PLAIN_RECORDS_MAX: Final = 10_000
_PLAIN_TIMESTAMP_MAX: Final = 2**60

# The fields of a record that is cut.
_LENGTH: Final = 0
_ATTRIBUTES: Final = 1
_TIMESTAMP: Final = 2
_OFFSET: Final = 3
_KEY: Final = 4
_VALUE: Final = 5
_HEADER_COUNT: Final = 6
_HEADER_KEY: Final = 7
_HEADER_VALUE: Final = 8


class MalformedRecordsError(Exception):
    """The bytes are not the records that the batch header promises."""


def is_plain_batch(
    data: bytes, start: int, requires_keys: bool, earliest_ms: int, latest_ms: int
) -> bool:
    """Whether `data[start:]`, from the magic byte at `start` + 16 on, is a batch of the most
    frequent kind and may be appended as it is: of format 2, uncompressed, no marker, with the
    timestamps of its producer from `earliest_ms` to `latest_ms`, whose largest is that of the
    header, and few enough records to be checked at once. `requires_keys`: the topic is compacted.

    False says nothing about a batch: it is another one, or wrong. Batch length, CRC and base offset
    are the caller's to check, sequences are the log's.
    """
    size: i64 = len(data)
    at: i64 = start
    if size - at <= _BATCH_HEADER_BYTES or data[at + 16] != 2:
        return False
    attributes = _fixed_number(data, at + 21, 2)
    if attributes & ~_TRANSACTIONAL:
        return False
    count = _fixed_number(data, at + 57, 4)
    base_ms = _fixed_number(data, at + 27, 8)
    producer_id = _fixed_number(data, at + 43, 8)
    if (
        count <= 0
        or count > _PLAIN_RECORDS_MAX
        or _fixed_number(data, at + 23, 4) != count - 1
        # Differences of such times have 64 bits.
        or not 0 <= base_ms <= _PLAIN_TIMESTAMP_MAX
        or (producer_id < 0 and attributes)
        or (producer_id >= 0 and _fixed_number(data, at + 53, 4) < 0)
    ):
        return False
    walker = RecordWalker(
        count,
        requires_keys=requires_keys,
        earliest_delta=max(earliest_ms, 0) - base_ms,
        latest_delta=min(latest_ms, _PLAIN_TIMESTAMP_MAX) - base_ms,
    )
    # The header is skipped like a field.
    walker.skip = at + _BATCH_HEADER_BYTES
    try:
        walker.feed(data)
        walker.finish()
    except MalformedRecordsError:
        return False
    if walker.errors:
        return False
    return base_ms + walker.largest_delta == _fixed_number(data, at + 35, 8)


def _fixed_number(data: bytes, at: i64, size: i64) -> i64:
    """A signed big-endian number of `size` bytes."""
    value: i64 = data[at]
    if value > 127:
        value -= 256
    end = at + size
    at += 1
    while at < end:
        value = value * 256 + data[at]
        at += 1
    return value


class RecordWalker:
    """The walk over one batch: `feed` each piece in order, then `finish`.

    Timestamps are deltas to the batch's base timestamp. Those from `earliest_delta` to
    `latest_delta` (inclusive) are accepted, and `exempt_delta`, which stands for no timestamp.
    """

    def __init__(
        self,
        record_count: int,
        *,
        requires_keys: bool = False,
        earliest_delta: int = INT64_MIN,
        latest_delta: int = INT64_MAX,
        exempt_delta: int = INT64_MIN,
    ) -> None:
        self.index: i64 = 0
        """The records so far: the index of the next one."""
        self.skip: i64 = 0
        """As many bytes after those that were fed belong to a key or a value. They may be left out
        if this is set to 0."""
        self.largest_delta: i64 = INT64_MIN
        """The largest timestamp delta so far."""
        self.has_timestamp_error = False
        self.errors: list[tuple[int, int]] = []
        """The first records that must be rejected: their index, and NO_KEY, OFFSET_NOT_CONSECUTIVE
        or TIMESTAMP_OUT_OF_RANGE."""
        self._record_count: i64 = record_count
        self._requires_keys = requires_keys
        self._earliest: i64 = earliest_delta
        self._latest: i64 = latest_delta
        self._exempt: i64 = exempt_delta
        # A record that is cut: its next field, the part of a varint that was read, how many bytes
        # and headers the record has left, and what is wrong with it.
        self._field: i64 = _LENGTH
        self._varint: i64 = 0
        self._shift: i64 = 0
        self._left: i64 = 0
        self._headers_left: i64 = 0
        self._has_no_key = False
        self._timestamp_delta: i64 = 0
        self._offset_delta: i64 = 0

    def feed(self, data: bytes) -> None:
        """Walk over the next piece. Raises MalformedRecordsError; `index` is then the record's."""
        size: i64 = len(data)
        at: i64 = self.skip
        if at >= size:
            self.skip = at - size
            return
        self.skip = 0
        if self._field != _LENGTH or self._shift:
            at = self._walk_fields(data, at)
        try:
            while at < size:
                start = at
                at = self._walk_whole_records(data, at)
                if at == start:
                    at = self._walk_fields(data, at)
        except IndexError:
            raise MalformedRecordsError("The fields of a record exceed its length.") from None

    def finish(self) -> None:
        """The batch has no further bytes. Raises MalformedRecordsError if records are missing."""
        if self._is_at_end_of_record() and not self.skip:
            self._end_record()
        if self._field != _LENGTH or self._shift:
            raise MalformedRecordsError("The last record is cut.")
        if self.index != self._record_count:
            raise MalformedRecordsError(
                f"The batch header claims {self._record_count} records, but there are {self.index}."
            )

    def _walk_whole_records(self, data: bytes, at: i64) -> i64:
        """Walk over the records that lie in `data` as a whole. Returns the start of the first one
        that does not. IndexError if the last one's fields exceed it and the data."""
        # Varints of one byte, which are nearly all, are read inline.
        size: i64 = len(data)
        index = self.index
        count = self._record_count
        requires_keys = self._requires_keys
        earliest = self._earliest
        latest = self._latest
        largest = self.largest_delta
        while at + 5 <= size:
            self.index = index
            start = at
            byte: i64 = data[at]
            at += 1
            if byte < 128:
                length = (byte >> 1) ^ -(byte & 1)
            else:
                length, at = _read_int32(data, at - 1)
            end = at + length
            if end > size:
                at = start
                break
            if index == count or length < RECORD_BYTES_MIN - 1:
                self._refuse_record(length)
            at += 1  # the attributes, which have no meaning
            byte = data[at]
            at += 1
            if byte < 128:
                delta = (byte >> 1) ^ -(byte & 1)
            else:
                delta, at = _read_int64(data, at - 1)
            if delta > largest:
                largest = delta
            byte = data[at]
            at += 1
            if byte < 128:
                offset_delta = (byte >> 1) ^ -(byte & 1)
            else:
                offset_delta, at = _read_int32(data, at - 1)
            byte = data[at]
            at += 1
            if byte < 128:
                length = (byte >> 1) ^ -(byte & 1)
            else:
                length, at = _read_int32(data, at - 1)
            if length > 0:
                at += length
            has_no_key = length < 0
            byte = data[at]
            at += 1
            if byte < 128:
                length = (byte >> 1) ^ -(byte & 1)
            else:
                length, at = _read_int32(data, at - 1)
            if length > 0:
                at += length
            if data[at]:
                at = _skip_headers(data, at, end)
            else:
                at += 1
            if at != end:
                raise MalformedRecordsError("The fields of a record do not match its length.")
            if (
                offset_delta != index
                or (has_no_key and requires_keys)
                or delta < earliest
                or delta > latest
            ):
                self._reject(index, has_no_key, offset_delta, delta)
            index += 1
        self.index = index
        self.largest_delta = largest
        return at

    def _refuse_record(self, length: i64) -> None:
        if self.index == self._record_count:
            raise MalformedRecordsError(
                f"Bytes follow the {self._record_count} records that the batch header claims."
            )
        raise MalformedRecordsError(f"A record of {length} bytes is too short.")

    def _walk_fields(self, data: bytes, at: i64) -> i64:
        """Walk to the end of one record, or of the data. Returns the position."""
        size: i64 = len(data)
        while True:
            if self._is_at_end_of_record():
                self._end_record()
                return at
            if at >= size:
                return at
            field = self._field
            if field == _ATTRIBUTES:
                at += 1
                self._left -= 1
                self._field = _TIMESTAMP
                continue
            byte: i64 = data[at]
            at += 1
            if field != _LENGTH:
                self._left -= 1
                if self._left < 0:
                    raise MalformedRecordsError("The fields of a record exceed its length.")
            elif self.index == self._record_count:
                self._refuse_record(0)
            shift = self._shift
            if field == _TIMESTAMP:
                if shift == 63 and byte > 1:
                    raise MalformedRecordsError("A number of a record exceeds 64 bits.")
            elif shift == 28 and byte > 15:
                raise MalformedRecordsError("A number of a record exceeds 32 bits.")
            self._varint |= (byte & 127) << shift
            if byte >= 128:
                self._shift = shift + 7
                continue
            value = ((self._varint >> 1) & INT64_MAX) ^ -(self._varint & 1)
            self._varint = 0
            self._shift = 0
            self._take_field(field, value)
            if self.skip:
                available = size - at
                if self.skip > available:
                    self.skip -= available
                    return size
                at += self.skip
                self.skip = 0

    def _take_field(self, field: i64, value: i64) -> None:
        """Take a number of a record that is cut."""
        if field == _LENGTH:
            if value < RECORD_BYTES_MIN - 1:
                self._refuse_record(value)
            self._left = value
            self._field = _ATTRIBUTES
        elif field == _TIMESTAMP:
            self._timestamp_delta = value
            if value > self.largest_delta:
                self.largest_delta = value
            self._field = _OFFSET
        elif field == _OFFSET:
            self._offset_delta = value
            self._field = _KEY
        elif field == _KEY:
            self._has_no_key = value < 0
            self._skip(value)
            self._field = _VALUE
        elif field == _VALUE:
            self._skip(value)
            self._field = _HEADER_COUNT
        elif field == _HEADER_COUNT:
            if value < 0:
                raise MalformedRecordsError("A record has a negative number of headers.")
            self._headers_left = value
            self._field = _HEADER_KEY
        elif field == _HEADER_KEY:
            if value < 0:
                raise MalformedRecordsError("A header of a record has no key.")
            self._skip(value)
            self._field = _HEADER_VALUE
        else:
            self._skip(value)
            self._headers_left -= 1
            self._field = _HEADER_KEY

    def _skip(self, length: i64) -> None:
        if length > self._left:
            raise MalformedRecordsError("The fields of a record exceed its length.")
        if length > 0:
            self._left -= length
            self.skip = length

    def _is_at_end_of_record(self) -> bool:
        return self._field == _HEADER_KEY and self._headers_left == 0

    def _end_record(self) -> None:
        """A record that was cut has been read."""
        if self._left:
            raise MalformedRecordsError("The fields of a record do not match its length.")
        index = self.index
        delta = self._timestamp_delta
        if (
            self._offset_delta != index
            or (self._has_no_key and self._requires_keys)
            or delta < self._earliest
            or delta > self._latest
        ):
            self._reject(index, self._has_no_key, self._offset_delta, delta)
        self.index = index + 1
        self._field = _LENGTH

    def _reject(self, index: i64, has_no_key: bool, offset_delta: i64, delta: i64) -> None:
        """Note what is wrong with a record, if it is not its having no timestamp."""
        if has_no_key and self._requires_keys:
            fault = NO_KEY
        elif offset_delta != index:
            fault = OFFSET_NOT_CONSECUTIVE
        elif delta == self._exempt:
            return
        else:
            fault = TIMESTAMP_OUT_OF_RANGE
            self.has_timestamp_error = True
        if len(self.errors) < RECORD_ERRORS_MAX:
            self.errors.append((index, fault))


def _read_int32(data: bytes, at: i64) -> tuple[i64, i64]:
    """A signed 32-bit varint and the position behind it."""
    value: i64 = 0
    shift: i64 = 0
    while True:
        byte: i64 = data[at]
        at += 1
        if shift == 28 and byte > 15:
            raise MalformedRecordsError("A number of a record exceeds 32 bits.")
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
            raise MalformedRecordsError("A number of a record exceeds 64 bits.")
        value |= (byte & 127) << shift
        if byte < 128:
            return ((value >> 1) & INT64_MAX) ^ -(value & 1), at
        shift += 7


def _skip_headers(data: bytes, at: i64, end: i64) -> i64:
    """The end of the headers, whose count is at `at`."""
    count, at = _read_int32(data, at)
    if count < 0:
        raise MalformedRecordsError("A record has a negative number of headers.")
    while count > 0 and at < end:
        length, at = _read_int32(data, at)
        if length < 0:
            raise MalformedRecordsError("A header of a record has no key.")
        length, at = _read_int32(data, at + length)
        if length > 0:
            at += length
        count -= 1
    if count:
        raise MalformedRecordsError("The fields of a record exceed its length.")
    return at
