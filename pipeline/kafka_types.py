"""Types that all of the pipeline shares: partitions, ranges of offsets, and Kafka's columns.

The columns are those of Spark's Kafka source, as Arrow gives them to Spark.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

import pyarrow as pa

EARLIEST: Final = -2
"""ListOffsets' timestamp for the first offset of the log."""
LATEST: Final = -1
"""ListOffsets' timestamp for its end; with read_committed for the last stable offset."""

HEADER_TYPE: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])

KAFKA_SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestampType", pa.int32()),
        pa.field("headers", pa.list_(HEADER_TYPE)),
    ]
)
"""With headers; without them the last column is missing."""


class PartitionName(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """The offsets from `start` up to, without, `end` of a partition."""

    topic: str
    topic_id: str
    """In base64url as Kafka's tools print it; empty if the cluster has none."""
    partition: int
    start: int
    end: int

    @property
    def name(self) -> PartitionName:
        """The partition."""
        return PartitionName(self.topic, self.partition)
