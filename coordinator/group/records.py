"""All records of `__consumer_offsets`, in Kafka's own formats, which its tools read.

Types 0 and 1 are committed offsets, 2 classic groups, 3 to 23 the newer types of groups, from
20,001 on live rewinds, which Kafka's tools ignore. Types of later releases decode to None.
Called by `shard`.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

from odradek.coordinator.group.classic.records import CLASSIC_FORMATS, GroupMetadataRecord
from odradek.coordinator.group.consumer.records import CONSUMER_FORMATS
from odradek.coordinator.group.modern.records import ModernRecord
from odradek.coordinator.group.offsets.records import OFFSET_FORMATS, OffsetCommitRecord
from odradek.coordinator.group.rewind.records import REWIND_FORMATS, RewindRecord
from odradek.coordinator.group.share.records import SHARE_FORMATS
from odradek.coordinator.group.streams.records import STREAMS_FORMATS
from odradek.coordinator.record_serde import Entry, RecordSerde

OwnRecord: TypeAlias = OffsetCommitRecord | GroupMetadataRecord | ModernRecord | RewindRecord

_SERDE: Final = RecordSerde(
    "__consumer_offsets",
    (
        *OFFSET_FORMATS,
        *CLASSIC_FORMATS,
        *CONSUMER_FORMATS,
        *SHARE_FORMATS,
        *STREAMS_FORMATS,
        *REWIND_FORMATS,
    ),
)


encode: Final[Callable[[OwnRecord], Entry]] = _SERDE.encode
decode: Final[Callable[[bytes, bytes | None], OwnRecord | None]] = _SERDE.decode
