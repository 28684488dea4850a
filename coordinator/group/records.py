"""All records of `__consumer_offsets`, in Kafka's own formats: its tools read ours, we read its.

Types 0 and 1 are committed offsets, 2 classic groups, 3 to 23 the newer types of groups, from
20,001 on live rewinds, which Kafka's tools pass over. Types of later releases decode to None.
Called by `shard`.
"""

import struct
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias, get_args

from odradek.coordinator.group.classic.records import CLASSIC_FORMATS, GroupMetadataRecord
from odradek.coordinator.group.consumer.records import (
    CONSUMER_RECORD_KINDS,
    ConsumerGroupRecord,
    decode_consumer_record,
    encode_consumer_record,
)
from odradek.coordinator.group.offsets.records import OFFSET_FORMATS, OffsetCommitRecord
from odradek.coordinator.group.record_fields import FieldReader
from odradek.coordinator.group.rewind.records import REWIND_FORMATS, RewindRecord
from odradek.coordinator.group.share.records import (
    SHARE_RECORD_KINDS,
    ShareGroupRecord,
    decode_share_record,
    encode_share_record,
)
from odradek.coordinator.group.streams.records import (
    STREAMS_RECORD_KINDS,
    StreamsGroupRecord,
    decode_streams_record,
    encode_streams_record,
)
from odradek.coordinator.record_serde import Entry, RecordSerde
from odradek.protocol.errors import ProtocolError

OwnRecord: TypeAlias = (
    OffsetCommitRecord
    | GroupMetadataRecord
    | ConsumerGroupRecord
    | ShareGroupRecord
    | StreamsGroupRecord
    | RewindRecord
)

_SERDE: Final = RecordSerde(
    "__consumer_offsets", (*OFFSET_FORMATS, *CLASSIC_FORMATS, *REWIND_FORMATS)
)


def encode(record: OwnRecord) -> Entry:
    encode_other = _ENCODE.get(type(record))
    return _SERDE.encode(record) if encode_other is None else encode_other(record)


def decode(key: bytes, value: bytes | None) -> OwnRecord | None:
    try:
        reader = FieldReader(key)
        kind = reader.int16()
        decode_other = _DECODE.get(kind)
        if decode_other is not None:
            return decode_other(kind, reader, value)
    except (struct.error, IndexError, UnicodeDecodeError, ValueError) as error:
        raise ProtocolError(f"a record of __consumer_offsets is malformed: {error}") from error
    record: OwnRecord | None = _SERDE.decode(key, value)
    return record


_ENCODE: Final[Mapping[type, Callable[[Any], tuple[bytes, bytes | None]]]] = {
    **dict.fromkeys(get_args(ConsumerGroupRecord), encode_consumer_record),
    **dict.fromkeys(get_args(StreamsGroupRecord), encode_streams_record),
    **dict.fromkeys(get_args(ShareGroupRecord), encode_share_record),
}
_DECODE: Final[Mapping[int, Callable[[int, FieldReader, bytes | None], OwnRecord | None]]] = {
    **dict.fromkeys(CONSUMER_RECORD_KINDS, decode_consumer_record),
    **dict.fromkeys(STREAMS_RECORD_KINDS, decode_streams_record),
    **dict.fromkeys(SHARE_RECORD_KINDS, decode_share_record),
}
