"""Batches of a producer with a bug, or of an attacker: the CRC is right, the records are not.

`BODIES` names bodies of records, each with one fault or with what looks like one; `raw_batch` makes
a batch of one, under any codec. For the tests of validation, of the wire, and of what reads a log.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from odradek.protocol.compression import Codec, compress
from odradek.protocol.records import BatchHeader, encode_batch, write_varint
from odradek.protocol.types import NO_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE

NULL: Final = -1


def varint(value: int) -> bytes:
    """A zigzag varint."""
    out = bytearray()
    write_varint(out, value)
    return bytes(out)


def raw_field(value: bytes | None, size: int | None = None) -> bytes:
    """A key or a value behind its length, or behind the length `size`, which may be a lie."""
    size = (NULL if value is None else len(value)) if size is None else size
    return varint(size) + (value or b"")


def raw_record(
    offset_delta: int = 0,
    timestamp_delta: int = 0,
    *,
    attributes: int = 0,
    key: bytes | None = b"key",
    value: bytes | None = b"value",
    key_size: int | None = None,
    value_size: int | None = None,
    headers: bytes = b"\x00",
    size_is_off_by: int = 0,
) -> bytes:
    """One record, field by field. `headers` has the count, too; `size_is_off_by` makes it lie about
    its own size."""
    body = b"".join(
        (
            bytes((attributes,)),
            varint(timestamp_delta),
            varint(offset_delta),
            raw_field(key, key_size),
            raw_field(value, value_size),
            headers,
        )
    )
    return varint(len(body) + size_is_off_by) + body


def raw_batch(
    body: bytes,
    record_count: int,
    *,
    base_timestamp: int,
    codec: Codec = Codec.NONE,
    max_timestamp: int | None = None,
    last_offset_delta: int | None = None,
    attributes: int = 0,
) -> bytes:
    """A batch of any body, with the right length and CRC."""
    header = BatchHeader(
        base_offset=0,
        batch_length=0,
        partition_leader_epoch=NO_EPOCH,
        magic=2,
        crc=0,
        attributes=attributes | codec,
        last_offset_delta=record_count - 1 if last_offset_delta is None else last_offset_delta,
        base_timestamp=base_timestamp,
        max_timestamp=base_timestamp if max_timestamp is None else max_timestamp,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_EPOCH,
        base_sequence=NO_SEQUENCE,
        record_count=record_count,
    )
    return bytes(encode_batch(header, compress(codec, body)))


@dataclass(frozen=True, slots=True)
class Body:
    """The records of a batch, and how many the batch header claims."""

    records: Sequence[bytes]
    record_count: int


def _headers(count: int, *fields: bytes) -> bytes:
    return varint(count) + b"".join(fields)


def _good(count: int = 3) -> list[bytes]:
    return [raw_record(index) for index in range(count)]


def _one_of(fields: bytes) -> Body:
    return Body([varint(len(fields)) + fields], 1)


_HEADER: Final = (raw_field(b"h"), raw_field(b"v"))

GOOD_BODIES: Final[dict[str, Body]] = {
    "plain": Body(_good(), 3),
    "headers": Body([raw_record(0, headers=_headers(2, *_HEADER, *_HEADER))], 1),
    "header without a value": Body(
        [raw_record(0, headers=_headers(1, raw_field(b"h"), raw_field(None)))], 1
    ),
    "empty header key": Body(
        [raw_record(0, headers=_headers(1, raw_field(b""), raw_field(b"v")))], 1
    ),
    "header key is not UTF-8": Body(
        [raw_record(0, headers=_headers(1, raw_field(b"\xff\xfe"), raw_field(b"v")))], 1
    ),
    "key length -2": Body([raw_record(0, key=None, key_size=-2)], 1),
    "value length -2": Body([raw_record(0, value=None, value_size=-2)], 1),
    "attributes of a record": Body([raw_record(0, attributes=0x7F)], 1),
    "a longer varint than needed": _one_of(b"\x00" + b"\x80" * 9 + b"\x00\x00\x06key\x0avalue\x00"),
}
"""What Kafka accepts, too."""

BODIES: Final[dict[str, Body]] = GOOD_BODIES | {
    "offset deltas 0, 2, 1": Body([raw_record(0), raw_record(2), raw_record(1)], 3),
    "offset deltas 0, 0, 0": Body([raw_record(0)] * 3, 3),
    "offset deltas 1, 2, 3": Body([raw_record(1), raw_record(2), raw_record(3)], 3),
    "offset deltas 0, 1, 7": Body([raw_record(0), raw_record(1), raw_record(7)], 3),
    "negative offset delta": Body([raw_record(0), raw_record(-1), raw_record(2)], 3),
    "offset delta of 33 bits": Body([raw_record(0), raw_record(2**33)], 2),
    "claims one more": Body(_good(), 4),
    "claims one less": Body(_good(), 2),
    "claims 2 billion": Body(_good(), 2**31 - 1),
    "text": Body([b"this is no record at all, is it"], 3),
    "bytes of 255": Body([b"\xff" * 40], 3),
    "zeros": Body([bytes(40)], 3),
    "empty": Body([], 1),
    "a byte after the last record": Body([*_good(), b"\x00"], 3),
    "bytes after the headers": Body([raw_record(0, headers=b"\x00zz")], 1),
    "the last record is cut": Body([b"".join(_good())[:-2]], 3),
    "record length too large": Body([raw_record(0), raw_record(1, size_is_off_by=1)], 2),
    "record length too small": Body([raw_record(0, size_is_off_by=-1), raw_record(1)], 2),
    "negative record length": Body([varint(-1) + raw_record(0)[1:]], 1),
    "record length of six bytes": Body([b"\x80\x80\x80\x80\x80\x01" + raw_record(0)], 1),
    "key exceeds the record": Body([raw_record(0, key_size=100)], 1),
    "value exceeds the record": Body([raw_record(0, value_size=100)], 1),
    "value exceeds the record into the next": Body([raw_record(0, value_size=8), raw_record(1)], 2),
    "value ends before the record": Body([raw_record(0, value_size=2), raw_record(1)], 2),
    "negative header count": Body([raw_record(0, headers=varint(-1))], 1),
    "fewer headers than claimed": Body([raw_record(0, headers=_headers(5, *_HEADER))], 1),
    "more headers than claimed": Body([raw_record(0, headers=_headers(0, *_HEADER))], 1),
    "2 billion headers": Body([raw_record(0, headers=_headers(2**31 - 1, *_HEADER))], 1),
    "header without a key": Body(
        [raw_record(0, headers=_headers(1, raw_field(None), raw_field(b"v")))], 1
    ),
    "header value exceeds the record": Body(
        [raw_record(0, headers=_headers(1, raw_field(b"h"), raw_field(b"v", 99)))], 1
    ),
    "a varint of eleven bytes": _one_of(b"\x00" + b"\x80" * 10 + b"\x01\x00\x06key\x0avalue\x00"),
}
"""What must be refused, after what must be accepted."""
